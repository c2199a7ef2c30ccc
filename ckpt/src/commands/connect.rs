//! The connection to the grid that options and environment name.

use std::io::{self, Write};
use std::path::PathBuf;

use protocol::grid::Grid;
use protocol::identity::Identity;
use protocol::list::ListFiles;

use super::args::options::Global;
use super::key::identity;
use super::state_dir::usual_grid_file;
use ckpt_agent::agent::{self, Agent, MEMORY_USUAL, Resources};
use ckpt_agent::connection::{Files, list_files, load_grid, notebook, roster};
use ckpt_agent::report::{ExitStatus, Failure};

/// The path of the grid file: the named one, or the one of `ckpt join`. An empty path, as from an empty
/// variable, counts as no name.
pub(crate) fn grid_file(global: &Global) -> Option<PathBuf> {
    let named = global.grid.clone();
    let named = named.filter(|path| !path.as_os_str().is_empty());
    named.or_else(|| usual_grid_file().filter(|path| path.exists()))
}

/// Connects to the grid with the identity that options and environment name.
pub(crate) async fn connect(global: &Global) -> Result<Connected, Failure> {
    let (path, mut grid) = named_grid(global)?;
    if !grid.etcd.is_empty() && !agent::KNOWS_ETCD {
        let _ = writeln!(
            io::stderr(),
            "ckpt: warning: the grid file names etcd as a registry, but this program was built without etcd (--features etcd)"
        );
    }
    let files = identity::files(global, Some(&grid))?;
    let identity = identity::load(global, &files)?;
    let identity = identity::renewed(identity, &grid, &files);
    identity::check_end(&identity, &files)?;
    let lists = list_files(&path, &grid);
    Ok(Connected {
        agent: agent_for(global, &mut grid, &lists, &identity).await?,
        grid,
        lists,
        files,
        identity,
    })
}

/// The path of the grid file that options and environment name, and its contents with the newest list.
pub(crate) fn named_grid(global: &Global) -> Result<(PathBuf, Grid), Failure> {
    let path = grid_file(global).ok_or_else(|| no_grid_file(global))?;
    let grid = load_grid(&path)?;
    Ok((path, grid))
}

/// There is no grid file. Whoever has a key or a certificate was in a grid, and has lost the file.
pub(crate) fn no_grid_file(global: &Global) -> Failure {
    let failure = Failure::new(ExitStatus::Usage, "no grid file");
    let files = identity::files(global, None).ok();
    let was_member = files.is_some_and(|files| files.key.exists() || files.certificate.exists());
    match usual_grid_file() {
        Some(path) if was_member => failure.next(format!(
            "ckpt key import FILE, with what ckpt key export wrote; or copy grid.toml of any member, which is no secret, to {}",
            path.display()
        )),
        _ => failure.next(
            "ckpt join TOKEN, or ckpt key import FILE if you have a copy of your key; or --grid FILE, or CKPT_GRID=FILE; a grid on this machine: ckpt grid up --dir DIR",
        ),
    }
}

/// An agent, and what other agents can be made from.
pub(crate) struct Connected {
    pub(crate) agent: Agent,
    pub(crate) grid: Grid,
    pub(crate) lists: ListFiles,
    pub(crate) files: Files,
    pub(crate) identity: Identity,
}

pub(crate) async fn agent_for(
    global: &Global,
    grid: &mut Grid,
    lists: &ListFiles,
    identity: &Identity,
) -> Result<Agent, Failure> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let resources = Resources {
        memory_bytes: global.memory.unwrap_or(MEMORY_USUAL),
        cpus: global.cpus.map_or(cpus, usize::from).max(1),
        bytes_per_second: global.bandwidth,
    };
    let notebook = notebook(grid);
    let roster = roster(grid, lists, identity, &notebook).await;
    let agent = Agent::new(grid, roster, identity, resources, notebook)?;
    Ok(agent.with_lists(grid, lists.clone()))
}
