//! Carries out a restore session.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use codec::decode::{Composer, DecodeError, RowDecoder};
use codec::encode::row_bytes_max;
use codec::geometry::SEGMENT_BYTES;
use codec::grant::Rights;
use codec::index::{Index, StoredSegment};
use codec::manifest::{ImageKind, Summary};
use codec::{JobTag, ShardIndex};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant};

use super::gather::{Gathered, Patience};
use super::{Agent, RestoreRequest, RestoreTarget, Which, chain, unix_seconds};
use crate::cancel::Cancel;
use crate::core::restore::{
    FetchId, RestoreAction, RestoreEvent, RestoreLimits, RestoreOutcome, RestorePlan,
    RestoreSession,
};
use crate::core::{Fault, HostIndex, Millis};
use crate::image::{Sink, SinkError, SinkOptions, Target};
use crate::inventory::KnownCheckpoint;
use crate::knowledge::Observation;
use crate::pipeline::decode::{self, Decoded, Earlier, RowBlocks};
use crate::report::{
    ExitStatus, Failure, HostNote, Observer, Progress, ProgressEvent, RestoreReport,
    SkippedVersion, SourceBytes,
};
use crate::transfer::get::BlockReader;
use crate::transfer::sources::SourceMeter;

/// Rows that are asked for at once: about a megabyte from each host.
const BATCH_ROWS: u64 = 4;

/// Requests that take longer than this may be hedged.
const HEDGE_MS: u64 = 500;

/// Failures after which a host that could come back is given up.
const STRIKES_MAX: u32 = 4;

const PROGRESS_PERIOD: Duration = Duration::from_millis(200);

/// How long the threads of a restore that was given up may take to remove what they made.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(20);

impl Agent {
    /// Restores an image.
    ///
    /// # Errors
    /// When nothing was restored; the target is as it was.
    pub async fn restore(
        &self,
        request: RestoreRequest,
        observer: Arc<dyn Observer>,
        cancel: Cancel,
    ) -> Result<RestoreReport, Failure> {
        let started = Instant::now();
        let doing = format!("cannot restore job {}", request.job);
        let job_tag = self.job_tag(&request.job)?;
        self.needs(Rights::RESTORE, &doing)?;
        let patience = Patience::ToRestore(request.which);
        let mut gathered = self.gather(Some(job_tag), patience).await;
        self.somebody(&gathered, &doing)?;
        let mut choices = choose(&gathered, request.which);
        let hidden = self.hidden(job_tag, &gathered, &choices, request.which);
        if choices.is_empty() {
            let mut report = self.nothing(&request, &gathered, &doing, started)?;
            let hidden = hidden.map(|hidden| hidden.to_string());
            report.warnings.extend(hidden);
            return Ok(report);
        }
        let mut skipped: Vec<SkippedVersion> = hidden.into_iter().collect();
        for skip in &skipped {
            observer.event(ProgressEvent::VersionSkipped(skip.clone()));
        }
        let mut hosts = Vec::new();
        let mut next = 0;
        while let Some(known) = choices.get(next) {
            let attempt = Attempt {
                agent: self,
                request: &request,
                known,
                gathered: &gathered,
                observer: &observer,
                started,
            };
            match attempt.run(cancel.clone()).await {
                Ok(mut report) => {
                    report.skipped = skipped;
                    report.warnings.extend(passed_over(&gathered, Some(known)));
                    if let Some(message) = self.note_of_void(&gathered, request.which) {
                        report.warnings.push(message.clone());
                        observer.event(ProgressEvent::Warning { message });
                    }
                    self.notebook
                        .note(Observation::Version(job_tag, known.version()));
                    return Ok(report);
                }
                Err(Stop::Fatal(failure)) => return Err(failure),
                Err(Stop::Unrestorable { .. }) if gathered.is_cut_short => {
                    // Hosts that answered do not have what they said: those who were too slow to
                    // answer are waited for before an older version is taken.
                    gathered = self.gather(Some(job_tag), Patience::All).await;
                    self.somebody(&gathered, &doing)?;
                    choices = choose(&gathered, request.which);
                    next = 0;
                }
                Err(Stop::Unrestorable { reason, notes }) => {
                    hosts.extend(notes);
                    let version = known.version();
                    let skip = SkippedVersion { version, reason };
                    observer.event(ProgressEvent::VersionSkipped(skip.clone()));
                    skipped.push(skip);
                    next += 1;
                }
            }
        }
        hosts.extend(self.silent_notes(&gathered));
        Err(lost(&doing, &skipped, hosts, &gathered))
    }

