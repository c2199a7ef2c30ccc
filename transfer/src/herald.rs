//! Brings a new list of the grid to members, for the authority.

use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::address::Address;
use protocol::grid::Grid;
use protocol::identity::{HostId, Identity, Role};
use protocol::list::{Contents, GridList};
use protocol::net::close::DONE;
use protocol::net::endpoint::{EndpointConfig, MTU_SMALL};
use protocol::net::{ConnectError, ExchangeError, Offered, Sockets, newer_list, offer_list};
use protocol::wire::{Code, escaped};
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

/// A member that answers that it is busy is asked again for this long.
pub const BUSY_PATIENCE: Duration = Duration::from_secs(60);

/// Bounds of the wait until a busy member is asked again. Within them the member's wish holds.
const AGAIN_MIN: Duration = Duration::from_millis(250);
const AGAIN_MAX: Duration = Duration::from_secs(5);

/// Longest wait until the last datagrams have been sent.
const LEAVING_MAX: Duration = Duration::from_millis(300);

/// Connections to the members that answered.
#[derive(Debug)]
pub struct Herald {
    sockets: Sockets,
    reached: Vec<(Listener, Connection)>,
    /// Members that did not answer.
    silent: Vec<Without>,
    /// The newest list that one of the members had, if it is newer than that of the authority.
    pub newer: Option<(GridList, Contents)>,
}

/// A member that a list is brought to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listener {
    /// Name of the member in the list of the grid.
    pub name: String,
    /// Key of the member.
    pub id: HostId,
}

/// A member that does not have the list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Without {
    /// The member.
    pub member: Listener,
    /// Whether the member answered. If so, it is there, and did not take the list.
    pub answered: bool,
    /// Why it does not have the list.
    pub why: String,
}

/// Which members got a list.
#[derive(Debug, Default)]
pub struct Delivery {
    /// Members that have this list.
    pub by: Vec<Listener>,
    /// Members that do not have it.
    pub without: Vec<Without>,
}

/// Called with the name of a member, once it is clear that the member is asked again.
pub type OnBusy = Arc<dyn Fn(&str) + Send + Sync>;

#[derive(Debug, thiserror::Error)]
enum NotReached {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error("no answer within {} ms", ANSWER_TIMEOUT.as_millis())]
    Late,
}

impl NotReached {
    const fn has_answered(&self) -> bool {
        matches!(self, Self::Exchange(ExchangeError::Refused(_)))
    }
}

/// Why a member that answered did not take a list.
#[derive(Debug, thiserror::Error)]
enum NotTaken {
    #[error("answered, but was busy for {} s: {detail}", .waited.as_secs())]
    Busy { waited: Duration, detail: String },
    #[error(
        "answered, but has list number {0}, which is newer than this one; the same command again takes it over first"
    )]
    Newer(u64),
    #[error("answered, but did not take the list: {0}")]
    Exchange(#[from] ExchangeError),
}

