//! A restore from beginning to end: choose a checkpoint, fetch its rows, decode them, write the files. If a
//! checkpoint can't be restored, the next older one is tried.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use codec::decode::Composer;
use codec::grant::Rights;
use codec::index::{FileEntry, Index};
use codec::manifest::{ImageKind, Summary};
use codec::{JobId, JobTag};
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant, MissedTickBehavior};
use tracing::Instrument;

use crate::agent::ask::gather::Gathered;
use crate::agent::read::choose::{Choices, FoundImage, FoundOrigin, Wish};
use crate::agent::read::fetch::{Driver, Unreadable, planned};
use crate::agent::read::row_feed::Lanes;
use crate::agent::{Agent, RestoreRequest, RestoreTarget, Which};
use crate::cancel::Cancel;
use crate::core::Fault;
use crate::core::gather::silence::GoesOn;
use crate::core::pick::{Pick, PiecesAtHand, Wanted};
use crate::core::restore::windows;
use crate::image::at_hand::{FilesAtHand, LeftRemains};
use crate::image::{self, Existing, Sink, SinkError, SinkOptions, Target};
use crate::inventory::KnownCheckpoint;
use crate::knowledge::Observation;
use crate::pipeline::decode::{self, Decoded, ImageRows, ReadAtHand, RowSource};
use crate::report::{
    ExitStatus, Failure, Observer, Progress, ProgressEvent, RestoreReport, SkippedVersion,
};
use crate::sleep::SleepWatch;
use protocol::errors::chain;

const PROGRESS_PERIOD: Duration = Duration::from_millis(200);

/// How long the threads of a restore that was ended early may take to remove the files that they made.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(20);

impl Agent {
    /// Restores an image, the newest that can be unless the request names a version.
    ///
    /// # Errors
    /// When nothing was restored; the target is as it was before.
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
        let wish = Wish {
            job: &request.job,
            job_tag,
            which: request.which,
            sought: &request.sought,
            accept_marked: request.accept_marked,
            doing: &doing,
        };
        let mut choices = self.choices(&wish).await?;
        if choices.next().is_none() {
            let mut report =
                self.nothing_to_restore(&request, choices.gathered(), &wish, started)?;
            let hidden = choices.skipped.iter().map(SkippedVersion::to_string);
            report.warnings.extend(hidden);
            if request.is_new && !request.dry_run {
                self.notebook
                    .note(Observation::GoesOn(job_tag, GoesOn::Anew));
            }
            return Ok(report);
        }
        for skip in &choices.skipped {
            observer.event(ProgressEvent::VersionSkipped(skip.clone()));
        }
        let sleep = SleepWatch::start();
        let mut slept = 0;
        while let Some(known) = choices.next() {
            let attempt = Attempt {
                agent: self,
                request: &request,
                known,
                gathered: choices.gathered(),
                observer: &observer,
                started,
            };
            match attempt.run(cancel.clone()).await {
                Ok(mut report) => {
                    self.warn_of(known, &choices, &request, &observer);
                    report.warnings.extend(self.after_choice(&choices, &wish));
                    self.note_what_goes_on(&request, job_tag, known);
                    report.skipped = choices.skipped;
                    return Ok(report);
                }
                Err(Unreadable::Fatal(failure)) => return Err(failure),
                // This machine slept: its connections are gone, and no host is to blame.
                Err(Unreadable::Short(_)) if sleep.slept().times > slept => {
                    slept = sleep.slept().times;
                    choices = self.choices(&wish).await?;
                }
                Err(Unreadable::Short(short)) => {
                    if let Some(skip) = self.pass_over(&mut choices, &wish, short).await? {
                        observer.event(ProgressEvent::VersionSkipped(skip));
                    }
                }
            }
        }
        Err(self.lost(choices, &doing))
    }
}

