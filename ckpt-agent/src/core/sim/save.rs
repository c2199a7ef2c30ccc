//! Simulated hosts that take shards, and a shell that carries out the actions of a save session.

use std::collections::{BTreeMap, BTreeSet};

use codec::{Redundancy, ShardIndex};
use protocol::wire::Code;
use rand::Rng;
use rand::rngs::SmallRng;

use super::{Agenda, trace};
use crate::core::save::{
    AttemptId, RowSize, SaveAction, SaveEvent, SaveLimits, SaveOutcome, SavePlan, SaveSession,
};
use crate::core::{Fault, HostIndex, Millis};

/// How a host misbehaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Vice {
    None,
    Refuses,
    /// Refuses this many times, each time until a named moment.
    Busy(u32),
    /// Does not even answer.
    Mute,
    DiesAtRow(u64),
    StallsAtRow(u64),
    WrongRoot,
    FullAtEnd,
    DiesBeforeCommit,
    /// Commits, but the answer is lost.
    CommitAnswerLost,
    VersionTaken,
}

/// What a host has on its disk.
#[derive(Clone, Copy, Debug, PartialEq)]
struct OnDisk {
    shard: ShardIndex,
    committed: bool,
}

#[derive(Debug)]
struct SimHost {
    vice: Vice,
    alive: bool,
    ms_per_row: u64,
    disk: Option<OnDisk>,
}

/// A grid and what is to be saved.
#[derive(Debug)]
pub(super) struct Grid {
    hosts: Vec<SimHost>,
    plan: SavePlan,
    rows: u64,
    committed: Option<Vec<(ShardIndex, HostIndex)>>,
}

/// An acknowledged checkpoint.
#[derive(Debug)]
pub(super) struct Saved {
    pub(super) redundancy: Redundancy,
    pub(super) rows: u64,
    pub(super) holders: Vec<(ShardIndex, HostIndex)>,
}

#[derive(Clone, Debug)]
enum Event {
    Session(SaveEvent),
    /// A row is encoded if there is memory for it.
    Produce,
    /// The host's disk changes, then the host answers.
    Stores(AttemptId),
    Commits(AttemptId),
    Rebuilds(AttemptId, Vec<HostIndex>),
    Dies(HostIndex),
}

/// Rows that fit into the shell's memory.
const MEMORY_ROWS: usize = 6;
const ROW_BYTES: u64 = 10;

/// Every other row has blocks so large that a fast host would be too far ahead of the slowest.
const LARGE_BLOCK_BYTES: u64 = 3 << 20;

impl Grid {
    pub(super) fn random(rng: &mut SmallRng) -> Self {
        let redundancy = Redundancy::new(rng.random_range(1..=4), rng.random_range(0..=3)).unwrap();
        let spares = rng.random_range(0..=4);
        let rows = rng.random_range(1..=20);
        // Each schedule has its own share of misbehaving hosts.
        let share = rng.random_range(0.0..0.6);
        let hosts: Vec<SimHost> = (0..redundancy.total() + spares)
            .map(|_| SimHost {
                vice: if rng.random_bool(share) {
                    random_vice(rng, rows)
                } else {
                    Vice::None
                },
                alive: true,
                ms_per_row: rng.random_range(1..30),
                disk: None,
            })
            .collect();
        let limits = SaveLimits {
            open_ms: 50,
            again_ms: 25,
            evidence_ms: 500,
            stall_ms: 100,
            sync_ms: 100,
            commit_ms: 100,
            retain_bytes: rng.random_range(0..=3) * ROW_BYTES,
        };
        let plan = SavePlan {
            redundancy,
            candidates: (0..hosts.len()).map(HostIndex).collect(),
            silent: (0..hosts.len())
                .filter(|_| rng.random_bool(0.1))
                .map(HostIndex)
                .collect(),
            draw: rng.random(),
            min_parity: match rng.random_range(0..3) {
                0 => rng.random_range(0..=redundancy.parity() as u8),
                _ => redundancy.parity() as u8,
            },
            deadline: rng
                .random_bool(0.1)
                .then(|| Millis(rng.random_range(1..500))),
            limits,
        };
        Self {
            hosts,
            plan,
            rows,
            committed: None,
        }
    }