    /// The newest version that this machine knows of, if the hosts show only older ones.
    fn hidden(
        &self,
        job_tag: JobTag,
        gathered: &Gathered,
        choices: &[KnownCheckpoint],
        which: Which,
    ) -> Option<SkippedVersion> {
        let seen = self.notebook.read(unix_seconds()).newest(job_tag)?;
        let shown = choices.iter().chain(gathered.inventory.void());
        let shown = shown.map(KnownCheckpoint::version).max();
        let is_hidden = which == Which::Newest && shown.is_none_or(|shown| shown < seen);
        is_hidden.then(|| SkippedVersion {
            version: seen,
            reason: "this machine knows of it, but no host that answers shows it: removed from elsewhere, lost, or hidden".into(),
        })
    }

    /// Reads the index of a checkpoint.
    pub(super) async fn read_index(
        &self,
        known: &KnownCheckpoint,
        summary: &Summary,
        reader: &BlockReader,
    ) -> Result<Index, Stop> {
        let public = known.manifest.public();
        let first = public.rows - summary.index.len() as u64;
        let bytes = self
            .read_rows(known, summary, reader, first, &summary.index)
            .await?;
        // Decoding and checking the index of a large image takes a while.
        let index = tokio::task::spawn_blocking(move || Index::decode(&bytes)).await;
        match index {
            Ok(Ok(index)) => Ok(index),
            Ok(Err(cause)) => Err(Stop::unrestorable(cause.to_string())),
            Err(cause) => Err(Stop::unrestorable(cause.to_string())),
        }
    }

    /// Reads rows of a checkpoint from `first` on that the summary describes.
    pub(super) async fn read_rows(
        &self,
        known: &KnownCheckpoint,
        summary: &Summary,
        reader: &BlockReader,
        first: u64,
        rows: &[StoredSegment],
    ) -> Result<Vec<u8>, Stop> {
        let public = known.manifest.public();
        let end = first + rows.len() as u64;
        let mut decoder = RowDecoder::new(public.redundancy, public.sealer(&summary.data_key));
        let mut parts: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut failed: Option<DecodeError> = None;
        let wanted = first..end;
        let mut driver = Driver::new(self, known, reader, vec![wanted], 1);
        let outcome = loop {
            match driver.next().await {
                Step::Decode(blocks) => {
                    let row = blocks.row;
                    let stored = usize::try_from(row - first)
                        .ok()
                        .and_then(|at| rows.get(at));
                    let given: Vec<_> = blocks.blocks.iter().map(|(s, b)| (*s, &**b)).collect();
                    let mut raw = Vec::new();
                    if let Some(stored) = stored {
                        match decoder.decode(row, stored, None, &given, &mut raw) {
                            Ok(_) => {
                                parts.insert(row, raw);
                            }
                            Err(cause) => failed = Some(cause),
                        }
                    }
                    driver.tell(RestoreEvent::Consumed(row));
                }
                Step::Wait => {}
                Step::Ended(outcome) => break outcome,
            }
        };
        if let Some(cause) = failed {
            return Err(Stop::unrestorable(format!("index: {cause}")));
        }
        if let RestoreOutcome::Lost { row, good, needed } = outcome {
            return Err(driver.lost(row, good, needed));
        }
        Ok(parts.into_values().flatten().collect())
    }
}