impl Agent {
    /// Reports while it is restored that a version is marked, or signed with a void key.
    fn warn_of(
        &self,
        known: &KnownCheckpoint,
        choices: &Choices,
        request: &RestoreRequest,
        observer: &Arc<dyn Observer>,
    ) {
        let void = self.note_of_void(choices.gathered(), request.which);
        let marked = self.note_of_mark(known);
        for message in marked.into_iter().chain(void) {
            observer.event(ProgressEvent::Warning { message });
        }
    }

    /// Notes the line of the version that was restored: the job goes on with it. Who names a version may only
    /// want to look at it.
    fn note_what_goes_on(
        &self,
        request: &RestoreRequest,
        job_tag: JobTag,
        restored: &KnownCheckpoint,
    ) {
        if request.which != Which::Newest || request.dry_run {
            return;
        }
        if let Ok(line) = self.line_of(restored) {
            self.notebook
                .note(Observation::GoesOn(job_tag, GoesOn::With(line)));
        }
    }
}

/// Why an attempt ends.
enum Stop {
    /// The checkpoint can't be restored.
    Unreadable(Unreadable),
    /// The files with a part of the image changed meanwhile.
    ChangedHere,
}

impl From<Unreadable> for Stop {
    fn from(unreadable: Unreadable) -> Self {
        Self::Unreadable(unreadable)
    }
}

/// One checkpoint that a restore tries.
pub(crate) struct Attempt<'a> {
    pub(crate) agent: &'a Agent,
    pub(crate) request: &'a RestoreRequest,
    pub(crate) known: &'a KnownCheckpoint,
    gathered: &'a Gathered,
    observer: &'a Arc<dyn Observer>,
    pub(crate) started: Instant,
}

