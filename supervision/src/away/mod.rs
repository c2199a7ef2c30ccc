//! A job that runs on other machines: which machine it runs on, when a machine is given up, and when the
//! job moves to another one. These are the decisions of `ckpt run --on`.
//!
//! A [`Mover`] is driven like a [`crate::Supervisor`]: [`Event`]s with their time go in, [`Action`]s come
//! out, and the shell sends [`Event::Tick`] at [`Mover::next_deadline`]. The *launcher* is the process
//! that connects to a host and starts, or finds, `ckpt run` there. An *incarnation* is one run of the job
//! on one host. What the shell owes the mover:
//!
//! - After each [`Action::Rank`] exactly one of [`Event::Ranked`], [`Event::RankFailed`] and
//!   [`Event::Finished`].
//! - After [`Action::Launch`] the reports of the host, and one [`Event::LinkEnded`] when the launcher has
//!   ended by itself. After [`Action::Close`] no event of that launcher.

mod hosts;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use crate::Ending;
use crate::clock::{Millis, millis};
use crate::moving::{Elsewhere, Silence, has_settled};
use hosts::Hosts;

/// Times that a mover keeps to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoveTimes {
    /// Time from one report of a host to the next, milliseconds.
    pub report_ms: u64,
    /// Time until the hosts are asked again when none is free, which is also the longest back-off,
    /// milliseconds.
    pub retry_ms: u64,
    /// First estimate of the time from leaving one machine to running on another, milliseconds. The first
    /// real move replaces it.
    pub moving_ms: u64,
}

impl Default for MoveTimes {
    fn default() -> Self {
        Self {
            report_ms: 5_000,
            retry_ms: 300_000,
            moving_ms: 30_000,
        }
    }
}

/// A host that failed once is left alone for this part of [`MoveTimes::retry_ms`]. Each further failure
/// doubles the time.
const FIRST_BACK_OFF_PART: u64 = 10;

/// A launcher that broke off is started again after this part of [`MoveTimes::report_ms`].
const RECONNECT_PART: u64 = 5;

/// A job that hangs this many times in a row is given up: the fault is its own, and not its hosts'.
const HANGS_MAX: u32 = 3;

/// Exit status of `ckpt run` after SIGINT and after SIGQUIT, before the job ran: its user wants it nowhere.
const INTERRUPTED: u8 = 128 + crate::signals::INT;
const QUIT: u8 = 128 + crate::signals::QUIT;

/// A host on which the job could run, from now to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The name of the host.
    pub host: String,
    /// Processor time that the rest of the job needs there, seconds.
    pub cpu_seconds: f64,
    /// Load of the owner there, processes per processor.
    pub load: f64,
    /// Expected time to the job's end if it goes on there, seconds. Counts evictions and further moves.
    pub expected_seconds: f64,
}

/// What a running job has before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rest {
    /// Seconds until its end if it stays where it is.
    pub seconds: f64,
    /// Seconds until its deadline; `None` if it has no deadline.
    pub left_seconds: Option<f64>,
}

/// What a host reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RunState {
    /// `ckpt run` is there and restores the job's state.
    Starting,
    /// The job runs there; with what it has before it, if that is known.
    Runs(Option<Rest>),
}

/// How `ckpt run` ended on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum There {
    /// The job ended by itself, and its result is saved.
    Job {
        /// Its exit status.
        status: u8,
    },
    /// `ckpt run` ended with this exit status of its own.
    Supervisor {
        /// The exit status.
        status: u8,
    },
    /// `ckpt run` is gone and has left no record of how it ended.
    Vanished,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Hosts that could take the job now, the best first.
    Ranked(Vec<Candidate>),
    /// The ranking failed: nothing is known of the hosts.
    RankFailed,
    /// The job's newest version records that the job has ended with this status.
    Finished {
        /// The job's exit status.
        status: u8,
    },
    /// The host sent this report.
    Reported(RunState),
    /// `ckpt run` has ended on the host.
    Ended(There),
    /// The launcher has ended by itself.
    LinkEnded,
    /// The user wants the job to be saved and ended.
    Leave,
    /// Time has passed.
    Tick,
}

