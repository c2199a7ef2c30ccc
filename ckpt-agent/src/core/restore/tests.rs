use std::collections::BTreeSet;

use codec::Redundancy;
use protocol::wire::Code;

use super::*;

fn limits() -> RestoreLimits {
    RestoreLimits {
        window_bytes: 4,
        batch_bytes: 2,
        batch_rows: 64,
        hedge_ms: 100,
        stall_ms: 1_000,
        strikes_max: 3,
        searches_max: 2,
        search_ms: 60_000,
    }
}

fn shard(number: u8) -> ShardIndex {
    Redundancy::new(32, 32).unwrap().shard(number).unwrap()
}

/// Shard `n` is at host `n`, for all of `shards`.
fn plan(data: usize, rows: u64, shards: u8) -> RestorePlan {
    let rows = (0..rows).map(|row| PlannedRow {
        row,
        block_bytes: 1,
        memory_bytes: 1,
    });
    RestorePlan {
        data,
        rows: rows.collect(),
        sources: (0..shards)
            .map(|number| (shard(number), HostIndex(number.into())))
            .collect(),
        at_hand: BTreeSet::new(),
        limits: limits(),
    }
}

fn gone() -> Fault {
    Fault::Gone("reset".into())
}

/// A request: its id, host and rows.
type Asked = (FetchId, usize, Vec<u64>);

struct Rig {
    session: RestoreSession,
    now: Millis,
    /// All requests up to now.
    asked: Vec<Asked>,
    cancelled: Vec<FetchId>,
    decoded: Vec<(u64, Vec<u8>)>,
    searches: usize,
}

impl Rig {
    fn new(plan: RestorePlan) -> Self {
        let mut rig = Self {
            session: RestoreSession::new(plan, Millis(0)),
            now: Millis(0),
            asked: Vec::new(),
            cancelled: Vec::new(),
            decoded: Vec::new(),
            searches: 0,
        };
        rig.collect();
        rig
    }

    fn collect(&mut self) {
        while let Some(action) = self.session.poll_action() {
            match action {
                RestoreAction::Fetch {
                    fetch, host, rows, ..
                } => self.asked.push((fetch, host.0, rows)),
                RestoreAction::FindHolders => self.searches += 1,
                RestoreAction::Cancel(fetch) => self.cancelled.push(fetch),
                RestoreAction::Decode(row, shards) => {
                    let shards = shards.iter().map(|shard| shard.number()).collect();
                    self.decoded.push((row, shards));
                }
            }
        }
    }

    fn handle(&mut self, event: RestoreEvent) {
        self.session.handle(self.now, event);
        self.collect();
    }

    fn at(&mut self, now: u64, event: RestoreEvent) {
        self.now = Millis(now);
        self.handle(event);
    }

    /// The last request to `host`.
    fn last(&self, host: usize) -> Asked {
        let mut of_host = self.asked.iter().filter(|(_, asked, _)| *asked == host);
        of_host.next_back().cloned().expect("it was not asked")
    }

    fn times_asked(&self, host: usize) -> usize {
        self.asked.iter().filter(|(_, h, _)| *h == host).count()
    }

    /// Answers a request completely.
    fn answer(&mut self, (fetch, _, rows): Asked) {
        for row in rows {
            self.handle(RestoreEvent::Block(fetch, row));
        }
        self.handle(RestoreEvent::Done(fetch));
    }

    fn fail(&mut self, host: usize, fault: Fault) {
        let (fetch, ..) = self.last(host);
        self.handle(RestoreEvent::Failed(fetch, fault));
    }

    fn is_lost(&self) -> bool {
        matches!(self.session.outcome(), Some(RestoreOutcome::Lost { .. }))
    }
}

#[test]
fn a_restore_of_no_rows_is_done() {
    let rig = Rig::new(plan(3, 0, 0));
    assert_eq!(rig.session.outcome(), Some(&RestoreOutcome::Done));
}

