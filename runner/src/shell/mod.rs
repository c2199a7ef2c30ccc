//! Drives one supervisor: turns what happens into events, and carries out its actions.

mod state;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use supervision::signals::{Meaning, meaning};
use supervision::{
    Accounts, Action, Doing, EndedBy, Ending, Event, FilesAtEnd, JobNews, JobStatus, JobUse,
    Millis, Outlook, Parity, Report, Sample, SaveAhead, SaveKind, SaveNumber, SaveOrder,
    Supervisor,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::END_ORDERS;
use crate::ask::Ask;
use crate::beat::Beat;
use crate::begin::Begun;
use crate::channel::{CKPT_NOTIFY, Channel};
use crate::clock::{Clock, SuspensionWatch};
use crate::daemon::Daemon;
use crate::files::{Fingerprint, resolved};
use crate::incarnation::mark;
use crate::job::{Job, JobCommand, StartError};
use crate::job_dir::JobDir;
use crate::journal::JournalEvent;
use crate::kept_state::KeptState;
use crate::kind::Kind;
use crate::notice::JobNotice;
use crate::orders::{Orders, Way};
use crate::owner::Owner;
use crate::reach::Reach;
use crate::record::Recorder;
use crate::run_log::RunLog;
use crate::saver::{Follows, NEWS_MAX, News, Release, SaveJob, Saves};
use crate::signals::{Signals, stop_this_process};
use crate::stage::{UsedMeans, set_aside_entry};
use crate::standing::StandingNote;
use crate::succession::saved_entry;
use crate::usage::{Asking, CKPT_DIR, Usage};
use crate::watch::FileWatch;
use ckpt_agent::agent::MachineOutlook;
use ckpt_agent::image::keeper::Keeper;
use ckpt_agent::report::{Failure, Observer, SaveReport};
use ckpt_agent::unix_time::{unix_millis, unix_seconds};

/// Time from one sample of the machine and the job to the next.
const SAMPLE_PERIOD: Duration = Duration::from_secs(1);

/// Time from one look to the next while something waits for files or processes.
const QUICK_PERIOD: Duration = Duration::from_millis(50);

/// Datagrams of the job that are read between two samples. A job that sends more has to wait.
const NOTICES_MAX: u32 = 200;

/// Time from one forecast for the machine to the next.
const OUTLOOK_PERIOD: Duration = Duration::from_secs(300);

/// Time from one request for the owners' past to the next. It covers weeks, so it changes slowly.
const PAST_PERIOD: Duration = Duration::from_secs(6 * 3600);

/// Time for the other processes of a job to end after its first process has ended, milliseconds.
const REST_GRACE_MS: u64 = 2_000;

/// Time for notices to arrive that a job sent just before its end, milliseconds.
const LAST_NOTICES_MS: u64 = 100;

/// Longest wait at the end for a save that was cancelled.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// What is left of a shell when its supervisor has ended.
#[derive(Debug)]
pub(super) struct FinishedRun {
    /// How the supervisor ended the job.
    pub ending: Ending,
    /// How the time of the job was used.
    pub accounts: Accounts,
    /// Why work was lost, as far as it is known: what kept the job's files from being whole.
    pub obstacle: Option<String>,
    /// Why the last save did not happen; `None` if it did.
    pub not_saved: Option<String>,
    /// The newest version that was committed or restored.
    pub version: Option<u64>,
    /// The record of what the job used.
    pub recorder: Recorder,
    /// The checkpoint that another save would follow.
    pub follows: Follows,
    /// The log, which goes on after the end.
    pub log: RunLog,
    /// Signs of life to another machine, which go on while something is left to do.
    pub beat: Option<Beat>,
    /// The note of how the job stands, which is there until its end is recorded.
    pub note: Option<StandingNote>,
}

/// When the shell next does what it does from time to time.
struct Due {
    /// Samples of the owner and of the job.
    sample: Instant,
    /// A look at the files.
    look: Instant,
    /// A question for the machine's outlook.
    outlook: Instant,
    /// A question for how owners needed their machines.
    past: Instant,
}

impl Due {
    fn from_the_start() -> Self {
        let now = Instant::now();
        Self {
            sample: now,
            look: now,
            outlook: now + OUTLOOK_PERIOD,
            past: now,
        }
    }
}

/// What others are shown of the job.
#[derive(Default)]
struct Shown {
    /// The note of how the job stands.
    note: Option<StandingNote>,
    /// When the newest version of this incarnation was committed, Unix milliseconds.
    saved_at_ms: Option<u64>,
    /// Why the last checkpoint was not taken or not saved.
    not_saved: Option<String>,
}

/// A running job and its supervisor.
pub(super) struct RunShell<'a> {
    orders: &'a Orders,
    place: &'a JobDir,
    reach: Arc<dyn Reach>,
    observer: Arc<dyn Observer>,
    log: RunLog,
    supervisor: Supervisor,
    job: Job,
    owner: Option<Owner>,
    daemon: Daemon,
    usage: Usage,
    recorder: Recorder,
    /// Signs of life for a mover on another machine.
    beat: Option<Beat>,
    channel: Channel,
    clock: Clock,
    sleep: SuspensionWatch,
    shown: Shown,
    paths: Vec<PathBuf>,
    roots: Vec<PathBuf>,
    watch: FileWatch,
    saves: Saves,
    sender: mpsc::Sender<News>,
    news: mpsc::Receiver<News>,
    /// Datagrams that may be read before the next sample.
    notices_left: u32,
    is_asked: bool,
    /// Whether the supervisor awaits an [`Event::Still`].
    awaits_standstill: bool,
    first_ended: Option<(ExitStatus, Millis)>,
    ended_is_reported: bool,
    due: Due,
    /// What the supervisor was last sent about the next save.
    ahead: SaveAhead,
    ending: Option<Ending>,
}

