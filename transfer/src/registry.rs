//! Asks registries which hosts there are, and which of them hold shards of some checkpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use codec::{CheckpointId, OwnerId};
use protocol::grid::{Grid, GridHost};
use protocol::identity::{Identity, Role};
use protocol::list::{Contents, GridList};
use protocol::net::endpoint::{EndpointConfig, MTU_SMALL};
use protocol::net::stream::{read_frame, request};
use protocol::net::{Sockets, compare_lists};
use protocol::wire::announcement::{Announcement, CURVE_STEPS_MAX};
use protocol::wire::limits::{HOLDERS_MAX, MEMBERS_MAX, REQUEST_TIMEOUT, TEXT_BYTES_MAX};
use protocol::wire::message::{CardRecord, MemberRecord, Request, Response};
use quinn::Connection;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cards;
use crate::etcd::{Etcd, EtcdError};
use crate::registry_answer::{HOSTS_MAX, NoAnswer, RegistryAnswer};

/// Time limit for registries. What a slower registry would answer is not needed.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Time limit for a caller that knows hosts already. A registry that is down must not delay every
/// command.
const HURRIED_TIMEOUT: Duration = Duration::from_millis(750);

/// Most bytes that a registry may have in flight to this client.
const WINDOW_BYTES: u32 = 1 << 20;

/// More than the bytes of any bitmap of availability.
const BITMAP_BYTES_MAX: usize = 4 << 10;

/// A client of registries. Its sockets are opened once.
#[derive(Debug)]
pub struct Registries {
    sockets: Sockets,
    etcd: Option<Etcd>,
    keeps_announcements: bool,
    patience: Duration,
    compares_lists: bool,
}

impl Registries {
    /// A client with this identity, for the registries of this grid.
    pub fn new(identity: &Identity, grid: &Grid) -> Self {
        let config = EndpointConfig {
            receive_window: WINDOW_BYTES,
            stream_window: WINDOW_BYTES,
            mtu_max: MTU_SMALL,
            ..EndpointConfig::new(identity.clone(), grid.authority.clone())
        };
        Self {
            sockets: Sockets::new(config),
            etcd: Etcd::of(grid),
            keeps_announcements: true,
            patience: ANSWER_TIMEOUT,
            compares_lists: false,
        }
    }

    /// The same client, which also compares lists of the grid with registries: the side with the older
    /// list gets the newer one.
    #[must_use]
    pub fn with_lists(mut self) -> Self {
        self.compares_lists = true;
        self
    }

    /// The same client with a short time limit: a registry that does not answer within 0.75 s is left
    /// out.
    #[must_use]
    pub fn in_a_hurry(mut self) -> Self {
        self.patience = HURRIED_TIMEOUT;
        self
    }

    /// The same client, which drops the announcements of hosts as they arrive. They are most of what a
    /// registry sends, and this caller wants to know only which hosts there are.
    #[must_use]
    pub fn without_announcements(mut self) -> Self {
        self.keeps_announcements = false;
        self
    }

    /// Asks each registry of `grid` which donors there are, and which of them hold shards of any of
    /// `checkpoints`. Returns the answers that arrived in time.
    pub async fn ask(&self, grid: &Grid, checkpoints: Vec<CheckpointId>) -> Vec<RegistryAnswer> {
        let checkpoints: Arc<[CheckpointId]> = checkpoints.into();
        let asking = self.asking(grid, &checkpoints);
        let until = Instant::now() + self.patience;
        let (etcd, mut all) = tokio::join!(
            tokio::time::timeout_at(until, self.ask_etcd(&checkpoints)),
            collect(asking, until)
        );
        all.extend(etcd.ok().flatten());
        all
    }

    /// Asks some of these donors for the cards of the other members.
    pub async fn ask_donors(&self, hosts: &[GridHost]) -> Vec<Vec<CardRecord>> {
        cards::of_donors(&self.sockets, hosts).await
    }

    /// How each registry of `grid` answers, in the order of the grid file: how many donors it has
    /// recently heard of, or why it gave no answer. The short time limit is not used here.
    pub async fn check(&self, grid: &Grid) -> Vec<(String, Result<usize, String>)> {
        let (etcd, asked) =
            tokio::join!(self.check_etcd(), self.asking(grid, &[].into()).join_all());
        let mut found: BTreeMap<String, Result<usize, String>> = asked
            .into_iter()
            .map(|(name, answer)| {
                (
                    name,
                    answer
                        .map(|answer| alive(&answer))
                        .map_err(|why| why.to_string()),
                )
            })
            .collect();
        let listed = grid.registries.iter();
        let mut all: Vec<_> = listed
            .filter_map(|registry| found.remove_entry(&registry.name))
            .collect();
        all.extend(etcd.map(|found| ("etcd".to_owned(), found)));
        all
    }