/// Why a checkpoint was not restored.
#[derive(Debug)]
pub(super) enum Stop {
    /// An older one may still be.
    Unrestorable {
        /// Why.
        reason: String,
        /// What hosts had to do with it.
        notes: Vec<HostNote>,
    },
    /// No other would be, either.
    Fatal(Failure),
}

impl Stop {
    pub(super) fn unrestorable(reason: impl Into<String>) -> Self {
        Self::Unrestorable {
            reason: reason.into(),
            notes: Vec::new(),
        }
    }
}

fn choose(gathered: &Gathered, which: Which) -> Vec<KnownCheckpoint> {
    let all = gathered.inventory.newest_first().into_iter();
    match which {
        Which::Newest => all.cloned().collect(),
        // Who asks for a version gets it, also where all was deleted, and one that was signed with a
        // key that is void now.
        Which::Version(version) => all
            .chain(gathered.inventory.passed_over())
            .chain(gathered.inventory.void())
            .filter(|known| known.version() == version)
            .cloned()
            .collect(),
    }
}

/// What there is to say of versions that lie where all was deleted.
pub(super) fn passed_over(
    gathered: &Gathered,
    restored: Option<&KnownCheckpoint>,
) -> Option<String> {
    let passed = gathered.inventory.passed_over();
    if let Some(restored) = restored
        && passed.iter().any(|known| known.stamp() == restored.stamp())
    {
        let version = restored.version();
        return Some(format!("version {version} lies where all was deleted"));
    }
    let versions: Vec<String> = passed
        .iter()
        .map(|known| known.version().to_string())
        .collect();
    let versions = versions.join(", ");
    (!passed.is_empty()).then(|| {
        format!(
            "passed over, as they lie where all was deleted: versions {versions} \
             (saved or brought back out of sight; see: ckpt gc --dry-run)"
        )
    })
}

/// Nothing could be restored: for want of hosts, or because what is there is damaged.
fn lost(
    doing: &str,
    skipped: &[SkippedVersion],
    hosts: Vec<HostNote>,
    gathered: &Gathered,
) -> Failure {
    let reasons: Vec<String> = skipped
        .iter()
        .map(|skip| format!("version {}: {}", skip.version, skip.reason))
        .collect();
    let message = format!("{doing}: {}", reasons.join("; "));
    let mut failure = if gathered.silent.is_empty() {
        Failure::new(ExitStatus::Damaged, message).next("ckpt verify --read-data")
    } else {
        Failure::new(ExitStatus::TooFewHosts, message)
            .next("again when more hosts are up: ckpt hosts")
    };
    failure.hosts = hosts;
    failure
}

/// One checkpoint that is to be restored.
struct Attempt<'a> {
    agent: &'a Agent,
    request: &'a RestoreRequest,
    known: &'a KnownCheckpoint,
    gathered: &'a Gathered,
    observer: &'a Arc<dyn Observer>,
    started: Instant,
}

