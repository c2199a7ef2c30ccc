//! Asks other hosts for a newer list of the grid, now and then. A host that was away while a list was
//! passed on gets it in this way.

use std::sync::Arc;
use std::time::Duration;

use protocol::grid::{Grid, GridHost};
use protocol::identity::{Identity, Role};
use protocol::net::close::DONE;
use protocol::net::endpoint::{EndpointConfig, MTU_SMALL};
use protocol::net::{Members, Sockets, compare_lists};
use rand::seq::IteratorRandom;
use tracing::debug;

use crate::monitor::Monitor;
use crate::monitor::stance::Stance;

/// Most hosts that are tried in one round, until one answers.
const HOSTS_TRIED_MAX: usize = 3;

/// Asks one host in every `period`, the first one immediately; does not return.
pub async fn run(members: Members, identity: Identity, monitor: Arc<Monitor>, period: Duration) {
    let own = identity.secret.id();
    let settings = EndpointConfig {
        mtu_max: MTU_SMALL,
        ..EndpointConfig::new(identity, members.grid().authority.clone())
    };
    let sockets = Sockets::new(settings);
    let mut rounds = tokio::time::interval(period);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        if matches!(monitor.stance(), Stance::Closed(_)) {
            continue;
        }
        let grid = members.grid();
        let others = grid.hosts.iter();
        let others = others.filter(|host| host.id.0 != own && host.addr.port() != 0);
        let chosen = others.choose_multiple(&mut rand::rng(), HOSTS_TRIED_MAX);
        for host in chosen {
            if ask(&sockets, &members, &grid, host).await {
                break;
            }
        }
    }
}

/// Compares lists of the grid with a host. Returns whether the host answered.
async fn ask(sockets: &Sockets, members: &Members, grid: &Grid, host: &GridHost) -> bool {
    let name = &host.name;
    let connection = match sockets.connect(&host.addr, host.id, Role::Donor).await {
        Ok(connection) => connection,
        Err(cause) => {
            debug!(host = name, %cause, "can't ask the host for a list of the grid");
            return false;
        }
    };
    let compared = compare_lists(&connection, grid).await;
    connection.close(DONE, b"");
    match compared {
        Ok(None) => true,
        Ok(Some((list, contents))) => {
            members.take_over(list, contents).await;
            true
        }
        Err(cause) => {
            debug!(host = name, %cause, "the host sends no list of the grid");
            false
        }
    }
}
