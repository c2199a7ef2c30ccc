//! Carries out a save session.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use codec::base::Base;
use codec::encode::{CheckpointPlan, row_bytes_max};
use codec::grant::Rights;
use codec::labels::Labels;
use codec::manifest::{Format, Manifest, ManifestError, Public};
use codec::notice::Stamp;
use codec::seal::{Cipher, DataKey};
use codec::{CheckpointId, JobTag, PublicKey, Redundancy, ShardIndex, Version};
use protocol::wire::WireVersion;
use protocol::wire::message::{Claim, PutEnd, PutShard, Request};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Duration, Instant};

use super::base::remembered;
use super::gather::{Gathered, Patience};
use super::notices::Removal;
use super::{Agent, SaveInput, SaveRequest, chain, notices, random, unix_seconds};
use crate::cancel::Cancel;
use crate::core::claims::ClaimDoubts;
use crate::core::place::Placed;
use crate::core::save::{
    AttemptId, RowSize, SaveAction, SaveEvent, SaveFailure, SaveLimits, SaveOutcome, SavePlan,
    SaveSession,
};
use crate::core::{Fault, HostIndex, Millis};
use crate::image::{Source, SourceError, SourceOptions, Warning};
use crate::inventory::KnownCheckpoint;
use crate::knowledge::Observation;
use crate::pipeline::budget::Budget;
use crate::pipeline::encode::{
    self, EncodeFailure, EncodeSettings, Encoded, EncodedImage, ReadyRow,
};
use crate::report::{ExitStatus, Failure, Observer, Progress, ProgressEvent, SaveReport};
use crate::transfer::hosts::Claimed;
use crate::transfer::put::{Meter, OPEN_TIMEOUT, PutCommand, PutProgress, put_shard};
use transfer::rebuild::Rebuild;

/// Versions that are tried when others save the same job at the same time.
const CLAIMS_MAX: u32 = 16;

/// How long hosts are waited for when a failed save is being removed.
const RETRACT_TIMEOUT: Duration = Duration::from_secs(10);

/// How often progress is told.
const PROGRESS_PERIOD: Duration = Duration::from_millis(200);

/// Bytes on all hosts from which on a save shows what this machine can send.
const UPLINK_TELLS: u64 = 16 << 20;

/// Least memory with which rows can be encoded while others are sent.
const ROWS_MIN: u64 = 4;

