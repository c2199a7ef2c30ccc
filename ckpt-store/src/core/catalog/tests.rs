//! Compares the books with a model that keeps a plain list and searches all of it.

use codec::geometry::Redundancy;
use codec::notice::{Intervals, Words};
use codec::seal::OwnerSecret;
use proptest::prelude::*;

use protocol::wire::message::PutShard;

use super::puts::{FIRST_BYTES, whole_file};
use super::*;
use crate::core::ledger::charge;
use crate::core::notices::{AHEAD_MS, OwnedJob};
use crate::core::places;

const CAPACITY: u64 = 64 << 20;
const FREE: u64 = 1 << 40;

#[derive(Clone, Copy, Debug)]
enum Op {
    Claim(Who),
    Begin(Who, u8, u64),
    Grow(usize, u64),
    Finish(usize, u64),
    Abort(usize),
    Commit(Who),
    Forget(Who),
    Sweep(u64),
}

/// A request: the asker, and the checkpoint, job and version it is about. All come from small sets, so
/// that requests often meet.
#[derive(Clone, Copy, Debug)]
struct Who {
    owner: OwnerId,
    claim: Claim,
}

impl Who {
    fn key(self) -> Key {
        Key {
            owner: self.owner,
            checkpoint: self.claim.checkpoint,
        }
    }
}

fn who() -> impl Strategy<Value = Who> {
    (0..2_u8, 0..2_u8, 1..4_u64, 0..4_u8).prop_map(|(owner, job, version, checkpoint)| Who {
        owner: OwnerId([owner; 32]),
        claim: Claim {
            job_tag: JobTag([job; 32]),
            version: Version::new(version).unwrap(),
            checkpoint: CheckpointId([checkpoint; 16]),
        },
    })
}

fn op() -> impl Strategy<Value = Op> {
    let bytes = || 0..(40_u64 << 20);
    prop_oneof![
        who().prop_map(Op::Claim),
        (who(), 0..2_u8, prop_oneof![Just(0), bytes()]).prop_map(|(w, s, b)| Op::Begin(w, s, b)),
        (0..4_usize, bytes()).prop_map(|(put, bytes)| Op::Grow(put, bytes)),
        (0..4_usize, 1..(1_u64 << 20)).prop_map(|(put, bytes)| Op::Finish(put, bytes)),
        (0..4_usize).prop_map(Op::Abort),
        who().prop_map(Op::Commit),
        who().prop_map(Op::Forget),
        (0..4_000_000_u64).prop_map(Op::Sweep),
    ]
}

/// A checkpoint as the model knows it.
#[derive(Clone, Debug)]
struct Known {
    who: Who,
    shards: Vec<(u8, u64)>,
    committed: bool,
    expires: u64,
}

#[derive(Debug)]
struct ModelPut {
    id: PutId,
    who: Who,
    shard: u8,
    alive: bool,
}

/// The catalog and the model, to which each operation is applied.
struct Pair {
    now: u64,
    catalog: Catalog,
    known: Vec<Known>,
    puts: Vec<ModelPut>,
}

const LIFETIME: u64 = UNCOMMITTED_LIFETIME.as_millis() as u64;

impl Pair {
    fn new() -> Self {
        let mut catalog = Catalog::default();
        catalog.lend(CAPACITY, u64::MAX);
        Self {
            now: 0,
            catalog,
            known: Vec::new(),
            puts: Vec::new(),
        }
    }

    fn of(&mut self, who: Who) -> Option<&mut Known> {
        self.known
            .iter_mut()
            .find(|known| known.who.key() == who.key())
    }

    /// Reserves a version in the model, and returns what the catalog should answer.
    fn hold(&mut self, who: Who) -> Result<(), Code> {
        let expires = self.now + LIFETIME;
        if let Some(known) = self.of(who).cloned() {
            let same = (known.who.claim.job_tag, known.who.claim.version)
                == (who.claim.job_tag, who.claim.version);
            let is_written = self
                .puts
                .iter()
                .any(|put| put.alive && put.who.key() == who.key());
            if same {
                if let Some(known) = self.of(who).filter(|known| !known.committed) {
                    known.expires = expires;
                }
                return Ok(());
            }
            if known.committed || !known.shards.is_empty() || is_written {
                return Err(Code::Mismatch);
            }
            // The version is only claimed, so the claim moves to the new one.
            self.strike(who.key());
        }
        let is_taken = self.known.iter().any(|known| {
            known.who.owner == who.owner
                && known.who.claim.job_tag == who.claim.job_tag
                && known.who.claim.version == who.claim.version
        });
        if is_taken {
            return Err(Code::VersionTaken);
        }
        self.known.push(Known {
            who,
            shards: Vec::new(),
            committed: false,
            expires,
        });
        Ok(())
    }