    pub(super) fn acknowledged(&self) -> Option<Saved> {
        Some(Saved {
            redundancy: self.plan.redundancy,
            rows: self.rows,
            holders: self.committed.clone()?,
        })
    }

    /// Runs a save to its end and checks what it left.
    pub(super) fn save(&mut self, rng: &mut SmallRng) -> String {
        trace!("{self:?}");
        let session = SaveSession::new(self.plan.clone(), Millis(0));
        let mut shell = Shell::new(session);
        shell.agenda.plan(Millis(0), Event::Produce);
        if rng.random_bool(0.05) {
            let at = Millis(rng.random_range(0..300));
            let end = match rng.random_bool(0.5) {
                true => SaveEvent::Cancel,
                false => SaveEvent::InputFailed,
            };
            shell.agenda.plan(at, Event::Session(end));
        }
        for host in 0..self.hosts.len() {
            if rng.random_bool(0.05) {
                let at = Millis(rng.random_range(0..600));
                shell.agenda.plan(at, Event::Dies(HostIndex(host)));
            }
        }
        for steps in 0.. {
            assert!(steps < 20_000, "no end");
            shell.carry_out(self);
            if shell.session.outcome().is_some() {
                break;
            }
            let wake = shell.session.next_deadline();
            match (shell.agenda.next_time(), wake) {
                (Some(at), wake) if wake.is_none_or(|wake| at <= wake) => {
                    let (at, event) = shell.agenda.next().unwrap();
                    shell.now = shell.now.max(at);
                    shell.happen(self, event);
                }
                (_, Some(wake)) => {
                    shell.now = shell.now.max(wake);
                    shell.handle(SaveEvent::Tick);
                }
                (_, None) => panic!("stuck: {:?}", shell.session),
            }
        }
        shell.carry_out(self);
        self.check(&shell)
    }

    fn check(&mut self, shell: &Shell) -> String {
        assert!(
            shell.rows.is_empty(),
            "rows stay in memory: {:?}",
            shell.rows
        );
        match shell.session.outcome().unwrap() {
            SaveOutcome::Committed { holders } => {
                let needed = self.plan.redundancy.data() + usize::from(self.plan.min_parity);
                assert!(holders.len() >= needed, "{holders:?}");
                let shards: BTreeSet<_> = holders.iter().map(|(shard, _)| shard).collect();
                let hosts: BTreeSet<_> = holders.iter().map(|(_, host)| host).collect();
                assert!(shards.len() == holders.len() && hosts.len() == holders.len());
                for (shard, host) in holders {
                    let expected = OnDisk {
                        shard: *shard,
                        committed: true,
                    };
                    assert_eq!(self.hosts[host.0].disk, Some(expected), "{host:?}");
                }
                self.committed = Some(holders.clone());
                "committed".into()
            }
            SaveOutcome::Failed(failure) => {
                for (number, host) in self.hosts.iter().enumerate() {
                    let left = host.disk.is_some_and(|disk| disk.committed);
                    assert!(!(left && host.alive), "host {number} shows a failed save");
                }
                let name = format!("{failure:?}");
                name.split([' ', '{']).next().unwrap().to_owned()
            }
        }
    }
}

fn random_vice(rng: &mut SmallRng, rows: u64) -> Vice {
    match rng.random_range(0..11) {
        0 => Vice::Refuses,
        1 => Vice::Busy(rng.random_range(1..6)),
        2 => Vice::Mute,
        3 | 4 => Vice::DiesAtRow(rng.random_range(0..rows)),
        5 | 6 => Vice::StallsAtRow(rng.random_range(0..rows)),
        7 => Vice::WrongRoot,
        8 => Vice::FullAtEnd,
        9 => Vice::DiesBeforeCommit,
        _ if rng.random_bool(0.1) => Vice::VersionTaken,
        _ => Vice::CommitAnswerLost,
    }
}