impl Agent {
    /// Saves an image as the next version of a job.
    ///
    /// # Errors
    /// When it was not committed; the older versions stand.
    pub async fn save(
        &self,
        request: SaveRequest,
        observer: Arc<dyn Observer>,
        cancel: Cancel,
    ) -> Result<SaveReport, Failure> {
        let started = Instant::now();
        let doing = format!("cannot save job {}", request.job);
        let source = open_source(&request)
            .await
            .map_err(|cause| source_failure(&doing, &cause))?;
        let job_tag = self.job_tag(&request.job)?;
        self.needs(Rights::SAVE, &doing)?;
        let shards = request.redundancy.total();
        let gathered = self
            .gather(Some(job_tag), Patience::ToSave { shards })
            .await;
        self.somebody(&gathered, &doing)?;
        let checkpoint = CheckpointId(random()?);
        let newest = gathered.inventory.newest_first().first().copied().cloned();
        // Hosts may hide the newest: its number is not given twice all the same.
        let seen = self.notebook.read(unix_seconds()).newest(job_tag);
        let newest_seen = newest.as_ref().map(|newest| newest.version()).max(seen);
        let first = newest_seen.map_or(Version::FIRST, Version::next);
        let version = self.claim(&gathered, job_tag, checkpoint, first).await?;
        let placed = self
            .place(
                &gathered,
                newest.as_ref(),
                source.planned_bytes(),
                request.redundancy,
                &request.placement,
                checkpoint.0,
            )
            .await?;
        let redundancy = match (&placed, request.placement.target) {
            (Some(placed), Some(_)) => {
                let (data, parity) = (placed.width.data(), placed.width.parity());
                Redundancy::new(data as u8, parity as u8).unwrap_or(request.redundancy)
            }
            _ => request.redundancy,
        };
        let created = created_after(&gathered);
        let mut plan = CheckpointPlan {
            base: None,
            labels: Labels::default(),
            checkpoint,
            job: request.job.clone(),
            job_tag,
            version,
            created,
            previous: newest.as_ref().map(|newest| newest.manifest.hash()),
            redundancy,
            cipher: request.cipher,
            data_key: DataKey::new(match request.cipher {
                Cipher::None => [0; 32],
                Cipher::Aes256Gcm => random()?,
            }),
        };
        let base = self.base_for(&gathered, &request).await;
        plan.base = base.as_ref().map(|base| base.reference);
        // A host that was slow to answer may still serve as a spare.
        let slow = gathered.silent.iter().map(|(host, _)| *host);
        let chosen = placed
            .iter()
            .flat_map(|placed| placed.order.iter().copied());
        let candidates = chosen.chain(slow).collect();
        let pieces = base.as_ref().map(|base| Arc::clone(&base.pieces));
        let input = Input {
            source,
            base: pieces,
        };
        let shell = Shell::start(self, &request, plan, candidates, input, observer, started);
        let mut saved = shell.run(cancel).await;
        if let Ok(report) = &mut saved {
            report.base = base.as_ref().map(|base| base.version);
            self.notebook
                .note(Observation::Save(job_tag, report.seconds));
            self.notebook.note(Observation::Version(job_tag, version));
            // The time of a small save is that of its round trips, and one that a host held up does not
            // show what this machine can send.
            let is_limited =
                self.resources.bytes_per_second.is_some() || !report.replaced.is_empty();
            if report.shard_bytes >= UPLINK_TELLS && !is_limited {
                let rate = report.shard_bytes as f64 / report.seconds.max(1e-3);
                self.notebook.note(Observation::Uplink(rate));
            }

            if let Some(placed) = &placed {
                self.add_placement(report, placed, &request, &gathered);
            }
            let is_holder = |name: &str| {
                let mut holders = report.holders.iter();
                holders.any(|holder| holder.host.as_deref() == Some(name))
            };
            let older = self.note_of_older(&gathered, is_holder);
            report.notes.extend(older);
            let base = base.map(|base| base.reference.checkpoint);
            let kept = self.note_of_kept();
            if kept.is_none() {
                let new = Stamp {
                    created,
                    checkpoint,
                };
                self.remove_old(&gathered, report, &request, base, new)
                    .await;
            }
            report.notes.extend(kept);
        } else {
            self.retract_claims(&gathered, checkpoint).await;
        }
        saved.map_err(|mut failure| {
            if failure.status == ExitStatus::TooFewHosts {
                failure.hosts.extend(self.silent_notes(&gathered));
            }
            failure.state = Some(match &newest {
                Some(newest) => format!(
                    "nothing was committed; version {} is still the newest",
                    newest.version()
                ),
                None => "nothing was committed; the job has no checkpoint".into(),
            });
            failure
        })
    }

    fn add_placement(
        &self,
        report: &mut SaveReport,
        placed: &Placed,
        request: &SaveRequest,
        gathered: &Gathered,
    ) {
        report.notes.extend(self.placement_notes(placed));
        if let Some(target) = request.placement.target.filter(|_| !placed.reaches_target) {
            let reached = placed.score.reliability.value();
            let warning =
                format!("restart probability {reached:.5}, not {target}: no hosts for more");
            report.warnings.push(warning);
        }
        if request.placement.explain {
            report.placement = Some(self.report(placed, &request.job, gathered));
        }
    }

