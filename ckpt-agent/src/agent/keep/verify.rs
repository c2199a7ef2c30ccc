//! Checks the shards that hosts hold, and their blocks as far as the user demands.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use codec::manifest::Public;
use codec::{CheckpointId, JobId, ShardIndex, Version};
use protocol::wire::Code;
use protocol::wire::message::{Audit, AuditFault};

use crate::agent::handle::random;
use crate::agent::keep::verdict::{count_needs, gaps, may_come_back};
use crate::agent::report::list::kept_for;
use crate::agent::{Agent, Which};
use crate::cancel::Cancel;
use crate::core::gather::silence::Silence;
use crate::core::sought::Sought;
use crate::core::{Fault, HostIndex};
use crate::inventory::{KnownCheckpoint, OpenedCheckpoint};
use crate::knowledge::Contact;
use crate::report::{
    BadShard, Checked, ExitStatus, Failure, Holder, Observer, Progress, ProgressEvent,
    VerifiedCheckpoint, VerifyReport,
};
use transfer::get::BlockReader;

/// Rows that are read at once when all blocks are verified.
const VERIFY_ROWS: u64 = 16;

/// A shard with more damaged rows counts as lost: a host that lies of each must not hold the check up.
const DAMAGED_ROWS_MAX: usize = 1024;

impl Agent {
    /// Checks that hosts have the shards that they should have, and as many of the blocks as `depth` demands.
    ///
    /// # Errors
    /// When no host answers, or there is no such checkpoint. Damage is in the report.
    pub async fn verify(
        &self,
        job: Option<&JobId>,
        version: Option<Version>,
        depth: Depth,
        observer: Arc<dyn Observer>,
        mut cancel: Cancel,
    ) -> Result<VerifyReport, Failure> {
        let doing = "cannot verify";
        let (gathered, mut opened) = self.find_all(doing, job).await?;
        // Of what is no version any more, only its own rows are needed.
        let for_rows = kept_for(&opened);
        let said: BTreeMap<CheckpointId, Option<usize>> = opened
            .iter()
            .map(|one| (one.id(), one.known.can_lose()))
            .collect();
        opened.retain(|one| version.is_none_or(|version| one.known.version() == version));
        if opened.is_empty() && (job.is_some() || version.is_some()) {
            let which = version.map_or(Which::Newest, Which::Version);
            let job_tag = job.map(|job| self.job_tag(job)).transpose()?;
            return Err(self.not_found(doing, which, &Sought::default(), job_tag, &gathered));
        }
        let total = opened
            .iter()
            .map(|one| one.known.manifest.public().block_bytes * one.known.holders.len() as u64);
        let mut verifier = Verifier {
            agent: self,
            depth,
            seed: random::<16>()?,
            silence: gathered.silence(),
            progress: Progress {
                total_bytes: (depth == Depth::All).then(|| total.sum()),
                ..Progress::default()
            },
            observer,
        };
        let mut checkpoints = Vec::new();
        for one in &opened {
            let verified = tokio::select! {
                biased;
                () = cancel.cancelled() => {
                    return Err(Failure::new(ExitStatus::Interrupted, format!("{doing}: interrupted")));
                }
                verified = verifier.checkpoint(one) => verified,
            };
            checkpoints.push(verified);
        }
        let found = opened.iter().zip(&checkpoints);
        let found: BTreeMap<CheckpointId, (Option<usize>, bool)> = found
            .map(|(one, verified)| (one.id(), (verified.can_lose, verified.lost)))
            .collect();
        let versions = opened.iter().zip(&mut checkpoints);
        let versions = versions.filter(|(one, _)| !for_rows.contains_key(&one.id()));
        count_needs(&found, versions.collect(), &said, gathered.away());
        Ok(VerifyReport {
            checkpoints,
            checked: depth.checked(),
            read_data: depth == Depth::All,
            sampled_blocks: match depth {
                Depth::Sample(blocks) => Some(blocks),
                Depth::Tables | Depth::All => None,
            },
            read_bytes: verifier.progress.done_bytes,
            gaps: gaps(&opened, &gathered.words),
            silent: self.silent_notes(&gathered),
        })
    }
}