impl Attempt<'_> {
    async fn run(&self, mut cancel: Cancel) -> Result<RestoreReport, Stop> {
        let public = self.known.manifest.public();
        let (found, needed) = (self.known.shards_found(), public.redundancy.data());
        if found < needed {
            return Err(Stop::unrestorable(format!(
                "{found} of {} shards found, {needed} needed",
                public.redundancy.total()
            )));
        }
        let summary = self
            .known
            .manifest
            .open(&self.agent.keys)
            .map_err(|cause| Stop::unrestorable(cause.to_string()))?;
        let reader = BlockReader::new(self.agent.hosts.clone(), public.clone());
        let index = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(self.interrupted()),
            index = self.agent.read_index(self.known, &summary, &reader) => index?,
        };
        let base = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(self.interrupted()),
            base = self.base(&summary) => base?,
        };
        let target = self.target(&index, summary.kind)?;
        let sink = self.sink(&index, &target).await?;
        let image = Image {
            summary,
            index,
            reader,
            base,
        };
        self.transfer(image, sink, target, cancel).await
    }

    /// What the checkpoint refers to, if it does.
    async fn base(&self, summary: &Summary) -> Result<Option<FoundBase>, Stop> {
        let Some(wanted) = summary.tail.base else {
            return Ok(None);
        };
        let Some(known) = self.gathered.inventory.get(wanted.checkpoint) else {
            let why = "the version that it builds on is not found";
            return Err(Stop::unrestorable(why));
        };
        let version = known.version();
        let failed = |why: String| {
            Stop::unrestorable(format!("version {version}, on which it builds: {why}"))
        };
        if known.manifest.hash() != wanted.manifest {
            return Err(failed("another manifest".into()));
        }
        if known.can_lose().is_none() {
            let found = known.shards_found();
            return Err(failed(format!("{found} shards found, more are needed")));
        }
        let opened = known.manifest.open(&self.agent.keys);
        let summary = opened.map_err(|cause| failed(cause.to_string()))?;
        let public = known.manifest.public().clone();
        let reader = BlockReader::new(self.agent.hosts.clone(), public);
        let index = self.agent.read_index(known, &summary, &reader).await?;
        Ok(Some(FoundBase {
            known: known.clone(),
            summary,
            index,
            reader,
        }))
    }

    fn interrupted(&self) -> Stop {
        Stop::Fatal(Failure::new(
            ExitStatus::Interrupted,
            format!("cannot restore job {}: interrupted", self.request.job),
        ))
    }

    fn target(&self, index: &Index, kind: ImageKind) -> Result<Target, Stop> {
        match &self.request.target {
            RestoreTarget::Path(path) => Ok(Target::Path(path.clone())),
            RestoreTarget::Stdout => Ok(Target::Stdout),
            RestoreTarget::Default => {
                let mut roots = index.files.iter().filter(|f| !f.path.contains(&b'/'));
                match (kind, roots.next(), roots.next()) {
                    (ImageKind::Stream, _, _) if is_terminal() => Err(Stop::Fatal(
                        Failure::new(
                            ExitStatus::Usage,
                            "the image is a stream; standard output is a terminal",
                        )
                        .next("name a file with -o, or redirect standard output"),
                    )),
                    (ImageKind::Stream, _, _) => Ok(Target::Stdout),
                    (_, Some(root), None) => {
                        use std::os::unix::ffi::OsStrExt;
                        let name = std::ffi::OsStr::from_bytes(&root.path);
                        Ok(Target::Path(PathBuf::from(name)))
                    }
                    _ => Ok(Target::Path(PathBuf::from(self.request.job.file_name()))),
                }
            }
        }
    }

    async fn sink(&self, index: &Index, target: &Target) -> Result<Sink, Stop> {
        let options = SinkOptions {
            force: self.request.force,
            set_id_bits: self.request.set_id_bits,
        };
        let (index, target) = (index.clone(), target.clone());
        tokio::task::spawn_blocking(move || Sink::create(&index, &target, options))
            .await
            .map_err(|cause| Stop::unrestorable(cause.to_string()))?
            .map_err(|cause| self.sink_failure(&cause))
    }

    fn sink_failure(&self, cause: &SinkError) -> Stop {
        let message = format!("cannot restore job {}: {}", self.request.job, chain(cause));
        let status = match cause {
            SinkError::TreeToStdout | SinkError::Name(_) => ExitStatus::Usage,
            _ => ExitStatus::LocalIo,
        };
        Stop::Fatal(Failure::new(status, message))
    }

    async fn transfer(
        &self,
        image: Image,
        sink: Sink,
        target: Target,
        cancel: Cancel,
    ) -> Result<RestoreReport, Stop> {
        let Image {
            summary,
            index,
            reader,
            base,
        } = image;
        let summary = &summary;
        let public = self.known.manifest.public();
        let rows = 0..index.rows().count() as u64;
        let wanted: BTreeSet<u64> = index.base_rows().collect();
        if !wanted.is_empty() && base.is_none() {
            let why = "it refers to another version and does not say to which";
            return Err(Stop::unrestorable(why));
        }
        let pieces_key = base
            .as_ref()
            .map_or(&summary.data_key, |base| &base.summary.data_key);
        let composer = Composer::new(public.sealer(&summary.data_key), pieces_key);
        let base = base.filter(|_| !wanted.is_empty());
        let image_bytes = summary.image_bytes;
        let cpus = self.agent.resources.cpus;
        let (tell, mut told) = mpsc::unbounded_channel();
        let shares = 1 + u64::from(base.is_some());
        let (mut base, decoded) = base
            .as_ref()
            .map(|base| {
                let public = base.known.manifest.public();
                let (pool, rows) = decode::start_rows(public, &base.summary, &base.index, cpus);
                let rows_wanted = runs(&wanted);
                let driver =
                    Driver::new(self.agent, &base.known, &base.reader, rows_wanted, shares);
                let feed = BaseFeed::new(pool, driver);
                (feed, rows)
            })
            .unzip();
        let pool = decode::start(
            public,
            summary,
            index,
            sink,
            cpus,
            Earlier {
                composer,
                base: decoded,
            },
            move |decoded| {
                // Fails only when the restore is over.
                let _ = tell.send(decoded);
            },
        );
        let mut driver = Driver::new(self.agent, self.known, &reader, vec![rows], shares);
        let mut progress = Progress {
            total_bytes: Some(summary.stream_bytes),
            stored_bytes: summary.stored_bytes,
            ..Progress::default()
        };
        let followed = self
            .follow(
                pool,
                &mut told,
                &mut driver,
                &mut base,
                &mut progress,
                cancel,
            )
            .await;
        if let Err(stop) = followed
            && !completed_anyway(&mut told).await
        {
            return Err(stop);
        }
        progress.done_bytes = summary.stream_bytes;
        let base = base.as_ref().map(|base| &base.driver);
        progress.network_bytes = fetched_bytes(&driver, base);
        self.observer.event(ProgressEvent::Progress(progress));
        Ok(self.report(summary, image_bytes, &driver, base, &target))
    }

    /// Feeds the decoding threads until the image is complete.
    async fn follow(
        &self,
        pool: decode::DecodePool,
        told: &mut mpsc::UnboundedReceiver<Decoded<SinkError, ()>>,
        driver: &mut Driver<'_>,
        base: &mut Option<BaseFeed<'_>>,
        progress: &mut Progress,
        mut cancel: Cancel,
    ) -> Result<(), Stop> {
        let mut pool = Some(pool);
        let mut shown = Instant::now();
        // Counted in proportion: which rows are written says little of what each was stored in.
        let whole = std::mem::take(&mut progress.stored_bytes);
        let total = u128::from(progress.total_bytes.unwrap_or_default().max(1));
        let stored_of = |done: u64| (u128::from(whole) * u128::from(done) / total) as u64;
        loop {
            if shown.elapsed() >= PROGRESS_PERIOD {
                shown = Instant::now();
                let base = base.as_ref().map(|base| &base.driver);
                progress.network_bytes = fetched_bytes(driver, base);
                self.observer.event(ProgressEvent::Progress(*progress));
            }
            tokio::select! {
                biased;
                () = cancel.cancelled() => return Err(self.interrupted()),
                decoded = told.recv() => match decoded {
                    Some(Decoded::Written { row, image_bytes }) => {
                        progress.done_bytes = image_bytes;
                        progress.stored_bytes = stored_of(image_bytes);
                        driver.tell(RestoreEvent::Consumed(row));
                    }
                    Some(Decoded::BaseUsed(row)) => {
                        if let Some(base) = base.as_mut() {
                            base.used(row);
                        }
                    }
                    Some(Decoded::Finished(())) => {
                        progress.stored_bytes = whole;
                        return Ok(());
                    }
                    Some(Decoded::Undecodable(cause)) => {
                        return Err(Stop::unrestorable(cause.to_string()));
                    }
                    Some(Decoded::Failed(cause)) => return Err(self.sink_failure(&cause)),
                    None => return Err(Stop::unrestorable("decoding ended early")),
                },
                lost = feed(base) => return Err(lost),
                step = driver.next(), if pool.is_some() => match step {
                    Step::Decode(blocks) => {
                        if let Some(pool) = &pool {
                            pool.push(blocks);
                        }
                    }
                    Step::Wait => {}
                    // The last rows are still being written; no more will come.
                    Step::Ended(RestoreOutcome::Done) => pool = None,
                    Step::Ended(RestoreOutcome::Lost { row, good, needed }) => {
                        return Err(driver.lost(row, good, needed));
                    }
                },
            }
        }
    }

    fn report(
        &self,
        summary: &Summary,
        image_bytes: u64,
        driver: &Driver<'_>,
        base: Option<&Driver<'_>>,
        target: &Target,
    ) -> RestoreReport {
        let faults = self.agent.notes(driver.session.faults());
        RestoreReport {
            job: self.request.job.clone(),
            version: Some(self.known.version()),
            target: match target {
                Target::Path(path) => path.display().to_string(),
                Target::Stdout => "-".to_owned(),
            },
            image_bytes,
            fetched_bytes: fetched_bytes(driver, base),
            files: summary.files,
            seconds: self.started.elapsed().as_secs_f64(),
            sources: sources(driver, base),
            skipped: Vec::new(),
            warnings: faults
                .into_iter()
                .map(|note| format!("{}: {}", note.host, note.what))
                .collect(),
        }
    }
}