#[test]
fn data_shards_are_asked_first() {
    let mut mixed = plan(2, 2, 4);
    mixed.sources.reverse();
    let rig = Rig::new(mixed);
    let hosts: Vec<usize> = rig.asked.iter().map(|(_, host, _)| *host).collect();
    assert_eq!(hosts, [0, 1]);
}

#[test]
fn what_was_fetched_ahead_is_asked_for_first_and_others_where_it_fails() {
    let mut ahead = plan(3, 4, 5);
    ahead.at_hand = [1, 3, 4].map(shard).into();
    let mut rig = Rig::new(ahead);
    let mut hosts: Vec<usize> = rig.asked.iter().map(|(_, host, _)| *host).collect();
    hosts.sort_unstable();
    hosts.dedup();
    assert_eq!(hosts, [1, 3, 4]);
    rig.answer(rig.last(1));
    rig.answer(rig.last(4));
    rig.fail(3, gone());
    assert_eq!(rig.times_asked(0), 1, "{:?}", rig.asked);
    rig.answer(rig.last(0));
    assert!(!rig.decoded.is_empty());
}

#[test]
fn any_shards_decode_and_the_restore_ends_when_all_is_written() {
    let mut only_parity = plan(2, 2, 4);
    only_parity.sources.drain(..2);
    let mut rig = Rig::new(only_parity);
    rig.answer(rig.last(2));
    rig.answer(rig.last(3));
    assert_eq!(rig.decoded, [(0, vec![2, 3]), (1, vec![2, 3])]);
    rig.handle(RestoreEvent::Consumed(1));
    assert_eq!(rig.session.outcome(), None);
    rig.handle(RestoreEvent::Consumed(0));
    assert_eq!(rig.session.outcome(), Some(&RestoreOutcome::Done));
}

#[test]
fn no_more_rows_are_asked_for_than_the_window_holds() {
    let mut rig = Rig::new(plan(1, 10, 1));
    assert_eq!(rig.asked.last().unwrap().2, [2, 3]);
    for asked in rig.asked.clone() {
        rig.answer(asked);
    }
    assert_eq!(rig.asked.len(), 2, "rows that are not written count");
    rig.handle(RestoreEvent::Consumed(0));
    rig.handle(RestoreEvent::Consumed(1));
    assert_eq!(rig.asked.last().unwrap().2, [4, 5]);
}

#[test]
fn several_requests_are_under_way_at_each_host() {
    let rig = Rig::new(plan(1, 10, 1));
    assert_eq!(rig.times_asked(0), 2);
}

#[test]
fn load_is_spread_over_hosts_that_are_alike() {
    let mut wide = plan(2, 16, 4);
    wide.limits.window_bytes = 16;
    let rig = Rig::new(wide);
    for host in 0..4 {
        assert_eq!(rig.times_asked(host), 4, "host {host}");
    }
}

#[test]
fn rows_that_a_failed_request_did_not_bring_are_requested_from_another_host() {
    let mut rig = Rig::new(plan(2, 2, 3));
    let (fetch, ..) = rig.last(0);
    rig.handle(RestoreEvent::Block(fetch, 0));
    rig.fail(0, gone());
    assert_eq!(
        rig.last(2).2,
        [0, 1],
        "the same source is not asked at once, even for the row that it gave"
    );
    rig.answer(rig.last(1));
    assert_eq!(rig.decoded, [(0, vec![0, 1])]);
    rig.answer(rig.last(2));
    assert_eq!(rig.decoded[1], (1, vec![1, 2]));
}

fn not_found() -> Fault {
    Fault::Refused {
        code: Code::NotFound,
        detail: String::new(),
        retry_after_ms: 0,
    }
}