    fn next_version(&self, who: Who) -> Version {
        let of_job = self.known.iter().filter(|known| {
            (known.who.owner, known.who.claim.job_tag) == (who.owner, who.claim.job_tag)
        });
        let newest = of_job.map(|known| known.who.claim.version).max();
        newest.map_or(Version::FIRST, Version::next)
    }

    fn step(&mut self, op: Op) {
        let now = Millis(self.now);
        match op {
            Op::Claim(who) => {
                let expected = match self.hold(who) {
                    Ok(()) => Ok(Claimed::Yes),
                    Err(Code::VersionTaken) => Ok(Claimed::Taken {
                        next: self.next_version(who),
                    }),
                    Err(code) => Err(code),
                };
                let actual = self.catalog.claim(now, who.owner, &who.claim);
                assert_eq!(actual.map_err(|denied| denied.code()), expected);
            }
            Op::Begin(who, shard, expected_bytes) => self.begin(who, shard, expected_bytes),
            Op::Grow(at, bytes) => {
                let Some(put) = self.puts.get(at) else {
                    return;
                };
                let used = self.catalog.ledger().used();
                match self.catalog.grow_put(put.id, bytes, bytes / 2, FREE) {
                    Ok(()) => assert!(put.alive),
                    Err(denied) if put.alive => {
                        assert_eq!(denied.code(), Code::NoSpace);
                        assert_eq!(self.catalog.ledger().used(), used);
                    }
                    Err(denied) => assert_eq!(denied, Denied::NotFound),
                }
            }
            Op::Finish(at, file_bytes) => {
                if at < self.puts.len() {
                    let put = self.puts.remove(at);
                    self.finish(put, file_bytes);
                }
            }
            Op::Abort(at) => {
                if at < self.puts.len() {
                    self.catalog.abort_put(self.puts.remove(at).id);
                }
            }
            Op::Commit(who) => self.commit(who),
            Op::Forget(who) => {
                let existed = self.of(who).is_some();
                assert_eq!(self.catalog.begin_forget(who.key()), existed);
                self.catalog.forgotten(now, who.key());
                self.strike(who.key());
            }
            Op::Sweep(later) => {
                self.now += later;
                while let Some(key) = self.catalog.next_expired(Millis(self.now)) {
                    let is_due = |known: &Known| {
                        known.who.key() == key && !known.committed && known.expires <= self.now
                    };
                    assert!(self.known.iter().any(is_due), "too early");
                    self.catalog.forgotten(Millis(self.now), key);
                    self.strike(key);
                }
                for known in &self.known {
                    let writes = |put: &ModelPut| put.alive && put.who.key() == known.who.key();
                    let is_due = !known.committed && known.expires <= self.now;
                    assert!(!is_due || self.puts.iter().any(writes), "kept too long");
                }
            }
        }
    }

    fn strike(&mut self, key: Key) {
        self.known.retain(|known| known.who.key() != key);
        for put in self.puts.iter_mut().filter(|put| put.who.key() == key) {
            put.alive = false;
        }
    }

    fn begin(&mut self, who: Who, shard: u8, expected_bytes: u64) {
        let redundancy = Redundancy::new(1, 1).unwrap();
        let put = put_of(who.claim, shard, expected_bytes);
        let index = redundancy.shard(shard).unwrap();
        let left = self.catalog.left(None, FREE);
        let begun = self
            .catalog
            .begin_put(Millis(self.now), who.owner, &put, index, FREE);
        let is_written = self
            .puts
            .iter()
            .any(|put| put.alive && put.who.key() == who.key() && put.shard == shard);
        let is_here = self
            .of(who)
            .is_some_and(|known| known.shards.iter().any(|(number, _)| *number == shard));
        if is_written || is_here {
            assert_eq!(begun, Err(Denied::Exists(index)));
        } else if let Err(Denied::NoSpace(refused)) = begun {
            let at_most = expected_bytes.max(1) * 2 + 4 * CHECKPOINT_BYTES;
            assert!(refused.wanted > left && at_most > left / 2);
        } else {
            assert_eq!(
                begun.as_ref().map(|_| ()).map_err(Denied::code),
                self.hold(who)
            );
            if let Ok(id) = begun {
                let alive = true;
                self.puts.push(ModelPut {
                    id,
                    who,
                    shard,
                    alive,
                });
            }
        }
    }