impl<'a> RunShell<'a> {
    /// Starts the job.
    ///
    /// # Errors
    /// When the job was not started.
    pub(super) fn start(
        orders: &'a Orders,
        place: &'a JobDir,
        begun: Begun,
        outlook: MachineOutlook,
        reach: Arc<dyn Reach>,
        observer: Arc<dyn Observer>,
        mut log: RunLog,
    ) -> Result<Self, StartError> {
        let channel = Channel::open().map_err(StartError::Channel)?;
        let paths = orders.paths(place);
        let print = Fingerprint::of(&paths, &orders.save.options.exclude);
        let version = begun.version.map(|version| version.number());
        let mark = mark().map_err(StartError::Keeper)?;
        let command = command(orders, &channel, &paths, version);
        let clock = Clock::new();
        let recorder = recorder(orders, &begun, &outlook, clock.now(), &mut log);
        let keeper = Keeper::of_this_program();
        let record = place.path(END_ORDERS);
        let job = Job::start(&command, keeper, &mark, record, orders.control())?;
        let pid = job.pid().as_raw_nonzero().get();
        let now = clock.now();
        let restored = begun.version_of_files();
        let mut settings = orders.settings(restored, print.bytes(), now, unix_seconds());
        recorder.advise(&mut settings);
        let known = restored.map(|_| print).unwrap_or_default();
        let (sender, news) = mpsc::channel(NEWS_MAX);
        log.enter(started(&begun, pid, &outlook));
        if version.is_none() && !orders.is_image() {
            log.say_what_is_missing(&paths);
        }
        let mut shell = Self {
            orders,
            place,
            reach,
            observer,
            log,
            supervisor: Supervisor::new(settings, now),
            job,
            owner: orders
                .batch
                .is_none()
                .then(|| Owner::new(orders.owner, pid)),
            daemon: Daemon::default(),
            usage: Usage::new(),
            recorder,
            beat: None,
            channel,
            clock,
            sleep: SuspensionWatch::new(),
            shown: Shown::default(),
            roots: resolved(&paths),
            watch: FileWatch::new(paths.clone(), orders.append.clone(), known.clone()),
            paths,
            saves: Saves::none_yet(known, begun.newest_whole(), begun.newest.or(begun.version)),
            sender,
            news,
            notices_left: NOTICES_MAX,
            is_asked: false,
            awaits_standstill: false,
            first_ended: None,
            ended_is_reported: false,
            due: Due::from_the_start(),
            ahead: SaveAhead::default(),
            ending: None,
        };
        shell.note_beginning(begun.is_newer_here);
        shell.hear_outlook(outlook);
        Ok(shell)
    }

    /// Reports from now on that the job runs.
    pub(super) fn beat_with(&mut self, beat: Option<Beat>) {
        if let Some(beat) = &beat {
            beat.job_runs(None);
        }
        self.beat = beat;
    }

    /// Notes from now on how the job stands.
    pub(super) fn note_with(&mut self, note: StandingNote) {
        self.shown.note = Some(note);
        self.note_standing();
    }