#[test]
fn shards_that_moved_during_a_restore_are_read_from_their_new_holders() {
    let mut rig = Rig::new(plan(2, 2, 3));
    rig.fail(0, not_found());
    assert_eq!(rig.searches, 0, "two hosts are left");
    rig.fail(1, not_found());
    rig.answer(rig.last(2));
    assert_eq!(rig.searches, 1);
    assert_eq!(rig.session.outcome(), None);
    // Shard 1 is at host 7 now.
    let now = [(1, 7), (2, 2)];
    let now = now.map(|(number, host)| (shard(number), HostIndex(host)));
    rig.handle(RestoreEvent::Holders(now.into()));
    rig.answer(rig.last(7));
    assert_eq!(rig.decoded, [(0, vec![1, 2]), (1, vec![1, 2])]);
    rig.handle(RestoreEvent::Consumed(0));
    rig.handle(RestoreEvent::Consumed(1));
    assert_eq!(rig.session.outcome(), Some(&RestoreOutcome::Done));
}

#[test]
fn a_host_that_denied_a_shard_is_asked_again_when_it_announces_the_shard_later() {
    let mut rig = Rig::new(plan(1, 2, 1));
    rig.fail(0, not_found());
    let again = vec![(shard(0), HostIndex(0))];
    rig.handle(RestoreEvent::Holders(again));
    assert_eq!(rig.times_asked(0), 2);
    rig.answer(rig.last(0));
    assert_eq!(rig.decoded.len(), 2);
}

#[test]
fn a_host_that_announces_a_shard_and_denies_it_does_not_keep_a_restore_alive() {
    let mut rig = Rig::new(plan(1, 2, 1));
    for searches in 1..=2 {
        rig.fail(0, not_found());
        assert_eq!(rig.searches, searches);
        assert!(!rig.is_lost());
        let again = vec![(shard(0), HostIndex(0))];
        rig.handle(RestoreEvent::Holders(again));
    }
    rig.fail(0, not_found());
    assert!(rig.is_lost());
    assert_eq!(rig.searches, 2);
}

#[test]
fn a_search_that_finds_nothing_or_does_not_end_ends_the_restore() {
    for ends in [true, false] {
        let mut rig = Rig::new(plan(1, 2, 1));
        rig.fail(0, not_found());
        assert!(!rig.is_lost());
        assert_eq!(rig.session.next_deadline(), Some(Millis(60_000)));
        if ends {
            rig.handle(RestoreEvent::Holders(Vec::new()));
        } else {
            rig.at(60_000, RestoreEvent::Tick);
        }
        assert!(rig.is_lost());
    }
}

#[test]
fn after_a_wrong_byte_a_source_is_not_asked_again_while_the_others_suffice() {
    let mut rig = Rig::new(plan(2, 20, 3));
    rig.fail(0, Fault::Lied("block of row 1".into()));
    let before = rig.times_asked(0);
    for row in 0..20 {
        for (fetch, host, rows) in rig.asked.clone() {
            if host != 0 && rows.contains(&row) {
                rig.handle(RestoreEvent::Block(fetch, row));
            }
        }
        rig.handle(RestoreEvent::Consumed(row));
    }
    assert_eq!(rig.session.outcome(), Some(&RestoreOutcome::Done));
    assert_eq!(rig.times_asked(0), before);
    assert!(rig.decoded.iter().all(|(_, shards)| *shards == [1, 2]));
}

/// Hosts that have all their blocks but those of `damaged`, by host and row.
fn serve(rig: &mut Rig, damaged: &[(usize, u64)]) {
    let mut served = 0;
    while let Some((fetch, host, rows)) = rig.asked.get(served).cloned() {
        served += 1;
        let good = rows
            .iter()
            .take_while(|row| !damaged.contains(&(host, **row)));
        let good: Vec<u64> = good.copied().collect();
        for row in &good {
            rig.handle(RestoreEvent::Block(fetch, *row));
        }
        rig.handle(match good.len() < rows.len() {
            true => RestoreEvent::Failed(fetch, Fault::Lied("a damaged block".into())),
            false => RestoreEvent::Done(fetch),
        });
        for (row, _) in rig.decoded.clone() {
            rig.handle(RestoreEvent::Consumed(row));
        }
    }
}

