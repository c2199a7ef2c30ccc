//! Asks registries which hosts there are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use codec::{CheckpointId, OwnerId};
use protocol::grid::Grid;
use protocol::identity::{Identity, Role};
use protocol::list::{Contents, GridList};
use protocol::net::endpoint::{EndpointConfig, MTU_SMALL};
use protocol::net::stream::{ExchangeError, read_frame, request};
use protocol::net::{ConnectError, Sockets, compare_lists, spoken};
use protocol::wire::WireVersion;
use protocol::wire::announcement::{Announcement, CURVE_STEPS_MAX};
use protocol::wire::limits::{HOLDERS_MAX, MEMBERS_MAX, REQUEST_TIMEOUT, TEXT_BYTES_MAX};
use protocol::wire::message::{MemberRecord, Request, Response};
use protocol::wire::parts::Extended;
use quinn::{Connection, RecvStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::etcd::{Etcd, EtcdError};
use crate::roster::HOSTS_MAX;

/// How long registries are waited for: those that answer later are not needed.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long they are waited for by somebody who knows hosts already: a registry that is gone is not to
/// hold every command up.
const HEAD_START: Duration = Duration::from_millis(750);

/// What a registry may have in flight to here.
const WINDOW: u32 = 1 << 20;

/// More than the bytes of any bitmap of availability.
const BITMAP_BYTES_MAX: usize = 4 << 10;

/// Why a registry told nothing.
#[derive(Debug, thiserror::Error)]
enum Silent {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error("wrong answer")]
    Answer,
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Late,
}

/// What a registry answered.
#[derive(Debug)]
pub struct Told {
    /// Which donors there are.
    pub members: Vec<MemberRecord>,
    /// Who holds shards of any of the checkpoints that were asked for.
    pub holders: BTreeSet<OwnerId>,
    /// A list of the grid that is newer than ours.
    pub list: Option<(GridList, Contents)>,
}