/// After a restore was given up: waits until its threads have removed what they made, for a bounded
/// time. They may also just have completed the image, which then counts.
async fn completed_anyway(told: &mut mpsc::UnboundedReceiver<Decoded<SinkError, ()>>) -> bool {
    let ended = tokio::time::timeout(CLEANUP_TIMEOUT, async {
        let mut completed = false;
        while let Some(decoded) = told.recv().await {
            completed |= matches!(decoded, Decoded::Finished(()));
        }
        completed
    });
    ended.await.unwrap_or(false)
}

fn is_terminal() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stdout())
}

enum Event {
    Session(RestoreEvent),
    Block(FetchId, u64, ShardIndex, Bytes),
}

/// What a driver wants its owner to do.
enum Step {
    /// Decode this row, and tell when it is consumed.
    Decode(RowBlocks),
    /// Nothing; call again.
    Wait,
    /// It is over.
    Ended(RestoreOutcome),
}

/// What is to be restored.
struct Image {
    summary: Summary,
    index: Index,
    reader: BlockReader,
    base: Option<FoundBase>,
}

/// The checkpoint that another one refers to.
struct FoundBase {
    known: KnownCheckpoint,
    summary: Summary,
    index: Index,
    reader: BlockReader,
}

/// Fetches rows of the base for the decoding threads.
struct BaseFeed<'a> {
    pool: Option<decode::DecodePool>,
    driver: Driver<'a>,
    /// Rows of these that are being decoded or wait to be used.
    pending: BTreeSet<u64>,
}