    /// Runs until the supervisor ends.
    pub(super) async fn run(&mut self, signals: &mut Signals) -> Ending {
        loop {
            self.act();
            if let Some(ending) = self.ending {
                return ending;
            }
            let wake = self.next_wake();
            tokio::select! {
                biased;
                signal = signals.any() => match signal {
                    Some(number) => self.signalled(number),
                    None => self.look_for_end(),
                },
                Some(news) = self.news.recv() => self.hear(news),
                () = tokio::time::sleep_until(wake) => self.wake(),
                notices = self.channel.receive(), if self.notices_left > 0 => {
                    self.notices_left -= 1;
                    self.noticed(notices);
                }
            }
        }
    }

    /// Ends what is left of the job and the save, and hands out what the report needs.
    pub(super) async fn end(mut self, ending: Ending) -> FinishedRun {
        self.job.kill();
        if let Some((saving, _)) = self.saves.saving.take() {
            saving.cancel();
            let _ = tokio::time::timeout(CANCEL_TIMEOUT, saving.wait()).await;
        }
        if !matches!(ending.ended_by, EndedBy::LeftOlder { .. })
            && let Err(cause) = KeptState::remove(self.place)
        {
            self.log
                .warn(format!("the note of the job's state: {cause}"));
        }
        let accounts = *self.supervisor.accounts();
        let obstacle = self.obstacle().filter(|_| accounts.lost_ms > 0);
        let newest = match ending.ended_by {
            EndedBy::LeftSaved { version, .. } => Some(version),
            _ => self.saves.version,
        };
        let quiet_ms = self.supervisor.longest_quiet_ms();
        let used = self.usage.read(&self.job.processes());
        self.recorder.end(accounts.work_ms, quiet_ms, used.cpu_ms);
        FinishedRun {
            ending,
            accounts,
            obstacle,
            not_saved: self.shown.not_saved,
            recorder: self.recorder,
            follows: self.saves.follows,
            version: newest,
            log: self.log,
            beat: self.beat,
            note: self.shown.note,
        }
    }

    fn event(&mut self, event: Event) {
        let ms = self.sleep.slept_ms();
        let now = self.clock.now();
        if ms > 0 {
            self.supervisor.handle(now, Event::Slept { ms });
        }
        self.supervisor.handle(now, event);
        self.log.doing(self.supervisor.doing());
        self.note_standing();
    }

    /// Carries out the actions of the supervisor, until there are none.
    fn act(&mut self) {
        while let Some(action) = self.supervisor.poll_action() {
            match action {
                Action::AskForCheckpoint { last } => self.ask(last.is_some()),
                Action::StartSave(order) => self.start_save(order),
                Action::CancelSave(number) => {
                    if let Some((saving, _)) = &self.saves.saving
                        && saving.number == number
                    {
                        saving.cancel();
                    }
                }
                Action::Stop => {
                    self.job.stop();
                    self.awaits_standstill = true;
                }
                Action::GoOn => {
                    self.awaits_standstill = false;
                    self.job.resume();
                }
                Action::Lower => self.prioritise(Job::lower),
                Action::Normal => self.prioritise(Job::raise),
                Action::SignalJob(number) => self.pass_on(number),
                Action::Kill => self.job.kill(),
                Action::Report(report) => {
                    if matches!(report, Report::Leaving { .. }) {
                        // At the lowest priority, beside an owner who uses all cores, the job would not
                        // finish its last checkpoint, and would lose all its work.
                        self.prioritise(Job::raise);
                    }
                    if matches!(report, Report::NothingToSave { .. }) {
                        self.lacks_state();
                    }
                    if matches!(report, Report::NoAnswer { .. }) {
                        let why = "the job wrote no checkpoint when it was asked";
                        self.shown.not_saved = Some(why.to_owned());
                    }
                    if let (Report::Leaving { .. }, Some(beat)) = (&report, &self.beat) {
                        beat.job_leaves(None);
                    }
                    let now = self.clock.now();
                    self.log.report(&report, now);
                }
                Action::End(ending) => self.ending = Some(ending),
            }
        }
    }

    fn prioritise(&mut self, done: impl FnOnce(&mut Job) -> Option<std::io::Error>) {
        if let Some(cause) = done(&mut self.job) {
            self.log.warn(format!("the job's priority: {cause}"));
        }
    }

    fn next_wake(&self) -> Instant {
        let now = self.clock.now();
        let deadline = self.supervisor.next_deadline();
        let deadline = deadline.map(|at| Instant::now() + Duration::from_millis(at.since(now)));
        let is_waiting = self.awaits_standstill || self.is_asked || self.first_ended.is_some();
        let quick = is_waiting.then(|| Instant::now() + QUICK_PERIOD);
        let first = deadline.into_iter().chain(quick).min();
        first.map_or(self.due.sample, |first| first.min(self.due.sample))
    }

