//! Drives one [`Mover`]: starts launchers, handles what arrives through them, and passes signals on.

use std::sync::Arc;
use std::time::Duration;

use supervision::Ending;
use supervision::away::{Action, End, Event, LaunchMode, Mover, Report, Rest, RunState, There};
use supervision::signals::{Meaning, Phase, TERM};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::begin::result_of;
use super::kept::{KEPT, Kept, OnHost};
use super::link::{Link, NEWS_MAX, News};
use super::marks::Marks;
use super::printer::{Printer, Stream};
use super::words::{
    EndReport, FORM, FromHost, Incarnation, Order, RemainingWork, Shown, Start, ToHost, Word,
};
use super::{Away, AwayOrders, Ranking};
use crate::begin::newest;
use crate::clock::Clock;
use crate::history::History;
use crate::job_dir::JobDir;
use crate::journal::JournalEvent;
use crate::kind::Kind;
use crate::ledger::{LedgerLine, Loss};
use crate::run_log::RunLog;
use crate::signals::Signals;
use crate::standing::{JobStanding, StandingNote};
use ckpt_agent::report::Failure;
use ckpt_agent::unix_time::{unix_millis, unix_seconds};

/// Assumed work of a job of which nothing is known, seconds at speed 1.
const WORK_SECONDS_UNKNOWN: f64 = 3600.0;

/// Exit status if the host does not know this form of orders.
const WRONG_FORM: u8 = 125;

/// What is left of a front when its mover has ended.
#[derive(Debug)]
pub(super) struct FinishedMoves {
    /// How the mover ended.
    pub end: End,
    /// The last report of an end from a host.
    pub reported_end: Option<EndReport>,
    /// The line that the host added to its history.
    pub noted: Option<String>,
    /// When this process began, Unix seconds.
    pub began_at: u64,
    /// The hosts on which the job was started, in order.
    pub hosts: Vec<String>,
    /// How often the job was started in all.
    pub starts: u32,
    /// For each move: seconds from the end on one host to running on another.
    pub moves_seconds: Vec<f64>,
    /// The log, which goes on after the end.
    pub log: RunLog,
}

/// The answer of a task that looked for the result and ranked the hosts.
#[derive(Debug)]
enum Answer {
    Ranked(Ranking),
    Finished(u8),
    Failed(Failure),
}

/// The launcher of a host that stands by.
#[derive(Debug)]
pub(super) struct NextHost {
    pub link: Link,
    pub host: String,
    /// The newest version of which it was informed.
    pub version: Option<u64>,
    /// Whether it has what it was informed of.
    pub is_ready: bool,
    /// Whether it fetches nothing for now.
    pub is_paused: bool,
}

pub(super) struct Front<'a> {
    pub(super) orders: &'a AwayOrders,
    place: &'a JobDir,
    pub(super) away: Arc<dyn Away>,
    pub(super) kept: Kept,
    marks: Marks,
    pub(super) log: RunLog,
    pub(super) mover: Mover,
    clock: Clock,
    printer: Printer,
    pub(super) link: Option<Link>,
    /// The host that stands by.
    pub(super) next: Option<NextHost>,
    /// How many launchers were started so far.
    pub(super) links: u64,
    pub(super) closing: JoinSet<()>,
    pub(super) sender: mpsc::Sender<(u64, News)>,
    news: mpsc::Receiver<(u64, News)>,
    asker: mpsc::Sender<Answer>,
    answers: mpsc::Receiver<Answer>,
    rest: Option<RemainingWork>,
    /// Whether the last host may still have the job's key, or the key was of no use there: the next one gets another.
    wants_new_key: bool,
    /// The note of how the job stands, for others.
    note: StandingNote,
    /// How the job stands, as its host last reported.
    pub(super) standing: Option<JobStanding>,
    reported_end: Option<EndReport>,
    noted: Option<String>,
    began_at: u64,
    hosts: Vec<String>,
    moves_seconds: Vec<f64>,
    /// The last complaint about hosts, which is not repeated.
    complaint: String,
    end: Option<End>,
}

