//! Asks registries which hosts there are.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use codec::{CheckpointId, OwnerId};
use protocol::grid::Grid;
use protocol::identity::{Identity, Role};
use protocol::net::endpoint::{EndpointConfig, EndpointError, MTU_SMALL};
use protocol::net::stream::{ExchangeError, read_frame, request};
use protocol::net::{ConnectError, client, connect_as};
use protocol::wire::limits::{HOLDERS_MAX, MEMBERS_MAX, REQUEST_TIMEOUT};
use protocol::wire::message::{MemberRecord, Request, Response};
use quinn::{Connection, Endpoint};
use tokio::task::JoinSet;

use crate::etcd::{Etcd, EtcdError};
use crate::roster::HOSTS_MAX;

/// How long registries are waited for: those that answer later are not needed.
const PATIENCE: Duration = Duration::from_secs(3);

/// What a registry may have in flight to here.
const WINDOW: u32 = 1 << 20;

/// Why a registry told nothing.
#[derive(Debug, thiserror::Error)]
enum Silent {
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error("wrong answer")]
    Answer,
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Late,
}

/// What registries are asked.
#[derive(Clone, Debug)]
enum Question {
    Members,
    Holders(Arc<Vec<CheckpointId>>),
}

/// What a registry answered.
#[derive(Debug, Default)]
struct Told {
    members: Vec<MemberRecord>,
    holders: BTreeSet<OwnerId>,
}

impl Question {
    async fn ask(&self, connection: &Connection) -> Result<Told, Silent> {
        Ok(match self {
            Self::Members => Told {
                members: members(connection).await?,
                ..Told::default()
            },
            Self::Holders(checkpoints) => Told {
                holders: holders(connection, checkpoints).await?,
                ..Told::default()
            },
        })
    }
}

/// A client of registries; its sockets are made once.
#[derive(Debug)]
pub struct Registries {
    config: EndpointConfig,
    v4: Mutex<Option<Endpoint>>,
    v6: Mutex<Option<Endpoint>>,
    etcd: Option<Etcd>,
}

impl Registries {
    /// Somebody with this identity, who asks registries of this grid.
    pub fn new(identity: &Identity, grid: &Grid) -> Self {
        let config = EndpointConfig {
            receive_window: WINDOW,
            stream_window: WINDOW,
            mtu_max: MTU_SMALL,
            ..EndpointConfig::new(identity.clone(), grid.authority.clone())
        };
        Self {
            config,
            v4: Mutex::default(),
            v6: Mutex::default(),
            etcd: Etcd::of(grid),
        }
    }

    /// Which donors there are, as each registry of `grid` says that answers.
    pub async fn members(&self, grid: &Grid) -> Vec<Vec<MemberRecord>> {
        let (told, etcd) = tokio::join!(self.ask_all(grid, &Question::Members), async {
            let etcd = self.etcd.as_ref()?;
            said(etcd.members().await)
        });
        let told = told.into_iter().map(|told| told.members);
        told.chain(etcd).collect()
    }

    /// Who holds shards of any of these checkpoints, as all registries of `grid` together say. `None`
    /// when none answers.
    pub async fn holders(
        &self,
        grid: &Grid,
        checkpoints: Arc<Vec<CheckpointId>>,
    ) -> Option<BTreeSet<OwnerId>> {
        let question = Question::Holders(Arc::clone(&checkpoints));
        let (told, etcd) = tokio::join!(self.ask_all(grid, &question), async {
            let etcd = self.etcd.as_ref()?;
            said(etcd.holders(&checkpoints).await)
        });
        let told: Vec<_> = told
            .into_iter()
            .map(|told| told.holders)
            .chain(etcd)
            .collect();
        (!told.is_empty()).then(|| told.into_iter().flatten().collect())
    }

    async fn ask_all(&self, grid: &Grid, question: &Question) -> Vec<Told> {
        let mut asking = JoinSet::new();
        for registry in &grid.registries {
            let endpoint = self.endpoint(registry.addr);
            let (registry, question) = (registry.clone(), question.clone());
            asking.spawn(async move {
                let asked = async {
                    let endpoint = endpoint?;
                    let (addr, id) = (registry.addr, registry.id);
                    let connection = connect_as(&endpoint, addr, id, Role::Registry).await?;
                    let told = question.ask(&connection).await;
                    connection.close(0_u32.into(), b"");
                    told
                };
                let asked = tokio::time::timeout(PATIENCE, asked).await;
                (registry.name, asked.unwrap_or(Err(Silent::Late)))
            });
        }
        let mut all = Vec::new();
        for (registry, answer) in asking.join_all().await {
            match answer {
                Ok(told) => all.push(told),
                Err(cause) => tracing::warn!(registry, %cause, "registry left out"),
            }
        }
        all
    }

    fn endpoint(&self, to: SocketAddr) -> Result<Endpoint, EndpointError> {
        let (slot, any): (_, SocketAddr) = match to {
            SocketAddr::V4(_) => (&self.v4, ([0, 0, 0, 0], 0).into()),
            SocketAddr::V6(_) => (&self.v6, ([0; 8], 0).into()),
        };
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(endpoint) = slot.as_ref() {
            return Ok(endpoint.clone());
        }
        Ok(slot.insert(client(&self.config, any)?).clone())
    }
}

/// What etcd said; nothing when it did not answer.
fn said<T>(answer: Result<T, EtcdError>) -> Option<T> {
    answer
        .inspect_err(|cause| tracing::warn!(%cause, "registry left out"))
        .ok()
}

async fn members(connection: &Connection) -> Result<Vec<MemberRecord>, Silent> {
    let mut records: Vec<MemberRecord> = Vec::new();
    loop {
        let after = records.last().map(|record| record.id);
        let asked = request(connection, &Request::Members { after }, REQUEST_TIMEOUT).await?;
        let (Response::Members { count, more }, mut exchange) = asked else {
            return Err(Silent::Answer);
        };
        let too_many = records.len() + count as usize > HOSTS_MAX;
        if count > MEMBERS_MAX || too_many || (more && count == 0) {
            return Err(Silent::Answer);
        }
        for _ in 0..count {
            let record: MemberRecord = read_frame(&mut exchange.recv, REQUEST_TIMEOUT).await?;
            // Ascending: a registry can't make us ask for ever.
            if records.last().is_some_and(|last| last.id >= record.id) {
                return Err(Silent::Answer);
            }
            records.push(record);
        }
        if !more {
            return Ok(records);
        }
    }
}

async fn holders(
    connection: &Connection,
    checkpoints: &[CheckpointId],
) -> Result<BTreeSet<OwnerId>, Silent> {
    let mut all = BTreeSet::new();
    for checkpoint in checkpoints {
        let asked = Request::Holders {
            checkpoint: *checkpoint,
        };
        match request(connection, &asked, REQUEST_TIMEOUT).await? {
            (Response::Holders { holders }, _) if holders.len() <= HOLDERS_MAX => {
                all.extend(holders.into_iter().map(|(id, _)| id));
            }
            _ => return Err(Silent::Answer),
        }
    }
    Ok(all)
}