    /// Does what is due by now.
    fn wake(&mut self) {
        if self.awaits_standstill && self.job.is_at_a_standstill() {
            self.awaits_standstill = false;
            self.stands_still();
        }
        if self.is_asked || self.due.look <= Instant::now() {
            self.look_at_files();
        }
        if self.first_ended.is_some() {
            self.look_for_end();
        }
        if self.due.sample <= Instant::now() {
            self.due.sample = Instant::now() + SAMPLE_PERIOD;
            self.notices_left = NOTICES_MAX;
            self.look_for_end();
            self.reach.hang_up_if_idle();
            self.sample();
        } else {
            self.event(Event::Tick);
        }
        if self.due.outlook <= Instant::now() && self.orders.mtbf.is_none() {
            self.due.outlook = Instant::now() + OUTLOOK_PERIOD;
            self.ask_for_outlook();
        }
        if self.due.past <= Instant::now() && self.orders.asks_owners() {
            self.due.past = Instant::now() + PAST_PERIOD;
            self.ask_for_past();
        }
    }

    fn sample(&mut self) {
        let is_running = !self.job.is_stopped();
        let cores = self.owner.as_ref().map_or(0.0, Owner::cores);
        let says = self.daemon.newest_report(cores);
        let owner = self
            .owner
            .as_mut()
            .map(|owner| owner.sample(is_running, says));
        let processes = self.job.processes();
        let job: JobUse = self.usage.read(&processes);
        let worked = self.supervisor.accounts().work_ms;
        let foreseen = self.recorder.update(self.clock.now(), worked, job.cpu_ms);
        if let Some(entry) = foreseen {
            self.log.enter(entry);
        }
        if let Some(beat) = &self.beat {
            let doing = self.supervisor.doing();
            let rest = self.recorder.rest(self.clock.now());
            match doing {
                Doing::Leaving | Doing::Stopping | Doing::Ended => beat.job_leaves(rest),
                _ => beat.job_runs(rest),
            }
        }
        let owner = owner.unwrap_or_default();
        self.event(Event::Sample(Sample { owner, job }));
    }

    fn ask(&mut self, is_final: bool) {
        self.log.enter(JournalEvent::Asked { is_final });
        self.is_asked = true;
        let command = match &self.orders.way {
            Way::Files { ask: Ask::None, .. } => return,
            Way::Files {
                ask: Ask::Signal(signal),
                ..
            } => return self.job.signal_first(*signal),
            Way::Files {
                ask: Ask::Command(command),
                ..
            } => command.clone().into(),
            Way::Command { checkpoint, .. } => checkpoint.clone(),
        };
        let dir = self.orders.is_image().then(|| self.paths.first()).flatten();
        let asking = Asking {
            command,
            pid: self.job.pid().as_raw_nonzero().get(),
            dir: dir.cloned(),
            notify: self.channel.path().to_owned(),
        };
        match asking.start(self.sender.clone()) {
            Ok(helper) => self.job.add_helper(helper),
            Err(cause) => self.asked(0, Err(cause.to_string())),
        }
    }

    fn asked(&mut self, helper: i32, ended: Result<(), String>) {
        self.job.remove_helper(helper);
        let print = self.print();
        let written = ended.and_then(|()| match print.is_empty() {
            true => Err("the command succeeded, but there is no file to save".to_owned()),
            false => Ok(()),
        });
        match written {
            Ok(()) => {
                self.is_asked = false;
                let event = self.watch.written(print);
                self.event(event);
            }
            Err(message) => {
                self.log.warn(format!("asking for a checkpoint: {message}"));
            }
        }
    }