    /// Reserves a version at every host that answered.
    async fn claim(
        &self,
        gathered: &Gathered,
        job_tag: JobTag,
        checkpoint: CheckpointId,
        first: Version,
    ) -> Result<Version, Failure> {
        let mut version = first;
        let mut doubts = ClaimDoubts::default();
        for round in 0..CLAIMS_MAX {
            let mut asking = JoinSet::new();
            for host in gathered.hosts() {
                let hosts = self.hosts.clone();
                let claim = Claim {
                    job_tag,
                    version,
                    checkpoint,
                };
                asking.spawn(async move { (host, hosts.claim(host, claim).await) });
            }
            let (mut granted, mut denied) = (0, Vec::new());
            while let Some(answer) = asking.join_next().await {
                match answer {
                    Ok((_, Ok(Claimed::Yes))) => granted += 1,
                    Ok((host, Ok(Claimed::Taken { next }))) => denied.push((host, next)),
                    // A host that fails now is replaced in the session, if it is needed at all.
                    Ok((_, Err(_))) | Err(_) => {}
                }
            }
            let taken = doubts.believed(version, granted, denied);
            let Some(next) = taken else {
                return Ok(version);
            };
            version = next.max(version.next());
            // Two that race each other get out of step by waiting for different times.
            let [jitter] = random()?;
            let wait = u64::from(jitter) * u64::from(round + 1) / 16;
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
        Err(Failure::new(
            ExitStatus::Failed,
            "too many saves of this job at once: no free version found",
        ))
    }

    async fn retract_claims(&self, gathered: &Gathered, checkpoint: CheckpointId) {
        let mut asking = JoinSet::new();
        for host in gathered.hosts() {
            let hosts = self.hosts.clone();
            asking.spawn(async move { hosts.forget(host, checkpoint).await.is_ok() });
        }
        // Claims and shards that can't be removed now expire by themselves.
        let _ = tokio::time::timeout(RETRACT_TIMEOUT, asking.join_all()).await;
    }

    /// Removes what `--keep` does not keep, and renews the lease. Who can't be told now is told by
    /// another host, or by the next save. `base` is that of the new version.
    async fn remove_old(
        &self,
        gathered: &Gathered,
        report: &mut SaveReport,
        request: &SaveRequest,
        base: Option<CheckpointId>,
        new: Stamp,
    ) {
        let Ok(whose) = self.whose(&request.job) else {
            return;
        };
        let mut older = gathered.inventory.newest_first();
        older.retain(|known| known.version() < report.version);
        let keep = usize::try_from(request.keep.max(1) - 1).unwrap_or(usize::MAX);
        let inventory = &gathered.inventory;
        let (kept, superseded) = inventory.split_kept(&self.keys, older, keep);
        let bases = kept.iter().filter_map(|known| self.base_of(known));
        let bases: BTreeSet<CheckpointId> = bases.chain(base).collect();
        let (needed, superseded): (Vec<&KnownCheckpoint>, Vec<&KnownCheckpoint>) = superseded
            .iter()
            .partition(|known| bases.contains(&known.stamp().checkpoint));
        let (removed, gone): (Vec<Version>, Vec<Stamp>) = superseded
            .iter()
            .map(|known| (known.version(), known.stamp()))
            .unzip();
        // Another save may be ahead of this one.
        let later = gathered.inventory.newest_first().into_iter();
        let later = later.filter(|known| known.version() >= report.version);
        let stay = kept.iter().copied().chain(needed).chain(later);
        let stay: Vec<Stamp> = stay.map(KnownCheckpoint::stamp).chain([new]).collect();
        let removal = Removal::all_but(&stay, &gone);
        let last = gathered.said.as_ref();
        let lease = notices::renewed(last, request.tenure);
        let had_lease = last.is_some_and(|last| last.lease.is_some());
        if removal.is_empty() && lease.is_none() && !had_lease {
            return;
        }
        let names = report.holders.iter().filter_map(|one| one.host.as_ref());
        let holders: Vec<HostIndex> = names
            .filter_map(|name| self.hosts.all().find(|host| self.hosts.name(*host) == name))
            .collect();
        let hosts: BTreeSet<HostIndex> = gathered.hosts().chain(holders.iter().copied()).collect();
        let asked = hosts.len();
        let deaf = self.announce(hosts, &whose, last, lease, &removal).await;
        let about: Vec<&KnownCheckpoint> = gone
            .iter()
            .filter_map(|one| inventory.get(one.checkpoint))
            .collect();
        if deaf.len() == asked {
            let why = deaf.first().map(|(host, fault)| self.note(*host, fault));
            let why = why.map_or_else(String::new, |why| format!(" ({}: {})", why.host, why.what));
            let numbers: Vec<String> = removed.iter().map(ToString::to_string).collect();
            let what = match numbers.as_slice() {
                [] => "the lease was not renewed".to_owned(),
                [one] => format!("version {one} was not removed"),
                all => format!("versions {} were not removed", all.join(" ")),
            };
            report.notes.push(format!("{what}: no host heard{why}"));
            return;
        }
        for note in self.unheard(gathered, &deaf, &about) {
            let (host, what) = (note.host, note.what);
            let note = format!("{host} did not hear that older versions are removed: {what}");
            report.notes.push(note);
        }
        for (host, fault) in deaf.iter().filter(|(host, _)| holders.contains(host)) {
            if lease.is_some() || had_lease {
                let name = self.hosts.name(*host);
                let note = format!("{name} does not know of the lease yet: {fault}");
                report.notes.push(note);
            }
        }
        report.removed = removed;
        report.kept_until = lease.map(|lease| lease.until);
    }
}

/// The time of a new save: later than of all that hosts show of the job, and than what was deleted of
/// it, so that a clock that is slow puts no version before an older one, or among the deleted.
fn created_after(gathered: &Gathered) -> u64 {
    let deleted = gathered.said.as_ref().and_then(|said| said.intervals.end());
    let before = gathered
        .inventory
        .latest()
        .max(deleted.map(|end| end.created));
    let after = before.map_or(0, |before| before.saturating_add(1));
    unix_seconds().max(after)
}

async fn open_source(request: &SaveRequest) -> Result<Source, SourceError> {
    let options = SourceOptions {
        skip_unreadable: request.skip_unreadable,
        accept_changed: request.accept_changed,
    };
    let input = request.input.clone();
    let opened = tokio::task::spawn_blocking(move || match input {
        SaveInput::Paths(paths) => Source::from_paths(&paths, options),
        SaveInput::Stdin => Ok(Source::from_stdin()),
        SaveInput::Command(command) => Source::from_command(&command),
    });
    opened
        .await
        .map_err(|cause| SourceError::Stdin(std::io::Error::other(cause)))?
}

fn source_failure(doing: &str, cause: &SourceError) -> Failure {
    let failure = Failure::new(ExitStatus::LocalIo, format!("{doing}: {}", chain(cause)));
    match cause {
        SourceError::Changed { .. } => failure
            .next("save when nothing writes to it, or accept what was read with --accept-changed"),
        SourceError::Io { .. } => failure.next("leave out what can't be read: --skip-unreadable"),
        SourceError::SameName(_) | SourceError::NotAFile { .. } | SourceError::Name(_) => Failure {
            status: ExitStatus::Usage,
            ..failure
        },
        _ => failure,
    }
}

enum Event {
    Session(SaveEvent),
    /// The program of a host that was asked to take a shard reads the first format only.
    Old(HostIndex),
    Encoded(Encoded<SourceError, Warning>),
}

/// A shard transfer that is under way.
struct Transfer {
    shard: ShardIndex,
    host: HostIndex,
    commands: mpsc::UnboundedSender<PutCommand>,
    sent: watch::Receiver<u64>,
    meter: Arc<Meter>,
    task: JoinHandle<()>,
}

/// What is read, and what it is compared with.
struct Input {
    source: Source,
    base: Option<Arc<Base>>,
}

/// An image that was read to its end.
struct Ended {
    image: EncodedImage<Warning>,
    public: Public,
}

/// Runs one save session.
struct Shell<'a> {
    agent: &'a Agent,
    request: &'a SaveRequest,
    plan: CheckpointPlan,
    session: SaveSession,
    started: Instant,
    events: mpsc::UnboundedReceiver<Event>,
    sender: mpsc::UnboundedSender<Event>,
    budget: Arc<Budget>,
    ender: Option<crate::image::command::Ender>,
    rows: BTreeMap<u64, ReadyRow>,
    transfers: BTreeMap<AttemptId, Transfer>,
    retracting: JoinSet<()>,
    ended: Option<Ended>,
    /// Hosts whose programs read the first format only.
    old: BTreeSet<HostIndex>,
    /// Hosts that acknowledged a shard.
    stored: BTreeSet<HostIndex>,
    /// The manifest, once a shard is to be committed.
    signed: Option<Manifest>,
    failure: Option<EncodeFailure<SourceError>>,
    /// Why the manifest can't be signed.
    unsigned: Option<ManifestError>,
    observer: Arc<dyn Observer>,
    tally: Tally,
}