impl Herald {
    /// Connects to all registries and some hosts of `grid`, and fetches their list if it is newer.
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
            let sockets = herald.sockets.clone();
            let known = known.clone();
            asking.spawn(async move {
                let asked =
                    tokio::time::timeout(ANSWER_TIMEOUT, target.ask(&sockets, &known)).await;
                (target.member, asked.unwrap_or(Err(NotReached::Late)))
            });
        }
        for (member, answer) in asking.join_all().await {
            match answer {
                Ok((connection, newer)) => {
                    herald.reached.push((member, connection));
                    let number = |one: &Option<(GridList, Contents)>| {
                        one.as_ref().map_or(0, |(list, _)| list.number())
                    };
                    if number(&newer) > number(&herald.newer) {
                        herald.newer = newer;
                    }
                }
                Err(cause) => herald.silent.push(Without {
                    member,
                    answered: cause.has_answered(),
                    why: cause.to_string(),
                }),
            }
        }
        herald
    }

    /// How many members answered, and know lists.
    pub fn reached(&self) -> usize {
        self.reached.len()
    }

    /// Sends the list to all members that answered, and closes the connections. A busy member is asked
    /// again for up to `patience`.
    pub async fn send(self, list: &GridList, patience: Duration, on_busy: &OnBusy) -> Delivery {
        let mut heard = Delivery {
            by: Vec::new(),
            without: self.silent,
        };
        let mut sending = JoinSet::new();
        for (member, connection) in self.reached {
            let list = list.clone();
            let on_busy = Arc::clone(on_busy);
            sending.spawn(async move {
                let busy = || on_busy(&member.name);
                let sent = send_patiently(&connection, &list, patience, busy).await;
                connection.close(DONE, b"");
                (member, sent)
            });
        }
        for (member, sent) in sending.join_all().await {
            match sent {
                Ok(()) => heard.by.push(member),
                Err(cause) => heard.without.push(Without {
                    member,
                    answered: true,
                    why: cause.to_string(),
                }),
            }
        }
        heard.by.sort();
        heard.without.sort();
        self.sockets.wait_idle(LEAVING_MAX).await;
        heard
    }

    /// Closes the connections without sending anything.
    pub async fn leave(self) {
        for (_, connection) in &self.reached {
            connection.close(DONE, b"");
        }
        self.sockets.wait_idle(LEAVING_MAX).await;
    }
}

/// Sends a list to a member, and again while the member answers that it is busy. Calls `busy` once, before
/// the first wait.
async fn send_patiently(
    connection: &Connection,
    list: &GridList,
    patience: Duration,
    busy: impl Fn(),
) -> Result<(), NotTaken> {
    let began = Instant::now();
    let mut is_first = true;
    loop {
        let offered = tokio::time::timeout(TAKE_TIMEOUT, offer_list(connection, list)).await;
        let refusal = match offered {
            Ok(Ok(Offered::Known(number))) if number > list.number() => {
                return Err(NotTaken::Newer(number));
            }
            Ok(Ok(Offered::Taken | Offered::Known(_))) => return Ok(()),
            Ok(Err(ExchangeError::Refused(refusal))) if refusal.code == Code::Busy => refusal,
            Ok(Err(cause)) => return Err(cause.into()),
            Err(_) => return Err(ExchangeError::Stalled(TAKE_TIMEOUT).into()),
        };
        let wish = Duration::from_millis(refusal.retry_after_ms.into());
        let wait = wish.clamp(AGAIN_MIN, AGAIN_MAX);
        let waited = began.elapsed();
        if waited + wait > patience {
            let detail = escaped(&refusal.detail);
            return Err(NotTaken::Busy { waited, detail });
        }
        if std::mem::take(&mut is_first) {
            busy();
        }
        tokio::time::sleep(wait).await;
    }
}

struct Target {
    member: Listener,
    addr: Address,
    role: Role,
}

impl Target {
    async fn ask(
        &self,
        sockets: &Sockets,
        known: &Grid,
    ) -> Result<(Connection, Option<(GridList, Contents)>), NotReached> {
        let id = self.member.id;
        let connection = sockets.connect(&self.addr, id, self.role).await?;
        match newer_list(&connection, known).await {
            Ok(newer) => Ok((connection, newer)),
            // The member is there. Whether its list is newer shows when ours is offered.
            Err(ExchangeError::Refused(refusal)) if refusal.code == Code::Busy => {
                Ok((connection, None))
            }
            Err(cause) => Err(cause.into()),
        }
    }
}

fn targets(grid: &Grid) -> Vec<Target> {
    let target = |name: &str, addr: &Address, id, role| Target {
        member: Listener {
            name: name.to_owned(),
            id,
        },
        addr: addr.clone(),
        role,
    };
    let registries = grid.registries.iter();
    let registries = registries.map(|one| target(&one.name, &one.addr, one.id, Role::Registry));
    let hosts = grid.hosts.iter().filter(|host| host.addr.port() != 0);
    let hosts = hosts.choose_multiple(&mut rand::rng(), HOSTS_INFORMED_MAX);
    let hosts = hosts.into_iter();
    let hosts = hosts.map(|one| target(&one.name, &one.addr, one.id, Role::Donor));
    registries.chain(hosts).collect()
}
