//! The shell around one save session: reports events to the session, and carries out its actions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use codec::encode::{CheckpointPlan, row_bytes_max};
use codec::manifest::{Manifest, Mark, Public};
use codec::{CheckpointId, PublicKey, Redundancy, ShardIndex};
use health::span;
use protocol::wire::message::{Claim, PutEnd, PutShard, Request};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Duration, Instant};

use super::source_failure::source_failure;
use crate::agent::save::fencing::{Fenced, Lost};
use crate::agent::save::journal::SaveJournal;
use crate::agent::save::too_few_hosts::{Shortage, least_parity};
use crate::agent::{Agent, Resources, SaveRequest};
use crate::cancel::Cancel;
use crate::core::compared;
use crate::core::save::{
    AttemptId, RowSize, SaveAction, SaveEvent, SaveFailure, SaveLimits, SaveOutcome, SavePlan,
    SaveSession,
};
use crate::core::{Fault, HostIndex, Millis};
use crate::image::{Remark, SourceError, Weight};
use crate::pipeline::budget::Budget;
use crate::pipeline::encode::{self, EncodeFailure, Encoded, EncodedImage, ReadyRow};
use crate::report::{ExitStatus, Failure, HostNote, Observer, ProgressEvent, SaveReport};
use crate::sleep::{SleepWatch, Slept};
use transfer::AGAIN;
use transfer::put::{Meter, OPEN_TIMEOUT, PutCommand, PutProgress, put_shard};
use transfer::rebuild::Rebuild;

/// How long hosts are waited for while a failed save is removed.
pub(super) const RETRACT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long rows wait for a host before it may be called slow, when no limit on the rate explains the wait.
const EVIDENCE: Duration = Duration::from_millis(500);

/// Rows that fit into the least memory with which rows can be encoded while others are sent.
const ROWS_MIN: u64 = 4;

enum Event {
    Session(SaveEvent),
    Encoded(Encoded<SourceError, Remark>),
    /// Whether the save was chosen as the successor of the checkpoint that it was to follow.
    Fenced(Fenced),
    /// Whether the remnants that the version uses are committed.
    Remnants(bool),
}

/// A running transfer of a shard.
struct Transfer {
    shard: ShardIndex,
    host: HostIndex,
    commands: mpsc::UnboundedSender<PutCommand>,
    sent: watch::Receiver<u64>,
    meter: Arc<Meter>,
    task: JoinHandle<()>,
}

/// Hosts for a save, in order of preference. Those that were `silent` before the save come last.
pub(super) struct Candidates {
    pub(super) order: Vec<HostIndex>,
    pub(super) silent: Vec<HostIndex>,
    /// All hosts that answered before the save.
    pub(super) answering: Vec<HostIndex>,
}

/// A session that committed nothing.
pub(super) struct Unsaved {
    pub(super) failure: Box<Failure>,
    /// The shortest wait named by hosts that only had too many transfers, if the save failed for want of hosts.
    pub(super) crowded_for: Option<Duration>,
    /// How long this machine slept meanwhile, if it did.
    pub(super) slept: Option<Duration>,
    /// Whether it failed because a remnant of an interrupted save could not be committed.
    pub(super) is_remnant_lost: bool,
    /// Whether hosts have rows that the next save may use.
    pub(super) leaves_rows: bool,
}

/// The results of reading an image to its end.
struct Ended {
    image: EncodedImage<Remark>,
    public: Public,
}

mod asleep;
mod choosing;
mod input;
mod knowers;
mod notes;
mod progress;
mod remnants;

use choosing::Choosing;
pub(super) use input::{CommittedSave, Input};
use progress::{PROGRESS_PERIOD, Tally};
use remnants::Remnants;