/// What is told while the save runs.
#[derive(Debug, Default)]
struct Tally {
    total_bytes: Option<u64>,
    /// Image bytes up to the end of each row, with the zero runs before it.
    ends: Vec<u64>,
    read_bytes: u64,
    same_bytes: u64,
    stored_bytes: u64,
    network_bytes: u64,
    faults_told: usize,
    told: Option<Instant>,
}

impl<'a> Shell<'a> {
    fn start(
        agent: &'a Agent,
        request: &'a SaveRequest,
        plan: CheckpointPlan,
        candidates: Vec<HostIndex>,
        input: Input,
        observer: Arc<dyn Observer>,
        started: Instant,
    ) -> Self {
        let Input { source, base } = input;
        let (sender, events) = mpsc::unbounded_channel();
        let row_bytes = row_bytes_max(plan.redundancy) as u64;
        let cpus = agent.resources.cpus.max(1);
        let rows_bytes = agent
            .resources
            .memory_bytes
            .saturating_sub(encode::raw_bytes(cpus))
            .max((cpus as u64 + ROWS_MIN) * row_bytes);
        let budget = Budget::new(rows_bytes);
        let parity = plan.redundancy.parity() as u8;
        let session = SaveSession::new(
            SavePlan {
                redundancy: plan.redundancy,
                candidates,
                min_parity: request.allow_degraded.unwrap_or(parity).min(parity),
                deadline: request.deadline.map(|limit| Millis(millis(limit))),
                limits: SaveLimits {
                    open_ms: millis(OPEN_TIMEOUT),
                    stall_ms: millis(protocol::wire::limits::STALL_TIMEOUT)
                        + agent.resources.patience_ms(plan.redundancy),
                    sync_ms: millis(protocol::wire::limits::SYNC_TIMEOUT),
                    commit_ms: 2 * millis(protocol::wire::limits::REQUEST_TIMEOUT),
                    // The rest is for rows that are being encoded and sent.
                    retain_bytes: rows_bytes / 2,
                },
            },
            Millis(millis(started.elapsed())),
        );
        let tally = Tally {
            total_bytes: source.planned_bytes(),
            ..Tally::default()
        };
        let ender = source.ender();
        let settings = EncodeSettings {
            plan: plan.clone(),
            base,
            remembered: if source.may_repeat() {
                remembered(agent.resources.memory_bytes)
            } else {
                0
            },
            effort: request.effort,
            cpus,
        };
        let tell = sender.clone();
        encode::start(source, settings, Arc::clone(&budget), move |encoded| {
            // Fails only when the save is over.
            let _ = tell.send(Event::Encoded(encoded));
        });
        Self {
            agent,
            request,
            plan,
            session,
            started,
            events,
            sender,
            budget,
            ender,
            rows: BTreeMap::new(),
            transfers: BTreeMap::new(),
            retracting: JoinSet::new(),
            ended: None,
            old: BTreeSet::new(),
            stored: BTreeSet::new(),
            signed: None,
            failure: None,
            unsigned: None,
            observer,
            tally,
        }
    }