    fn finish(&mut self, put: ModelPut, file_bytes: u64) {
        let shard = shard(put.who, put.shard, file_bytes);
        let finished = self.catalog.finish_put(Millis(self.now), put.id, shard);
        assert_eq!(finished.is_ok(), put.alive);
        if !put.alive {
            return self.catalog.abort_put(put.id);
        }
        let expires = self.now + LIFETIME;
        let known = self.of(put.who).unwrap();
        known.shards.push((put.shard, file_bytes));
        if !known.committed {
            known.expires = expires;
        }
    }

    fn commit(&mut self, who: Who) {
        let roots = [ShardRoot([0; 32]), ShardRoot([1; 32])];
        let step = self.catalog.check_commit(who.owner, &who.claim, &roots);
        let expected = match self.of(who) {
            None => Err(Code::NotFound),
            Some(known) if known.shards.is_empty() => Err(Code::NotFound),
            Some(known) => {
                let knows = known.who.claim;
                let says = who.claim;
                if (knows.job_tag, knows.version) != (says.job_tag, says.version) {
                    Err(Code::Mismatch)
                } else if known.committed {
                    Ok(CommitStep::Done)
                } else {
                    known.committed = true;
                    Ok(CommitStep::Write)
                }
            }
        };
        assert_eq!(
            step.as_ref().map_err(|denied| denied.code()),
            expected.as_ref().map_err(|c| *c)
        );
        if expected == Ok(CommitStep::Write) {
            self.catalog.committed(who.key());
        }
    }

    fn check(&self) {
        let counts = self.catalog.counts();
        let committed = self.known.iter().filter(|known| known.committed).count();
        assert_eq!(counts.committed, committed as u64);
        assert_eq!(counts.uncommitted, (self.known.len() - committed) as u64);
        assert_eq!(counts.puts, self.puts.len() as u64);
        let shards: Vec<_> = self.known.iter().flat_map(|known| &known.shards).collect();
        assert_eq!(counts.shards, shards.len() as u64);
        let paid = self.known.iter();
        let paid = paid.filter(|known| known.committed || !known.shards.is_empty());
        let stored: u64 = shards.iter().map(|(_, bytes)| charge(*bytes)).sum::<u64>()
            + paid.count() as u64 * CHECKPOINT_BYTES;
        let used = self.catalog.ledger().used();
        if self.puts.is_empty() {
            assert_eq!(used, stored);
        } else {
            assert!(used >= stored);
        }
        for owner in [OwnerId([0; 32]), OwnerId([1; 32])] {
            let found: Vec<Key> = self.catalog.find(owner, None, None).collect();
            let mut expected: Vec<Key> = self
                .known
                .iter()
                .filter(|known| known.committed && known.who.owner == owner)
                .map(|known| known.who.key())
                .collect();
            expected.sort();
            assert_eq!(found, expected);
        }
    }
}

fn shard(who: Who, number: u8, file_bytes: u64) -> Shard {
    let redundancy = Redundancy::new(1, 1).unwrap();
    Shard {
        identity: ShardIdentity {
            checkpoint: who.claim.checkpoint,
            redundancy,
            shard: redundancy.shard(number).unwrap(),
        },
        root: ShardRoot([number; 32]),
        rows: 1,
        block_bytes: 1,
        file_bytes,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_books_agree_with_the_model(ops in prop::collection::vec(op(), 0..60)) {
        let mut pair = Pair::new();
        for op in ops {
            pair.step(op);
            pair.check();
        }
    }
}

/// The head of a transfer of a shard of 1+1.
fn put_of(claim: Claim, shard: u8, expected_bytes: u64) -> PutShard {
    PutShard {
        claim,
        redundancy: Redundancy::new(1, 1).unwrap(),
        shard,
        expected_bytes,
    }
}

#[test]
fn one_owner_can_not_fill_the_books() {
    let mut catalog = Catalog::default();
    catalog.lend(CAPACITY, u64::MAX);
    let claim = |number: u64| {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_le_bytes());
        Claim {
            job_tag: JobTag([0; 32]),
            version: Version::new(number + 1).unwrap(),
            checkpoint: CheckpointId(id),
        }
    };
    let greedy = OwnerId([1; 32]);
    let modest = OwnerId([2; 32]);
    for number in 0..UNCOMMITTED_MAX as u64 {
        assert_eq!(
            catalog.claim(Millis(0), greedy, &claim(number)),
            Ok(Claimed::Yes)
        );
    }
    let one_more = catalog.claim(Millis(0), greedy, &claim(UNCOMMITTED_MAX as u64));
    assert_eq!(
        one_more,
        Err(Denied::TooManyUncommitted(UNCOMMITTED_MAX as u64))
    );
    assert_eq!(
        catalog.claim(Millis(0), greedy, &claim(0)),
        Ok(Claimed::Yes)
    );
    assert_eq!(
        catalog.claim(Millis(0), modest, &claim(0)),
        Ok(Claimed::Yes)
    );
}