/// Carries out the actions of a session in simulated time.
struct Shell {
    session: SaveSession,
    now: Millis,
    agenda: Agenda<Event>,
    attempts: BTreeMap<AttemptId, (ShardIndex, HostIndex)>,
    /// When the transport of an attempt is free again.
    busy_until: BTreeMap<AttemptId, Millis>,
    aborted: BTreeSet<AttemptId>,
    rows: BTreeSet<u64>,
    produced: u64,
}

impl Shell {
    const fn new(session: SaveSession) -> Self {
        Self {
            session,
            now: Millis(0),
            agenda: Agenda::new(),
            attempts: BTreeMap::new(),
            busy_until: BTreeMap::new(),
            aborted: BTreeSet::new(),
            rows: BTreeSet::new(),
            produced: 0,
        }
    }

    fn handle(&mut self, event: SaveEvent) {
        trace!("{:>5} {event:?}", self.now.0);
        self.session.handle(self.now, event);
    }

    fn later(&mut self, ms: u64, event: Event) {
        self.agenda.plan(self.now.plus(ms), event);
    }

    fn fails(&mut self, ms: u64, attempt: AttemptId, fault: Fault) {
        self.later(ms, Event::Session(SaveEvent::Failed(attempt, fault)));
    }

    fn carry_out(&mut self, grid: &mut Grid) {
        while let Some(action) = self.session.poll_action() {
            trace!("{:>5}   -> {action:?}", self.now.0);
            match action {
                SaveAction::Open {
                    attempt,
                    shard,
                    host,
                } => self.open(grid, attempt, shard, host),
                SaveAction::Send(attempt, row) => self.send(grid, attempt, row),
                SaveAction::Finish(attempt) => self.finish(grid, attempt),
                SaveAction::Rebuild { attempt, sources } => {
                    let sources = sources.into_iter().map(|(_, host)| host).collect();
                    self.later(20, Event::Rebuilds(attempt, sources));
                }
                SaveAction::Decide => panic!("no save here follows another"),
                SaveAction::Commit(attempt) => self.later(5, Event::Commits(attempt)),
                SaveAction::Abort(attempt) => {
                    self.aborted.insert(attempt);
                }
                SaveAction::Retract(host) => {
                    if grid.hosts[host.0].alive {
                        grid.hosts[host.0].disk = None;
                    }
                }
                SaveAction::Release(row) => {
                    assert!(self.rows.remove(&row), "row {row} is not in memory");
                    self.later(0, Event::Produce);
                }
            }
        }
    }

    fn open(&mut self, grid: &mut Grid, attempt: AttemptId, shard: ShardIndex, host: HostIndex) {
        self.attempts.insert(attempt, (shard, host));
        let host = &mut grid.hosts[host.0];
        if !host.alive {
            return self.fails(10, attempt, gone());
        }
        match &mut host.vice {
            Vice::Mute => {}
            Vice::Refuses => self.fails(3, attempt, refused(Code::NoSpace, 0)),
            Vice::VersionTaken => self.fails(3, attempt, refused(Code::VersionTaken, 0)),
            Vice::Busy(times) if *times > 0 => {
                *times -= 1;
                self.fails(3, attempt, refused(Code::Busy, 40));
            }
            _ => self.later(3, Event::Session(SaveEvent::Accepted(attempt))),
        }
    }

    fn send(&mut self, grid: &Grid, attempt: AttemptId, row: u64) {
        assert!(self.rows.contains(&row), "row {row} was released");
        let host = &grid.hosts[self.attempts[&attempt].1.0];
        let free = self.busy_until.entry(attempt).or_insert(self.now);
        *free = (*free).max(self.now).plus(host.ms_per_row);
        let at = *free;
        let event = match host.vice {
            Vice::StallsAtRow(stalls) if row >= stalls => return,
            Vice::DiesAtRow(dies) if row >= dies => SaveEvent::Failed(attempt, gone()),
            _ if !host.alive => SaveEvent::Failed(attempt, gone()),
            _ => SaveEvent::Sent(attempt, row),
        };
        self.agenda.plan(at, Event::Session(event));
    }

