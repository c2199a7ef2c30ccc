//! Operations that change nothing or only remove: list, show, verify, forget, hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use codec::grant::Rights;
use codec::index::{FileEntry, FileKind, SegmentEntry};
use codec::labels::RESERVED;
use codec::manifest::{ImageKind, Public, Summary};
use codec::notice::Stamp;
use codec::seal::Cipher;
use codec::{CheckpointId, JobId, ShardIndex, Version};
use placement::AvailabilityBitmap;
use protocol::address::Address;
use protocol::wire::{Code, escaped};
use protocol::wire::message::{Audit, AuditFault};
use tokio::task::JoinSet;

use super::gather::{Gathered, Patience};
use super::notices::Removal;
use super::rows::Stop;
use super::verdict::{away, count_bases, gaps, may_come_back};
use super::waiting::Wait;
use super::{Agent, ForgetWhich, Which, random};
use crate::cancel::Cancel;
use crate::core::sought::{NOTE, Sought};
use crate::core::{Fault, HostIndex};
use crate::inventory::{KnownCheckpoint, OpenedCheckpoint};
use crate::knowledge::{Contact, Observation};
use crate::report::{
    BadShard, ExitStatus, Failure, ForgetReport, Holder, HostReport, HostsReport, HostsSummary,
    ListReport, ListedCheckpoint, Observer, Progress, ProgressEvent, ShowReport, ShownFile,
    VerifiedCheckpoint, VerifyReport,
};
use crate::transfer::get::BlockReader;
use crate::unix_time::unix_seconds;
use health::{HostHealth, HostState, HostsHealth};

/// Rows that are read at once when all blocks are verified.
const VERIFY_ROWS: u64 = 16;

impl Agent {
    /// Lists the owner's checkpoints, or those of one job, that meet the conditions of `sought`; with `host`,
    /// only those of which that host holds shards.
    ///
    /// # Errors
    /// When no host answers.
    pub async fn list(
        &self,
        job: Option<&JobId>,
        sought: &Sought,
        host: Option<&str>,
    ) -> Result<ListReport, Failure> {
        let (gathered, opened) = self.find_all("cannot list", job).await?;
        let now = unix_seconds();
        let is_listed = |one: &&OpenedCheckpoint| {
            let mut holders = one.known.holders.iter();
            let is_there =
                host.is_none_or(|name| holders.any(|(_, at)| self.hosts.name(*at) == name));
            is_there && self.is_sought(sought, &one.known, now)
        };
        let of_all = |one: &OpenedCheckpoint| ListedCheckpoint {
            can_lose: weakest(one, one.known.can_lose(), |base| {
                let mut all = opened.iter();
                let base = all.find(|one| one.known.manifest.public().checkpoint == base)?;
                base.known.can_lose()
            }),
            void: one.is_void,
            ..listed(&gathered, &one.known, &one.summary)
        };
        Ok(ListReport {
            checkpoints: opened.iter().filter(is_listed).map(of_all).collect(),
            silent: self.silent_notes(&gathered),
        })
    }

    /// All checkpoints, or those of a job, whose summaries can be opened, without deleted ones.
    pub(super) async fn find_all(
        &self,
        doing: &str,
        job: Option<&JobId>,
    ) -> Result<(Gathered, Vec<OpenedCheckpoint>), Failure> {
        let (mut gathered, opened) = self.show_all(doing, job).await?;
        if job.is_some() {
            let said = gathered.said.iter();
            gathered.words = said.map(|said| (said.job_tag, said.clone())).collect();
            return Ok((gathered, opened));
        }
        let (_, said) = self.all_notices(&gathered, doing).await?;
        for said in said.values() {
            gathered.heed(said);
        }
        gathered.words = said;
        let (opened, _) = gathered.inventory.opened(&self.keys);
        Ok((gathered, opened))
    }

    /// Like [`Self::find_all`], but without a `job`, also deleted checkpoints that a host still has.
    pub(super) async fn show_all(
        &self,
        doing: &str,
        job: Option<&JobId>,
    ) -> Result<(Gathered, Vec<OpenedCheckpoint>), Failure> {
        let job_tag = job.map(|job| self.job_tag(job)).transpose()?;
        let gathered = self.gather(job_tag, Patience::All).await;
        self.require_answers(&gathered, doing)?;
        let (opened, failed) = gathered.inventory.opened(&self.keys);
        for cause in failed {
            tracing::warn!(%cause, "checkpoint left out");
        }
        Ok((gathered, opened))
    }

