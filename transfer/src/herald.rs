//! Brings a new list of the grid to members, for the authority.

use std::time::Duration;

use protocol::address::Address;
use protocol::grid::Grid;
use protocol::identity::{HostId, Identity, Role};
use protocol::list::{Contents, GridList};
use protocol::net::close::DONE;
use protocol::net::endpoint::{EndpointConfig, MTU_SMALL};
use protocol::net::{ConnectError, ExchangeError, Sockets, compare_lists, offer_list};
use quinn::Connection;
use rand::seq::IteratorRandom;
use tokio::task::JoinSet;

/// Most hosts to which a list is brought directly. They pass it on to the others.
const HOSTS_INFORMED_MAX: usize = 64;

/// Time limit for a member to answer. A slower member gets the list from others.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1_500);

/// Time limit for a member to receive a list. Meanwhile the authority's directory can't be changed by
/// anything else.
const TAKE_TIMEOUT: Duration = Duration::from_secs(8);

/// Longest wait until the last datagrams have been sent.
const LEAVING_MAX: Duration = Duration::from_millis(300);

/// Connections to the members that answered.
#[derive(Debug)]
pub struct Herald {
    sockets: Sockets,
    reached: Vec<(String, Connection)>,
    /// Members that did not answer, or whose program is too old for a list, and why.
    pub silent: Vec<(String, String)>,
    /// The newest list that one of the members had, if it is newer than that of the authority.
    pub newer: Option<(GridList, Contents)>,
}

/// Which members got a list.
#[derive(Debug, Default)]
pub struct Delivery {
    /// Members that have this list, or a newer one.
    pub by: Vec<String>,
    /// Members that do not have it, and why.
    pub silent: Vec<(String, String)>,
}

#[derive(Debug, thiserror::Error)]
enum NotReached {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error("no answer within {} ms", ANSWER_TIMEOUT.as_millis())]
    Late,
}

impl Herald {
    /// Connects to all registries and some hosts of `grid`, and compares lists with them.
    pub async fn reach(grid: &Grid, identity: &Identity) -> Self {
        let settings = EndpointConfig {
            mtu_max: MTU_SMALL,
            ..EndpointConfig::new(identity.clone(), grid.authority.clone())
        };
        let targets = targets(grid);
        let mut herald = Self {
            sockets: Sockets::new(settings),
            reached: Vec::new(),
            silent: Vec::new(),
            newer: None,
        };
        let known = Grid {
            list: grid.list.clone(),
            ..Grid::new(grid.name.clone(), grid.authority.clone())
        };
        let mut asking = JoinSet::new();
        for target in targets {
            let (sockets, known) = (herald.sockets.clone(), known.clone());
            asking.spawn(async move {
                let asked =
                    tokio::time::timeout(ANSWER_TIMEOUT, target.ask(&sockets, &known)).await;
                (target.name, asked.unwrap_or(Err(NotReached::Late)))
            });
        }
        for (name, answer) in asking.join_all().await {
            match answer {
                Ok((connection, newer)) => {
                    herald.reached.push((name, connection));
                    let number = |one: &Option<(GridList, Contents)>| {
                        one.as_ref().map_or(0, |(list, _)| list.number())
                    };
                    if number(&newer) > number(&herald.newer) {
                        herald.newer = newer;
                    }
                }
                Err(cause) => herald.silent.push((name, cause.to_string())),
            }
        }
        herald
    }

    /// Sends the list to all members that answered, and closes the connections.
    pub async fn send(self, list: Option<&GridList>) -> Delivery {
        let mut heard = Delivery {
            by: Vec::new(),
            silent: self.silent,
        };
        let mut sending = JoinSet::new();
        for (name, connection) in self.reached {
            let list = list.cloned();
            sending.spawn(async move {
                let sent = match &list {
                    Some(list) => {
                        let offered =
                            tokio::time::timeout(TAKE_TIMEOUT, offer_list(&connection, list));
                        let late = |_| Err(ExchangeError::Stalled(TAKE_TIMEOUT));
                        offered.await.unwrap_or_else(late).map(|_| ())
                    }
                    None => Ok(()),
                };
                connection.close(DONE, b"");
                (name, sent)
            });
        }
        for (name, sent) in sending.join_all().await {
            match sent {
                Ok(()) => heard.by.push(name),
                Err(cause) => heard.silent.push((name, cause.to_string())),
            }
        }
        heard.by.sort();
        heard.silent.sort();
        self.sockets.wait_idle(LEAVING_MAX).await;
        heard
    }
}

struct Target {
    name: String,
    addr: Address,
    id: HostId,
    role: Role,
}

impl Target {
    async fn ask(
        &self,
        sockets: &Sockets,
        known: &Grid,
    ) -> Result<(Connection, Option<(GridList, Contents)>), NotReached> {
        let connection = sockets.connect(&self.addr, self.id, self.role).await?;
        let newer = compare_lists(&connection, known).await?;
        Ok((connection, newer))
    }
}

fn targets(grid: &Grid) -> Vec<Target> {
    let registries = grid.registries.iter().map(|one| Target {
        name: one.name.clone(),
        addr: one.addr.clone(),
        id: one.id,
        role: Role::Registry,
    });
    let hosts = grid.hosts.iter().filter(|host| host.addr.port() != 0);
    let hosts = hosts.choose_multiple(&mut rand::rng(), HOSTS_INFORMED_MAX);
    let hosts = hosts.into_iter().map(|one| Target {
        name: one.name.clone(),
        addr: one.addr.clone(),
        id: one.id,
        role: Role::Donor,
    });
    registries.chain(hosts).collect()
}