    async fn check_etcd(&self) -> Option<Result<usize, String>> {
        let members = self.etcd.as_ref()?.members();
        let late = |_| Err(NoAnswer::Late(ANSWER_TIMEOUT).to_string());
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, members).await;
        Some(asked.map_or_else(late, |members| match members {
            Ok(members) => Ok(members.iter().filter(|record| record.alive).count()),
            Err(cause) => Err(cause.to_string()),
        }))
    }

    /// Sends the same request to each registry. Each has at most `ANSWER_TIMEOUT` to answer.
    fn asking(
        &self,
        grid: &Grid,
        checkpoints: &Arc<[CheckpointId]>,
    ) -> JoinSet<(String, Result<RegistryAnswer, NoAnswer>)> {
        let known = self.compares_lists.then(|| {
            let nobody = Grid::new(grid.name.clone(), grid.authority.clone());
            Arc::new(Grid {
                list: grid.list.clone(),
                ..nobody
            })
        });
        let mut asking = JoinSet::new();
        for registry in &grid.registries {
            let known = known.clone();
            let sockets = self.sockets.clone();
            let registry = registry.clone();
            let checkpoints = Arc::clone(checkpoints);
            let keeps_announcements = self.keeps_announcements;
            asking.spawn(async move {
                let asked = async {
                    let addr = &registry.addr;
                    let id = registry.id;
                    let connection = sockets.connect(addr, id, Role::Registry).await?;
                    let answer = RegistryAnswer {
                        members: members(&connection, keeps_announcements).await?,
                        holders: holders(&connection, &checkpoints).await?,
                        list: match &known {
                            Some(known) => list(&connection, known).await,
                            None => None,
                        },
                    };
                    connection.close(0_u32.into(), b"");
                    Ok::<_, NoAnswer>(answer)
                };
                let asked = tokio::time::timeout(ANSWER_TIMEOUT, asked).await;
                (
                    registry.name,
                    asked.unwrap_or(Err(NoAnswer::Late(ANSWER_TIMEOUT))),
                )
            });
        }
        asking
    }

    async fn ask_etcd(&self, checkpoints: &[CheckpointId]) -> Option<RegistryAnswer> {
        let etcd = self.etcd.as_ref()?;
        let asked = async {
            Ok::<_, EtcdError>(RegistryAnswer {
                members: etcd.members().await?,
                holders: etcd.holders(checkpoints).await?,
                list: None,
            })
        };
        asked
            .await
            .inspect_err(|cause| tracing::warn!(%cause, "registry left out"))
            .ok()
    }
}

/// How many of the donors that a registry knows it has recently heard of.
fn alive(answer: &RegistryAnswer) -> usize {
    let members = answer.members.iter();
    members.filter(|record| record.alive).count()
}

/// The answers that arrive before `until`.
async fn collect(
    mut asking: JoinSet<(String, Result<RegistryAnswer, NoAnswer>)>,
    until: Instant,
) -> Vec<RegistryAnswer> {
    let mut all = Vec::new();
    loop {
        match tokio::time::timeout_at(until, asking.join_next()).await {
            Ok(None) => return all,
            Ok(Some(Ok((_, Ok(answer))))) => all.push(answer),
            Ok(Some(Ok((registry, Err(cause))))) => {
                tracing::warn!(registry, %cause, "registry left out");
            }
            // A task that panicked gives no answer.
            Ok(Some(Err(_))) => {}
            Err(_) => {
                let left_out = asking.len();
                tracing::warn!(left_out, "registries left out that did not answer in time");
                return all;
            }
        }
    }
}

/// `None` if the registry has no newer list.
async fn list(connection: &Connection, known: &Grid) -> Option<(GridList, Contents)> {
    let compared = compare_lists(connection, known).await;
    compared
        .inspect_err(|cause| tracing::debug!(%cause, "no list of the grid from a registry"))
        .ok()
        .flatten()
}

async fn members(
    connection: &Connection,
    keeps_announcements: bool,
) -> Result<Vec<MemberRecord>, NoAnswer> {
    let mut records: Vec<MemberRecord> = Vec::new();
    loop {
        let after = records.last().map(|record| record.id);
        let asked = request(connection, &Request::Members { after }, REQUEST_TIMEOUT).await?;
        let (Response::Members { count, more }, mut exchange) = asked else {
            return Err(NoAnswer::Answer);
        };
        let too_many = records.len() + count as usize > HOSTS_MAX;
        if count > MEMBERS_MAX || too_many || (more && count == 0) {
            return Err(NoAnswer::Answer);
        }
        for _ in 0..count {
            let mut record: MemberRecord = read_frame(&mut exchange.recv, REQUEST_TIMEOUT).await?;
            // The order must be ascending, so that a registry can't keep the client asking for ever.
            if records.last().is_some_and(|last| last.id >= record.id) {
                return Err(NoAnswer::Answer);
            }
            if !is_small(&record) {
                return Err(NoAnswer::Answer);
            }
            if !keeps_announcements {
                record.presence.announcement = Announcement::default();
            }
            records.push(record);
        }
        if !more {
            return Ok(records);
        }
    }
}

/// Whether a record is no larger than what an honest host announces.
fn is_small(record: &MemberRecord) -> bool {
    let presence = &record.presence;
    let texts = [
        Some(&presence.name),
        presence.site.as_ref(),
        presence.owner.as_ref(),
    ];
    let announcement = &presence.announcement;
    let curves = [&announcement.presence, &announcement.guest];
    let bitmaps = [&announcement.presence_bitmap, &announcement.guest_bitmap];
    texts
        .into_iter()
        .flatten()
        .all(|text| text.len() <= TEXT_BYTES_MAX)
        && curves.iter().all(|curve| curve.len() <= CURVE_STEPS_MAX)
        && bitmaps
            .iter()
            .all(|bitmap| bitmap.len() <= BITMAP_BYTES_MAX)
}

async fn holders(
    connection: &Connection,
    checkpoints: &[CheckpointId],
) -> Result<BTreeSet<OwnerId>, NoAnswer> {
    let mut all = BTreeSet::new();
    for checkpoint in checkpoints {
        let asked = Request::Holders {
            checkpoint: *checkpoint,
        };
        match request(connection, &asked, REQUEST_TIMEOUT).await? {
            (Response::Holders { holders }, _) if holders.len() <= HOLDERS_MAX => {
                all.extend(holders.into_iter().map(|(id, _)| id));
                if all.len() > HOSTS_MAX {
                    return Err(NoAnswer::Answer);
                }
            }
            _ => return Err(NoAnswer::Answer),
        }
    }
    Ok(all)
}