impl<'a> BaseFeed<'a> {
    const fn new(pool: decode::DecodePool, driver: Driver<'a>) -> Self {
        Self {
            pool: Some(pool),
            driver,
            pending: BTreeSet::new(),
        }
    }

    /// All rows up to this one are used.
    fn used(&mut self, row: u64) {
        let left = self.pending.split_off(&(row + 1));
        for row in std::mem::replace(&mut self.pending, left) {
            self.driver.tell(RestoreEvent::Consumed(row));
        }
    }
}

/// Feeds the rows of the base, if there is one, for as long as it is polled; returns only when they
/// can't be had.
async fn feed(base: &mut Option<BaseFeed<'_>>) -> Stop {
    let Some(base) = base else {
        return std::future::pending().await;
    };
    loop {
        match base.driver.next().await {
            Step::Decode(blocks) => {
                base.pending.insert(blocks.row);
                if let Some(pool) = &base.pool {
                    pool.push(blocks);
                }
            }
            Step::Wait => {}
            Step::Ended(RestoreOutcome::Lost { row, good, needed }) => {
                return base.driver.lost(row, good, needed);
            }
            Step::Ended(RestoreOutcome::Done) => {
                base.pool = None;
                return std::future::pending().await;
            }
        }
    }
}

/// These rows as runs without a gap.
fn runs(rows: &BTreeSet<u64>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for row in rows {
        match runs.last_mut() {
            Some(run) if run.end == *row => run.end += 1,
            _ => runs.push(*row..row + 1),
        }
    }
    runs
}