impl Attempt<'_> {
    async fn run(&self, cancel: Cancel) -> Result<RestoreReport, Unreadable> {
        let checkpoint = self.known.stamp().checkpoint;
        let span = tracing::info_span!("restore", %checkpoint);
        span.in_scope(|| tracing::info!(job = %self.request.job, "begins"));
        self.restored(cancel).instrument(span).await
    }

    async fn restored(&self, cancel: Cancel) -> Result<RestoreReport, Unreadable> {
        match self.run_once(cancel.clone(), true).await {
            Ok(report) => Ok(report),
            Err(Stop::Unreadable(unreadable)) => Err(unreadable),
            Err(Stop::ChangedHere) => {
                tracing::info!("files that had a part of the image changed; it is fetched whole");
                let again = self.run_once(cancel, false).await;
                again.map_err(|stop| match stop {
                    Stop::Unreadable(unreadable) => unreadable,
                    Stop::ChangedHere => Unreadable::because("files changed meanwhile"),
                })
            }
        }
    }

    /// Restores it; `looks_here` for what files of this machine have of it already.
    async fn run_once(&self, mut cancel: Cancel, looks_here: bool) -> Result<RestoreReport, Stop> {
        let found = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(self.interrupted().into()),
            found = self.agent.find_image(self.known, self.gathered) => found?,
        };
        let pick = self.pick(&found.index)?;
        let FoundImage {
            summary,
            index,
            composer,
            sources,
            ..
        } = found;
        let image = Image {
            summary,
            index,
            pick,
            composer,
            sources,
        };
        let target = self.target(&image)?;
        let at_hand = match looks_here {
            true => tokio::select! {
                biased;
                () = cancel.cancelled() => return Err(self.interrupted().into()),
                at_hand = self.at_hand(&image, &target) => at_hand,
            },
            false => None,
        };
        if self.request.dry_run {
            let pieces = at_hand.as_ref().map(|files| files.pieces().clone());
            let pieces = pieces.unwrap_or_default();
            return Ok(self.plan(&image, &target, &pieces).await?);
        }
        let sink = self.sink(&image, &target).await?;
        self.transfer(image, sink, target, at_hand, cancel).await
    }

    /// The part of the image that the request selects; `None` for all of it.
    fn pick(&self, index: &Index) -> Result<Option<Pick>, Unreadable> {
        if self.request.globs.is_empty() {
            return Ok(None);
        }
        Pick::of(index, &self.request.globs)
            .map(Some)
            .map_err(|at| {
                let job = &self.request.job;
                let version = self.known.version();
                let path = self.request.globs.get(at).map_or("", |glob| glob.text());
                let message =
                    format!("cannot restore job {job}: version {version} has no file {path:?}");
                let failure = Failure::new(ExitStatus::NotFound, message);
                Unreadable::Fatal(
                    failure.next(format!("ckpt show --job {job} --version {version}")),
                )
            })
    }

    fn interrupted(&self) -> Unreadable {
        Unreadable::Fatal(Failure::new(
            ExitStatus::Interrupted,
            format!("cannot restore job {}: interrupted", self.request.job),
        ))
    }

    fn target(&self, image: &Image) -> Result<Target, Unreadable> {
        let is_stream = image.summary.kind == ImageKind::Stream;
        let own = image.own();
        let name = self.usual_name(image);
        match &self.request.target {
            RestoreTarget::Path(path) => {
                let placed = image::place(own, path, &name);
                Ok(Target::Path(placed.map_err(|e| self.sink_failure(&e))?))
            }
            RestoreTarget::Content {
                made,
                directory,
                existing,
            } => {
                let placed = match existing {
                    Existing::Stay => image::taken(directory, self.names_in_place(image)),
                    Existing::Replace | Existing::Clear => Ok(()),
                };
                let placed = placed.and_then(|()| image::place_in(own, made, &self.name_of_job()));
                Ok(Target::Path(placed.map_err(|e| self.sink_failure(&e))?))
            }
            RestoreTarget::Stdout => Ok(Target::Stdout),
            RestoreTarget::Default if is_stream && is_terminal() => Err(Unreadable::Fatal(
                Failure::new(
                    ExitStatus::Usage,
                    "the image is a stream; standard output is a terminal",
                )
                .next("name a file with -o, or redirect standard output"),
            )),
            RestoreTarget::Default if is_stream => Ok(Target::Stdout),
            RestoreTarget::Default => Ok(Target::Path(PathBuf::from(name))),
        }
    }

    /// The name under which the image was saved. If it has none or several, a name made of the job's.
    fn usual_name(&self, image: &Image) -> OsString {
        use std::os::unix::ffi::OsStringExt;
        let files = &image.own().files;
        let mut roots = files.iter().filter(|f| !f.path.contains(&b'/'));
        match (roots.next(), roots.next()) {
            (Some(root), None) if !root.path.is_empty() => OsString::from_vec(root.path.clone()),
            _ => self.name_of_job(),
        }
    }

    fn name_of_job(&self) -> OsString {
        OsString::from(self.request.job.file_name())
    }

    /// Names of the roots in the directory that gets them.
    fn names_in_place(&self, image: &Image) -> Vec<OsString> {
        let names = image::roots(image.own()).map(|name| match name.is_empty() {
            true => self.name_of_job(),
            false => name.to_owned(),
        });
        names.collect()
    }

    /// Other paths that may have a part of the image.
    pub(super) fn paths_at_hand(&self, image: &Image) -> Vec<PathBuf> {
        let mut paths = self.request.at_hand.clone();
        if let RestoreTarget::Content { directory, .. } = &self.request.target {
            let names = self.names_in_place(image).into_iter();
            paths.extend(names.map(|name| directory.join(name)));
        }
        paths
    }

    pub(crate) const fn sink_options(&self) -> SinkOptions {
        SinkOptions {
            force: self.request.force,
            set_id_bits: self.request.set_id_bits,
        }
    }

    async fn sink(&self, image: &Image, target: &Target) -> Result<Sink, Unreadable> {
        let options = self.sink_options();
        let index = image.own().clone();
        let pick = image.pick.clone();
        let target = target.clone();
        tokio::task::spawn_blocking(move || match pick {
            None => Sink::create(&index, &target, options),
            Some(pick) => Sink::of_picked(&pick, &target, options),
        })
        .await
        .map_err(|cause| Unreadable::because(cause.to_string()))?
        .map_err(|cause| self.sink_failure(&cause))
    }

    pub(crate) fn sink_failure(&self, cause: &SinkError) -> Unreadable {
        Unreadable::Fatal(sink_failure(&self.request.job, cause))
    }

    async fn transfer(
        &self,
        image: Image,
        sink: Sink,
        target: Target,
        at_hand: Option<FilesAtHand>,
        cancel: Cancel,
    ) -> Result<RestoreReport, Stop> {
        let mut progress = image.progress();
        let pieces = at_hand.as_ref().map(|files| files.pieces().clone());
        let pieces = pieces.unwrap_or_default();
        let mut report = self.report(&image, &target, &pieces);
        let (at_hand, left) = match at_hand.map(|files| files.into_reader(&image.index)) {
            Some((reader, left)) => (Some(reader), left),
            None => (None, LeftRemains::default()),
        };
        for message in report.warnings.iter().cloned() {
            self.observer.event(ProgressEvent::Warning { message });
        }
        let (drivers, rows) = self.lanes(image, at_hand, &pieces);
        let (sender, mut decoded_rows) = mpsc::unbounded_channel();
        let cpus = self.agent.resources.cpus;
        let pool = decode::start(rows, sink, cpus, move |decoded| {
            // Fails only when the restore has ended.
            let _ = sender.send(decoded);
        });
        let mut lanes = Lanes::new(pool, drivers.into_iter());
        let followed = self.follow(&mut lanes, &mut decoded_rows, &mut progress, cancel);
        let followed = followed.await;
        lanes.close();
        if let Err(stop) = followed
            && !completed_anyway(&mut decoded_rows).await
        {
            return Err(match stop {
                Stop::Unreadable(stop) => self.after_output(stop, &target, &progress).into(),
                Stop::ChangedHere => Stop::ChangedHere,
            });
        }
        // Removing many files takes a while.
        let removing = tokio::task::spawn_blocking(|| left.remove());
        if let Err(cause) = removing.await {
            tracing::warn!(%cause, "what killed restores left was not removed");
        }
        progress.done_bytes = progress.total_bytes.unwrap_or_default();
        progress.network_bytes = lanes.fetched_bytes();
        self.observer.event(ProgressEvent::Progress(progress));
        report.fetched_bytes = lanes.fetched_bytes();
        report.sources = lanes.sources();
        report.seconds = self.started.elapsed().as_secs_f64();
        for (host, fault) in lanes.faults() {
            let note = self.agent.note(host, &fault);
            let message = format!("{}: {}", note.host, note.what);
            // Other faults are of every day.
            if matches!(fault, Fault::Lied(_)) {
                let message = message.clone();
                self.observer.event(ProgressEvent::Warning { message });
            }
            report.warnings.push(message);
        }
        Ok(report)
    }

    /// What fetches the rows of an image and of its origins, and what they are decoded with.
    fn lanes(
        &self,
        image: Image,
        at_hand: Option<Box<dyn ReadAtHand>>,
        pieces: &PiecesAtHand,
    ) -> (Vec<Driver<'_>>, ImageRows) {
        let wanted = image.wanted();
        let Image {
            index,
            composer,
            sources,
            ..
        } = image;
        let rows = wanted.rows(&index, sources.len().saturating_sub(1), pieces);
        let costs = sources.iter().zip(&rows);
        let costs: Vec<_> = costs
            .map(|(source, rows)| planned(&source.known, rows))
            .collect();
        let windows = windows(self.agent.window(1), &costs);
        let costs = costs.into_iter().zip(windows);
        let drivers = sources.iter().zip(costs).map(|(source, (rows, window))| {
            Driver::new(self.agent, &source.known, &source.reader, rows, window)
        });
        let drivers: Vec<Driver<'_>> = drivers.collect();
        let row_sources = sources.iter().zip(rows).map(|(source, rows)| RowSource {
            public: source.known.manifest.public().clone(),
            keys: source.keys.clone(),
            rows,
        });
        let image = ImageRows {
            sources: row_sources.collect(),
            index,
            composer,
            wanted,
            at_hand,
        };
        (drivers, image)
    }

    /// Makes a failure final if part of the image went to standard output: the reader has that part of this
    /// version, and an older version must not follow it.
    fn after_output(&self, stop: Unreadable, target: &Target, progress: &Progress) -> Unreadable {
        if *target != Target::Stdout {
            return stop;
        }
        let mut failure = match stop {
            Unreadable::Short(_) if progress.done_bytes == 0 => return stop,
            Unreadable::Short(short) => {
                let reason = &short.reason;
                let job = &self.request.job;
                let version = self.known.version();
                let message = format!(
                    "cannot restore job {job}: version {version}: {reason}; standard output has a part of it"
                );
                let status = short.status(self.gathered);
                let mut failure = Failure::new(status, message).next("again with -o FILE");
                failure.hosts = short.notes;
                failure
            }
            Unreadable::Fatal(failure) => failure,
        };
        failure.image_on_stdout = true;
        Unreadable::Fatal(failure)
    }

    /// Feeds blocks to the decoding threads until the image is complete.
    async fn follow(
        &self,
        lanes: &mut Lanes<'_>,
        decoded_rows: &mut mpsc::UnboundedReceiver<Decoded<SinkError, ()>>,
        progress: &mut Progress,
        mut cancel: Cancel,
    ) -> Result<(), Stop> {
        let mut show = tokio::time::interval(PROGRESS_PERIOD);
        show.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Stored bytes are estimated in proportion to the bytes done, since written rows do not show how many
        // bytes each was stored in.
        let whole = std::mem::take(&mut progress.stored_bytes);
        let total = u128::from(progress.total_bytes.unwrap_or_default().max(1));
        let stored_of = |done: u64| {
            let stored = u128::from(whole) * u128::from(done) / total;
            u64::try_from(stored).unwrap_or(u64::MAX)
        };
        loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return Err(self.interrupted().into()),
                _ = show.tick() => {
                    progress.network_bytes = lanes.fetched_bytes();
                    self.observer.event(ProgressEvent::Progress(*progress));
                }
                decoded = decoded_rows.recv() => match decoded {
                    Some(Decoded::Written(image_bytes)) => {
                        progress.done_bytes = image_bytes;
                        progress.stored_bytes = stored_of(image_bytes);
                    }
                    Some(Decoded::Used(row)) => lanes.used(row),
                    Some(Decoded::Finished(())) => {
                        progress.stored_bytes = whole;
                        return Ok(());
                    }
                    Some(Decoded::Undecodable(cause)) => {
                        return Err(Unreadable::because(cause.to_string()).into());
                    }
                    Some(Decoded::ChangedHere) => return Err(Stop::ChangedHere),
                    Some(Decoded::Failed(cause)) => return Err(self.sink_failure(&cause).into()),
                    None => return Err(Unreadable::because("decoding ended early").into()),
                },
                lost = lanes.pump() => return Err(lost.into()),
            }
        }
    }

    /// The report as far as it is known before anything was fetched.
    pub(crate) fn report(
        &self,
        image: &Image,
        target: &Target,
        at_hand: &PiecesAtHand,
    ) -> RestoreReport {
        let own = image.own();
        RestoreReport {
            job: self.request.job.clone(),
            version: Some(self.known.version()),
            dry_run: self.request.dry_run,
            target: match target {
                Target::Path(path) => path.display().to_string(),
                Target::Stdout => "-".to_owned(),
            },
            image_bytes: match image.pick {
                None => image.summary.image_bytes,
                Some(_) => own.files.iter().map(FileEntry::size).sum(),
            },
            fetched_bytes: 0,
            at_hand_bytes: at_hand.bytes(&image.index),
            files: own.files.len() as u64,
            seconds: 0.0,
            sources: Vec::new(),
            skipped: Vec::new(),
            marked: image.summary.tail.mark.map(|mark| mark.to_string()),
            warnings: match (target, self.request.set_id_bits) {
                (Target::Path(_), false) => dropped_bits(&own.files).into_iter().collect(),
                _ => Vec::new(),
            },
        }
    }
}