impl<'a> Front<'a> {
    pub(super) fn new(
        orders: &'a AwayOrders,
        place: &'a JobDir,
        away: Arc<dyn Away>,
        kept: Kept,
        log: RunLog,
        note: StandingNote,
    ) -> Self {
        let clock = Clock::new();
        let abandoned = kept.abandoned.iter();
        let abandoned = abandoned
            .map(|one| (one.host.clone(), one.number))
            .collect();
        let settings = orders.settings;
        let mover = match &kept.now {
            Some(OnHost { host, number }) => {
                Mover::resume(settings, host.clone(), *number, abandoned, clock.now())
            }
            None => Mover::again(settings, kept.number, abandoned),
        };
        let (sender, news) = mpsc::channel(NEWS_MAX);
        let (asker, answers) = mpsc::channel(1);
        Self {
            orders,
            place,
            away,
            kept,
            mover: mover.preparing(orders.stands_by),
            marks: Marks::of(orders.jobs_dir().as_deref(), &orders.job),
            log,
            clock,
            printer: Printer::begin(),
            link: None,
            next: None,
            links: 0,
            closing: JoinSet::new(),
            sender,
            news,
            asker,
            answers,
            rest: None,
            wants_new_key: true,
            note,
            standing: None,
            reported_end: None,
            noted: None,
            began_at: unix_seconds(),
            hosts: Vec::new(),
            moves_seconds: Vec::new(),
            complaint: String::new(),
            end: None,
        }
    }

    /// Runs until the mover ends.
    pub(super) async fn run(mut self, signals: &mut Signals) -> FinishedMoves {
        let end = loop {
            self.act();
            if let Some(end) = self.end.take() {
                break end;
            }
            let wake = self.wake();
            let phase = self.phase();
            // `biased`: messages that have arrived are handled before they could count as missing.
            tokio::select! {
                biased;
                (means, number) = signals.meant(phase) => self.signalled(means, number),
                Some((number, news)) = self.news.recv() => {
                    if self.link.as_ref().is_some_and(|link| link.number == number) {
                        self.hear(news);
                    } else if self.next.as_ref().is_some_and(|next| next.link.number == number) {
                        self.hear_next(news);
                    }
                }
                Some((number, stream, bytes)) = self.printer.done.recv() => {
                    self.shown(number, stream, bytes);
                }
                Some(answer) = self.answers.recv() => self.answered(answer),
                () = tokio::time::sleep_until(wake) => self.happens(Event::Tick),
            }
            // Reports of the job's machine come often enough for this.
            self.away.hang_up_if_idle();
        };
        self.leave_next(None);
        self.note.end();
        if let Some(link) = self.link.take() {
            self.closing.spawn(link.close());
        }
        self.printer.end().await;
        self.closing.join_all().await;
        FinishedMoves {
            end,
            reported_end: self.reported_end,
            noted: self.noted,
            began_at: self.began_at,
            hosts: self.hosts,
            starts: self.kept.number,
            moves_seconds: self.moves_seconds,
            log: self.log,
        }
    }

    fn wake(&self) -> Instant {
        /// Longest sleep if no deadline is set: an answer is on its way, and wakes this up.
        const SLEEP_MAX: Duration = Duration::from_secs(60);
        let now = self.clock.now();
        let left = self.mover.next_deadline().map(|at| at.since(now));
        Instant::now() + left.map_or(SLEEP_MAX, Duration::from_millis)
    }

    fn happens(&mut self, event: Event) {
        let now = self.clock.now();
        self.mover.handle(now, event);
    }

    fn act(&mut self) {
        while let Some(action) = self.mover.poll_action() {
            match action {
                Action::Rank => self.rank(),
                Action::Launch { host, number, mode } => self.launch(host, number, mode),
                Action::Close => self.close(),
                Action::AskToLeave => self.say(ToHost::Signal(TERM)),
                Action::Report(report) => self.report(report),
                Action::End(end) => {
                    if matches!(end, End::Left { .. } | End::GivenUp { .. }) {
                        // The next start goes on from the newest version of the job.
                        self.kept.now = None;
                        self.keep();
                    }
                    self.end = Some(end);
                }
            }
        }
    }

    fn close(&mut self) {
        if let Some(link) = self.link.take() {
            self.closing.spawn(link.close());
        }
    }

    fn say(&self, message: ToHost) {
        if let Some(link) = &self.link {
            link.say(message);
        }
    }