/// What a launcher does on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchMode {
    /// Starts the incarnation of the job.
    Start,
    /// Only finds the incarnation that runs there.
    Attach,
}

/// One thing for the shell to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Look for the job's result, and rank the hosts.
    Rank,
    /// Start a launcher.
    Launch {
        /// For this host.
        host: String,
        /// Number of the incarnation of the job, counted from 1.
        number: u32,
        /// What the launcher does there.
        mode: LaunchMode,
    },
    /// End the launcher. None of its reports are wanted any more.
    Close,
    /// Ask `ckpt run` on the host to leave with a last checkpoint.
    AskToLeave,
    /// Report this to the user.
    Report(Report),
    /// End: this is the last action.
    End(End),
}

/// Something that the user may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The job runs on this host now.
    Runs {
        /// The name of the host.
        host: String,
        /// Time since it ran last, milliseconds; `None` the first time.
        after_ms: Option<u64>,
    },
    /// The host did not take the job, or does not have it any more.
    Failed {
        /// The name of the host.
        host: String,
        /// Time for which it is left alone, milliseconds.
        back_off_ms: u64,
    },
    /// Too many reports of this host are missing: the job goes on elsewhere.
    Lost {
        /// The name of the host.
        host: String,
        /// Time for which it is left alone, milliseconds.
        back_off_ms: u64,
    },
    /// The job is expected to end earlier on another host.
    Better {
        /// The host on which it runs.
        host: String,
        /// The host on which it is to go on.
        there: String,
    },
    /// No host is free.
    Waits {
        /// Time until the hosts are asked again, milliseconds.
        ms: u64,
    },
}

/// How a job that ran on other machines ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The job ended by itself, with this status.
    Job {
        /// The job's exit status.
        status: u8,
        /// The host on which it ended, if that is known.
        host: Option<String>,
    },
    /// The user wanted the job to leave: 75 or 76, with the meanings of `ckpt run`.
    Left {
        /// The exit status.
        status: u8,
    },
    /// The job was given up where it ran: `ckpt run` ended there with this status.
    GivenUp {
        /// The exit status.
        status: u8,
        /// The name of the host.
        host: String,
    },
    /// The job never ran: every host refused it, the last one with this status.
    NotStarted {
        /// The exit status.
        status: u8,
    },
}

/// Why a job was asked to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    ForUser,
    ForBetter,
}

/// The job's stay on a host.
#[derive(Clone, Debug, PartialEq)]
struct Stay {
    host: String,
    number: u32,
    /// When the launcher is to be started again; `None` while it runs.
    reconnect_at: Option<Millis>,
    /// Whether the host has sent any report.
    was_heard: bool,
    /// When the host first reported that the job runs.
    running_since: Option<Millis>,
    silence: Silence,
    /// When the next report is due.
    due: Millis,
    rest: Option<Rest>,
    leaving: Option<Leaving>,
    /// The earliest time of the next comparison with other hosts.
    next_look: Millis,
    /// Whether a ranking is under way.
    is_ranking: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Ranking,
    Waiting { until: Millis },
    There(Stay),
    Ended,
}

/// Decides where a job runs.
#[derive(Clone, Debug)]
pub struct Mover {
    settings: MoveTimes,
    state: State,
    actions: VecDeque<Action>,
    hosts: Hosts,
    /// Whether the host on which the job is to go on is prepared.
    prepares: bool,
    /// The host on which the job is to go on when it leaves the present one.
    next_host: Option<String>,
    /// The host that has the newest version already.
    prepared: Option<String>,
    /// How many incarnations were started so far.
    number: u32,
    /// Hosts that were given up without a report of how the job ended there, and the number of the
    /// incarnation; the newest last. The job may still run on them.
    abandoned: Vec<(String, u32)>,
    /// When the job was last known to run.
    ran_until: Option<Millis>,
    has_run: bool,
    /// How many times in a row the job has hung.
    hangs: u32,
    moving_ms: u64,
    /// The exit status if the user wants to leave while the job runs nowhere.
    left_status: u8,
    wants_to_leave: bool,
}