/// How thoroughly each shard is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// The hashes of its blocks are compared with the manifest.
    Tables,
    /// Also, this many of its blocks are read, chosen at random.
    Sample(u32),
    /// Also, every block is read.
    All,
}

impl Depth {
    const fn checked(self) -> Checked {
        match self {
            Self::Tables => Checked::Present,
            Self::Sample(_) => Checked::Sampled,
            Self::All => Checked::Read,
        }
    }
}

/// `blocks` different rows of `rows`, in ascending order; `number` returns a random number for each draw.
fn sample(rows: u64, blocks: u32, mut number: impl FnMut(u64) -> u64) -> BTreeSet<u64> {
    let wanted = rows.min(blocks.into());
    let mut chosen = BTreeSet::new();
    // Floyd's algorithm: as many draws as rows.
    for last in rows - wanted..rows {
        let row = number(last) % (last + 1);
        if !chosen.insert(row) {
            chosen.insert(last);
        }
    }
    chosen
}

/// The holders of a checkpoint, while its shards are verified one after the other.
struct Holders<'a> {
    known: &'a KnownCheckpoint,
    all: Vec<(ShardIndex, HostIndex)>,
    next: usize,
    /// The holders as all hosts showed them when one of them did not have its shard.
    found_later: Option<Vec<(ShardIndex, HostIndex)>>,
}

impl<'a> Holders<'a> {
    fn new(known: &'a KnownCheckpoint) -> Self {
        Self {
            known,
            all: known.holders.clone(),
            next: 0,
            found_later: None,
        }
    }

    fn next(&mut self) -> Option<(ShardIndex, HostIndex)> {
        let next = self.all.get(self.next).copied();
        self.next += 1;
        next
    }

    /// Whether this host, which was verified last and does not have its shard, handed it over to another host
    /// meanwhile. If so, the new holder is verified in its place.
    async fn has_moved(&mut self, agent: &Agent, holder: (ShardIndex, HostIndex)) -> bool {
        if self.found_later.is_none() {
            let (_, holders) = agent.holders_now(self.known).await;
            let holders = self.found_later.insert(holders.unwrap_or_default());
            let new = holders.iter().filter(|found| !self.all.contains(found));
            let new: Vec<_> = new.copied().collect();
            self.all.extend(new);
        }
        let found_later = self.found_later.as_deref().unwrap_or_default();
        let (shard, _) = holder;
        let has_moved =
            !found_later.contains(&holder) && found_later.iter().any(|(held, _)| *held == shard);
        if has_moved {
            self.next -= 1;
            self.all.remove(self.next);
        }
        has_moved
    }
}

/// What was read of a shard.
#[derive(Debug, Default)]
struct ReadShard {
    /// Number of good blocks.
    blocks: u32,
    /// Their bytes.
    bytes: u64,
    /// Rows whose block is wrong.
    damaged: BTreeSet<u64>,
}

impl ReadShard {
    fn enter(&mut self, block: &[u8]) {
        self.blocks = self.blocks.saturating_add(1);
        self.bytes += block.len() as u64;
    }

    /// The fault of the host, if a block is wrong.
    fn damage(&self) -> Option<Fault> {
        let first = self.damaged.first()?;
        Some(Fault::Lied(match self.damaged.len() {
            1 => format!("block of row {first}"),
            rows => format!("blocks of {rows} rows, the first of row {first}"),
        }))
    }
}

/// Which rows of shards are damaged, at each host that has the shard.
#[derive(Debug, Default)]
struct DamagedShards(BTreeMap<ShardIndex, BTreeSet<u64>>);

impl DamagedShards {
    fn enter(&mut self, shard: ShardIndex, rows: &BTreeSet<u64>) {
        if rows.is_empty() {
            return;
        }
        let known = self.0.entry(shard).or_insert_with(|| rows.clone());
        known.retain(|row| rows.contains(row));
    }