/// The state of the shell.
pub(super) struct SaveShell<'a> {
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
    /// Watches the connections to hosts that are to be asked later.
    watching: JoinSet<()>,
    ended: Option<Ended>,
    /// Hosts that acknowledged a shard.
    stored: BTreeSet<HostIndex>,
    /// The signed manifest, from the first commit on.
    signed: Option<Manifest>,
    /// The checkpoint that the save follows, and whether it was chosen for that.
    choosing: Choosing,
    /// Is removed before the manifest is signed.
    journal: Option<SaveJournal>,
    remnants: Remnants,
    failure: Option<EncodeFailure<SourceError>>,
    /// Why the manifest could not be signed.
    unsigned: Option<String>,
    /// All hosts that answered before the save.
    answering: Vec<HostIndex>,
    /// How many hosts show the version, shards or not.
    knowers: usize,
    observer: Arc<dyn Observer>,
    tally: Tally,
    sleep: SleepWatch,
    /// What the session knows of this machine's sleep; its time goes on without that.
    slept: Slept,
}

impl<'a> SaveShell<'a> {
    pub(super) fn start(
        agent: &'a Agent,
        request: &'a SaveRequest,
        plan: CheckpointPlan,
        candidates: Candidates,
        input: Input,
        observer: Arc<dyn Observer>,
        started: Instant,
    ) -> Self {
        let mut input = input;
        let settings = input.settings(agent, request, &plan);
        let remnants = Remnants::new(agent, input.pending);
        let journal = input.journal;
        let source = input.source;
        let (sender, events) = mpsc::unbounded_channel();
        let choosing = Choosing::start(input.fencing, &sender);
        let base_bytes = settings.base.as_ref().map_or(0, |base| base.memory_bytes());
        let rows_bytes = rows_bytes(&agent.resources, plan.redundancy, base_bytes);
        let budget = Budget::new(rows_bytes);
        let session = SaveSession::new(
            SavePlan {
                redundancy: plan.redundancy,
                candidates: candidates.order,
                silent: candidates.silent,
                draw: draw_of(plan.checkpoint),
                min_parity: least_parity(request, plan.redundancy),
                deadline: request.options.deadline.map(|limit| Millis(millis(limit))),
                limits: limits(&agent.resources, plan.redundancy, rows_bytes),
            },
            Millis(millis(started.elapsed())),
        );
        let tally = Tally::of(source.planned_bytes());
        let ender = source.ender();
        let encoded_sender = sender.clone();
        encode::start(source, settings, Arc::clone(&budget), move |encoded| {
            let _fails_when_it_is_over = encoded_sender.send(Event::Encoded(encoded));
        });
        Self {
            agent,
            request,
            plan,
            session: choosing.session(session),
            started,
            events,
            sender,
            budget,
            ender,
            rows: BTreeMap::new(),
            transfers: BTreeMap::new(),
            retracting: JoinSet::new(),
            watching: JoinSet::new(),
            ended: None,
            stored: BTreeSet::new(),
            signed: None,
            choosing,
            journal,
            remnants,
            failure: None,
            unsigned: None,
            answering: candidates.answering,
            knowers: 0,
            observer,
            tally,
            sleep: SleepWatch::start(),
            slept: Slept::default(),
        }
    }

    fn handle(&mut self, event: SaveEvent) {
        let now = self.now();
        self.session.handle(now, event);
    }

    pub(super) async fn run(mut self, mut cancel: Cancel) -> Result<CommittedSave, Unsaved> {
        let mut cancelled = false;
        loop {
            self.carry_out();
            self.report_progress_if_due();
            if self.session.outcome().is_some() || self.is_to_begin_again() {
                break;
            }
            let wake = self.session.next_deadline().map_or_else(
                || Instant::now() + PROGRESS_PERIOD,
                |at| self.started + self.slept.by_timers + Duration::from_millis(at.0),
            );
            let wake = wake.min(Instant::now() + PROGRESS_PERIOD);
            tokio::select! {
                biased;
                () = cancel.cancelled(), if !cancelled => {
                    cancelled = true;
                    self.handle(SaveEvent::Cancel);
                }
                event = self.events.recv() => match event {
                    Some(event) => self.handle_event(event),
                    None => self.handle(SaveEvent::Tick),
                },
                () = tokio::time::sleep_until(wake) => {
                    self.slept = self.sleep.slept();
                    self.handle(SaveEvent::Tick);
                }
            }
        }
        self.report_replaced();
        self.budget.close();
        if let Some(ender) = self.ender.take() {
            // Waits a bounded time for the command, if that is still running.
            let _ = tokio::task::spawn_blocking(move || ender.end()).await;
        }
        for transfer in std::mem::take(&mut self.transfers).into_values() {
            self.learn_rate(&transfer);
            // A shard whose transfer ends early is dropped by its host.
            transfer.task.abort();
            if self.slept.times > 0 {
                self.hang_up(transfer.host);
            }
        }
        let retracting = std::mem::take(&mut self.retracting);
        let _ = tokio::time::timeout(RETRACT_TIMEOUT, retracting.join_all()).await;
        self.show_to_more_hosts().await;
        self.report_progress(self.tally.whole());
        let rows = std::mem::take(&mut self.rows);
        let budget = std::mem::replace(&mut self.budget, Budget::new(0));
        free_behind((rows, budget));
        self.conclude()
    }

