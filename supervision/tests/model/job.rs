//! A simulated job: it works, writes checkpoints, and dies in many ways.

use rand::Rng;
use rand::rngs::SmallRng;
use supervision::{Asking, JobStatus, Settings, WhileRead};

/// What the job does on `SIGTERM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnTerm {
    Dies,
    WritesAndExits,
    Ignores,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) alive: bool,
    pub(super) stopped: bool,
    pub(super) hung: bool,
    /// Time that it was running, milliseconds.
    pub(super) work: u64,
    pub(super) cpu_ms: u64,
    /// Work in the whole checkpoint that it has on disk, if it has one, milliseconds.
    pub(super) on_disk: Option<u64>,
    /// Whether it reports its finished checkpoints.
    pub(super) says: bool,
    pub(super) ends_at: Option<u64>,
    pub(super) status: JobStatus,
    /// While it writes a checkpoint: the work in it, and the time that writing still takes.
    writes: Option<(u64, u64)>,
    moved: bool,
    in_place: bool,
    work_in_all: u64,
    /// It writes a checkpoint by itself after this many milliseconds of work.
    writes_every: Option<u64>,
    writes_at: u64,
    write_ms: u64,
    answers: bool,
    on_term: OnTerm,
    exits_after_writing: bool,
    dies_slowly: bool,
}

impl Job {
    pub(super) fn draw(rng: &mut SmallRng, settings: &Settings) -> Self {
        let by_itself = settings.asking == Asking::Never
            || (settings.asking == Asking::Possible && rng.random_bool(0.2));
        let every = rng.random_range(5000..120_000);
        Self {
            alive: true,
            stopped: false,
            hung: false,
            work: 0,
            cpu_ms: 0,
            on_disk: None,
            says: rng.random_bool(0.5),
            ends_at: None,
            status: JobStatus::Exited(0),
            writes: None,
            moved: false,
            in_place: settings.while_read == WhileRead::Stopped,
            work_in_all: rng.random_range(60_000..1_500_000),
            writes_every: by_itself.then_some(every),
            writes_at: every,
            write_ms: rng.random_range(0..8000),
            answers: rng.random_bool(0.9),
            on_term: match rng.random_range(0..3) {
                0 => OnTerm::Dies,
                1 => OnTerm::WritesAndExits,
                _ => OnTerm::Ignores,
            },
            exits_after_writing: false,
            dies_slowly: rng.random_bool(0.02),
        }
    }

    pub(super) const fn is_writing(&self) -> bool {
        self.writes.is_some()
    }

    /// Runs for `ms`, if nothing holds it. Returns the work in a checkpoint that it finished.
    pub(super) fn run(&mut self, ms: u64, now: u64, dumped: bool) -> Option<u64> {
        if !self.alive || self.stopped || dumped {
            return None;
        }
        self.work += ms;
        if self.hung {
            return None;
        }
        self.cpu_ms += ms;
        if self.work >= self.work_in_all && self.ends_at.is_none() {
            self.ends_at = Some(now);
        }
        if self.writes_every.is_some() && self.work >= self.writes_at && self.writes.is_none() {
            self.begin_to_write();
        }
        let (content, left) = self.writes.as_mut()?;
        *left = left.saturating_sub(ms);
        // The job does nothing else while it writes, so the checkpoint holds its state at the end of
        // writing.
        if *left > 0 {
            *content = self.work;
            return None;
        }
        let content = self.work;
        self.writes = None;
        self.on_disk = Some(content);
        if let Some(every) = self.writes_every {
            self.writes_at = self.work + every;
        }
        if self.exits_after_writing {
            self.ends_at = Some(now);
            self.status = JobStatus::Exited(0);
        }
        Some(content)
    }

    fn begin_to_write(&mut self) {
        if self.writes.is_none() {
            self.writes = Some((self.work, self.write_ms.max(1)));
            self.moved = self.in_place;
        }
    }

    /// Whether it has just begun to change its files in place.
    pub(super) fn begins_to_move(&mut self) -> bool {
        if self.moved && self.is_writing() {
            self.on_disk = None;
        }
        std::mem::take(&mut self.moved)
    }

    pub(super) fn asked(&mut self) {
        if self.answers {
            self.begin_to_write();
        }
    }

    pub(super) fn terminated(&mut self, now: u64) {
        match self.on_term {
            OnTerm::Dies => self.end(now, JobStatus::Signalled(15)),
            OnTerm::WritesAndExits => {
                self.begin_to_write();
                self.exits_after_writing = true;
            }
            OnTerm::Ignores => {}
        }
    }

    pub(super) fn killed(&mut self, now: u64) {
        let slowly = if self.dies_slowly { 60_000 } else { 100 };
        self.end(now + slowly, JobStatus::Signalled(9));
    }

    pub(super) fn crash(&mut self, status: JobStatus) {
        self.end(0, status);
    }

    fn end(&mut self, at: u64, status: JobStatus) {
        if self.alive && self.ends_at.is_none_or(|before| at < before) {
            self.ends_at = Some(at);
            self.status = status;
        }
    }
}
