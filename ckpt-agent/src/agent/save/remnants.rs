//! What interrupted saves of a job left at hosts, for the next save: the rows that enough hosts have of each are signed
//! as a **remnant**, of which the new version uses rows as of an origin.
//!
//! 1. Before the session, hosts end the shards of the remnant. They stay uncommitted: if the new save is interrupted,
//!    too, they go after an hour, unless the next save uses them.
//! 2. When the image is read, and the new version uses the remnant, its manifest is committed.
//! 3. Then the new version is committed. From now on versions need the remnant as they need any origin.

use codec::keys::Keys;
use codec::labels::Labels;
use codec::layers::Origin;
use codec::manifest::Manifest;
use codec::pieces::BaseRef;
use codec::{CheckpointId, JobTag, ShardIndex};
use protocol::wire::message::{Claim, PutShard};
use tokio::task::JoinSet;

use crate::agent::ask::gather::Gathered;
use crate::agent::keep::line::with_line;
use crate::agent::save::journal::LeftJournal;
use crate::agent::save::pending::Pending;
use crate::agent::save::too_few_hosts::least_parity;
use crate::agent::{Agent, SaveRequest};
use crate::core::HostIndex;
use crate::core::gather::silence::Line;
use crate::core::remains::{HeldRows, UsedRows, used_rows};

/// Most remnants that a save uses: each is one more origin.
pub(super) const REMNANTS_MAX: usize = 8;

/// Fewer rows are not worth an origin.
const ROWS_MIN: u64 = 8;

/// Which save asks.
#[derive(Clone, Copy)]
pub(super) struct Asking<'a> {
    pub(super) gathered: &'a Gathered,
    pub(super) request: &'a SaveRequest,
    pub(super) job_tag: JobTag,
    pub(super) line: Line,
    /// A time after all checkpoints of the job.
    pub(super) created: u64,
}

/// Rows of an interrupted save, which hosts have ended, and which the new version may use.
#[derive(Debug)]
pub(crate) struct Remnant {
    pub(super) manifest: Manifest,
    pub(super) left: LeftJournal,
    /// Who holds its shards.
    pub(super) holders: Vec<(ShardIndex, HostIndex)>,
    /// Fewest of them that have to commit it.
    needed: usize,
    /// Whether hosts show it already.
    pub(super) is_committed: bool,
}

/// What interrupted saves left, as far as the new save uses it, and the rest.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// The last one first: each may use rows of those after it.
    pub(super) remnants: Vec<Remnant>,
    pub(super) others: Vec<LeftJournal>,
}

impl Remnant {
    /// As the new version names it.
    pub(super) fn origin(&self) -> Origin {
        Origin {
            reference: self.reference(),
            data_key: self.left.journal.head.data_key.clone(),
            is_version: false,
        }
    }

    pub(super) fn reference(&self) -> BaseRef {
        let public = self.manifest.public();
        BaseRef {
            checkpoint: public.checkpoint,
            manifest: self.manifest.hash(),
            created: Some(public.created),
        }
    }

    fn pending(&self) -> Option<Pending> {
        let public = self.manifest.public();
        (!self.is_committed).then(|| Pending {
            checkpoint: public.checkpoint,
            claim: Claim::of(public),
            manifest: self.manifest.bytes().to_vec(),
            holders: self.holders.iter().map(|(_, host)| *host).collect(),
            needed: self.needed,
        })
    }
}

impl Left {
    /// The first time from `created` on that is after those of the remnants.
    pub(super) fn after(&self, created: u64) -> u64 {
        let of_remnants = self.remnants.iter();
        let of_remnants = of_remnants.map(|one| one.manifest.public().created.saturating_add(1));
        of_remnants.fold(created, u64::max)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = CheckpointId> {
        let id = |one: &Remnant| one.manifest.public().checkpoint;
        self.remnants.iter().map(id)
    }

    /// What has to be committed.
    pub(super) fn pending(&self) -> Vec<Pending> {
        self.remnants.iter().filter_map(Remnant::pending).collect()
    }
}

impl Agent {
    /// What interrupted saves of the job left, as far as a new version can use it that is compared with a version of
    /// these origins, or with none.
    pub(super) async fn left_of_saves(&self, asking: Asking<'_>, origins: &[Origin]) -> Left {
        let Some(dir) = self.notebook.dir() else {
            return Left::default();
        };
        let keys: Keys = self.keys.clone();
        let job = asking.request.job.clone();
        let reading = tokio::task::spawn_blocking(move || LeftJournal::of_job(&dir, &keys, &job));
        let mut left = Left {
            remnants: Vec::new(),
            others: reading.await.unwrap_or_default(),
        };
        let mut ids: Vec<CheckpointId> = origins
            .iter()
            .map(|origin| origin.reference.checkpoint)
            .collect();
        let mut unusable = Vec::new();
        while left.remnants.len() < REMNANTS_MAX {
            let all = left.others.iter().enumerate();
            let fitting = all.filter(|(_, one)| fits(one, asking.request, &ids));
            let Some((at, _)) = fitting.max_by_key(|(_, one)| one.journal.rows()) else {
                break;
            };
            let one = left.others.swap_remove(at);
            let nth = left.remnants.len() as u64;
            match self.remnant_of(asking, one, nth).await {
                Ok(remnant) => {
                    ids.insert(0, remnant.manifest.public().checkpoint);
                    left.remnants.insert(0, remnant);
                }
                Err(one) => unusable.push(*one),
            }
        }
        left.others.append(&mut unusable);
        left
    }

