//! Finds the hosts of a grid.

use protocol::grid::Grid;
use protocol::identity::Identity;
use protocol::list::ListFiles;
use transfer::registry::Registries;
use transfer::roster::{self, Roster};

use crate::agent::list_files;
use crate::knowledge::{Notebook, Observation};
use crate::unix_time::unix_seconds;

/// Whether this program was built with etcd as a registry.
pub const KNOWS_ETCD: bool = cfg!(feature = "etcd");

/// All hosts of `grid`: those of the grid file, and those that a registry lists now, or listed when one last
/// answered. If a registry has a newer list of the grid, that list applies at once and is kept in `files`.
pub async fn discover(
    grid: &mut Grid,
    files: &ListFiles,
    identity: &Identity,
    notebook: &Notebook,
) -> Roster {
    let registries = Registries::new(identity, grid);
    let mut registries = registries.without_announcements().with_lists();
    let known = notebook.read(unix_seconds());
    if !grid.hosts.is_empty() || !known.roster().is_empty() {
        registries = registries.in_a_hurry();
    }
    let mut answers = registries.ask(grid, Vec::new()).await;
    let newer = answers.iter_mut().filter_map(|answer| answer.list.take());
    if let Some((list, contents)) = newer.max_by_key(|(list, _)| list.number()) {
        list_files::keep(files, grid, &list);
        grid.follow(list, contents);
    }
    let mut roster = roster::merge(&grid.hosts, &answers, known.roster(), &grid.revoked);
    if !answers.is_empty() {
        // The hosts of the grid file come first; the others were found through registries.
        let found = roster.hosts.iter().skip(grid.hosts.len()).cloned();
        let listed = grid.hosts.iter().map(|host| host.id).collect();
        notebook.note(Observation::Roster(found.collect(), listed));
    }
    // Registries name only hosts that are there. The others may have what is asked for.
    let now = unix_seconds();
    let known = notebook.read(now);
    roster.remember(known.missed(now), |id| grid.revoked.contains(id));
    roster
}