    fn now(&self) -> Millis {
        Millis(millis(self.started.elapsed()))
    }

    fn tell(&mut self, event: SaveEvent) {
        let now = self.now();
        self.session.handle(now, event);
    }

    async fn run(mut self, mut cancel: Cancel) -> Result<SaveReport, Failure> {
        let mut cancelled = false;
        loop {
            self.carry_out();
            self.tell_progress(false);
            if self.session.outcome().is_some() {
                break;
            }
            let wake = self.session.next_deadline().map_or_else(
                || Instant::now() + PROGRESS_PERIOD,
                |at| self.started + Duration::from_millis(at.0),
            );
            let wake = wake.min(Instant::now() + PROGRESS_PERIOD);
            tokio::select! {
                biased;
                () = cancel.cancelled(), if !cancelled => {
                    cancelled = true;
                    self.tell(SaveEvent::Cancel);
                }
                event = self.events.recv() => match event {
                    Some(event) => self.happen(event),
                    None => self.tell(SaveEvent::Tick),
                },
                () = tokio::time::sleep_until(wake) => self.tell(SaveEvent::Tick),
            }
        }
        self.budget.close();
        if let Some(ender) = self.ender.take() {
            // Waits for the command, if it is still running, for a bounded time.
            let _ = tokio::task::spawn_blocking(move || ender.end()).await;
        }
        for transfer in std::mem::take(&mut self.transfers).into_values() {
            self.learn_rate(&transfer);
            // The host drops what has no end; this one has an end or was given up.
            transfer.task.abort();
        }
        let retracting = std::mem::take(&mut self.retracting);
        let _ = tokio::time::timeout(RETRACT_TIMEOUT, retracting.join_all()).await;
        self.tell_progress(true);
        let rows = std::mem::take(&mut self.rows);
        let budget = std::mem::replace(&mut self.budget, Budget::new(0));
        free_behind((rows, budget));
        self.conclude()
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Session(event) => {
                if let SaveEvent::Stored(attempt) = &event
                    && let Some(transfer) = self.transfers.get(attempt)
                {
                    self.stored.insert(transfer.host);
                }
                if let SaveEvent::Sent(attempt, row) = &event {
                    self.count_sent(*attempt, *row);
                }
                self.tell(event);
            }
            Event::Old(host) => {
                self.old.insert(host);
            }
            Event::Encoded(Encoded::Zero(bytes)) => self.tally.read_bytes += bytes,
            Event::Encoded(Encoded::Same(bytes)) => {
                self.tally.read_bytes += bytes;
                self.tally.same_bytes += bytes;
            }
            Event::Encoded(Encoded::Row(row)) => {
                self.tally.read_bytes += row.image_bytes;
                self.tally.stored_bytes += row.stored_bytes;
                self.tally.ends.push(self.tally.read_bytes);
                let size = RowSize {
                    memory: row.memory_bytes,
                    block: row.block_len as u64,
                };
                let event = SaveEvent::RowReady { row: row.row, size };
                self.rows.insert(row.row, row);
                self.tell(event);
            }
            Event::Encoded(Encoded::End(image)) => self.end_input(*image),
            Event::Encoded(Encoded::Failed(failure)) => {
                self.failure = Some(failure);
                self.tell(SaveEvent::InputFailed);
            }
        }
    }

    fn end_input(&mut self, image: EncodedImage<Warning>) {
        match image.draft.check(&self.agent.keys, self.format()) {
            Ok(public) => {
                self.ended = Some(Ended { image, public });
                self.tell(SaveEvent::InputEnded);
            }
            Err(cause) => {
                self.unsigned = Some(cause);
                self.tell(SaveEvent::InputFailed);
            }
        }
    }

    /// The format in which the manifest is signed: the second unless a host that takes a shard is too
    /// old to read it.
    fn format(&self) -> Format {
        if self.old_holders().next().is_some() && self.agent.keys.grant().is_none() {
            Format::One
        } else {
            Format::Two
        }
    }

    /// Hosts that take a shard and whose programs read the first format only.
    fn old_holders(&self) -> impl Iterator<Item = HostIndex> {
        let hosts = self.transfers.values().map(|transfer| transfer.host);
        hosts.filter(|host| self.old.contains(host))
    }

    fn count_sent(&mut self, attempt: AttemptId, row: u64) {
        let shard = self.transfers.get(&attempt).map(|transfer| transfer.shard);
        if let (Some(shard), Some(row)) = (shard, self.rows.get(&row)) {
            self.tally.network_bytes += row.block(shard).len() as u64;
        }
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.session.poll_action() {
            match action {
                SaveAction::Open {
                    attempt,
                    shard,
                    host,
                } => self.open(attempt, shard, host),
                SaveAction::Send(attempt, row) => {
                    let (Some(transfer), Some(ready)) =
                        (self.transfers.get(&attempt), self.rows.get(&row))
                    else {
                        continue;
                    };
                    let block = ready.block(transfer.shard);
                    // Fails when the transfer ended, which it has told.
                    let _ = transfer.commands.send(PutCommand::Block(row, block));
                }
                SaveAction::Finish(attempt) => self.finish(attempt),
                SaveAction::Rebuild { attempt, sources } => self.rebuild(attempt, sources),
                SaveAction::Commit(attempt) => self.commit(attempt),
                SaveAction::Abort(attempt) => {
                    if let Some(transfer) = self.transfers.remove(&attempt) {
                        self.learn_rate(&transfer);
                        transfer.task.abort();
                        // What it did not take holds memory that the next rows wait for.
                        let hosts = self.agent.hosts.clone();
                        self.retracting
                            .spawn(async move { hosts.hang_up(transfer.host).await });
                    }
                }
                SaveAction::Retract(host) => {
                    let hosts = self.agent.hosts.clone();
                    let checkpoint = self.plan.checkpoint;
                    self.retracting.spawn(async move {
                        // What can't be removed now expires by itself. The first try may meet the
                        // end of the connection.
                        if hosts.forget(host, checkpoint).await.is_err() {
                            let _ = hosts.forget(host, checkpoint).await;
                        }
                    });
                }
                SaveAction::Release(row) => {
                    self.rows.remove(&row);
                }
            }
        }
        self.tell_replacements();
    }

    fn open(&mut self, attempt: AttemptId, shard: ShardIndex, host: HostIndex) {
        let (commands, queue) = mpsc::unbounded_channel();
        let (sent, sent_rows) = watch::channel(0);
        let put = PutShard {
            claim: Claim {
                job_tag: self.plan.job_tag,
                version: self.plan.version,
                checkpoint: self.plan.checkpoint,
            },
            redundancy: self.plan.redundancy,
            shard: shard.number(),
            expected_bytes: 0,
        };
        let (hosts, sender) = (self.agent.hosts.clone(), self.sender.clone());
        let meter = Arc::new(Meter::default());
        let measuring = Arc::clone(&meter);
        let task = tokio::spawn(async move {
            let tell = |progress| {
                let event = match progress {
                    PutProgress::Accepted => SaveEvent::Accepted(attempt),
                    PutProgress::Sent(row) => {
                        sent.send_replace(row + 1);
                        SaveEvent::Sent(attempt, row)
                    }
                    PutProgress::Stored => SaveEvent::Stored(attempt),
                };
                let _ = sender.send(Event::Session(event));
            };
            if let Ok(WireVersion::One) = hosts.spoken(host).await {
                let _ = sender.send(Event::Old(host));
            }
            if let Err(fault) =
                put_shard(hosts, host, Request::PutShard(put), queue, &measuring, tell).await
            {
                let _ = sender.send(Event::Session(SaveEvent::Failed(attempt, fault)));
            }
        });
        self.transfers.insert(
            attempt,
            Transfer {
                shard,
                host,
                commands,
                sent: sent_rows,
                meter,
                task,
            },
        );
    }

    /// Keeps what a transfer showed of the way to its host.
    fn learn_rate(&self, transfer: &Transfer) {
        if let Some(rate) = transfer.meter.rate() {
            self.agent.learn_rate(transfer.host, rate);
        }
    }

    fn finish(&self, attempt: AttemptId) {
        let (Some(transfer), Some(ended)) = (self.transfers.get(&attempt), &self.ended) else {
            return;
        };
        let public = &ended.public;
        if let Some((_, root)) = public.shard(transfer.shard) {
            let end = PutEnd {
                rows: public.rows,
                root,
            };
            let _ = transfer.commands.send(PutCommand::Finish(end));
        }
    }

    fn rebuild(&self, attempt: AttemptId, sources: Vec<(ShardIndex, HostIndex)>) {
        let (Some(transfer), Some(ended)) = (self.transfers.get(&attempt), &self.ended) else {
            return;
        };
        let rebuild = Rebuild {
            hosts: self.agent.hosts.clone(),
            public: ended.public.clone(),
            shard: transfer.shard,
            sources,
            commands: transfer.commands.clone(),
            sent: transfer.sent.clone(),
            bytes_per_second: None,
        };
        let sender = self.sender.clone();
        tokio::spawn(async move {
            if let Err(fault) = rebuild.run().await {
                let _ = sender.send(Event::Session(SaveEvent::Failed(attempt, fault)));
            }
        });
    }

    fn commit(&mut self, attempt: AttemptId) {
        let manifest = self.manifest();
        let Some(transfer) = self.transfers.get(&attempt) else {
            return;
        };
        let (hosts, host) = (self.agent.hosts.clone(), transfer.host);
        let sender = self.sender.clone();
        tokio::spawn(async move {
            let committed = match manifest {
                Ok(manifest) => hosts.commit(host, manifest).await,
                Err(cause) => Err(Fault::Lied(cause)),
            };
            let event = match committed {
                Ok(()) => SaveEvent::Committed(attempt),
                Err(fault) => SaveEvent::Failed(attempt, fault),
            };
            let _ = sender.send(Event::Session(event));
        });
    }

    /// The manifest's bytes. It is signed when they are wanted first: by then all hosts that are to
    /// commit have acknowledged their shards, and are its witnesses.
    fn manifest(&mut self) -> Result<Vec<u8>, String> {
        if self.signed.is_none() {
            let ended = self.ended.as_ref().ok_or("the image has not ended")?;
            let ids = self
                .stored
                .iter()
                .filter_map(|host| self.agent.hosts.entry(*host));
            let witnesses = ids.map(|entry| PublicKey::from(entry.id.0)).collect();
            let draft = ended.image.draft.clone();
            let signed = draft.sign(&self.agent.keys, self.format(), witnesses);
            self.signed = Some(signed.map_err(|cause| cause.to_string())?);
        }
        let signed = self.signed.as_ref().ok_or("it was just signed")?;
        Ok(signed.bytes().to_vec())
    }

    fn tell_replacements(&mut self) {
        for (host, fault) in self.session.faults().iter().skip(self.tally.faults_told) {
            self.agent.saw_fault(*host, fault);
            self.observer.event(ProgressEvent::HostReplaced {
                lost: self.agent.note(*host, fault),
                spare: None,
            });
        }
        self.tally.faults_told = self.session.faults().len();
    }

    fn tell_progress(&mut self, last: bool) {
        let due = self
            .tally
            .told
            .is_none_or(|told| told.elapsed() >= PROGRESS_PERIOD);
        if !due && !last {
            return;
        }
        self.tally.told = Some(Instant::now());
        let sent = self
            .transfers
            .values()
            .map(|transfer| *transfer.sent.borrow())
            .max()
            .unwrap_or(0);
        let done_bytes = match usize::try_from(sent).unwrap_or(usize::MAX).checked_sub(1) {
            _ if last => self.tally.read_bytes,
            Some(row) => self.tally.ends.get(row).copied().unwrap_or_default(),
            None => 0,
        };
        self.observer.event(ProgressEvent::Progress(Progress {
            done_bytes,
            total_bytes: self.tally.total_bytes,
            stored_bytes: self.tally.stored_bytes,
            network_bytes: self.tally.network_bytes,
        }));
    }

    fn conclude(mut self) -> Result<SaveReport, Failure> {
        match self.session.outcome().cloned() {
            Some(SaveOutcome::Committed { holders }) => match self.ended.take() {
                Some(ended) => Ok(self.report(&ended, &holders)),
                None => Err(Failure::new(
                    ExitStatus::Failed,
                    "committed without an image",
                )),
            },
            Some(SaveOutcome::Failed(failure)) => Err(self.failure(failure)),
            None => Err(Failure::new(ExitStatus::Failed, "the save did not end")),
        }
    }

    fn report(
        &self,
        Ended { image, public }: &Ended,
        holders: &[(ShardIndex, HostIndex)],
    ) -> SaveReport {
        let summary = image.draft.summary();
        SaveReport {
            job: self.request.job.clone(),
            version: public.version,
            checkpoint: public.checkpoint,
            redundancy: public.redundancy,
            can_lose: holders.len().saturating_sub(public.redundancy.data()),
            image_bytes: summary.image_bytes,
            read_bytes: self.tally.read_bytes,
            zero_bytes: image.zero_bytes,
            base: None,
            stored_bytes: summary.stored_bytes,
            shard_bytes: public.block_bytes * holders.len() as u64,
            files: summary.files,
            seconds: self.started.elapsed().as_secs_f64(),
            holders: self.agent.holders(public.redundancy, holders),
            replaced: self.agent.notes(self.session.faults()),
            removed: Vec::new(),
            kept_until: None,
            notes: self.format_notes(),
            placement: None,
            warnings: image.warnings.iter().map(|w| w.0.clone()).collect(),
        }
    }

    /// What old hosts cost.
    fn format_notes(&self) -> Vec<String> {
        let is_old = self
            .signed
            .as_ref()
            .is_some_and(|it| it.format() == Format::One);
        if !is_old {
            return Vec::new();
        }
        let all: BTreeSet<&str> = self
            .old
            .iter()
            .map(|host| self.agent.hosts.name(*host))
            .collect();
        let names: Vec<&str> = all.into_iter().collect();
        vec![format!(
            "saved in the first format, without labels and witnesses: older programs on {}",
            names.join(", ")
        )]
    }

    fn failure(&self, failure: SaveFailure) -> Failure {
        let doing = format!("cannot save job {}", self.request.job);
        let faults = self.agent.notes(self.session.faults());
        let mut failure = match failure {
            SaveFailure::NotEnoughHosts { placed, needed } => Failure::new(
                ExitStatus::TooFewHosts,
                format!("{doing}: {placed} of {needed} shards have a host"),
            )
            .next("ckpt hosts; or save with less: --data, --parity, --allow-degraded"),
            SaveFailure::VersionTaken => Failure::new(
                ExitStatus::Failed,
                format!("{doing}: another save took version {}", self.plan.version),
            )
            .next("the same command again"),
            SaveFailure::Cancelled => {
                Failure::new(ExitStatus::Interrupted, format!("{doing}: interrupted"))
            }
            SaveFailure::Deadline => Failure::new(
                ExitStatus::Deadline,
                format!("{doing}: not finished within the deadline"),
            ),
            SaveFailure::InputFailed => match &self.failure {
                Some(EncodeFailure::Source(cause)) => source_failure(&doing, cause),
                Some(other) => Failure::new(ExitStatus::Failed, format!("{doing}: {other}")),
                None => match &self.unsigned {
                    Some(cause) => Failure::new(ExitStatus::Failed, format!("{doing}: {cause}")),
                    None => Failure::new(ExitStatus::LocalIo, doing),
                },
            },
        };
        failure.hosts = faults;
        failure
    }
}

/// Frees memory while hosts are told the rest: giving the system back the 150 MiB that a save keeps for
/// hosts that may fail takes some 20 ms, for which all of them would wait. What is not freed when the
/// program ends is freed by the system.
fn free_behind(memory: impl Send + 'static) {
    // Without a thread the memory is freed here.
    let freeing = std::thread::Builder::new().spawn(move || drop(memory));
    drop(freeing);
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