/// The failure of a restore of a job that can't write.
pub(crate) fn sink_failure(job: &JobId, cause: &SinkError) -> Failure {
    let message = format!("cannot restore job {job}: {}", chain(cause));
    let status = match cause {
        SinkError::TreeToStdout | SinkError::Name(_) | SinkError::NoDirectory(_) => {
            ExitStatus::Usage
        }
        _ => ExitStatus::LocalIo,
    };
    let failure = Failure::new(status, message);
    match cause {
        SinkError::Exists(_) => failure.next("-o with another path, or --force, which replaces it"),
        SinkError::Taken(_) | SinkError::Unlike { .. } | SinkError::Name(_) => {
            failure.next("-o with another path")
        }
        SinkError::NoDirectory(_) => failure.next("-o with a path in a directory that exists"),
        SinkError::TreeToStdout => failure.next("-o DIR"),
        SinkError::NoSpace { .. } => {
            failure.next("-o with a path on another disk, or make room: df -h")
        }
        SinkError::Io { cause, .. } if cause.kind() == io::ErrorKind::NotFound => {
            failure.next("-o with a path in a directory that exists")
        }
        SinkError::Io { cause, .. } => failure.next_for(cause),
        _ => failure,
    }
}

/// The line on setuid and setgid bits that are not restored.
fn dropped_bits(files: &[FileEntry]) -> Option<String> {
    let mut with_bits = files.iter().filter(|file| file.mode & 0o6000 != 0);
    let first = with_bits.next()?.display_path();
    let files = match with_bits.count() {
        0 => format!("{first:?}"),
        more => format!("{} files, such as {first:?}", more + 1),
    };
    Some(format!(
        "setuid or setgid bits of {files} are not restored; --set-id-bits restores them"
    ))
}