#[test]
fn where_each_host_has_a_damaged_block_every_row_is_had() {
    for rows in [3, 5, 40] {
        let mut rig = Rig::new(plan(2, rows, 3));
        serve(&mut rig, &[(0, 1), (1, 2), (2, 0)]);
        assert_eq!(rig.session.outcome(), Some(&RestoreOutcome::Done), "{rows}");
        assert_eq!(rig.decoded.len() as u64, rows);
        // At most one request for each row of each host, and those of the beginning.
        assert!(
            rig.asked.len() as u64 <= 3 * rows + 6,
            "{}",
            rig.asked.len()
        );
    }
    let mut rig = Rig::new(plan(2, 5, 3));
    serve(&mut rig, &[(0, 3), (1, 3), (2, 0)]);
    let lost = RestoreOutcome::Lost {
        row: 3,
        good: 1,
        needed: 2,
    };
    assert_eq!(rig.session.outcome(), Some(&lost));
}

#[test]
fn an_answer_that_is_too_short_is_a_lie() {
    let mut rig = Rig::new(plan(1, 2, 2));
    let (fetch, ..) = rig.last(0);
    rig.handle(RestoreEvent::Block(fetch, 0));
    rig.handle(RestoreEvent::Done(fetch));
    assert!(matches!(rig.session.faults()[0].1, Fault::Lied(_)));
    assert_eq!(rig.last(1).2, [1], "only what is missing");
}

#[test]
fn a_host_that_was_lost_is_asked_again_when_there_is_no_other() {
    let mut rig = Rig::new(plan(1, 2, 1));
    rig.fail(0, gone());
    assert_eq!(rig.times_asked(0), 1);
    let rested = rig.session.next_deadline().unwrap();
    rig.at(rested.0, RestoreEvent::Tick);
    assert_eq!(rig.times_asked(0), 2);
}

#[test]
fn a_restore_is_given_up_when_hosts_fail_too_often() {
    let mut rig = Rig::new(plan(2, 2, 2));
    for strike in 0..limits().strikes_max {
        assert!(!rig.is_lost());
        rig.fail(1, gone());
        if strike + 1 < limits().strikes_max {
            let rested = rig.session.next_deadline().unwrap();
            let rested = rested.0.max(rig.now.0 + 1) + 64_000;
            // The other request must not stall meanwhile.
            let (other, ..) = rig.last(0);
            rig.now = Millis(rested);
            rig.handle(RestoreEvent::Block(other, 0));
            rig.handle(RestoreEvent::Tick);
        }
    }
    assert_eq!((rig.is_lost(), rig.searches), (false, 1));
    // No other host took the shard over.
    rig.handle(RestoreEvent::Holders(vec![(shard(0), HostIndex(0))]));
    assert!(rig.is_lost(), "{:?}", rig.session);
    assert!(rig.decoded.is_empty());
}

#[test]
fn too_few_sources_are_a_loss_at_once_and_say_how_many_blocks_there_are() {
    let mut rig = Rig::new(plan(2, 2, 3));
    let lie = Fault::Lied("block of row 0".into());
    rig.answer(rig.last(0));
    rig.fail(1, lie.clone());
    assert_eq!(rig.session.outcome(), None);
    // Each is asked for each row at most once more.
    for _ in 0..1 + 2 * 2 {
        if rig.session.outcome().is_none() {
            let (fetch, ..) = rig.asked.last().cloned().unwrap();
            rig.handle(RestoreEvent::Failed(fetch, lie.clone()));
        }
    }
    assert_eq!(
        rig.session.outcome(),
        Some(&RestoreOutcome::Lost {
            row: 0,
            good: 1,
            needed: 2
        })
    );
    assert_eq!(rig.session.next_deadline(), None);
}

#[test]
fn a_shard_at_two_hosts_counts_once() {
    let mut twice = plan(2, 2, 0);
    twice.sources = vec![(shard(0), HostIndex(0)), (shard(0), HostIndex(1))];
    let rig = Rig::new(twice);
    assert!(rig.asked.len() <= 1 && rig.decoded.is_empty());
}