    /// Writes down where the job is.
    fn keep(&mut self) {
        let abandoned = self.mover.abandoned().iter();
        let abandoned = abandoned.map(|(host, number)| OnHost {
            host: host.clone(),
            number: *number,
        });
        self.kept.abandoned = abandoned.collect();
        if let Err(cause) = self.kept.write(&self.place.path(KEPT)) {
            self.complain(format!(
                "can't record where the job runs ({cause}): a start after a kill would start a second one"
            ));
        }
    }

    pub(super) fn complain(&mut self, message: String) {
        if self.complaint != message {
            self.complaint.clone_from(&message);
            self.log.warn(message);
        }
    }

    fn launch(&mut self, host: String, number: u32, mode: LaunchMode) {
        let is_another = self
            .kept
            .now
            .as_ref()
            .is_none_or(|now| (&now.host, now.number) != (&host, number));
        if is_another {
            // Some output of an incarnation that was given up may be shown twice.
            self.kept.shown = Shown::default();
            self.kept.number = self.kept.number.max(number);
            self.kept.now = Some(OnHost {
                host: host.clone(),
                number,
            });
        }
        if is_another || self.hosts.is_empty() {
            self.hosts.push(host.clone());
        }
        if mode == LaunchMode::Start {
            self.hand_over_to(&host);
        }
        // Before the job runs: otherwise a start after a kill would not find it.
        self.keep();
        let start = match mode {
            LaunchMode::Start => self.start(&host).map(Some),
            LaunchMode::Attach => Ok(None),
        };
        let start = match start {
            Ok(start) => start,
            Err(failure) => {
                self.complain(failure.to_string());
                return self.happens(Event::LinkEnded);
            }
        };
        let order = Order {
            form: FORM,
            host,
            job: self.orders.job.to_string(),
            incarnation: Incarnation {
                run: self.kept.run.clone(),
                number,
            },
            shown: self.kept.shown,
            report_ms: self.orders.settings.report_ms,
            start,
            stand_by: None,
        };
        self.links += 1;
        let launcher = &self.orders.launcher;
        match Link::start(launcher, &order, self.links, self.sender.clone()) {
            Ok(link) => self.link = Some(link),
            Err(cause) => {
                self.complain(format!("the launcher can't be started: {cause}"));
                self.happens(Event::LinkEnded);
            }
        }
    }

    fn start(&mut self, host: &str) -> Result<Start, Failure> {
        let letter = self.away.letter(&self.orders.job, self.wants_new_key)?;
        self.wants_new_key = false;
        let mut options: Vec<Word> = self
            .orders
            .options
            .iter()
            .map(|one| Word::from(one.as_os_str()))
            .collect();
        options.push(Word::Text(format!("--compute-host={host}")));
        let command = self
            .orders
            .command
            .iter()
            .map(|word| Word::from(word.as_os_str()));
        Ok(Start {
            options,
            command: command.collect(),
            grid: letter.grid,
            key: letter.key,
            history: self
                .orders
                .record
                .history
                .is_some()
                .then(|| self.comparable()),
        })
    }

    /// Lines of the history with runs that are comparable to this job.
    fn comparable(&self) -> Vec<String> {
        let Some(history) = self.history() else {
            return Vec::new();
        };
        let lines = history.comparable(&self.kind());
        lines
            .into_iter()
            .filter_map(|line| serde_json::to_string(line).ok())
            .collect()
    }

    fn kind(&self) -> Kind {
        Kind::of(&self.orders.command, &self.orders.record.parameters)
    }

    fn history(&self) -> Option<History> {
        History::read(self.orders.record.history.as_deref()?).ok()
    }

    /// The work that is left, as well as it is known, in seconds at speed 1.
    fn work_seconds(&self) -> f64 {
        let rest = self.rest.map(|rest| rest.work_seconds);
        rest.or(self.orders.work_seconds)
            .or_else(|| Some(self.history()?.outlook(&self.kind())?.work_s))
            .unwrap_or(WORK_SECONDS_UNKNOWN)
            .max(1.0)
    }