fn fetched_bytes(driver: &Driver<'_>, base: Option<&Driver<'_>>) -> u64 {
    driver.fetched_bytes() + base.map_or(0, Driver::fetched_bytes)
}

/// Bytes from each host, for the image and its base together.
fn sources(driver: &Driver<'_>, base: Option<&Driver<'_>>) -> Vec<SourceBytes> {
    let mut all = driver.sources();
    for more in base.map(Driver::sources).unwrap_or_default() {
        match all.iter_mut().find(|one| one.host == more.host) {
            Some(one) => one.bytes += more.bytes,
            None => all.push(more),
        }
    }
    all
}

/// Runs one restore session against the network.
struct Driver<'a> {
    agent: &'a Agent,
    reader: BlockReader,
    session: RestoreSession,
    started: Instant,
    events: mpsc::UnboundedReceiver<Event>,
    sender: mpsc::UnboundedSender<Event>,
    fetches: BTreeMap<FetchId, (HostIndex, JoinHandle<()>)>,
    /// Blocks of rows that were asked for and are not decoded; what comes later is not kept.
    blocks: BTreeMap<u64, BTreeMap<ShardIndex, Bytes>>,
    /// First row that was never asked for.
    unasked: u64,
    meter: SourceMeter,
}

impl<'a> Driver<'a> {
    fn new(
        agent: &'a Agent,
        known: &KnownCheckpoint,
        reader: &BlockReader,
        rows: Vec<Range<u64>>,
        shares: u64,
    ) -> Self {
        let redundancy = known.manifest.public().redundancy;
        // A row in flight is its blocks, perhaps hedged, and its decoded segment.
        let per_row = (row_bytes_max(redundancy) + SEGMENT_BYTES) as u64;
        let window_rows = (agent.resources.memory_bytes * 3 / 4 / shares / per_row).max(1);
        let plan = RestorePlan {
            data: redundancy.data(),
            rows,
            sources: known.holders.clone(),
            limits: RestoreLimits {
                window_rows,
                batch_rows: BATCH_ROWS.min(window_rows),
                hedge_ms: HEDGE_MS + agent.resources.patience_ms(redundancy),
                stall_ms: 10_000 + agent.resources.patience_ms(redundancy),
                strikes_max: STRIKES_MAX,
            },
        };
        let (sender, events) = mpsc::unbounded_channel();
        Self {
            agent,
            reader: reader.clone(),
            session: RestoreSession::new(plan, Millis(0)),
            started: Instant::now(),
            events,
            sender,
            fetches: BTreeMap::new(),
            blocks: BTreeMap::new(),
            unasked: 0,
            meter: SourceMeter::default(),
        }
    }

