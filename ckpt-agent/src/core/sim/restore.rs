//! Simulated hosts that serve shards, and a shell that carries out the actions of a restore session.

use std::collections::{BTreeMap, BTreeSet};

use codec::ShardIndex;
use protocol::wire::Code;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::save::Saved;
use super::{Agenda, trace};
use crate::core::restore::{
    FetchId, PlannedRow, RestoreAction, RestoreEvent, RestoreLimits, RestoreOutcome, RestorePlan,
    RestoreSession,
};
use crate::core::{Fault, HostIndex, Millis};

/// Number of the host that takes a shard over, counted from the one that hands it over.
const MOVED: usize = 1000;

/// How a host misbehaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Vice {
    None,
    /// Fails this many times, then works.
    Flaky(u32),
    Slow,
    Dead,
    LiesAtRow(u64),
    /// Has one damaged block.
    DamagedAtRow(u64),
    StallsAtRow(u64),
    /// Hands its shard over to another host at this row.
    MovesAtRow(u64),
}

#[derive(Clone, Debug)]
enum Event {
    Session(RestoreEvent),
}

/// Restores while as many hosts misbehave as the code tolerates, or more; checks the outcome.
pub(super) fn restore_after_losses(saved: &Saved, rng: &mut SmallRng) -> String {
    let data = saved.redundancy.data();
    let mut order: Vec<usize> = (0..saved.holders.len()).collect();
    order.shuffle(rng);
    let allowed = saved.holders.len() - data;
    let bad = if rng.random_bool(0.8) {
        rng.random_range(0..=allowed)
    } else {
        rng.random_range(0..=saved.holders.len())
    };
    let vices = vices(saved, order.split_at(bad), rng);
    trace!("restore {saved:?} from {vices:?}");
    let limits = RestoreLimits {
        window_bytes: rng.random_range(1..32),
        batch_bytes: rng.random_range(1..12),
        batch_rows: rng.random_range(1..4),
        hedge_ms: 20,
        stall_ms: 200,
        strikes_max: 4,
        searches_max: 1,
        search_ms: 1_000,
    };
    // How many of the rows this restore does not need: none, some, or all.
    let replaced = [0.0, rng.random_range(0.0..=1.0)][rng.random_range(0..2)];
    let mut rows = Vec::new();
    for row in 0..saved.rows {
        if !rng.random_bool(replaced) {
            rows.push(PlannedRow {
                row,
                block_bytes: rng.random_range(1..4),
                memory_bytes: rng.random_range(1..8),
            });
        }
    }
    let wanted: BTreeSet<u64> = rows.iter().map(|planned| planned.row).collect();
    // Of some shards the blocks were fetched ahead, whoever holds them.
    let shards = saved.holders.iter().map(|(shard, _)| *shard);
    let at_hand = shards.filter(|_| rng.random_bool(0.2)).collect();
    let plan = RestorePlan {
        data,
        rows,
        sources: saved.holders.clone(),
        at_hand,
        limits,
    };
    let mut shell = Shell {
        session: RestoreSession::new(plan, Millis(0)),
        now: Millis(0),
        agenda: Agenda::new(),
        holders: saved.holders.iter().copied().zip(vices).collect(),
        running: BTreeMap::new(),
        came: BTreeSet::new(),
        decoded: BTreeSet::new(),
        data,
    };
    match shell.run() {
        RestoreOutcome::Done => {
            assert_eq!(shell.decoded, wanted);
            "restored".into()
        }
        RestoreOutcome::Lost { good, needed, .. } => {
            assert!(bad > allowed, "given up with enough good hosts");
            assert!(good < needed);
            "lost".into()
        }
    }
}

/// How each host misbehaves: those in the first list for good, those in the second for a while.
fn vices(saved: &Saved, (bad, others): (&[usize], &[usize]), rng: &mut SmallRng) -> Vec<Vice> {
    let mut vices = vec![Vice::None; saved.holders.len()];
    for holder in bad {
        vices[*holder] = match rng.random_range(0..3) {
            0 => Vice::Dead,
            1 => Vice::LiesAtRow(rng.random_range(0..saved.rows)),
            _ => Vice::StallsAtRow(rng.random_range(0..saved.rows)),
        };
    }
    // Each has another row, and so at most one more is lacking of each than of hosts that misbehave for good.
    let may_be_damaged = bad.len() + saved.redundancy.data() < saved.holders.len();
    let mut undamaged: Vec<u64> = (0..saved.rows).collect();
    undamaged.shuffle(rng);
    for holder in others {
        vices[*holder] = match rng.random_range(0..8) {
            6 | 7 if may_be_damaged => undamaged.pop().map_or(Vice::None, Vice::DamagedAtRow),
            0 => Vice::Slow,
            2 => Vice::MovesAtRow(rng.random_range(0..saved.rows)),
            1 => Vice::Flaky(rng.random_range(1..3)),
            _ => Vice::None,
        };
    }
    vices
}

struct Shell {
    session: RestoreSession,
    now: Millis,
    agenda: Agenda<Event>,
    holders: Vec<((ShardIndex, HostIndex), Vice)>,
    running: BTreeMap<FetchId, ShardIndex>,
    came: BTreeSet<(u64, ShardIndex)>,
    decoded: BTreeSet<u64>,
    data: usize,
}