/// Waits a bounded time until the threads of a restore that was ended early have removed their files. Returns
/// whether they had completed the image instead, which then counts.
async fn completed_anyway(
    decoded_rows: &mut mpsc::UnboundedReceiver<Decoded<SinkError, ()>>,
) -> bool {
    let ended = tokio::time::timeout(CLEANUP_TIMEOUT, async {
        let mut completed = false;
        while let Some(decoded) = decoded_rows.recv().await {
            completed |= matches!(decoded, Decoded::Finished(()));
        }
        completed
    });
    ended.await.unwrap_or(false)
}

fn is_terminal() -> bool {
    io::IsTerminal::is_terminal(&io::stdout())
}

/// The image to restore.
pub(crate) struct Image {
    pub(crate) summary: Summary,
    pub(crate) index: Index,
    pub(crate) pick: Option<Pick>,
    composer: Composer,
    /// The checkpoint itself, then its origins.
    pub(crate) sources: Vec<FoundOrigin>,
}

impl Image {
    /// The index of the selected files, as of an image of their own.
    pub(crate) fn own(&self) -> &Index {
        self.pick.as_ref().map_or(&self.index, |pick| &pick.index)
    }

    /// Which segments the selected files need.
    pub(crate) fn wanted(&self) -> Wanted {
        let pick = self.pick.as_ref();
        pick.map_or(Wanted::All, |pick| pick.wanted.clone())
    }

    /// The progress at the beginning: nothing done yet.
    fn progress(&self) -> Progress {
        let wanted = self.wanted();
        let segments = wanted.segments(&self.index, 0);
        Progress {
            total_bytes: Some(segments.map(|(_, segment)| segment.bytes()).sum()),
            stored_bytes: self.summary.stored_bytes,
            ..Progress::default()
        }
    }
}