/// Commits a checkpoint of one byte. `number` makes it differ from others.
fn commit_small(
    catalog: &mut Catalog,
    by: impl Into<places::Who<OwnerId>>,
    job: u8,
    number: u64,
) -> Result<Key, Denied> {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&number.to_le_bytes());
    let claim = Claim {
        job_tag: JobTag([job; 32]),
        version: Version::new(number + 1).unwrap(),
        checkpoint: CheckpointId(id),
    };
    let redundancy = Redundancy::new(1, 1).unwrap();
    let put = put_of(claim, 0, 1);
    let by = by.into();
    let owner = by.member;
    let who = Who { owner, claim };
    let index = redundancy.shard(0).unwrap();
    let id = catalog.begin_put(Millis(0), by, &put, index, FREE)?;
    catalog.finish_put(Millis(0), id, shard(who, 0, 4096))?;
    catalog.committed(who.key());
    Ok(who.key())
}

#[test]
fn an_owner_that_commits_without_end_leaves_half_of_the_books() {
    let mut catalog = Catalog::default();
    catalog.lend(1 << 50, u64::MAX);
    let greedy = OwnerId([1; 32]);
    let modest = OwnerId([2; 32]);
    let mut number = 0;
    let refused = loop {
        match commit_small(&mut catalog, greedy, 1, number) {
            Ok(_) => number += 1,
            Err(refused) => break refused,
        }
    };
    let half = CHECKPOINTS_MAX as u64 / 2;
    let of_owner = half;
    let all = half;
    assert_eq!(refused, Denied::TooMany { of_owner, all });
    for number in 0..1000 {
        commit_small(&mut catalog, modest, 1, number).unwrap();
    }
    let key = catalog.find(greedy, None, None).next().unwrap();
    catalog.forgotten(Millis(0), key);
    assert_eq!(catalog.entries.of(greedy), half - 1);
}

fn granted(owner: OwnerId, grant: u8) -> places::Who<OwnerId> {
    places::Who {
        member: owner,
        grant: Some(OwnerId([grant; 32])),
    }
}

#[test]
fn one_grant_leaves_half_of_its_owners_part_of_the_books() {
    let mut catalog = Catalog::default();
    catalog.lend(1 << 50, u64::MAX);
    let owner = OwnerId([1; 32]);
    let mut number = 0;
    let refused = loop {
        match commit_small(&mut catalog, granted(owner, 7), 1, number) {
            Ok(_) => number += 1,
            Err(refused) => break refused,
        }
    };
    // An owner that is alone gets half of the books, and one grant half of that.
    assert_eq!(number, CHECKPOINTS_MAX as u64 / 4);
    assert!(matches!(refused, Denied::TooMany { .. }), "{refused}");
    // The owner and its other keys can still add checkpoints.
    for number in number..number + 1000 {
        commit_small(&mut catalog, owner, 1, number).unwrap();
        commit_small(&mut catalog, granted(owner, 8), 2, 1 << 32 | number).unwrap();
    }
}