impl Shell {
    fn run(&mut self) -> RestoreOutcome {
        for _ in 0..50_000 {
            self.carry_out();
            if let Some(outcome) = self.session.outcome() {
                return outcome.clone();
            }
            let wake = self.session.next_deadline();
            match (self.agenda.next_time(), wake) {
                (Some(at), wake) if wake.is_none_or(|wake| at <= wake) => {
                    let (at, Event::Session(event)) = self.agenda.next().unwrap();
                    self.now = self.now.max(at);
                    self.handle(event);
                }
                (_, Some(wake)) => {
                    self.now = self.now.max(wake);
                    self.session.handle(self.now, RestoreEvent::Tick);
                }
                (_, None) => panic!("stuck: {:?}", self.session),
            }
        }
        panic!("no end: {:?}", self.session);
    }

    fn handle(&mut self, event: RestoreEvent) {
        trace!("{:>5} {event:?}", self.now.0);
        let fetch = match &event {
            RestoreEvent::Block(fetch, row) => {
                // Blocks of a cancelled request do not arrive.
                let Some(shard) = self.running.get(fetch) else {
                    return;
                };
                self.came.insert((*row, *shard));
                Some(*fetch)
            }
            RestoreEvent::Done(fetch) | RestoreEvent::Failed(fetch, _) => Some(*fetch),
            _ => None,
        };
        if fetch.is_some_and(|fetch| !self.running.contains_key(&fetch)) {
            return;
        }
        self.session.handle(self.now, event);
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.session.poll_action() {
            trace!("{:>5}   -> {action:?}", self.now.0);
            match action {
                RestoreAction::Fetch {
                    fetch,
                    shard,
                    host,
                    rows,
                } => {
                    self.running.insert(fetch, shard);
                    self.serve(fetch, (shard, host), rows);
                }
                RestoreAction::FindHolders => {
                    let holders = self.holders_now();
                    let found = Event::Session(RestoreEvent::Holders(holders));
                    self.agenda.plan(self.now.plus(20), found);
                }
                RestoreAction::Cancel(fetch) => {
                    self.running.remove(&fetch);
                }
                RestoreAction::Decode(row, shards) => {
                    assert!(self.decoded.insert(row), "row {row} twice");
                    let different: BTreeSet<_> = shards.iter().collect();
                    assert!(different.len() >= self.data);
                    assert!(shards.iter().all(|s| self.came.contains(&(row, *s))));
                    let written = Event::Session(RestoreEvent::Consumed(row));
                    self.agenda.plan(self.now.plus(1), written);
                }
            }
        }
    }

    /// All shards that were handed over are at new hosts now.
    fn holders_now(&mut self) -> Vec<(ShardIndex, HostIndex)> {
        let old = self.holders.clone();
        let moves = old
            .into_iter()
            .filter(|(_, vice)| matches!(vice, Vice::MovesAtRow(_)));
        let moved =
            moves.map(|((shard, host), _)| ((shard, HostIndex(host.0 + MOVED)), Vice::None));
        self.holders.extend(moved);
        let shown = self
            .holders
            .iter()
            .filter(|(_, vice)| !matches!(vice, Vice::MovesAtRow(_)));
        shown.map(|(holder, _)| *holder).collect()
    }

    fn serve(&mut self, fetch: FetchId, holder: (ShardIndex, HostIndex), rows: Vec<u64>) {
        let (_, vice) = self.holders.iter_mut().find(|(h, _)| *h == holder).unwrap();
        let per_row = if *vice == Vice::Slow { 60 } else { 3 };
        let fails = match vice {
            Vice::Dead => true,
            Vice::Flaky(times) if *times > 0 => {
                *times -= 1;
                true
            }
            _ => false,
        };
        let mut at = self.now.plus(2);
        let mut plan = |at, event| self.agenda.plan(at, Event::Session(event));
        if fails {
            return plan(at, RestoreEvent::Failed(fetch, Fault::Gone("gone".into())));
        }
        for row in rows {
            at = at.plus(per_row);
            match vice {
                Vice::LiesAtRow(lies) if row >= *lies => {
                    let lied = Fault::Lied(format!("row {row}"));
                    return plan(at, RestoreEvent::Failed(fetch, lied));
                }
                Vice::DamagedAtRow(damaged) if row == *damaged => {
                    let lied = Fault::Lied(format!("row {row}"));
                    return plan(at, RestoreEvent::Failed(fetch, lied));
                }
                Vice::MovesAtRow(moves) if row >= *moves => {
                    let not_found = Fault::Refused {
                        code: Code::NotFound,
                        detail: String::new(),
                        retry_after_ms: 0,
                    };
                    return plan(at, RestoreEvent::Failed(fetch, not_found));
                }
                Vice::StallsAtRow(stalls) if row >= *stalls => return,
                _ => plan(at, RestoreEvent::Block(fetch, row)),
            }
        }
        plan(at, RestoreEvent::Done(fetch));
    }
}