    fn tell(&mut self, event: RestoreEvent) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.session.handle(Millis(now), event);
    }

    /// Goes on until there is something for the owner to do. May be dropped and called again.
    async fn next(&mut self) -> Step {
        while let Some(action) = self.session.poll_action() {
            match action {
                RestoreAction::Fetch {
                    fetch,
                    shard,
                    host,
                    rows,
                } => self.fetch(fetch, shard, host, rows),
                RestoreAction::Cancel(fetch) => {
                    if let Some(task) = self.end(fetch) {
                        task.abort();
                    }
                }
                RestoreAction::Decode(row, shards) => {
                    let mut blocks = self.blocks.remove(&row).unwrap_or_default();
                    blocks.retain(|shard, _| shards.contains(shard));
                    return Step::Decode(RowBlocks {
                        row,
                        blocks: blocks.into_iter().collect(),
                    });
                }
            }
        }
        if let Some(outcome) = self.session.outcome() {
            return Step::Ended(outcome.clone());
        }
        let wake = self.session.next_deadline().map_or_else(
            || Instant::now() + PROGRESS_PERIOD,
            |at| self.started + Duration::from_millis(at.0),
        );
        tokio::select! {
            biased;
            event = self.events.recv() => {
                if let Some(event) = event {
                    self.happen(event);
                }
            }
            () = tokio::time::sleep_until(wake) => self.tell(RestoreEvent::Tick),
        }
        Step::Wait
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Block(fetch, row, shard, block) => {
                // What was cancelled may still have been on its way.
                let Some((host, _)) = self.fetches.get(&fetch) else {
                    return;
                };
                self.meter.got(*host, block.len() as u64);
                if let Some(blocks) = self.blocks.get_mut(&row) {
                    blocks.insert(shard, block);
                }
                self.tell(RestoreEvent::Block(fetch, row));
            }
            Event::Session(event) => {
                if let RestoreEvent::Done(fetch) | RestoreEvent::Failed(fetch, _) = &event {
                    self.end(*fetch);
                }
                self.tell(event);
            }
        }
    }

    fn end(&mut self, fetch: FetchId) -> Option<JoinHandle<()>> {
        let (host, task) = self.fetches.remove(&fetch)?;
        self.meter.end(host, self.started.elapsed());
        Some(task)
    }

    fn fetch(&mut self, fetch: FetchId, shard: ShardIndex, host: HostIndex, rows: Range<u64>) {
        for row in rows.clone().filter(|row| *row >= self.unasked) {
            self.blocks.insert(row, BTreeMap::new());
        }
        self.unasked = self.unasked.max(rows.end);
        let (reader, sender) = (self.reader.clone(), self.sender.clone());
        let task = tokio::spawn(async move {
            let blocks = sender.clone();
            let tell = move |row, block| {
                // Fails only when the restore is over.
                let _ = blocks.send(Event::Block(fetch, row, shard, block));
            };
            let event = match reader.blocks(shard, host, rows, tell).await {
                Ok(()) => RestoreEvent::Done(fetch),
                Err(fault) => RestoreEvent::Failed(fetch, fault),
            };
            let _ = sender.send(Event::Session(event));
        });
        self.meter.begin(host, self.started.elapsed());
        self.fetches.insert(fetch, (host, task));
    }

    fn fetched_bytes(&self) -> u64 {
        self.meter.bytes().map(|(_, bytes)| bytes).sum()
    }

    fn sources(&self) -> Vec<SourceBytes> {
        self.meter
            .bytes()
            .map(|(host, bytes)| SourceBytes {
                host: self.agent.hosts.name(host).to_owned(),
                bytes,
            })
            .collect()
    }

    fn lost(&self, row: u64, good: usize, needed: usize) -> Stop {
        let mut seen: Vec<&(HostIndex, Fault)> = Vec::new();
        for fault in self.session.faults().iter().rev() {
            if seen.iter().all(|(host, _)| *host != fault.0) {
                seen.push(fault);
            }
        }
        Stop::Unrestorable {
            reason: format!("row {row}: {good} good blocks found, {needed} needed"),
            notes: seen
                .into_iter()
                .map(|(host, fault)| self.agent.note(*host, fault))
                .collect(),
        }
    }
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        for (host, task) in std::mem::take(&mut self.fetches).into_values() {
            self.meter.end(host, self.started.elapsed());
            task.abort();
        }
        for (host, rate) in self.meter.rates() {
            self.agent.learn_rate(host, rate);
        }
    }
}