    /// How many shards have a good block of the row that has fewest. `whole` shards are not damaged.
    fn readable(&self, whole: &BTreeSet<ShardIndex>) -> usize {
        let damaged = self.0.iter().filter(|(shard, _)| !whole.contains(shard));
        let damaged: Vec<&BTreeSet<u64>> = damaged.map(|(_, rows)| rows).collect();
        let rows: BTreeSet<u64> = damaged.iter().copied().flatten().copied().collect();
        let good = |row: &u64| damaged.iter().filter(|rows| !rows.contains(row)).count();
        let fewest = rows.iter().map(good).min();
        whole.len() + fewest.unwrap_or(damaged.len())
    }
}

struct Verifier<'a> {
    agent: &'a Agent,
    depth: Depth,
    /// Seed for the choice of blocks, which no host can foresee.
    seed: [u8; 16],
    /// How many hosts may come back with a shard.
    silence: Silence,
    progress: Progress,
    observer: Arc<dyn Observer>,
}

impl Verifier<'_> {
    async fn checkpoint(&mut self, one: &OpenedCheckpoint) -> VerifiedCheckpoint {
        let known = &one.known;
        let public = known.manifest.public();
        let mut good = Vec::new();
        let mut bad = Vec::new();
        let mut whole = BTreeSet::new();
        let mut damaged = DamagedShards::default();
        let mut unread = BTreeSet::new();
        let mut holders = Holders::new(known);
        while let Some((shard, host)) = holders.next() {
            let name = self.agent.hosts.name(host).to_owned();
            let checked = self.shard(known, shard, host).await;
            if checked
                .as_ref()
                .is_err_and(|fault| fault.is_refused_as(Code::NotFound))
                && holders.has_moved(self.agent, (shard, host)).await
            {
                continue;
            }
            let checked = checked.and_then(|read| {
                let damage = read.damage();
                damaged.enter(shard, &read.damaged);
                damage.map_or(Ok(read.blocks), Err)
            });
            self.report(public.checkpoint, shard, host, &checked).await;
            match checked {
                Ok(_) => {
                    whole.insert(shard);
                    good.push(Holder {
                        shard: shard.number(),
                        host: Some(name),
                    });
                }
                Err(fault) => {
                    if may_come_back(&fault) {
                        unread.insert(shard);
                    }
                    bad.push(BadShard {
                        shard: shard.number(),
                        host: Some(name),
                        what: fault.to_string(),
                    });
                }
            }
        }
        for shard in public.redundancy.shards() {
            if holders.all.iter().all(|(held, _)| *held != shard) {
                bad.push(BadShard {
                    shard: shard.number(),
                    host: None,
                    what: "no host that answers has it".to_owned(),
                });
            }
        }
        let held = holders.all.iter().map(|(shard, _)| *shard).collect();
        let away = self
            .silence
            .may_come_back(public.redundancy, &whole, &unread, &held);
        let readable = damaged.readable(&whole);
        VerifiedCheckpoint {
            job: one.brief.job.clone(),
            version: public.version,
            can_lose: readable.checked_sub(public.redundancy.data()),
            away,
            lost: readable + away < public.redundancy.data(),
            good,
            bad,
        }
    }

    /// Records what was found, and reports it to the host, so that the host's owner can see why it gets less
    /// to store.
    async fn report(
        &self,
        checkpoint: CheckpointId,
        shard: ShardIndex,
        host: HostIndex,
        checked: &Result<u32, Fault>,
    ) {
        let fault = match checked {
            Ok(_) => None,
            Err(Fault::Lied(_)) => Some(AuditFault::Damaged),
            Err(Fault::Refused {
                code: Code::NotFound,
                ..
            }) => Some(AuditFault::Missing),
            // The host reports itself that it can't read the shard.
            Err(Fault::Refused {
                code: Code::DiskFailed | Code::Mismatch | Code::Internal,
                ..
            }) => Some(AuditFault::Damaged),
            // The host may answer later, or its owner needs it now.
            Err(Fault::Refused { .. } | Fault::Slow { .. } | Fault::Starved) => return,
            Err(Fault::Gone(_) | Fault::Silent(_) | Fault::Stalled(_)) => {
                Some(AuditFault::BrokenOff)
            }
        };
        let contact = match fault {
            None => Contact::Answered,
            Some(AuditFault::BrokenOff) => Contact::Silent,
            Some(AuditFault::Missing | AuditFault::Damaged) => Contact::Lied,
        };
        self.agent.saw(host, contact);
        let audit = Audit {
            checkpoint,
            shard: shard.number(),
            blocks: *checked.as_ref().unwrap_or(&0),
            fault,
        };
        self.agent.hosts.audited(host, audit).await;
    }

    /// Checks a shard.
    async fn shard(
        &mut self,
        known: &KnownCheckpoint,
        shard: ShardIndex,
        host: HostIndex,
    ) -> Result<ReadShard, Fault> {
        let public = known.manifest.public();
        let reader = BlockReader::new(self.agent.hosts.clone(), public.clone());
        reader.fetch_outline(shard, host).await?;
        let mut read = ReadShard::default();
        for rows in self.rows(public, shard, host) {
            let before = read.bytes;
            let mut next = rows.start;
            let group = reader.blocks(shard, host, rows.clone(), |row, block| {
                read.enter(&block);
                next = row + 1;
            });
            if let Err(fault) = group.await {
                // A restore reads the other rows.
                for row in next..rows.end {
                    let one = reader.blocks(shard, host, [row], |_, block| read.enter(&block));
                    match one.await {
                        Ok(()) => {}
                        Err(Fault::Lied(_)) if read.damaged.len() < DAMAGED_ROWS_MAX => {
                            read.damaged.insert(row);
                        }
                        Err(_) => return Err(fault),
                    }
                }
            }
            self.progress.done_bytes += read.bytes - before;
            self.progress.network_bytes += read.bytes - before;
            self.observer.event(ProgressEvent::Progress(self.progress));
        }
        Ok(read)
    }

    /// The rows of a shard to read, in groups.
    fn rows(&self, public: &Public, shard: ShardIndex, host: HostIndex) -> Vec<Range<u64>> {
        let rows = public.rows;
        match self.depth {
            Depth::Tables => Vec::new(),
            Depth::All => (0..rows.div_ceil(VERIFY_ROWS))
                .map(|part| part * VERIFY_ROWS..rows.min((part + 1) * VERIFY_ROWS))
                .collect(),
            Depth::Sample(blocks) => {
                let chosen = sample(rows, blocks, |draw| {
                    let mut hasher = blake3::Hasher::new_derive_key("ckpt v1 audit sample");
                    hasher.update(&self.seed);
                    hasher.update(&public.checkpoint.0);
                    hasher.update(&[shard.number()]);
                    hasher.update(&(host.0 as u64).to_le_bytes());
                    hasher.update(&draw.to_le_bytes());
                    let mut number = [0; 8];
                    hasher.finalize_xof().fill(&mut number);
                    u64::from_le_bytes(number)
                });
                chosen.into_iter().map(|row| row..row + 1).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use codec::Redundancy;

    use super::*;

    #[test]
    fn the_row_with_the_fewest_good_blocks_counts() {
        let shard = |number| Redundancy::DEFAULT.shard(number).unwrap();
        let shards = |numbers: &[u8]| -> BTreeSet<ShardIndex> {
            numbers.iter().map(|number| shard(*number)).collect()
        };
        let mut damaged = DamagedShards::default();
        assert_eq!(damaged.readable(&shards(&[0, 1])), 2);
        damaged.enter(shard(2), &BTreeSet::from([7]));
        damaged.enter(shard(3), &BTreeSet::from([8, 9]));
        assert_eq!(damaged.readable(&shards(&[0, 1])), 3);
        damaged.enter(shard(4), &BTreeSet::from([7]));
        assert_eq!(damaged.readable(&shards(&[0, 1])), 3);
        damaged.enter(shard(1), &BTreeSet::from([7]));
        assert_eq!(damaged.readable(&shards(&[0])), 2);
        // Another host has row 7 of shard 2, and not row 5.
        damaged.enter(shard(2), &BTreeSet::from([5]));
        assert_eq!(damaged.readable(&shards(&[0])), 3);
        // A whole copy of a shard makes up for a damaged one.
        assert_eq!(damaged.readable(&shards(&[0, 1])), 4);
    }
}