#[test]
fn a_shard_at_two_hosts_is_read_from_the_second_when_the_first_fails() {
    let mut twice = plan(1, 2, 0);
    twice.sources = vec![(shard(0), HostIndex(0)), (shard(0), HostIndex(1))];
    let mut rig = Rig::new(twice);
    rig.fail(0, Fault::Lied("block of row 0".into()));
    rig.answer(rig.last(1));
    assert_eq!(rig.decoded.len(), 2);
}

#[test]
fn a_silent_host_is_hedged_by_another_shard() {
    let mut rig = Rig::new(plan(2, 2, 3));
    rig.answer(rig.last(1));
    assert_eq!(rig.session.next_deadline(), Some(Millis(100)));
    rig.at(100, RestoreEvent::Tick);
    assert_eq!(rig.last(2).2, [0, 1]);
    rig.answer(rig.last(2));
    assert_eq!(rig.decoded.len(), 2);
    assert_eq!(rig.cancelled, [rig.last(0).0], "nobody needs it any more");
}

#[test]
fn a_host_that_trickles_is_hedged_when_others_are_much_faster() {
    let mut slow = plan(1, 16, 2);
    slow.limits.batch_bytes = 1;
    slow.limits.window_bytes = 16;
    let mut rig = Rig::new(slow);
    let trickling: Vec<Asked> = rig.asked.iter().filter(|a| a.1 == 0).cloned().collect();
    let fast: Vec<Asked> = rig.asked.iter().filter(|a| a.1 == 1).cloned().collect();
    rig.now = Millis(30);
    for asked in fast {
        rig.answer(asked);
    }
    let before = rig.asked.len();
    // Blocks of other rows than the first show that the host works.
    rig.at(60, RestoreEvent::Block(trickling[1].0, trickling[1].2[0]));
    rig.at(119, RestoreEvent::Block(trickling[2].0, trickling[2].2[0]));
    assert_eq!(rig.asked.len(), before);
    assert_eq!(
        rig.session.next_deadline(),
        Some(Millis(120)),
        "four times 30"
    );
    rig.at(120, RestoreEvent::Tick);
    let (_, host, rows) = rig.asked[before].clone();
    assert_eq!((host, rows), (1, trickling[0].2.clone()));
}

#[test]
fn when_everything_is_slow_little_is_asked_twice() {
    let mut wide = plan(3, 40, 5);
    wide.limits.window_bytes = 40;
    let mut rig = Rig::new(wide);
    let before = rig.asked.len();
    for now in (100..900).step_by(50) {
        rig.at(now, RestoreEvent::Tick);
    }
    let hedges = rig.asked.len() - before;
    assert!(0 < hedges && hedges <= before / 3, "{hedges} of {before}");
    assert_ne!(rig.session.next_deadline(), Some(rig.now), "no busy wait");
}

#[test]
fn a_request_may_wait_behind_others_of_its_host() {
    let mut rig = Rig::new(plan(1, 4, 1));
    let first = rig.asked[0].0;
    let second = rig.asked[1].0;
    rig.at(900, RestoreEvent::Block(first, 0));
    rig.at(1_800, RestoreEvent::Block(first, 1));
    assert!(rig.session.faults().is_empty());
    rig.at(2_800, RestoreEvent::Tick);
    assert_eq!(rig.cancelled, [second]);
    assert!(matches!(rig.session.faults()[0].1, Fault::Stalled(_)));
}

#[test]
fn a_request_does_not_wait_for_ever_behind_others_of_its_host() {
    let mut long = plan(1, 40, 1);
    long.limits.batch_bytes = 20;
    long.limits.window_bytes = 40;
    let mut rig = Rig::new(long);
    let first = rig.asked[0].0;
    let second = rig.asked[1].0;
    for row in 0..4 {
        rig.at(800 * (row + 1), RestoreEvent::Block(first, row));
    }
    assert_eq!(rig.cancelled, [second]);
}

