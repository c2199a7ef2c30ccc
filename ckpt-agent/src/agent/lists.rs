//! Lists of the grid: a client learns of a newer one from any host that it asked something, and has
//! hosts take its own where that is the newer one.

use std::sync::Arc;
use std::time::Duration;

use protocol::grid::Grid;
use protocol::list::{GridList, ListFiles};
use tokio::task::JoinSet;

use super::Agent;

/// Hosts that are had to take our list, at most: they pass it on.
const PASSED_ON_MAX: usize = 8;

/// Longest time that a command takes for this at its end.
const PATIENCE: Duration = Duration::from_secs(2);

/// The list that this client has, and where.
#[derive(Clone, Debug)]
pub(super) struct Lists {
    known: Arc<Grid>,
    files: ListFiles,
}

impl Lists {
    pub(super) fn new(grid: &Grid, files: ListFiles) -> Self {
        let nobody = Grid::new(grid.name.clone(), grid.authority.clone());
        let list = grid.list.clone();
        Self {
            known: Arc::new(Grid { list, ..nobody }),
            files,
        }
    }
}

/// Writes a list down. Where that is not possible it is asked for again by the next command.
pub(super) fn keep(files: &ListFiles, grid: &Grid, list: &GridList) {
    if let Err(cause) = files.keep(&grid.authority, list) {
        tracing::warn!(%cause, number = list.number(), "list of the grid not written");
    }
}

impl Agent {
    /// Fetches a newer list that a host said it has, for the next command, and has some hosts take ours
    /// that said they have an older one.
    pub(super) async fn pass_lists_on(&self) {
        let Some(lists) = &self.lists else {
            return;
        };
        let ours = lists.known.number();
        let theirs = self.hosts.lists();
        let newest = theirs.iter().max_by_key(|(_, number)| **number);
        let newest = newest.filter(|(_, number)| **number > ours);
        let older = theirs.iter().filter(|(_, number)| **number < ours);
        let asked: Vec<_> = match newest {
            Some((host, _)) => vec![*host],
            None => older.map(|(host, _)| *host).take(PASSED_ON_MAX).collect(),
        };
        let mut comparing = JoinSet::new();
        for host in asked {
            let (hosts, known) = (self.hosts.clone(), Arc::clone(&lists.known));
            comparing.spawn(async move { hosts.compare_lists(host, &known).await });
        }
        let all = tokio::time::timeout(PATIENCE, comparing.join_all()).await;
        for compared in all.into_iter().flatten() {
            match compared {
                Ok(None) => {}
                Ok(Some((list, _))) => keep(&lists.files, &lists.known, &list),
                Err(fault) => tracing::info!(%fault, "lists of the grid not compared"),
            }
        }
    }
}