    fn handle_event(&mut self, event: Event) {
        self.slept = self.sleep.slept();
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
                self.handle(event);
            }
            Event::Encoded(Encoded::Zero(bytes)) => self.tally.read_bytes += bytes,
            Event::Encoded(Encoded::Same(bytes)) => {
                self.tally.read_bytes += bytes;
                self.tally.same_bytes += bytes;
            }
            Event::Encoded(Encoded::Row(row)) => {
                self.tally.read_bytes += row.image_bytes;
                self.tally.stored_bytes += u64::from(row.stored.stored_len);
                if row.image_bytes > 0 {
                    self.tally.count(row.stored);
                }
                let read = self.tally.read_bytes;
                let stored = self.tally.stored_bytes;
                self.tally.ends.push((read, stored));
                let size = RowSize {
                    memory: row.memory_bytes,
                    block: row.block_len as u64,
                };
                let event = SaveEvent::RowReady { row: row.row, size };
                self.rows.insert(row.row, row);
                self.handle(event);
            }
            Event::Fenced(fenced) => self.end_fencing(fenced),
            Event::Remnants(are_committed) => self.end_remnants(are_committed),
            Event::Encoded(Encoded::End(image)) => self.end_input(*image),
            Event::Encoded(Encoded::Failed(failure)) => {
                self.failure = Some(failure);
                self.handle(SaveEvent::InputFailed);
            }
        }
    }

    fn end_input(&mut self, mut image: EncodedImage<Remark>) {
        self.tally.read_at = Some(Instant::now());
        image.draft = image.draft.following(self.choosing.after());
        let is_mixed = |remark: &Remark| remark.weight == Weight::Mixed;
        let is_changed = image.warnings.iter().any(is_mixed);
        let torn = self.request.options.is_torn.then_some(Mark::Torn);
        let mark = torn.or_else(|| is_changed.then_some(Mark::Changed));
        image.draft = image.draft.marked(mark);
        self.observer.event(ProgressEvent::ImageRead);
        match image.draft.check(&self.agent.keys) {
            Ok(public) => {
                self.ended = Some(Ended { image, public });
                self.commit_remnants();
            }
            Err(cause) => {
                self.unsigned = Some(cause.to_string());
                self.handle(SaveEvent::InputFailed);
            }
        }
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
                    // Fails when the transfer has ended, which it has reported itself.
                    let _ = transfer.commands.send(PutCommand::Block(row, block));
                }
                SaveAction::Finish(attempt) => self.finish(attempt),
                SaveAction::Rebuild { attempt, sources } => self.rebuild(attempt, sources),
                SaveAction::Decide => self.decide(),
                SaveAction::Commit(attempt) => self.commit(attempt),
                SaveAction::Abort(attempt) => {
                    if let Some(transfer) = self.transfers.remove(&attempt) {
                        self.learn_rate(&transfer);
                        transfer.task.abort();
                        self.hang_up(transfer.host);
                    }
                }
                // They keep the rows for the next save.
                SaveAction::Retract(_) if self.leaves_rows() => {}
                SaveAction::Retract(host) => {
                    let hosts = self.agent.hosts.clone();
                    let checkpoint = self.plan.checkpoint;
                    self.retracting.spawn(async move {
                        // A shard that can't be removed now expires by itself. The first try may meet the end
                        // of the old connection, so there is a second one, but not for a host that fell
                        // silent.
                        let removed = hosts.forget(host, checkpoint).await;
                        if removed.is_err() && !hosts.is_silent(host) {
                            let _ = hosts.forget(host, checkpoint).await;
                        }
                    });
                }
                SaveAction::Release(row) => {
                    self.rows.remove(&row);
                }
            }
        }
        self.report_setbacks();
    }

    /// Ends the connection to a host: blocks that a transfer did not send hold memory for which the next rows
    /// wait. If the host is to be asked later, a new connection shows whether it still accepts this client.
    fn hang_up(&mut self, host: HostIndex) {
        let hosts = self.agent.hosts.clone();
        if !self.session.waits_for(host) {
            self.retracting
                .spawn(async move { hosts.hang_up(host).await });
            return;
        }
        let sender = self.sender.clone();
        self.watching.spawn(async move {
            hosts.hang_up(host).await;
            if hosts.shuts_out(host).await {
                let _ = sender.send(Event::Session(SaveEvent::ShutOut(host)));
            }
        });
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
        let hosts = self.agent.hosts.clone();
        let sender = self.sender.clone();
        let meter = Arc::new(Meter::default());
        let measuring = Arc::clone(&meter);
        let task = tokio::spawn(async move {
            let on_progress = |progress| {
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
            if hosts.connection(host).await.is_ok() {
                let _ = sender.send(Event::Session(SaveEvent::Reached(attempt)));
            }
            if let Err(fault) = put_shard(
                hosts,
                host,
                Request::PutShard(put),
                queue,
                &measuring,
                on_progress,
            )
            .await
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

    /// Records the rate that a transfer showed.
    fn learn_rate(&self, transfer: &Transfer) {
        if self.slept.times > 0 {
            return;
        }
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
            damaged: Vec::new(),
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
        let manifest = match self.manifest() {
            Ok(manifest) => manifest,
            Err(cause) => {
                self.unsigned = Some(cause);
                return self.handle(SaveEvent::InputFailed);
            }
        };
        let Some(transfer) = self.transfers.get(&attempt) else {
            return;
        };
        let hosts = self.agent.hosts.clone();
        let host = transfer.host;
        let sender = self.sender.clone();
        tokio::spawn(async move {
            let event = match hosts.commit(host, manifest).await {
                Ok(()) => SaveEvent::Committed(attempt),
                Err(fault) => SaveEvent::Failed(attempt, fault),
            };
            let _ = sender.send(Event::Session(event));
        });
    }

    /// The manifest's bytes. The first call signs it: by then, all hosts that are to commit have acknowledged
    /// their shards, and these hosts are its witnesses.
    fn manifest(&mut self) -> Result<Vec<u8>, String> {
        if self.signed.is_none() {
            if let Some(journal) = self.journal.take() {
                let removed = journal.remove();
                removed.map_err(|cause| {
                    format!("the journal of the save can't be removed: {cause}")
                })?;
            }
            let ended = self.ended.as_ref().ok_or("the image has not ended")?;
            // The witnesses: hosts that acknowledged their shard and were not given up since.
            let holders: BTreeSet<HostIndex> =
                self.transfers.values().map(|one| one.host).collect();
            let ids = self
                .stored
                .intersection(&holders)
                .filter_map(|host| self.agent.hosts.entry(*host));
            let witnesses = ids.map(|entry| PublicKey::from(entry.id.0)).collect();
            let draft = ended.image.draft.clone();
            let signed = draft.sign(&self.agent.keys, witnesses);
            self.signed = Some(signed.map_err(|cause| cause.to_string())?);
        }
        let signed = self.signed.as_ref().ok_or("it was just signed")?;
        Ok(signed.bytes().to_vec())
    }

    /// Hosts that failed and hold no shard of the checkpoint, each once, in the order of the grid.
    fn troubles(&self) -> Vec<HostNote> {
        let troubles = self.session.troubles();
        let notes = troubles.map(|(host, fault)| self.agent.note(host, fault));
        notes.collect()
    }

    /// Why hosts do not accept this client, if so many don't that the others are fewer than `needed`. Fewer hosts
    /// than that can't lie about it with effect: the save would have found its hosts.
    fn shut_out(&self, needed: usize) -> Option<Fault> {
        let forbidden = self
            .session
            .troubles()
            .filter(|(_, fault)| fault.is_forbidden());
        let forbidden: Vec<&Fault> = forbidden.map(|(_, fault)| fault).collect();
        let others = self.agent.hosts.count().saturating_sub(forbidden.len());
        let first = forbidden.first().filter(|_| others < needed)?;
        Some((*first).clone())
    }

    fn conclude(mut self) -> Result<CommittedSave, Unsaved> {
        let slept = Some(self.slept.all).filter(|slept| !slept.is_zero());
        let leaves_rows = self.leaves_rows();
        if let Some(journal) = self.journal.take().filter(|_| !leaves_rows) {
            // What stays is of no use: hosts have no rows.
            let _ = journal.remove();
        }
        let is_remnant_lost = self.remnants.are_lost;
        let unsaved = |failure| Unsaved {
            failure: Box::new(failure),
            crowded_for: None,
            slept,
            is_remnant_lost,
            leaves_rows,
        };
        match self.session.outcome().cloned() {
            Some(SaveOutcome::Committed { holders }) => match self.ended.take() {
                Some(ended) => Ok(CommittedSave {
                    report: self.report(&ended, &holders),
                    needs: ended.image.draft.summary().needs().collect(),
                }),
                None => Err(unsaved(Failure::new(
                    ExitStatus::Failed,
                    "committed without an image",
                ))),
            },
            Some(SaveOutcome::Failed(why)) => Err(Unsaved {
                crowded_for: self.crowded_for(&why),
                slept,
                failure: Box::new(self.half_done(self.failure(why))),
                is_remnant_lost,
                leaves_rows,
            }),
            None => {
                let slept = span(self.slept.all.as_secs());
                let message = format!("this machine slept for {slept} while it saved");
                Err(unsaved(
                    Failure::new(ExitStatus::Failed, message).next("the same command again"),
                ))
            }
        }
    }

    /// The shortest wait named by hosts that have too many transfers, if the save failed for want of hosts and
    /// would have enough with these and the slow ones.
    fn crowded_for(&self, why: &SaveFailure) -> Option<Duration> {
        let SaveFailure::NotEnoughHosts { placed, needed } = *why else {
            return None;
        };
        let is_loaded = |fault: &Fault| fault.is_crowded() || matches!(fault, Fault::Slow { .. });
        let loaded = self
            .session
            .troubles()
            .filter(|(_, fault)| is_loaded(fault));
        if placed + loaded.count() < needed {
            return None;
        }
        let crowded = self
            .session
            .troubles()
            .filter(|(_, fault)| fault.is_crowded());
        let waits = crowded.filter_map(|(_, fault)| fault.named_wait_ms());
        waits.min().map(Duration::from_millis)
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
            new_bytes: Some(image.new_bytes),
            compressed: self.tally.compressed.clone(),
            shard_bytes: public.block_bytes * holders.len() as u64,
            stored_times: holders.len() as f64 / public.redundancy.data() as f64,
            files: summary.files,
            seconds: self.started.elapsed().as_secs_f64(),
            resumed_bytes: (image.resumed_bytes > 0).then_some(image.resumed_bytes),
            held_seconds: self.tally.read_at.map_or(0.0, |at| {
                at.saturating_duration_since(self.started).as_secs_f64()
            }),
            holders: self.agent.holders(public.redundancy, holders),
            replaced: self.troubles(),
            removed: Vec::new(),
            marked: summary.tail.mark.map(|mark| mark.to_string()),
            kept_until: None,
            fence: self.choosing.report(),
            notes: self.notes(image, summary.image_bytes),
            placement: None,
            warnings: self.warnings(image),
        }
    }

    fn too_few(&self, doing: &str, placed: usize, needed: usize) -> Failure {
        if let Some(fault) = self.shut_out(needed) {
            return Failure::new(ExitStatus::Denied, format!("{doing}: {fault}"))
                .next("ckpt doctor");
        }
        let ended = self
            .request
            .options
            .deadline
            .is_some_and(|end| self.started.elapsed() + Duration::from_secs(1) >= end);
        let shortage = Shortage {
            placed,
            needed,
            soonest_ms: self.session.soonest().map(|at| at.since(self.now())),
            deadline_ended: ended,
        };
        shortage.failure(doing)
    }

    fn failure(&self, failure: SaveFailure) -> Failure {
        let doing = format!("cannot save job {}", self.request.job);
        let mut failure = match failure {
            SaveFailure::NotEnoughHosts { placed, needed } => self.too_few(&doing, placed, needed),
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
            )
            .next("a longer --deadline"),
            SaveFailure::InputFailed => match &self.failure {
                Some(EncodeFailure::Source(cause)) => source_failure(&doing, cause),
                Some(other) => Failure::new(ExitStatus::Failed, format!("{doing}: {other}")),
                None => match (&self.unsigned, self.choosing.lost()) {
                    (Some(cause), _) => {
                        Failure::new(ExitStatus::Failed, format!("{doing}: {cause}"))
                    }
                    (None, Some(Lost::Unsigned(cause))) => {
                        Failure::new(ExitStatus::Failed, format!("{doing}: {cause}"))
                    }
                    (None, _) => Failure::new(ExitStatus::LocalIo, doing),
                },
            },
            SaveFailure::AnotherSuccessor | SaveFailure::TooFewWitnesses | SaveFailure::Outbid => {
                return self.not_followed(&doing);
            }
        };
        failure.hosts = self.troubles();
        failure
    }
}

/// Memory for rows, bytes: what the reading of the image and the base leave, but enough for a few rows.
fn rows_bytes(resources: &Resources, redundancy: Redundancy, base_bytes: u64) -> u64 {
    let cpus = resources.cpus.max(1);
    let least = (cpus as u64 + ROWS_MIN) * row_bytes_max(redundancy) as u64;
    let reading = encode::raw_bytes(cpus);
    compared::rows_bytes(resources.memory_bytes, reading, base_bytes, least)
}

/// Time limits of a session, and how many of the `rows_bytes` it retains for hosts that may fail.
fn limits(resources: &Resources, redundancy: Redundancy, rows_bytes: u64) -> SaveLimits {
    SaveLimits {
        open_ms: millis(OPEN_TIMEOUT),
        // Together with the wait before the session, a save that fails because of a host that did not answer
        // takes less than three seconds.
        again_ms: millis(AGAIN),
        evidence_ms: millis(EVIDENCE) + resources.patience_ms(redundancy),
        stall_ms: millis(protocol::wire::limits::STALL_TIMEOUT) + resources.patience_ms(redundancy),
        sync_ms: millis(protocol::wire::limits::SYNC_TIMEOUT),
        commit_ms: 2 * millis(protocol::wire::limits::REQUEST_TIMEOUT),
        // The other half is for rows that are being encoded and sent.
        retain_bytes: rows_bytes / 2,
    }
}

/// A number that differs between saves, for their random waits.
fn draw_of(checkpoint: CheckpointId) -> u64 {
    let (half, _) = checkpoint.0.split_at(8);
    half.iter()
        .fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

/// Frees memory in a thread of its own while hosts get their last messages. Returning the 150 MiB that a save
/// retains for hosts that may fail takes some 20 ms, for which all of them would wait. If the process ends
/// first, the system frees the rest.
fn free_behind(memory: impl Send + 'static) {
    // If no thread can be started, the memory is freed here.
    let freeing = std::thread::Builder::new().spawn(move || drop(memory));
    drop(freeing);
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