#[test]
fn one_grant_begins_half_of_what_its_owner_may() {
    let mut catalog = Catalog::default();
    catalog.lend(CAPACITY, u64::MAX);
    let owner = OwnerId([1; 32]);
    let claim = |number: u64| Claim {
        job_tag: JobTag([0; 32]),
        version: Version::new(number + 1).unwrap(),
        checkpoint: CheckpointId(u128::from(number).to_le_bytes()),
    };
    let half = UNCOMMITTED_MAX as u64 / 2;
    for number in 0..half {
        let claimed = catalog.claim(Millis(0), granted(owner, 7), &claim(number));
        assert_eq!(claimed, Ok(Claimed::Yes));
    }
    let refused = catalog.claim(Millis(0), granted(owner, 7), &claim(half));
    assert_eq!(refused, Err(Denied::TooManyUncommitted(half)));
    let of_owner = catalog.claim(Millis(0), owner, &claim(half));
    assert_eq!(of_owner, Ok(Claimed::Yes));
}

#[test]
fn a_grant_keeps_its_checkpoints_until_they_are_gone_and_over_a_restart() {
    let mut catalog = Catalog::default();
    catalog.lend(64 << 20, 32 << 20);
    let owner = OwnerId([1; 32]);
    let mut keys = Vec::new();
    while let Ok(key) = commit_small(&mut catalog, granted(owner, 7), 1, keys.len() as u64) {
        keys.push(key);
    }
    let each = CHECKPOINT_BYTES + charge(4096);
    assert_eq!(keys.len() as u64, (16 << 20) / each);
    assert!(catalog.left(Some(granted(owner, 7)), FREE) < each);
    assert!(catalog.left(Some(owner.into()), FREE) >= 16 << 20);
    for key in keys {
        catalog.forgotten(Millis(0), key);
    }
    assert_eq!(catalog.left(Some(granted(owner, 7)), FREE), 16 << 20);

    // The manifest names the grant, the file of a shard only the owner.
    let claim = Claim {
        job_tag: JobTag([1; 32]),
        version: Version::FIRST,
        checkpoint: CheckpointId([1; 16]),
    };
    catalog.load_manifest(&claim, granted(owner, 7));
    let stored = shard(Who { owner, claim }, 0, 1 << 20);
    catalog.load_shard(Millis(0), Duration::ZERO, &claim, owner, stored);
    let left = catalog.left(Some(granted(owner, 7)), FREE);
    assert_eq!(left, (16 << 20) - CHECKPOINT_BYTES - charge(1 << 20));
}

#[test]
fn small_checkpoints_have_their_price() {
    let mut catalog = Catalog::default();
    catalog.lend(64 << 20, 32 << 20);
    let owner = OwnerId([1; 32]);
    let mut keys = Vec::new();
    while let Ok(key) = commit_small(&mut catalog, owner, 1, keys.len() as u64) {
        keys.push(key);
    }
    let each = CHECKPOINT_BYTES + charge(4096);
    assert_eq!(keys.len() as u64, (32 << 20) / each);
    for key in keys {
        catalog.forgotten(Millis(0), key);
    }
    assert_eq!(catalog.ledger().used(), 0);
}

#[test]
fn a_promise_follows_what_has_come() {
    let mut catalog = Catalog::default();
    catalog.lend(1 << 40, u64::MAX);
    let owner = OwnerId([1; 32]);
    let who = Who {
        owner,
        claim: Claim {
            job_tag: JobTag([1; 32]),
            version: Version::FIRST,
            checkpoint: CheckpointId([1; 16]),
        },
    };
    let redundancy = Redundancy::new(1, 1).unwrap();
    let mut put = put_of(who.claim, 0, 40 << 30);
    let index = redundancy.shard(0).unwrap();
    let id = catalog
        .begin_put(Millis(0), owner, &put, index, FREE)
        .unwrap();
    assert_eq!(catalog.ledger().used(), FIRST_BYTES + CHECKPOINT_BYTES);
    for come in [1 << 20, 65 << 20, 1 << 30] {
        catalog.grow_put(id, come, come, FREE).unwrap();
        let most = (2 * (come + CHECKPOINT_BYTES)).max(FIRST_BYTES + CHECKPOINT_BYTES);
        assert!(catalog.ledger().used() <= most, "{come}");
    }
    catalog.grow_put(id, 40 << 30, 40 << 30, FREE).unwrap();
    let whole = whole_file(40 << 30).unwrap() + CHECKPOINT_BYTES;
    assert_eq!(catalog.ledger().used(), whole);
    catalog.abort_put(id);
    assert_eq!(catalog.ledger().used(), 0);
    put.expected_bytes = 1 << 40;
    let refused = catalog.begin_put(Millis(0), owner, &put, index, FREE);
    assert!(matches!(refused, Err(Denied::NoSpace(_))), "{refused:?}");
}