    /// Has hosts end what they have of an interrupted save.
    async fn remnant_of(
        &self,
        asking: Asking<'_>,
        mut left: LeftJournal,
        nth: u64,
    ) -> Result<Remnant, Box<LeftJournal>> {
        let head = left.journal.head.clone();
        let code = head.redundancy;
        let needed = code.data() + usize::from(least_parity(asking.request, code));
        let said = asking.gathered.said.as_ref();
        if let Some(manifest) = &left.remnant {
            let is_own = manifest.signer() == self.keys.signer();
            let stamp = BaseRef {
                checkpoint: head.checkpoint,
                manifest: manifest.hash(),
                created: Some(manifest.public().created),
            };
            let is_gone = stamp
                .stamp()
                .is_some_and(|stamp| said.is_some_and(|said| said.is_gone(stamp)));
            if !is_own || is_gone {
                return Err(Box::new(left));
            }
        }
        if let Some(known) = asking.gathered.inventory.get(head.checkpoint) {
            let same = left.remnant.clone();
            let same = same.filter(|manifest| manifest.hash() == known.manifest.hash());
            let Some(manifest) = same.filter(|_| known.shards_found() >= needed) else {
                return Err(Box::new(left));
            };
            return Ok(Remnant {
                manifest,
                left,
                holders: known.holders.clone(),
                needed,
                is_committed: true,
            });
        }
        let claim = Claim {
            job_tag: asking.job_tag,
            version: head.version,
            checkpoint: head.checkpoint,
        };
        let held = self.held_rows(asking.gathered, claim, &left).await;
        let fixed = left.remnant.as_ref().map(|one| one.public().rows);
        let used = used_rows(&held, left.journal.rows(), needed, fixed);
        let Some(used) = used.filter(|used| used.rows >= ROWS_MIN) else {
            return Err(Box::new(left));
        };
        let created = asking.created.saturating_add(nth);
        let Some(manifest) = self.signed(asking, &mut left, used.rows, created) else {
            return Err(Box::new(left));
        };
        let holders = self.end_shards(claim, &manifest, &used).await;
        if holders.len() < needed {
            return Err(Box::new(left));
        }
        Ok(Remnant {
            manifest,
            left,
            holders,
            needed,
            is_committed: false,
        })
    }

    /// Asks all hosts what they have of an interrupted save.
    async fn held_rows(
        &self,
        gathered: &Gathered,
        claim: Claim,
        left: &LeftJournal,
    ) -> Vec<HeldRows> {
        let mut asking = JoinSet::new();
        for host in gathered.hosts() {
            let hosts = self.hosts.clone();
            asking.spawn(async move { (host, hosts.rows_held(host, claim).await) });
        }
        let code = left.journal.head.redundancy;
        let mut held = Vec::new();
        while let Some(answer) = asking.join_next().await {
            // A host whose program does not know the question has nothing.
            let Ok((host, Ok(shards))) = answer else {
                continue;
            };
            held.extend(shards.into_iter().filter_map(|one| {
                Some(HeldRows {
                    shard: code.shard(one.shard)?,
                    host,
                    rows: one.rows,
                    ended: one.ended,
                })
            }));
        }
        // The order of the answers decides nothing.
        held.sort_by_key(|one| (one.shard, one.host));
        held
    }

    /// The manifest of a remnant. It is signed once, and kept on this machine before any host hears of it.
    fn signed(
        &self,
        asking: Asking<'_>,
        left: &mut LeftJournal,
        rows: u64,
        created: u64,
    ) -> Option<Manifest> {
        if let Some(manifest) = &left.remnant {
            return Some(manifest.clone());
        }
        let labels = with_line(&Labels::default(), asking.line);
        let job = &asking.request.job;
        let draft = left.journal.remnant(job, labels, rows, created);
        let signed = draft.sign(&self.keys, Vec::new());
        let signed = signed
            .inspect_err(
                |cause| tracing::warn!(%cause, "what an interrupted save left can't be signed"),
            )
            .ok()?;
        let kept = left.keep_remnant(signed.clone());
        kept.inspect_err(
            |cause| tracing::warn!(%cause, "what an interrupted save left can't be used"),
        )
        .ok()?;
        Some(signed)
    }

    /// Has hosts end the shards of a remnant. Returns those that did.
    async fn end_shards(
        &self,
        claim: Claim,
        manifest: &Manifest,
        used: &UsedRows,
    ) -> Vec<(ShardIndex, HostIndex)> {
        let public = manifest.public();
        let mut asking = JoinSet::new();
        for (shard, host) in used.holders.iter().copied() {
            let Some((_, root)) = public.shard(shard) else {
                continue;
            };
            let put = PutShard {
                claim,
                redundancy: public.redundancy,
                shard: shard.number(),
                expected_bytes: 0,
            };
            let hosts = self.hosts.clone();
            let rows = used.rows;
            asking.spawn(async move {
                let ended = hosts.end_early(host, put, rows, root).await;
                ended.is_ok().then_some((shard, host))
            });
        }
        let mut holders: Vec<_> = asking.join_all().await.into_iter().flatten().collect();
        holders.sort_unstable();
        holders
    }
}

/// Whether an interrupted save was compared with the same version as the new one, and its rows are stored as wanted.
fn fits(left: &LeftJournal, request: &SaveRequest, origins: &[CheckpointId]) -> bool {
    let head = &left.journal.head;
    let wanted = request.options.redundancy;
    let is_as_wanted = wanted.is_none_or(|code| code == head.redundancy);
    is_as_wanted && head.cipher == request.options.cipher && head.origins == origins
}