impl Mover {
    /// A mover for a job that runs nowhere.
    #[must_use]
    pub fn new(settings: MoveTimes) -> Self {
        let mut mover = Self {
            settings,
            state: State::Ranking,
            actions: VecDeque::new(),
            hosts: Hosts::default(),
            prepares: false,
            next_host: None,
            prepared: None,
            number: 0,
            abandoned: Vec::new(),
            ran_until: None,
            has_run: false,
            hangs: 0,
            moving_ms: settings.moving_ms,
            left_status: Ending::SAVED,
            wants_to_leave: false,
        };
        mover.actions.push_back(Action::Rank);
        mover
    }

    /// A mover for a job that runs nowhere after `number` incarnations; `abandoned` were given up.
    #[must_use]
    pub fn again(settings: MoveTimes, number: u32, abandoned: Vec<(String, u32)>) -> Self {
        Self {
            number,
            abandoned,
            has_run: number > 0,
            ..Self::new(settings)
        }
    }

    /// A mover for a job whose incarnation `number` was started on `host` and may still run there.
    /// `abandoned` are the incarnations that were given up before.
    #[must_use]
    pub fn resume(
        settings: MoveTimes,
        host: String,
        number: u32,
        abandoned: Vec<(String, u32)>,
        now: Millis,
    ) -> Self {
        let mut mover = Self::again(settings, number, abandoned);
        mover.actions.clear();
        mover.has_run = true;
        // How the incarnation ended was never reported, so its last state may be lost.
        mover.left_status = Ending::OLDER;
        mover.launch(now, host, number, LaunchMode::Attach);
        mover
    }

    /// This mover, which also ranks the hosts of a job whose rest is not known, so that [`Self::next_host`] is a good
    /// one.
    #[must_use]
    pub fn preparing(self, prepares: bool) -> Self {
        Self { prepares, ..self }
    }

    /// Takes an event that happened at `now`.
    pub fn handle(&mut self, now: Millis, event: Event) {
        match event {
            Event::Ranked(candidates) => self.ranked(now, &candidates),
            Event::RankFailed => match &mut self.state {
                State::Ranking => self.wait(now, None),
                State::There(stay) => stay.is_ranking = false,
                State::Waiting { .. } | State::Ended => {}
            },
            Event::Finished { status } => match &mut self.state {
                State::Ranking => self.end(End::Job { status, host: None }),
                // The host's own report of the end is on its way.
                State::There(stay) => stay.is_ranking = false,
                State::Waiting { .. } | State::Ended => {}
            },
            Event::Reported(heard) => self.heard(now, heard),
            Event::Ended(there) => self.ended(now, there),
            Event::LinkEnded => self.link_ended(now),
            Event::Leave => self.leave(),
            Event::Tick => {}
        }
        self.time_passes(now);
    }

