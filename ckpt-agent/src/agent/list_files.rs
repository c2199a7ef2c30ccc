//! The list of the grid that a client has, and where it is kept.

use std::sync::Arc;

use protocol::grid::Grid;
use protocol::list::{GridList, ListFiles};

/// The list that this client has, and the files that lists are kept in.
#[derive(Clone, Debug)]
pub(crate) struct Lists {
    pub(crate) known: Arc<Grid>,
    pub(crate) files: ListFiles,
}

impl Lists {
    pub(crate) fn new(grid: &Grid, files: ListFiles) -> Self {
        let nobody = Grid::new(grid.name.clone(), grid.authority.clone());
        let list = grid.list.clone();
        Self {
            known: Arc::new(Grid { list, ..nobody }),
            files,
        }
    }
}

/// Writes a list to its file. If that fails, the next command fetches the list again.
pub(crate) fn keep(files: &ListFiles, grid: &Grid, list: &GridList) {
    if let Err(cause) = files.keep(&grid.authority, list) {
        tracing::warn!(%cause, number = list.number(), "list of the grid not written");
    }
}