    /// The failure when no host that answers has such a checkpoint.
    fn not_found(
        &self,
        doing: &str,
        which: Which,
        sought: &Sought,
        gathered: &Gathered,
    ) -> Failure {
        let what = match which {
            Which::Newest => format!("no checkpoint{sought}"),
            Which::Version(version) => format!("no version {version}{sought}"),
        };
        let failure = Failure::new(ExitStatus::NotFound, format!("{doing}: {what}"));
        Failure {
            hosts: self.silent_notes(gathered),
            ..failure.next("ckpt list")
        }
    }

    /// Describes one checkpoint: its files, sizes and holders.
    ///
    /// # Errors
    /// When there is no such checkpoint, or its index can't be read.
    pub async fn show(&self, job: &JobId, which: Which) -> Result<ShowReport, Failure> {
        let doing = format!("cannot show job {job}");
        let (gathered, opened) = self.find_all(&doing, Some(job)).await?;
        let chosen = opened.iter().rev().find(|one| match which {
            Which::Newest => !one.is_void,
            Which::Version(version) => one.known.version() == version,
        });
        let Some(OpenedCheckpoint { known, summary, .. }) = chosen else {
            return Err(self.not_found(&doing, which, &Sought::default(), &gathered));
        };
        let public = known.manifest.public();
        let reader = BlockReader::new(self.hosts.clone(), public.clone());
        let index = self
            .read_index(known, summary, &reader)
            .await
            .map_err(|stop| match stop {
                Stop::Fatal(failure) => failure,
                Stop::Unrestorable(short) => {
                    let message = format!("{doing}: {}", short.reason);
                    let mut failure = Failure::new(short.status(&gathered), message);
                    failure.hosts = short.notes;
                    failure
                }
            })?;
        let zeros = index.segments.iter().map(|segment| match segment {
            SegmentEntry::Zero { bytes } => *bytes,
            _ => 0,
        });
        Ok(ShowReport {
            checkpoint: listed(&gathered, known, summary),
            kind: match summary.kind {
                ImageKind::File => "file",
                ImageKind::Tree => "tree",
                ImageKind::Stream => "stream",
            }
            .to_owned(),
            encrypted: public.cipher != Cipher::None,
            segments: index.rows().count() as u64,
            zero_bytes: zeros.sum(),
            shard_bytes: public.block_bytes,
            holders: self.holders(public.redundancy, &known.holders),
            files: index
                .files
                .iter()
                .map(|file| shown(file, &index.files))
                .collect(),
            silent: self.silent_notes(&gathered),
        })
    }

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
        let said: BTreeMap<CheckpointId, Option<usize>> = opened
            .iter()
            .map(|one| (one.known.manifest.public().checkpoint, one.known.can_lose()))
            .collect();
        opened.retain(|one| version.is_none_or(|version| one.known.version() == version));
        if opened.is_empty() && (job.is_some() || version.is_some()) {
            let which = version.map_or(Which::Newest, Which::Version);
            return Err(self.not_found(doing, which, &Sought::default(), &gathered));
        }
        let total = opened
            .iter()
            .map(|one| one.known.manifest.public().block_bytes * one.known.holders.len() as u64);
        let mut verifier = Verifier {
            agent: self,
            depth,
            seed: random::<16>()?,
            silent: gathered.silent.len(),
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
        count_bases(&opened, &mut checkpoints, &said, gathered.silent.len());
        Ok(VerifyReport {
            checkpoints,
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

    /// Removes checkpoints of a job.
    ///
    /// # Errors
    /// When no checkpoint is selected.
    pub async fn forget(
        &self,
        job: &JobId,
        which: ForgetWhich,
        sought: &Sought,
    ) -> Result<ForgetReport, Failure> {
        let (patience, wait) = (Patience::All, Wait::ForAll);
        self.forget_within(job, which, sought, patience, wait).await
    }

    /// Like [`Self::forget`], but does not wait for silent hosts when others have answered.
    ///
    /// # Errors
    /// As [`Self::forget`].
    pub async fn forget_hurriedly(
        &self,
        job: &JobId,
        which: ForgetWhich,
        sought: &Sought,
    ) -> Result<ForgetReport, Failure> {
        let (patience, wait) = (Patience::NotForSilent, Wait::NotForSilent);
        self.forget_within(job, which, sought, patience, wait).await
    }

    async fn forget_within(
        &self,
        job: &JobId,
        which: ForgetWhich,
        sought: &Sought,
        patience: Patience,
        wait: Wait,
    ) -> Result<ForgetReport, Failure> {
        let doing = format!("cannot forget job {job}");
        let whose = self.whose(job)?;
        self.needs(Rights::REMOVE, &doing)?;
        let mut gathered = self.gather(Some(whose.tag), patience).await;
        self.require_answers(&gathered, &doing)?;
        let mut newest = gathered.inventory.newest_first();
        let is_keeping = matches!(which, ForgetWhich::Keep(_) | ForgetWhich::KeepWithin(_));
        if !is_keeping {
            newest.extend(gathered.inventory.void());
        }
        let (kept, others) = self.divided(&gathered, &newest, which, sought, unix_seconds());
        let bases: BTreeMap<CheckpointId, Version> = kept
            .iter()
            .filter_map(|known| Some((self.base_of(known)?, known.version())))
            .collect();
        if let ForgetWhich::Version(version) = which {
            refuse_base(&doing, version, &newest, &bases)?;
        }
        let chosen: Vec<_> = others
            .into_iter()
            .filter(|known| !bases.contains_key(&known.manifest.public().checkpoint))
            .collect();
        if chosen.is_empty() && !is_keeping {
            return Err(self.not_found(&doing, which.wanted(), sought, &gathered));
        }
        let hosts: Vec<HostIndex> = gathered.hosts().collect();
        let gone: Vec<Stamp> = chosen.iter().map(|known| known.stamp()).collect();
        let removed = chosen.iter().map(|known| known.version()).collect();
        let (left, kept): (Vec<Version>, Vec<Stamp>) = newest
            .iter()
            .map(|known| (known.version(), known.stamp()))
            .filter(|(_, stamp)| !gone.contains(stamp))
            .unzip();
        let left = left.first().copied();
        let removal = match which {
            ForgetWhich::Version(_) => Removal::of(&gone),
            // A checkpoint that turns up later need not meet the conditions of `sought`.
            _ if !sought.is_all() => Removal::of(&gone),
            _ => Removal::all_but(&kept, &gone),
        };
        let mut unheard = Vec::new();
        if !removal.is_empty() {
            let last = gathered.said.as_ref();
            let lease = last.and_then(|last| last.lease);
            let hosts = hosts.into_iter().collect();
            let deaf = self
                .announce_to(hosts, &whose, last, lease, &removal, wait)
                .await;
            self.somebody_heard(&gathered, &deaf, &doing)?;
            unheard = self.unheard(&gathered, &deaf, &chosen);
            gathered.silent.extend(deaf);
        }
        self.notebook.note(Observation::Removed(whose.tag, left));
        Ok(ForgetReport {
            job: job.clone(),
            removed,
            notes: Vec::from_iter(self.note_of_older(&gathered, |_| true)),
            silent: self.silent_notes(&gathered),
            unheard,
        })
    }

    /// Asks all hosts for their state.
    ///
    /// # Errors
    /// None at present: a host that does not answer is in the report.
    pub async fn hosts(&self) -> Result<HostsReport, Failure> {
        let mut asking = JoinSet::new();
        for host in self.hosts.all() {
            let agent = self.clone();
            asking.spawn(async move {
                let (status, said) =
                    tokio::join!(agent.hosts.status(host), agent.announcement(host));
                let spoken = match &status {
                    Ok(_) => agent.hosts.spoken(host).await.ok(),
                    Err(_) => None,
                };
                (host, (status, said, spoken))
            });
        }
        let mut answers = asking.join_all().await;
        answers.sort_by_key(|(host, _)| *host);
        let hosts = answers
            .into_iter()
            .filter_map(|(host, (answer, said, spoken))| {
                let said = said.ok().flatten();
                let said = said.as_ref();
                let entry = self.hosts.entry(host)?;
                let error = answer.as_ref().err().map(Fault::to_string);
                let (status, rtt) = answer.ok().unzip();
                Some(HostReport {
                    name: entry.name.clone(),
                    id: entry.id.hex(),
                    certificate_until: self.hosts.certified_until(host).filter(|_| error.is_none()),
                    addr: where_it_is(&entry.addr, self.hosts.address(host)),
                    site: entry.site.clone(),
                    up: error.is_none(),
                    error,
                    rtt_ms: rtt.map(|rtt| rtt.as_secs_f64() * 1000.0),
                    software: status.as_ref().map(|s| escaped(&s.software)),
                    protocol: spoken.map(|spoken| spoken.to_string()),
                    capacity_bytes: status.as_ref().map(|s| s.capacity_bytes),
                    used_bytes: status.as_ref().map(|s| s.used_bytes),
                    free_bytes: status.as_ref().map(|s| s.free_bytes),
                    shards: status.as_ref().map(|s| s.shards),
                    checkpoints: status.as_ref().map(|s| s.checkpoints),
                    uptime_s: status.as_ref().map(|s| s.uptime_s),
                    machine: said.map(|said| said.guest_state.to_string()),
                    disk: said.map(|said| said.storage_state.to_string()),
                    refuses_for_s: said.map(|said| said.refuses_for_s),
                    why: said
                        .and_then(|said| said.withheld)
                        .map(|why| why.to_string()),
                    availability: said.and_then(|said| share_of_time(&said.presence_bitmap)),
                    stays_10h: said.map(|said| said.presence.at(36_000.0).value()),
                })
            });
        let hosts: Vec<HostReport> = hosts.collect();
        Ok(HostsReport {
            summary: summed_up(&hosts),
            hosts,
        })
    }
}

fn summed_up(hosts: &[HostReport]) -> HostsSummary {
    let health = |host: &HostReport| HostHealth {
        name: host.name.clone(),
        state: match host.up {
            true => HostState::of(
                host.refuses_for_s.unwrap_or(0),
                host.free_bytes.unwrap_or(0),
            ),
            false => HostState::Down,
        },
        free_bytes: host.free_bytes,
        ..HostHealth::default()
    };
    let sum = HostsHealth::of(hosts.iter().map(health).collect(), None);
    HostsSummary {
        known: sum.known,
        up: sum.up.value,
        take_shards: sum.take_shards.value,
        free_bytes: sum.free_bytes.value,
    }
}

/// How many shards a checkpoint can lose that can itself lose `own`: no more than its base can.
pub(super) fn weakest(
    one: &OpenedCheckpoint,
    own: Option<usize>,
    base: impl FnOnce(CheckpointId) -> Option<usize>,
) -> Option<usize> {
    match one.summary.tail.base {
        Some(reference) => Some(own?.min(base(reference.checkpoint)?)),
        None => own,
    }
}

/// Share of the known time in which a host was there, 0 to 1; `None` when nothing is known.
fn share_of_time(bitmap: &AvailabilityBitmap) -> Option<f64> {
    let known = bitmap.known().count();
    (known > 0).then(|| f64::from(bitmap.usable().count()) / f64::from(known))
}

/// Fails when a kept version builds on the one that is to be forgotten. `bases` maps the bases of kept
/// versions to these versions.
fn refuse_base(
    doing: &str,
    version: Version,
    all: &[&KnownCheckpoint],
    bases: &BTreeMap<CheckpointId, Version>,
) -> Result<(), Failure> {
    let wanted = all.iter().find(|known| known.version() == version);
    let needed = wanted.and_then(|known| bases.get(&known.manifest.public().checkpoint));
    let Some(by) = needed else {
        return Ok(());
    };
    let why = format!("{doing}: version {by} builds on version {version}");
    let failure = Failure::new(ExitStatus::Failed, why);
    Err(failure.next("ckpt save --full, then forget both"))
}

fn listed(gathered: &Gathered, known: &KnownCheckpoint, summary: &Summary) -> ListedCheckpoint {
    let public = known.manifest.public();
    let labels = &summary.tail.labels;
    let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    ListedCheckpoint {
        job: summary.job.clone(),
        version: public.version,
        checkpoint: public.checkpoint,
        created: public.created,
        redundancy: public.redundancy,
        image_bytes: summary.image_bytes,
        stored_bytes: summary.stored_bytes,
        shards_found: known.shards_found(),
        can_lose: known.can_lose(),
        void: false,
        retired: false,
        kept_until: gathered.kept_until(known),
        note: labels.get(NOTE).map(str::to_owned),
        labels: labels
            .iter()
            .filter(|(key, _)| !key.starts_with(RESERVED))
            .map(owned)
            .collect(),
        own_labels: labels
            .iter()
            .filter(|(key, _)| key.starts_with(RESERVED))
            .map(owned)
            .collect(),
    }
}

fn shown(file: &FileEntry, files: &[FileEntry]) -> ShownFile {
    let (kind, data_bytes, target) = match &file.kind {
        FileKind::Directory => ("directory", 0, None),
        FileKind::Regular { extents, .. } => {
            ("file", extents.iter().map(|extent| extent.len).sum(), None)
        }
        FileKind::Symlink { target } => ("symlink", 0, Some(printable(target))),
        FileKind::HardLink { file } => {
            let linked = usize::try_from(*file).ok().and_then(|at| files.get(at));
            ("hardlink", 0, linked.map(|linked| printable(&linked.path)))
        }
        FileKind::Fifo => ("fifo", 0, None),
    };
    ShownFile {
        path: printable(&file.path),
        kind: kind.to_owned(),
        size: file.size(),
        data_bytes,
        mode: file.mode,
        mtime: file.mtime_s,
        target,
    }
}

/// A name on one line, escaped so that the bytes can be recovered.
fn printable(name: &[u8]) -> String {
    name.utf8_chunks()
        .flat_map(|chunk| {
            let valid = chunk.valid().chars().flat_map(|c| {
                let plain = !c.is_control() && c != '\\';
                let text = if plain {
                    c.to_string()
                } else {
                    c.escape_default().to_string()
                };
                text.chars().collect::<Vec<_>>()
            });
            let invalid = chunk
                .invalid()
                .iter()
                .flat_map(|byte| format!("\\x{byte:02x}").chars().collect::<Vec<_>>());
            valid.chain(invalid).collect::<Vec<_>>()
        })
        .collect()
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

struct Verifier<'a> {
    agent: &'a Agent,
    depth: Depth,
    /// Seed for the choice of blocks, which no host can foresee.
    seed: [u8; 16],
    /// How many hosts do not answer.
    silent: usize,
    progress: Progress,
    observer: Arc<dyn Observer>,
}

impl Verifier<'_> {
    async fn checkpoint(&mut self, one: &OpenedCheckpoint) -> VerifiedCheckpoint {
        let known = &one.known;
        let public = known.manifest.public();
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        let (mut whole, mut unread) = (BTreeSet::new(), BTreeSet::new());
        for (shard, host) in &known.holders {
            let name = self.agent.hosts.name(*host).to_owned();
            let checked = self.shard(known, *shard, *host).await;
            self.report(public.checkpoint, *shard, *host, &checked)
                .await;
            match checked {
                Ok(_) => {
                    whole.insert(*shard);
                    good.push(Holder {
                        shard: shard.number(),
                        host: Some(name),
                    });
                }
                Err(fault) => {
                    if may_come_back(&fault) {
                        unread.insert(*shard);
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
            if known.holders.iter().all(|(held, _)| *held != shard) {
                bad.push(BadShard {
                    shard: shard.number(),
                    host: None,
                    what: "no host that answers has it".to_owned(),
                });
            }
        }
        let held = known.holders.iter().map(|(shard, _)| *shard).collect();
        let away = away(public.redundancy, &whole, &unread, &held, self.silent);
        VerifiedCheckpoint {
            job: one.summary.job.clone(),
            version: public.version,
            can_lose: whole.len().checked_sub(public.redundancy.data()),
            away,
            lost: whole.len() + away < public.redundancy.data(),
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

    /// Checks a shard, and returns how many blocks were read.
    async fn shard(
        &mut self,
        known: &KnownCheckpoint,
        shard: ShardIndex,
        host: HostIndex,
    ) -> Result<u32, Fault> {
        let public = known.manifest.public();
        let reader = BlockReader::new(self.agent.hosts.clone(), public.clone());
        reader.fetch_outline(shard, host).await?;
        let mut blocks = 0_u32;
        for rows in self.rows(public, shard, host) {
            let count = u32::try_from(rows.end - rows.start).unwrap_or(u32::MAX);
            let mut bytes = 0;
            let tally = |_, block: bytes::Bytes| bytes += block.len() as u64;
            reader.blocks(shard, host, rows, tally).await?;
            blocks = blocks.saturating_add(count);
            self.progress.done_bytes += bytes;
            self.progress.network_bytes += bytes;
            self.observer.event(ProgressEvent::Progress(self.progress));
        }
        Ok(blocks)
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
/// Where a host is: `lab-3:7600 (10.0.0.3:7600)` for a name that was resolved, otherwise an address.
fn where_it_is(listed: &Address, found: Option<SocketAddr>) -> String {
    match (listed.ip(), found) {
        (None, Some(found)) => format!("{listed} ({found})"),
        (_, Some(found)) => found.to_string(),
        (_, None) => listed.to_string(),
    }
}
