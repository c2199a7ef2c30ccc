//! Finds the hosts of a grid.

use protocol::grid::Grid;
use protocol::identity::{HostId, Identity};
use protocol::list::ListFiles;
use transfer::cards;
use transfer::registry::Registries;
use transfer::roster::{self, Roster, Silent};

use crate::agent::list_files;
use crate::knowledge::{Missed, Named, Notebook, Observation};
use crate::unix_time::unix_seconds;

/// Whether this program was built with etcd as a registry.
pub const KNOWS_ETCD: bool = cfg!(feature = "etcd");

/// A machine that is new to a grid asks donors, too, if registries name fewer members: a registry that has lost what it
/// knew names few.
const FEW_MEMBERS: usize = 64;

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
    let is_new = grid.hosts.is_empty() && known.roster().is_empty();
    if !is_new {
        registries = registries.in_a_hurry();
    }
    let mut answers = registries.ask(grid, Vec::new()).await;
    let newer = answers.iter_mut().filter_map(|answer| answer.list.take());
    if let Some((list, contents)) = newer.max_by_key(|(list, _)| list.number()) {
        list_files::keep(files, grid, &list);
        grid.follow(list, contents);
    }
    let now = unix_seconds();
    let mut roster = roster::merge(grid, &answers, known.roster(), now);
    let members = roster.hosts.len() + roster.absent.len();
    if answers.is_empty() || is_new && members < FEW_MEMBERS {
        let sent = registries.ask_donors(&roster.hosts).await;
        cards::add_cards(&mut roster, grid, &sent, now);
    }
    if !answers.is_empty() {
        notebook.note(Observation::Roster(named(grid, &roster)));
    }
    // The registries may all have lost members, or hide them. This machine remembers them.
    let known = notebook.read(now);
    let missed = known.missed(now).map(|missed| {
        let silent = Silent {
            seen_at: missed.seen_at,
            certified_until: missed.certified_until,
        };
        (&missed.host, silent)
    });
    roster.remember(missed, |id| grid.revoked.contains(id));
    roster
}

/// Which hosts registries and the list of the grid name.
fn named(grid: &Grid, roster: &Roster) -> Named {
    let silent = roster.absent.iter().filter_map(|host| {
        let silent = roster.reported.silent.get(&host.id)?;
        Some(Missed {
            host: host.clone(),
            seen_at: silent.seen_at,
            certified_until: silent.certified_until,
        })
    });
    Named {
        // The hosts of the grid file come first; the others were found through registries.
        there: roster
            .hosts
            .iter()
            .skip(grid.hosts.len())
            .cloned()
            .collect(),
        listed: grid.hosts.iter().map(|host| host.id).collect(),
        silent: silent.collect(),
        revoked: grid.revoked.keys().map(|key| HostId(*key)).collect(),
    }
}