#[test]
fn a_host_that_became_slow_is_asked_less() {
    let mut rig = Rig::new(plan(1, 400, 2));
    let mut counts = [0; 2];
    let mut answered = BTreeSet::new();
    let mut free_at = [0_u64; 2];
    while rig.session.outcome().is_none() {
        // Each host answers its requests in order, the first host eight times as slowly.
        let next = (0..2)
            .filter_map(|host| {
                let waits = |a: &&Asked| a.1 == host && !answered.contains(&a.0);
                let asked = rig.asked.iter().find(waits)?.clone();
                let took = [80, 10][host];
                Some((free_at[host].max(rig.now.0) + took, asked))
            })
            .min_by_key(|(at, _)| *at);
        let (at, asked) = next.unwrap();
        free_at[asked.1] = at;
        answered.insert(asked.0);
        counts[asked.1] += 1;
        rig.now = Millis(at);
        let rows = asked.2.clone();
        rig.answer(asked);
        for row in rows {
            rig.handle(RestoreEvent::Consumed(row));
        }
    }
    assert!(counts[1] > 3 * counts[0], "{counts:?}");
}

#[test]
fn events_after_the_end_or_from_unknown_requests_are_ignored() {
    let mut rig = Rig::new(plan(1, 2, 1));
    rig.handle(RestoreEvent::Block(FetchId(77), 0));
    rig.handle(RestoreEvent::Failed(FetchId(77), gone()));
    rig.handle(RestoreEvent::Consumed(99));
    let only = rig.last(0);
    rig.answer(only.clone());
    rig.answer(only);
    assert_eq!(rig.decoded.len(), 2, "each row once");
}

/// The rows of the requests to one host, before anything is written.
fn asked_at_once(sizes: &[(u64, u64)], window_bytes: u64, batch_bytes: u64) -> Vec<Vec<u64>> {
    let rows = sizes.iter().map(|(row, bytes)| PlannedRow {
        row: *row,
        block_bytes: *bytes,
        memory_bytes: 2 * bytes,
    });
    let mut sized = plan(1, 0, 1);
    sized.rows = rows.collect();
    sized.limits.window_bytes = window_bytes;
    sized.limits.batch_bytes = batch_bytes;
    sized.limits.batch_rows = 5;
    let asked = Rig::new(sized).asked;
    asked.into_iter().map(|(_, _, rows)| rows).collect()
}

#[test]
fn short_rows_are_requested_together() {
    let sizes: Vec<(u64, u64)> = (0..10).map(|row| (row, 1)).collect();
    assert_eq!(
        asked_at_once(&sizes, 1000, 100),
        [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    );
    let threes = asked_at_once(&sizes, 1000, 3);
    assert_eq!(threes, [&[0, 1, 2][..], &[3, 4, 5], &[6, 7, 8], &[9]]);
    let mixed = [(0, 1), (1, 90), (2, 60), (3, 1), (5, 1)];
    assert_eq!(asked_at_once(&mixed, 1000, 100), [&[0, 1][..], &[2, 3, 5]]);
}

#[test]
fn a_request_is_for_half_of_the_window_at_most_or_one_row() {
    let sizes: Vec<(u64, u64)> = (0..10).map(|row| (row, 1)).collect();
    assert_eq!(asked_at_once(&sizes, 8, 100), [[0, 1], [2, 3]]);
    let long = [(0, 50), (1, 1), (2, 1)];
    let asked = asked_at_once(&long, 8, 10);
    assert_eq!((asked.len(), asked.first()), (1, Some(&vec![0])));
}

#[test]
fn reads_at_the_same_time_share_the_memory_and_each_has_room_for_its_largest_row() {
    let read = |sizes: &[u64]| -> Vec<PlannedRow> {
        let rows = (0..).zip(sizes).map(|(row, bytes)| PlannedRow {
            row,
            block_bytes: 1,
            memory_bytes: *bytes,
        });
        rows.collect()
    };
    let reads = [read(&[10, 90]), read(&[]), read(&[100; 3])];
    assert_eq!(windows(590, &reads), [190, 0, 400]);
    assert_eq!(windows(5, &reads), [90, 0, 100]);
}