    fn finish(&mut self, grid: &Grid, attempt: AttemptId) {
        let host = &grid.hosts[self.attempts[&attempt].1.0];
        match host.vice {
            _ if !host.alive => self.fails(10, attempt, gone()),
            Vice::WrongRoot => self.fails(5, attempt, Fault::Lied("root".into())),
            Vice::FullAtEnd => self.fails(5, attempt, refused(Code::NoSpace, 0)),
            _ => self.later(10, Event::Stores(attempt)),
        }
    }

    fn happen(&mut self, grid: &mut Grid, event: Event) {
        match event {
            Event::Session(event) => self.handle(event),
            Event::Produce => self.produce(grid.rows),
            Event::Dies(host) => grid.hosts[host.0].alive = false,
            Event::Stores(attempt) => self.store(grid, attempt),
            Event::Rebuilds(attempt, sources) => {
                let readable = |host: &&HostIndex| {
                    let host = &grid.hosts[host.0];
                    host.alive && host.disk.is_some()
                };
                if sources.iter().filter(readable).count() < grid.plan.redundancy.data() {
                    self.handle(SaveEvent::Failed(attempt, Fault::Starved));
                } else if matches!(
                    grid.hosts[self.attempts[&attempt].1.0].vice,
                    Vice::WrongRoot | Vice::DiesAtRow(_) | Vice::StallsAtRow(_) | Vice::FullAtEnd
                ) {
                    self.handle(SaveEvent::Failed(attempt, gone()));
                } else {
                    self.store(grid, attempt);
                }
            }
            Event::Commits(attempt) => self.commit(grid, attempt),
        }
    }

    fn store(&mut self, grid: &mut Grid, attempt: AttemptId) {
        let (shard, host) = self.attempts[&attempt];
        let host = &mut grid.hosts[host.0];
        if !host.alive {
            return self.handle(SaveEvent::Failed(attempt, gone()));
        }
        if self.aborted.contains(&attempt) {
            return;
        }
        host.disk = Some(OnDisk {
            shard,
            committed: false,
        });
        self.handle(SaveEvent::Stored(attempt));
    }

    fn commit(&mut self, grid: &mut Grid, attempt: AttemptId) {
        let host = &mut grid.hosts[self.attempts[&attempt].1.0];
        if host.vice == Vice::DiesBeforeCommit {
            host.alive = false;
        }
        if !host.alive {
            return self.handle(SaveEvent::Failed(attempt, gone()));
        }
        if let Some(disk) = &mut host.disk {
            disk.committed = true;
        }
        let event = match host.vice {
            Vice::CommitAnswerLost => SaveEvent::Failed(attempt, gone()),
            _ => SaveEvent::Committed(attempt),
        };
        self.handle(event);
    }

    fn produce(&mut self, rows: u64) {
        if self.produced > rows || self.rows.len() >= MEMORY_ROWS {
            return;
        }
        self.produced += 1;
        if self.produced > rows {
            return self.handle(SaveEvent::InputEnded);
        }
        let row = self.produced - 1;
        self.rows.insert(row);
        self.handle(SaveEvent::RowReady {
            row,
            size: RowSize {
                memory: ROW_BYTES,
                block: if row % 2 == 1 {
                    LARGE_BLOCK_BYTES
                } else {
                    ROW_BYTES
                },
            },
        });
        self.later(2, Event::Produce);
    }
}

fn gone() -> Fault {
    Fault::Gone("gone".into())
}

const fn refused(code: Code, retry_after_ms: u32) -> Fault {
    Fault::Refused {
        code,
        detail: String::new(),
        retry_after_ms,
    }
}
