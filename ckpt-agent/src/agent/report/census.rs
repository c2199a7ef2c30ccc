//! `ckpt health` for an admin: what hosts count, summed over the grid.

use health::{Health, KeyHealth, Limits, judged};
use protocol::grid::Grid;
use protocol::identity::{Identity, Role};
use transfer::census::{ask_all, hosts_health, silent_health, summed_up, with_silent};
use transfer::roster::Roster;

use crate::agent::report::health::registries_health;
use crate::report::{ExitStatus, Failure};
use crate::unix_time::unix_seconds;
use protocol::errors::chain;
use transfer::Hosts;

/// Bytes in flight to or from each host; an admin transfers little.
const WINDOW: u32 = 256 << 10;

/// Most hosts that are asked at the same time.
const ASKED_AT_ONCE: usize = 256;

/// The health of the grid, from what its hosts count for an admin.
///
/// # Errors
/// When the identity is not an admin's, or no socket can be opened.
pub async fn grid_health(
    grid: &Grid,
    roster: Roster,
    identity: &Identity,
    limits: &Limits,
    keys: Vec<KeyHealth>,
) -> Result<Health, Failure> {
    let denied = |what: String| Failure::new(ExitStatus::Denied, what);
    let another = "ckpt grid sign --role admin, by the grid's authority";
    let peer = identity.peer();
    let peer = peer.map_err(|cause| denied(cause.to_string()).next(another))?;
    if !peer.has(Role::Admin) {
        let what = format!("{:?} is not certified as an admin", peer.name);
        return Err(denied(what).next(another));
    }
    let silent = silent_health(&roster);
    let absent = silent.len();
    let grid = Grid {
        hosts: roster.hosts,
        ..grid.clone()
    };
    let announced = roster.heard;
    let hosts = Hosts::with_reports(&grid, roster.reported, identity, WINDOW);
    let hosts = hosts
        .map_err(|cause| Failure::new(ExitStatus::Failed, format!("network: {}", chain(&cause))))?;
    let (heard, registries) = tokio::join!(
        ask_all(&hosts, ASKED_AT_ONCE),
        registries_health(&grid, identity)
    );
    let health = Health {
        at: unix_seconds(),
        keys,
        hosts: with_silent(hosts_health(&hosts, &heard, &announced), silent),
        absent,
        registries,
        grid: Some(summed_up(&hosts, &heard)),
        ..Health::default()
    };
    hosts.close().await;
    Ok(judged(health, limits))
}