    fn start_save(&mut self, order: SaveOrder) {
        let now = self.clock.now();
        let print = self.print();
        let plan = &self.orders.save;
        let (is_final, deadline, allow_degraded) = match order.kind {
            SaveKind::Regular => {
                let options = &plan.options;
                (false, options.deadline, options.allow_degraded)
            }
            SaveKind::Final { deadline, parity } => {
                let left = Duration::from_millis(deadline.since(now).max(1));
                let least = match parity {
                    Parity::Full => None,
                    Parity::AtLeast(least) => Some(least),
                };
                (true, Some(left), least)
            }
        };
        self.log.enter(JournalEvent::Saving {
            is_final,
            is_torn: order.is_torn,
            deadline_s: deadline.map(|time| time.as_secs_f64()),
        });
        let release = match is_final {
            true => Release::AtTheEnd,
            false => {
                (self.saves).release(&print, self.watch.replaced(), self.ahead.bytes_per_second)
            }
        };
        let save = SaveJob {
            number: order.number,
            paths: self.paths.clone(),
            deadline,
            is_last: is_final,
            allow_degraded,
            after: self.saves.follows.after(),
            release,
            record: Some(self.recorder.label()),
            result: None,
            is_torn: order.is_torn,
        };
        let observer = Arc::clone(&self.observer);
        let reach = Arc::clone(&self.reach);
        let saving = plan.start(reach, save, observer, self.sender.clone());
        self.saves.saving = Some((saving, print));
    }

    fn saved(&mut self, ended: &Result<SaveReport, Failure>) {
        let saving = self.saves.saving.take();
        match ended {
            Ok(report) => {
                let files = saving.map(|(_, print)| print).unwrap_or_default();
                self.saves.were_saved(files, report);
                self.shown.saved_at_ms = Some(unix_millis());
                self.shown.not_saved = None;
                self.log.enter(saved_entry(report));
                self.note_state();
                for warning in &report.warnings {
                    self.log.warn(warning.clone());
                }
            }
            Err(failure) => {
                self.saves.holds_next = true;
                self.shown.not_saved = Some(failure.message.clone());
                self.log.enter(JournalEvent::SaveFailed {
                    message: failure.message.clone(),
                    status: failure.status as u8,
                });
            }
        }
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Taken(number) => self.event(Event::ImageTaken(number)),
            News::SetAside(number, done) => self.hear_set_aside(number, done),
            News::Saved(number, ended) => {
                self.saved(&ended);
                let outcome = self.saves.follows.outcome(&ended);
                self.event(Event::SaveEnded { number, outcome });
            }
            News::Asked(helper, ended) => self.asked(helper, ended),
            News::Outlook(outlook) => self.hear_outlook(*outlook),
            News::OwnersPast(past) => self.event(Event::OwnersPast(past)),
        }
    }

    fn hear_set_aside(&mut self, number: SaveNumber, done: Result<UsedMeans, String>) {
        let means = done.as_ref().ok().copied();
        self.log.enter(set_aside_entry(done));
        if let Some(means) = means {
            let rate = &mut self.saves.copied_per_second;
            *rate = means.copied_per_second.or(*rate);
            self.event(Event::ImageTaken(number));
        }
    }

    fn hear_outlook(&mut self, outlook: MachineOutlook) {
        self.event(Event::Outlook(Outlook {
            presence: outlook.presence,
            guest: outlook.guest,
            taken_at: None,
        }));
        self.foresee(SaveAhead {
            bytes_per_second: outlook.stores_bytes_per_second,
            ..self.ahead
        });
    }

    fn foresee(&mut self, ahead: SaveAhead) {
        if ahead != self.ahead {
            self.ahead = ahead;
            self.event(Event::SaveAhead(ahead));
        }
    }

    fn ask_for_past(&self) {
        let orders = self.orders.clone();
        let reach = Arc::clone(&self.reach);
        let sender = self.sender.clone();
        tokio::spawn(async move {
            let past = orders.owners_past(reach.as_ref()).await;
            // Fails if the shell has ended.
            let _ = sender.send(News::OwnersPast(past)).await;
        });
    }

    fn ask_for_outlook(&self) {
        let orders = self.orders.clone();
        let reach = Arc::clone(&self.reach);
        let sender = self.sender.clone();
        tokio::spawn(async move {
            let outlook = orders.outlook(reach.as_ref()).await;
            // Fails if the shell has ended.
            let _ = sender.send(News::Outlook(Box::new(outlook))).await;
        });
    }

    fn noticed(&mut self, received: std::io::Result<Result<Vec<JobNotice>, String>>) {
        let notices = match received {
            Ok(Ok(notices)) => notices,
            Ok(Err(message)) => return self.log.warn(format!("from the job: {message}")),
            Err(cause) => return self.log.warn(format!("notices of the job: {cause}")),
        };
        for notice in notices {
            let event = match notice {
                JobNotice::Saved => {
                    self.is_asked = false;
                    let print = self.print();
                    self.watch.reported(print)
                }
                JobNotice::Progress(share) => {
                    self.recorder.reported(share, self.clock.now());
                    Event::Job(JobNews::Progress(share))
                }
                JobNotice::Busy(true) => Event::Job(JobNews::Busy),
                JobNotice::Busy(false) => Event::Job(JobNews::Ready),
                JobNotice::Step(step) => Event::Job(JobNews::Step(step)),
            };
            self.event(event);
        }
    }

    fn signalled(&mut self, number: u8) {
        if meaning(self.supervisor.phase(), number) == Meaning::Pause {
            return self.pause();
        }
        // The signal may mean to leave: with the files as they are now.
        self.look_at_files();
        self.event(Event::Signal(number));
    }

    fn pass_on(&self, number: u8) {
        if let Some(signal) = Signal::from_named_raw(i32::from(number)) {
            self.job.signal(signal);
        }
    }

    /// The user stops this process at the terminal. The job is stopped with it, until it goes on.
    fn pause(&mut self) {
        let was_stopped = self.job.is_stopped();
        self.job.stop();
        stop_this_process();
        if !was_stopped {
            self.job.resume();
        }
    }

    /// Checks whether the first process of the job has ended, and then all others.
    fn look_for_end(&mut self) {
        let Some(status) = self.job.reap() else {
            return;
        };
        let now = self.clock.now();
        let (status, since) = *self.first_ended.get_or_insert((status, now));
        if self.ended_is_reported {
            return;
        }
        let left: BTreeSet<i32> = self.job.processes();
        if !left.is_empty() {
            if since == now {
                self.job.ask_to_end();
            } else if now.since(since) > REST_GRACE_MS {
                self.job.kill();
            }
            return;
        }
        // The last notices of the job may not have arrived yet.
        if now.since(since) < LAST_NOTICES_MS {
            return;
        }
        self.ended_is_reported = true;
        self.is_asked = false;
        let status = job_status(status);
        let files = match self.watch.at_end(self.print(), status) {
            // An image exists only during a save.
            FilesAtEnd::Missing if self.orders.is_image() => FilesAtEnd::Unchanged,
            files => files,
        };
        self.event(Event::JobEnded { status, files });
    }
}