    fn rank(&self) {
        let away = Arc::clone(&self.away);
        let orders = self.orders.clone();
        let work = self.work_seconds();
        let staged = self.kept.staged;
        let asker = self.asker.clone();
        tokio::spawn(async move {
            let found = async {
                let agent = away.agent().await?;
                let newest = newest(&agent, &orders.job).await?;
                let newer = newest.filter(|version| version.version.number() > staged);
                match newer.as_ref().and_then(result_of) {
                    Some(status) => Ok(Answer::Finished(status)),
                    None => away.rank(work).await.map(Answer::Ranked),
                }
            };
            let answer = found.await.unwrap_or_else(Answer::Failed);
            // Fails if the front has ended.
            let _ = asker.send(answer).await;
        });
    }

    fn answered(&mut self, answer: Answer) {
        match answer {
            Answer::Finished(status) => self.happens(Event::Finished { status }),
            Answer::Failed(failure) => {
                self.complain(failure.to_string());
                self.happens(Event::RankFailed);
            }
            Answer::Ranked(mut ranking) => {
                let _choosing = self.marks.choose();
                let now_ms = unix_millis();
                self.marks.unmarked_first(now_ms, &mut ranking.candidates);
                if ranking.candidates.is_empty() {
                    self.complain(format!("no host is free: {}", ranking.unfit.join("; ")));
                }
                self.happens(Event::Ranked(ranking.candidates));
                self.prepare_next();
                if let Some((host, _)) = self.mover.host() {
                    self.marks.mark(host, now_ms);
                }
            }
        }
    }

    /// The phase of the run, which decides what a signal means.
    fn phase(&self) -> Phase {
        match self.mover.host() {
            Some(_) => Phase::Elsewhere,
            // A free host is waited for.
            None => Phase::Transfer,
        }
    }

    fn signalled(&mut self, means: Meaning, number: u8) {
        match means {
            Meaning::Leave => self.happens(Event::Leave),
            // If the job runs, it runs on, and the next start finds it.
            Meaning::End => self.end_at_once(number),
            Meaning::PassOn => self.say(ToHost::Signal(number)),
            Meaning::Nothing | Meaning::Insist | Meaning::Pause => {}
        }
    }