/// A client of registries; its sockets are made once.
#[derive(Debug)]
pub struct Registries {
    sockets: Sockets,
    etcd: Option<Etcd>,
    keeps_announcements: bool,
    patience: Duration,
    compares_lists: bool,
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
            sockets: Sockets::new(config),
            etcd: Etcd::of(grid),
            keeps_announcements: true,
            patience: PATIENCE,
            compares_lists: false,
        }
    }

    /// The same for somebody who also wants a newer list of the grid, and has registries take a newer
    /// one.
    #[must_use]
    pub fn with_lists(mut self) -> Self {
        self.compares_lists = true;
        self
    }

    /// The same for somebody who can do without: who is silent for 0.75 s is left out.
    #[must_use]
    pub fn in_a_hurry(mut self) -> Self {
        self.patience = HEAD_START;
        self
    }

    /// The same for somebody who only wants to know which hosts there are: what they announce of
    /// themselves, most of what a registry sends, is dropped as it comes.
    #[must_use]
    pub fn without_announcements(mut self) -> Self {
        self.keeps_announcements = false;
        self
    }

    /// Which donors there are, and who holds shards of any of `checkpoints`, as each registry of
    /// `grid` says that answers.
    pub async fn ask(&self, grid: &Grid, checkpoints: Vec<CheckpointId>) -> Vec<Told> {
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

    /// How each registry of `grid` answers, in the order of the grid file: how many donors it has heard
    /// of lately, or why nothing came from it. Nobody is in a hurry here.
    pub async fn look(&self, grid: &Grid) -> Vec<(String, Result<usize, String>)> {
        let (etcd, asked) = tokio::join!(
            self.look_at_etcd(),
            self.asking(grid, &[].into()).join_all()
        );
        let mut found: BTreeMap<String, Result<usize, String>> = asked
            .into_iter()
            .map(|(name, told)| {
                (
                    name,
                    told.map(|told| alive(&told)).map_err(|why| why.to_string()),
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

    async fn look_at_etcd(&self) -> Option<Result<usize, String>> {
        let members = self.etcd.as_ref()?.members();
        let late = |_| Err(Silent::Late.to_string());
        let asked = tokio::time::timeout(PATIENCE, members).await;
        Some(asked.map_or_else(late, |members| match members {
            Ok(members) => Ok(members.iter().filter(|record| record.alive).count()),
            Err(cause) => Err(cause.to_string()),
        }))
    }

    /// The same question to each registry; none takes longer than `PATIENCE`.
    fn asking(
        &self,
        grid: &Grid,
        checkpoints: &Arc<[CheckpointId]>,
    ) -> JoinSet<(String, Result<Told, Silent>)> {
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
            let (registry, checkpoints) = (registry.clone(), Arc::clone(checkpoints));
            let keeps_announcements = self.keeps_announcements;
            asking.spawn(async move {
                let asked = async {
                    let (addr, id) = (&registry.addr, registry.id);
                    let connection = sockets.connect(addr, id, Role::Registry).await?;
                    let told = Told {
                        members: members(&connection, keeps_announcements).await?,
                        holders: holders(&connection, &checkpoints).await?,
                        list: match &known {
                            Some(known) => list(&connection, known).await,
                            None => None,
                        },
                    };
                    connection.close(0_u32.into(), b"");
                    Ok::<_, Silent>(told)
                };
                let asked = tokio::time::timeout(PATIENCE, asked).await;
                (registry.name, asked.unwrap_or(Err(Silent::Late)))
            });
        }
        asking
    }

    async fn ask_etcd(&self, checkpoints: &[CheckpointId]) -> Option<Told> {
        let etcd = self.etcd.as_ref()?;
        let asked = async {
            Ok::<_, EtcdError>(Told {
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

/// How many of the donors that a registry knows it has heard of lately.
fn alive(told: &Told) -> usize {
    let members = told.members.iter();
    members.filter(|record| record.alive).count()
}

/// What registries answer until then.
async fn collect(mut asking: JoinSet<(String, Result<Told, Silent>)>, until: Instant) -> Vec<Told> {
    let mut all = Vec::new();
    loop {
        match tokio::time::timeout_at(until, asking.join_next()).await {
            Ok(None) => return all,
            Ok(Some(Ok((_, Ok(told))))) => all.push(told),
            Ok(Some(Ok((registry, Err(cause))))) => {
                tracing::warn!(registry, %cause, "registry left out");
            }
            // One whose task panicked says nothing.
            Ok(Some(Err(_))) => {}
            Err(_) => {
                let left_out = asking.len();
                tracing::warn!(left_out, "registries left out that did not answer in time");
                return all;
            }
        }
    }
}

/// An earlier program does not know the question.
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
) -> Result<Vec<MemberRecord>, Silent> {
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
            let mut record = member(connection, &mut exchange.recv).await?;
            // Ascending: a registry can't make us ask for ever.
            if records.last().is_some_and(|last| last.id >= record.id) {
                return Err(Silent::Answer);
            }
            if !is_small(&record) {
                return Err(Silent::Answer);
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

async fn member(connection: &Connection, from: &mut RecvStream) -> Result<MemberRecord, Silent> {
    if spoken(connection) < WireVersion::Two {
        return Ok(read_frame(from, REQUEST_TIMEOUT).await?);
    }
    let record: Extended<MemberRecord> = read_frame(from, REQUEST_TIMEOUT).await?;
    Ok(record.open())
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
) -> Result<BTreeSet<OwnerId>, Silent> {
    let mut all = BTreeSet::new();
    for checkpoint in checkpoints {
        let asked = Request::Holders {
            checkpoint: *checkpoint,
        };
        match request(connection, &asked, REQUEST_TIMEOUT).await? {
            (Response::Holders { holders }, _) if holders.len() <= HOLDERS_MAX => {
                all.extend(holders.into_iter().map(|(id, _)| id));
                if all.len() > HOSTS_MAX {
                    return Err(Silent::Answer);
                }
            }
            _ => return Err(Silent::Answer),
        }
    }
    Ok(all)
}