/// The recorder of the job, with what earlier runs allow to forecast.
fn recorder(
    orders: &Orders,
    begun: &Begun,
    outlook: &MachineOutlook,
    now: Millis,
    log: &mut RunLog,
) -> Recorder {
    let kind = Kind::of(&orders.command, &orders.record.parameters);
    let job = orders.job.to_string();
    let label = begun.record.as_deref();
    let (mut recorder, said) = Recorder::new(job, &orders.record, kind, label, now);
    let named = orders.save.options.placement.compute_host.clone();
    recorder.runs_on(named.or_else(|| outlook.host.clone()));
    match said {
        Ok(entry) => entry.into_iter().for_each(|entry| log.enter(entry)),
        Err(cause) => log.warn(format!(
            "the history of earlier runs can't be read: {cause}"
        )),
    }
    recorder
}

fn started(begun: &Begun, pid: i32, outlook: &MachineOutlook) -> JournalEvent {
    let aside = begun.aside.iter();
    let report = begun.report.as_ref();
    JournalEvent::Started {
        pid,
        version: begun.version.map(|version| version.number()),
        at_hand_bytes: report.map_or(0, |report| report.at_hand_bytes),
        fetched_bytes: report.map_or(0, |report| report.fetched_bytes),
        aside: aside.map(|path| path.display().to_string()).collect(),
        outlook: outlook.source.clone(),
    }
}

fn job_status(status: ExitStatus) -> JobStatus {
    use std::os::unix::process::ExitStatusExt;
    let small = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    match status.signal() {
        Some(signal) => JobStatus::Signalled(small(signal)),
        None => JobStatus::Exited(small(status.code().unwrap_or_default())),
    }
}

/// What is started: the job's command, or the command that restarts the job from its image.
fn command(
    orders: &Orders,
    channel: &Channel,
    paths: &[PathBuf],
    version: Option<u64>,
) -> JobCommand {
    let mut variables = vec![(CKPT_NOTIFY, channel.path().into())];
    let words = match (&orders.way, version) {
        (Way::Command { restart, .. }, Some(_)) => {
            vec!["sh".into(), "-c".into(), restart.text.clone().into()]
        }
        _ => orders.command.clone(),
    };
    if let (true, Some(dir)) = (orders.is_image(), paths.first()) {
        variables.push((CKPT_DIR, dir.into()));
    }
    let dir = orders.staged.then(|| paths.first().cloned()).flatten();
    JobCommand {
        words,
        variables,
        dir,
    }
}