    fn end_at_once(&mut self, signal: u8) {
        self.keep();
        std::process::exit(128 + i32::from(signal));
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Message(message) => self.hear_message(message),
            News::Out(part) => self.printer.show(self.kept.number_now(), Stream::Out, part),
            News::Err(part) => self.printer.show(self.kept.number_now(), Stream::Err, part),
            News::Noise(line) => {
                let host = self.mover.host().map_or("?", |(host, _)| host);
                let text = format!("{host}: {line}\n").into_bytes();
                self.printer.show(0, Stream::Err, text);
            }
            News::Ended => {
                self.close();
                self.happens(Event::LinkEnded);
            }
        }
    }

    fn hear_message(&mut self, message: FromHost) {
        match message {
            // The host begins to start the job.
            FromHost::Hello { form: FORM, .. } => {
                self.wants_new_key = true;
                self.happens(Event::Reported(RunState::Starting));
            }
            FromHost::Out { .. } | FromHost::Err { .. } => {}
            FromHost::Hello { form, program } => {
                self.complain(format!(
                    "ckpt {program} there uses form {form} of orders, this program form {FORM}: install the same version"
                ));
                self.happens(Event::Ended(There::Supervisor { status: WRONG_FORM }));
            }
            FromHost::Refused { message } => {
                let host = self.mover.host().map_or("?", |(host, _)| host);
                let message = format!("{host}: {message}");
                self.complain(message);
                self.happens(Event::Ended(There::Supervisor { status: WRONG_FORM }));
            }
            FromHost::Alive {
                runs,
                rest,
                standing,
            } => {
                self.rest = rest.or(self.rest);
                self.standing = standing.map(|standing| *standing);
                self.inform_next(runs);
                self.note_standing();
                let heard = match (runs, rest) {
                    (false, _) => RunState::Starting,
                    (true, rest) => RunState::Runs(rest.map(|rest| Rest {
                        seconds: rest.seconds,
                        left_seconds: rest.left_seconds,
                    })),
                };
                self.happens(Event::Reported(heard));
                self.keep();
            }
            FromHost::Ended { end, noted } => {
                self.say(ToHost::Forget);
                self.wants_new_key = !matches!(end.exit_code, Ending::SAVED | Ending::OLDER);
                let there = match end {
                    EndReport {
                        exit_code: status,
                        by_job: true,
                        ..
                    } => There::Job { status },
                    EndReport {
                        exit_code: status, ..
                    } => There::Supervisor { status },
                };
                let host = self.mover.host().map(|(host, _)| host.to_owned());
                self.log.enter(JournalEvent::EndedThere {
                    host: host.unwrap_or_default(),
                    exit_code: end.exit_code,
                    why: end.why.clone(),
                    version: end.version,
                });
                self.enter_end(&end);
                self.reported_end = Some(end);
                self.noted = noted;
                self.happens(Event::Ended(there));
            }
            // Only a host that stands by reports that.
            FromHost::StandsBy(_) => {}
            FromHost::Vanished => self.happens(Event::Ended(There::Vanished)),
        }
    }

    fn shown(&mut self, number: u32, stream: Stream, bytes: u64) {
        if number != self.kept.number_now() {
            return;
        }
        match stream {
            Stream::Out => self.kept.shown.out += bytes,
            Stream::Err => self.kept.shown.err += bytes,
        }
        self.say(ToHost::Shown(self.kept.shown));
    }

    fn report(&mut self, report: Report) {
        let seconds = |ms: u64| ms as f64 / 1000.0;
        let entry = match report {
            Report::Runs { host, after_ms } => {
                let after_s = after_ms.map(seconds);
                self.moves_seconds.extend(after_s);
                self.complaint.clear();
                self.prepare_next();
                JournalEvent::RunsThere { host, after_s }
            }
            Report::Failed { host, back_off_ms } => {
                self.kept.now = None;
                JournalEvent::LeftAlone {
                    host,
                    seconds: seconds(back_off_ms),
                }
            }
            Report::Lost { host, back_off_ms } => {
                self.enter_lost(&host);
                JournalEvent::Lost {
                    host,
                    seconds: seconds(back_off_ms),
                }
            }
            Report::Better { host, there } => JournalEvent::Better { host, there },
            Report::Waits { ms } => JournalEvent::Waits {
                seconds: seconds(ms),
            },
        };
        self.log.enter(entry);
        self.note_standing();
    }

    /// Notes how the job stands, as its host reports.
    fn note_standing(&mut self) {
        let host = self.mover.host().map(|(host, _)| host.to_owned());
        let heard = self.standing.clone().filter(|_| host.is_some());
        self.note.show(JobStanding {
            job: self.orders.job.to_string(),
            host,
            standby: self.ready_host(),
            ..heard.unwrap_or_default()
        });
    }

    /// Enters into the ledger how `ckpt run` has ended on the host.
    fn enter_end(&mut self, end: &EndReport) {
        self.standing = None;
        let loss = match end.exit_code {
            _ if end.by_job => return,
            Ending::SAVED | Ending::OLDER => Loss::Evicted,
            Ending::OTHER => Loss::Superseded,
            Ending::HUNG => Loss::Hung,
            _ => return,
        };
        let goes_on = end.version.is_some();
        let host = self.mover.host().map(|(host, _)| host.to_owned());
        let job = self.orders.job.to_string();
        let line = LedgerLine::now(&job, loss, goes_on, end.work_seconds, end.lost_seconds);
        self.enter(&LedgerLine { host, ..line });
    }

    /// Enters into the ledger that the host is lost, with what it reported last.
    fn enter_lost(&mut self, host: &str) {
        // A host that was lost before the job ran there had nothing to lose.
        if let Some(standing) = self.standing.take().filter(|one| one.work_s > 0.0) {
            let goes_on = standing.version.is_some();
            let job = self.orders.job.to_string();
            self.enter(&LedgerLine {
                host: Some(host.to_owned()),
                why: standing.not_saved,
                ..LedgerLine::now(
                    &job,
                    Loss::Killed,
                    goes_on,
                    standing.work_s,
                    standing.unsaved_s,
                )
            });
        }
    }

    fn enter(&mut self, line: &LedgerLine) {
        if let Err(cause) = line.append(self.orders.state_dir.as_deref()) {
            self.log.warn(format!("the ledger: {cause}"));
        }
    }
}

impl Kept {
    /// Number of the incarnation whose output is shown.
    fn number_now(&self) -> u32 {
        self.now.as_ref().map_or(0, |now| now.number)
    }
}