    /// The next thing for the shell to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Event::Tick`] is due if nothing else comes before; `None` while only an answer of the shell
    /// is awaited.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Millis> {
        match &self.state {
            State::Ranking | State::Ended => None,
            State::Waiting { until } => Some(*until),
            State::There(stay) => Some(
                stay.reconnect_at
                    .map_or(stay.due, |again| again.min(stay.due)),
            ),
        }
    }

    /// The host on which the job runs or is being started, and the number of the incarnation.
    #[must_use]
    pub fn host(&self) -> Option<(&str, u32)> {
        match &self.state {
            State::There(stay) => Some((&stay.host, stay.number)),
            _ => None,
        }
    }

    /// The host on which the job is to go on when it leaves the present one, so that it can be prepared: the best
    /// other one when the hosts were ranked last. `None` if none was free.
    #[must_use]
    pub fn next_host(&self) -> Option<&str> {
        self.next_host.as_deref()
    }

    /// Notes which host has the newest version already, if one has.
    pub fn prepared(&mut self, host: Option<String>) {
        self.prepared = host;
    }

    /// The incarnations that were given up without a report of how they ended: host and number.
    #[must_use]
    pub fn abandoned(&self) -> &[(String, u32)] {
        &self.abandoned
    }

    fn ranked(&mut self, now: Millis, candidates: &[Candidate]) {
        match &mut self.state {
            State::Ranking => match self.best(now, candidates, None, self.prepared.as_deref()) {
                Some(host) => {
                    self.number = self.number.saturating_add(1);
                    let number = self.number;
                    self.next_host = self.best(now, candidates, Some(&host), self.next_host());
                    self.launch(now, host, number, LaunchMode::Start);
                }
                None => {
                    let names = candidates.iter().map(|one| one.host.as_str());
                    let first = self.hosts.first_free(names);
                    self.refused_or_wait(now, candidates, first);
                }
            },
            State::There(stay) => {
                stay.is_ranking = false;
                let here = stay.host.clone();
                // While no other host is free, what the one that was to be next has fetched may serve yet.
                let next = self.best(now, candidates, Some(&here), self.next_host());
                self.next_host = next.or_else(|| self.next_host.take());
                self.compare(now, candidates);
            }
            State::Waiting { .. } | State::Ended => {}
        }
    }

    fn best(
        &self,
        now: Millis,
        candidates: &[Candidate],
        here: Option<&str>,
        prepared: Option<&str>,
    ) -> Option<String> {
        let move_seconds = self.moving_ms as f64 / 1000.0;
        let best = self
            .hosts
            .best(now, candidates, here, prepared, move_seconds);
        best.map(|one| one.host.clone())
    }

    /// No host is free. If the job has never run and every host refuses it, waiting does not help.
    fn refused_or_wait(&mut self, now: Millis, candidates: &[Candidate], first: Option<Millis>) {
        let refusals = candidates
            .iter()
            .map(|one| self.hosts.refusal(&one.host))
            .collect::<Option<Vec<u8>>>();
        match refusals.as_deref() {
            Some([.., status]) if !self.has_run => {
                let status = *status;
                self.end(End::NotStarted { status });
            }
            _ => self.wait(now, first),
        }
    }

    /// Asks the job to leave for a host that is better by AVAM's conditions 1 or 2 and by the expected
    /// end. The conditions are in [`crate::moving`].
    fn compare(&mut self, now: Millis, candidates: &[Candidate]) {
        let State::There(stay) = &mut self.state else {
            return;
        };
        let (Some(rest), Some(since), None) = (stay.rest, stay.running_since, stay.leaving) else {
            return;
        };
        let overhead_seconds = self.moving_ms as f64 / 1000.0;
        let stayed = now.since(since) as f64 / 1000.0;
        if !has_settled(stayed, rest.seconds, overhead_seconds) {
            return;
        }
        let others = candidates.iter().filter(|one| one.host != stay.host);
        let better = others.filter(|one| self.hosts.is_free(&one.host, now));
        let is_better = |one: &&Candidate| {
            let there = Elsewhere {
                cpu_seconds: one.cpu_seconds,
                load: one.load,
                overhead_seconds,
            };
            // The expected end counts evictions and further moves, which AVAM's conditions leave out.
            let expected = Elsewhere {
                cpu_seconds: one.expected_seconds,
                load: 0.0,
                overhead_seconds,
            };
            let is_faster =
                there.is_worthwhile(rest.seconds) && expected.is_worthwhile(rest.seconds);
            let saves_deadline = rest.left_seconds.is_some_and(|left| {
                rest.seconds > left && there.is_in_time(left) && expected.is_in_time(left)
            });
            is_faster || saves_deadline
        };
        let Some(better) = better.into_iter().find(is_better) else {
            return;
        };
        stay.leaving = Some(Leaving::ForBetter);
        self.actions.push_back(Action::Report(Report::Better {
            host: stay.host.clone(),
            there: better.host.clone(),
        }));
        self.actions.push_back(Action::AskToLeave);
    }

    fn launch(&mut self, now: Millis, host: String, number: u32, mode: LaunchMode) {
        self.actions.push_back(Action::Launch {
            host: host.clone(),
            number,
            mode,
        });
        self.state = State::There(Stay {
            host,
            number,
            reconnect_at: None,
            was_heard: mode == LaunchMode::Attach,
            running_since: None,
            silence: Silence::default(),
            due: now.plus(self.settings.report_ms),
            rest: None,
            leaving: None,
            next_look: now.plus(self.settings.retry_ms),
            is_ranking: false,
        });
    }

    fn heard(&mut self, now: Millis, heard: RunState) {
        let State::There(stay) = &mut self.state else {
            return;
        };
        stay.was_heard = true;
        stay.silence.heard();
        stay.due = now.plus(self.settings.report_ms);
        let RunState::Runs(rest) = heard else {
            return;
        };
        stay.rest = rest;
        if let Some(since) = stay.running_since {
            if has_settled(now.since(since) as f64 / 1000.0, f64::INFINITY, 0.0) {
                self.hosts.forgive(&stay.host);
            }
        } else {
            stay.running_since = Some(now);
            let after_ms = self.ran_until.map(|until| now.since(until));
            self.moving_ms = after_ms.unwrap_or(self.moving_ms).max(1);
            self.has_run = true;
            let host = stay.host.clone();
            self.actions
                .push_back(Action::Report(Report::Runs { host, after_ms }));
        }
        self.ran_until = Some(now);
        let is_of_use = rest.is_some() || self.prepares;
        if is_of_use && !stay.is_ranking && stay.leaving.is_none() && stay.next_look <= now {
            stay.next_look = now.plus(self.settings.retry_ms);
            stay.is_ranking = true;
            self.actions.push_back(Action::Rank);
        }
    }

    fn ended(&mut self, now: Millis, there: There) {
        let State::There(stay) = &self.state else {
            return;
        };
        let host = stay.host.clone();
        let leaving = stay.leaving;
        if stay.reconnect_at.is_none() {
            self.actions.push_back(Action::Close);
        }
        match there {
            There::Job { status } => self.end(End::Job {
                status,
                host: Some(host),
            }),
            There::Supervisor {
                status: status @ (Ending::SAVED | Ending::OLDER),
            } => {
                self.left_status = status;
                self.hangs = 0;
                match leaving {
                    Some(Leaving::ForUser) => self.end(End::Left { status }),
                    // The back-off keeps the host from being chosen again before the job has settled
                    // elsewhere.
                    Some(Leaving::ForBetter) | None => self.failed(now, host, None),
                }
            }
            There::Supervisor {
                status: Ending::OTHER,
            } => self.find_the_other(now, host),
            There::Supervisor {
                status: status @ Ending::HUNG,
            } => self.hung(now, host, status),
            There::Supervisor {
                status: status @ (INTERRUPTED | QUIT),
            } => self.end(End::GivenUp { status, host }),
            There::Supervisor { status } => self.failed(now, host, Some(status)),
            There::Vanished => {
                self.left_status = Ending::OLDER;
                self.failed(now, host, None);
            }
        }
    }

    /// The job hung and was ended. It may be the host that stands still, so the job goes on elsewhere, from its
    /// newest version.
    fn hung(&mut self, now: Millis, host: String, status: u8) {
        self.hangs += 1;
        if self.hangs >= HANGS_MAX {
            return self.end(End::GivenUp { status, host });
        }
        self.left_status = Ending::OLDER;
        self.failed(now, host, None);
    }

    /// Another incarnation has gone on. If a host was given up, follow the job there.
    fn find_the_other(&mut self, now: Millis, host: String) {
        self.left_status = Ending::OLDER;
        match self.abandoned.pop() {
            Some((other, number)) => self.launch(now, other, number, LaunchMode::Attach),
            None => self.failed(now, host, None),
        }
    }

    fn link_ended(&mut self, now: Millis) {
        let again = now.plus(self.settings.report_ms / RECONNECT_PART);
        let State::There(stay) = &mut self.state else {
            return;
        };
        if stay.was_heard {
            // The job may still run there: only the connection is known to be gone.
            stay.reconnect_at = Some(again);
            return;
        }
        let host = stay.host.clone();
        self.failed(now, host, Some(crate::StartFailure::BeforeStart.status()));
    }

    fn leave(&mut self) {
        self.wants_to_leave = true;
        match &mut self.state {
            State::Ranking | State::Waiting { .. } => self.end(End::Left {
                status: self.left_status,
            }),
            State::There(stay) => {
                let was_asked = stay.leaving.replace(Leaving::ForUser).is_some();
                if stay.reconnect_at.is_none() && !was_asked {
                    self.actions.push_back(Action::AskToLeave);
                }
            }
            State::Ended => {}
        }
    }

    fn time_passes(&mut self, now: Millis) {
        if matches!(self.state, State::Waiting { until } if until <= now) {
            self.rank();
        }
        let State::There(stay) = &mut self.state else {
            return;
        };
        if stay.due <= now {
            // Counts at most one missed report at a time: reports that came due while this machine slept
            // could not have been received.
            stay.due = now.plus(self.settings.report_ms.max(1));
            if stay.silence.missed() {
                return self.give_host_up(now);
            }
        }
        if stay.reconnect_at.is_some_and(|again| again <= now) {
            stay.reconnect_at = None;
            let host = stay.host.clone();
            let number = stay.number;
            let asks_again = stay.leaving.is_some();
            self.actions.push_back(Action::Launch {
                host,
                number,
                mode: LaunchMode::Attach,
            });
            if asks_again {
                self.actions.push_back(Action::AskToLeave);
            }
        }
    }

    /// Too many reports are missing: the job goes on elsewhere, whatever runs on that host.
    fn give_host_up(&mut self, now: Millis) {
        let State::There(stay) = &self.state else {
            return;
        };
        let host = stay.host.clone();
        let number = stay.number;
        if stay.reconnect_at.is_none() {
            self.actions.push_back(Action::Close);
        }
        self.left_status = Ending::OLDER;
        let back_off_ms = self.back_off(now, &host, None);
        self.abandoned.push((host.clone(), number));
        self.actions
            .push_back(Action::Report(Report::Lost { host, back_off_ms }));
        self.rank_or_leave();
    }

    /// The job is not on this host, and goes on elsewhere.
    fn failed(&mut self, now: Millis, host: String, refusal: Option<u8>) {
        let back_off_ms = self.back_off(now, &host, refusal);
        self.actions
            .push_back(Action::Report(Report::Failed { host, back_off_ms }));
        self.rank_or_leave();
    }

    fn back_off(&mut self, now: Millis, host: &str, refusal: Option<u8>) -> u64 {
        let first = (self.settings.retry_ms / FIRST_BACK_OFF_PART).max(1);
        self.hosts
            .fail(host, now, first, self.settings.retry_ms.max(1), refusal)
    }

    fn rank_or_leave(&mut self) {
        if self.wants_to_leave {
            let status = self.left_status;
            return self.end(End::Left { status });
        }
        self.rank();
    }

    fn rank(&mut self) {
        self.state = State::Ranking;
        self.actions.push_back(Action::Rank);
    }

    /// Waits for a free host: until the first back-off ends, but at most for [`MoveTimes::retry_ms`].
    fn wait(&mut self, now: Millis, first: Option<Millis>) {
        let latest = now.plus(self.settings.retry_ms.max(1));
        let until = first.map_or(latest, |first| first.clamp(now.plus(1), latest));
        self.state = State::Waiting { until };
        let ms = until.since(now);
        self.actions.push_back(Action::Report(Report::Waits { ms }));
    }

    fn end(&mut self, end: End) {
        self.state = State::Ended;
        self.actions.push_back(Action::End(end));
    }
}

impl Candidate {
    /// A candidate that has `work_seconds` of work at speed 1 left to do. The processors that the job
    /// takes there have the given `speed` and the owner's `load`, 0 to 1.
    #[must_use]
    pub fn new(
        host: String,
        work_seconds: f64,
        speed: f64,
        load: f64,
        expected_seconds: f64,
    ) -> Self {
        let load = load.clamp(0.0, LOAD_MAX);
        Self {
            host,
            cpu_seconds: work_seconds / speed.max(f64::MIN_POSITIVE),
            // A load of l is l / (1 - l) processes: beside that many, a job gets 1 - l of a processor.
            load: load / (1.0 - load),
            expected_seconds,
        }
    }
}

/// The highest load that is counted, so that `load / (1 - load)` stays finite.
const LOAD_MAX: f64 = 0.999;

/// Seconds, as a user or a host gave them, in milliseconds; at least 1.
#[must_use]
pub fn period_ms(seconds: f64) -> u64 {
    millis(seconds).max(1)
}