const CLOCK: u64 = 1_800_000_000;

fn words(owner: &OwnerSecret, job: u16, number: u64, gone: usize) -> Words {
    let mut tag = [0; 32];
    tag[..2].copy_from_slice(&job.to_le_bytes());
    let gone: Vec<_> = (0..gone).map(|at| CheckpointId([at as u8; 16])).collect();
    let job = (owner.id(), JobTag(tag));
    Words::following(None, job, number, None, &gone, &Intervals::default())
}

#[test]
fn only_a_committed_checkpoint_makes_room_for_a_notice() {
    let owner = OwnerSecret::new([1; 32]);
    let mut catalog = Catalog::default();
    catalog.lend(1 << 40, u64::MAX);
    let mut about = words(&owner, 0, CLOCK * 1000, 1);
    about.job_tag = JobTag([1; 32]);
    assert_eq!(
        catalog.check_notice(&about, CLOCK),
        Ok(false),
        "nothing is here"
    );
    let claim = Claim {
        job_tag: about.job_tag,
        version: Version::FIRST,
        checkpoint: CheckpointId([7; 16]),
    };
    catalog.claim(Millis(0), owner.id(), &claim).unwrap();
    assert_eq!(
        catalog.check_notice(&about, CLOCK),
        Ok(false),
        "a claim is nothing yet"
    );
    let key = commit_small(&mut catalog, owner.id(), 1, 5).unwrap();
    assert_eq!(catalog.check_notice(&about, CLOCK), Ok(true));
    catalog.noted(about.clone());
    catalog.forgotten(Millis(0), key);
    about.number += 1;
    assert_eq!(catalog.check_notice(&about, CLOCK), Ok(true), "it was here");
}

#[test]
fn a_notice_from_a_year_to_come_is_refused() {
    let owner = OwnerSecret::new([1; 32]);
    let mut catalog = Catalog::default();
    catalog.lend(1 << 40, u64::MAX);
    commit_small(&mut catalog, owner.id(), 1, 5).unwrap();
    let mut about = words(&owner, 0, CLOCK * 1000 + AHEAD_MS, 1);
    about.job_tag = JobTag([1; 32]);
    assert_eq!(catalog.check_notice(&about, CLOCK), Ok(true));
    about.number += 1;
    assert_eq!(
        catalog.check_notice(&about, CLOCK),
        Err(Denied::FromTheFuture)
    );
    // A notice that was kept before such notices were refused can be replaced.
    catalog.noted(about.clone());
    about.number += 1;
    assert_eq!(catalog.check_notice(&about, CLOCK), Ok(true));
}

#[test]
fn the_notices_of_one_owner_leave_room_for_those_of_others() {
    let greedy = OwnerSecret::new([1; 32]);
    let modest = OwnerSecret::new([2; 32]);
    let mut notices = Notices::default();
    let template = words(&greedy, 0, 1, 128);
    let about = |owner: &OwnerSecret, job: u16, gone: usize| {
        let mut words = template.clone();
        words.owner = owner.id();
        words.job_tag.0[..2].copy_from_slice(&job.to_le_bytes());
        words.gone.truncate(gone);
        words
    };
    let mut job = 0;
    while notices.has_room_for(&about(&greedy, job, 128)) {
        notices.enter(about(&greedy, job, 128));
        job += 1;
    }
    assert_eq!(
        usize::from(job),
        crate::core::notices::GONE_TOTAL_MAX / 2 / 128
    );
    while notices.has_room_for(&about(&greedy, job, 0)) {
        notices.enter(about(&greedy, job, 0));
        job += 1;
    }
    assert_eq!(usize::from(job), crate::core::notices::NOTICES_MAX / 2);
    assert!(
        notices.has_room_for(&about(&greedy, 0, 128)),
        "it replaces one as large"
    );
    for job in 0..100 {
        assert!(notices.has_room_for(&about(&modest, job, 128)));
        notices.enter(about(&modest, job, 128));
    }
    let jobs: Vec<OwnedJob> = notices.iter().map(|(job, _)| *job).collect();
    for job in jobs {
        notices.remove(job);
    }
    assert!(notices.has_room_for(&about(&greedy, 0, 128)));
}
