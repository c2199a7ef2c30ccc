//! Power losses and disk errors at every step. What was acknowledged must be complete, and nothing else
//! may be served, on the running host and after a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use codec::CheckpointId;
use codec::grant::VoidList;
use codec::keys::Keys;
use codec::notice::{Intervals, Notice, Words};
use codec::proposal::{Ballot, Proposal};
use codec::scope::Blinded;

use super::sample::Sample;
use super::tests::{NOW, NOW_UNIX, commit, found, open, open_at, owner, put, reads};
use super::{Lent, Store, StoreError};
use crate::core::Key;
use crate::core::fence::Bidder;
use crate::core::ledger::{CHECKPOINT_BYTES, charge};
use crate::core::places::Who;
use crate::disk::Disk;
use crate::disk::crash::{CrashDisk, Fault};
use crate::shards::{FoundFile, scan};

/// The answers that the client got about one checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Acknowledged {
    stored: bool,
    committed: bool,
    forgetting: bool,
    forgotten: bool,
    /// The round of the ballot that was promised about its successors.
    promised: u64,
    /// Whether a successor was accepted.
    accepted: bool,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Put(usize),
    Commit(usize),
    Forget(usize),
    /// Another host rebuilt the shard: it is stored and committed in one request.
    Rebuild(usize),
    /// The owner deletes the checkpoint by a notice.
    Delete(usize),
    /// The host gives the shard back, because others hold it.
    Release(usize),
    /// The host promises to accept no ballot of a lower round.
    Promise(usize, u64),
    /// The host accepts the first sample as the checkpoint's successor, in this round.
    Accept(usize, u64),
}

/// A script with every operation of a host, in different orders.
const SCRIPT: [Op; 22] = [
    Op::Put(0),
    Op::Commit(0),
    Op::Put(1),
    Op::Forget(0),
    Op::Commit(1),
    Op::Promise(1, 2),
    Op::Accept(1, 2),
    Op::Put(2),
    Op::Forget(2),
    Op::Put(3),
    Op::Put(0),
    Op::Commit(0),
    Op::Forget(1),
    Op::Rebuild(4),
    Op::Delete(4),
    Op::Rebuild(5),
    Op::Release(5),
    Op::Rebuild(6),
    Op::Promise(6, 1),
    Op::Accept(6, 1),
    Op::Promise(6, 3),
    Op::Rebuild(5),
];

fn ballot(round: u64) -> Ballot {
    Ballot {
        round,
        proposer: CheckpointId([9; 16]),
    }
}

fn proposal(next: &Sample, after: CheckpointId, round: u64) -> Result<Proposal, StoreError> {
    let job = "42".parse().expect("a job id");
    let named = (after, ballot(round));
    Ok(Proposal::sign(
        &Keys::from(owner(1)),
        &job,
        named,
        &next.manifest,
    )?)
}

/// Removes a checkpoint, or its shard, in the way that the operation names.
fn remove(store: &Store, op: Op, sample: &Sample) -> Result<(), StoreError> {
    let owner = owner(1);
    let checkpoint = sample.id();
    match op {
        Op::Delete(_) => {
            let job = (owner.id(), sample.claim().job_tag);
            let none = Intervals::default();
            let words = Words::following(None, job, 1, None, &[checkpoint], &none);
            let notice = Notice::sign(&Keys::from(owner), &[Blinded([0; 32])], &words)?;
            store.notice(NOW, NOW_UNIX, &notice)?;
        }
        Op::Release(_) => {
            let shard = sample.put(0).shard().ok_or(StoreError::Closed)?;
            let owner = owner.id();
            store.release(NOW, Key { owner, checkpoint }, shard)?;
        }
        _ => {
            store.forget(NOW, owner.id(), checkpoint)?;
        }
    }
    Ok(())
}

struct Client {
    samples: Vec<Sample>,
    acknowledged: BTreeMap<CheckpointId, Acknowledged>,
}

impl Client {
    fn new() -> Self {
        let sample = |n| Sample::new(&owner(1), "42", n + 1, n);
        Self {
            samples: (0..7).map(sample).collect(),
            acknowledged: BTreeMap::new(),
        }
    }

    fn run(&mut self, store: &std::sync::Arc<Store>, op: Op) -> Result<(), StoreError> {
        let (Op::Put(at)
        | Op::Commit(at)
        | Op::Forget(at)
        | Op::Rebuild(at)
        | Op::Delete(at)
        | Op::Promise(at, _)
        | Op::Accept(at, _)
        | Op::Release(at)) = op;
        let sample = self.samples[at].clone();
        let acknowledged = self.acknowledged.entry(sample.id()).or_default();
        let owner = owner(1);
        let checkpoint = sample.id();
        let who = Who::itself(owner.id());
        let tag = sample.claim().job_tag;
        match op {
            Op::Put(_) => {
                acknowledged.forgotten = false;
                put(store, &sample, 0)?;
                *acknowledged = Acknowledged {
                    stored: true,
                    ..Acknowledged::default()
                };
            }
            Op::Commit(_) => {
                commit(store, &sample)?;
                acknowledged.committed = true;
            }
            Op::Rebuild(_) => {
                acknowledged.forgotten = false;
                put(store, &sample, 0)?;
                commit(store, &sample)?;
                *acknowledged = Acknowledged {
                    stored: true,
                    committed: true,
                    ..Acknowledged::default()
                };
            }
            Op::Promise(_, round) => {
                store.promise((who, Bidder::Owner), checkpoint, tag, ballot(round))?;
                acknowledged.promised = round;
            }
            Op::Accept(_, round) => {
                store.accept(who, proposal(&self.samples[0], checkpoint, round)?)?;
                acknowledged.accepted = true;
            }
            Op::Forget(_) | Op::Delete(_) | Op::Release(_) => {
                acknowledged.forgetting = true;
                remove(store, op, &sample)?;
                acknowledged.forgotten = true;
            }
        }
        Ok(())
    }

    /// Fails unless what was acknowledged holds and what is served is complete.
    fn check(&self, store: &Store, context: &str) {
        let records = found(store, owner(1).id());
        for sample in &self.samples {
            let acknowledged = self
                .acknowledged
                .get(&sample.id())
                .copied()
                .unwrap_or_default();
            let read = reads(store, sample, 0);
            let is_found = records.contains(&sample.manifest);
            let context = format!("{context}, version {}", sample.manifest.public().version);
            if let Ok(whole) = read {
                assert!(whole, "{context}: half of a shard is served");
            }
            if acknowledged.stored && !acknowledged.forgetting {
                assert!(
                    read.is_ok(),
                    "{context}: an acknowledged shard is lost: {read:?}"
                );
            }
            if acknowledged.committed && !acknowledged.forgetting {
                assert!(is_found, "{context}: an acknowledged commit is lost");
            }
            let owner = owner(1).id();
            let checkpoint = sample.id();
            let fence = store
                .catalog()
                .fences()
                .get(Key { owner, checkpoint })
                .cloned();
            if !acknowledged.forgetting {
                let acceptor = fence
                    .clone()
                    .map(|fence| fence.acceptor)
                    .unwrap_or_default();
                let promised = acceptor.promised().round;
                let is_damaged = store
                    .catalog()
                    .fences()
                    .is_damaged(Key { owner, checkpoint });
                assert!(
                    promised >= acknowledged.promised,
                    "{context}: a promise is lost: {acknowledged:?}, {fence:?}, damaged {is_damaged}"
                );
                let accepted = acceptor.accepted().is_some();
                assert!(
                    accepted || !acknowledged.accepted,
                    "{context}: forgot what it accepted"
                );
            }
            if acknowledged.forgotten {
                assert!(read.is_err() && !is_found, "{context}: it is back");
            }
        }
    }
}

/// Fails unless the books agree with the files.
fn check_books(disk: &CrashDisk, store: &Store, context: &str) {
    let mut bytes = 0;
    let mut shards = 0;
    let mut manifests = 0;
    let mut checkpoints = BTreeSet::new();
    let mut bad = Vec::new();
    scan(disk, &mut |found| match found {
        FoundFile::Shard {
            owner,
            claim,
            shard,
            ..
        } => {
            checkpoints.insert((owner, claim.checkpoint));
            shards += 1;
            bytes += charge(shard.file_bytes);
        }
        FoundFile::Manifest { whose, claim, .. } => {
            checkpoints.insert((whose.member, claim.checkpoint));
            manifests += 1;
        }
        FoundFile::Notice(_) => {}
        other => bad.push(other),
    })
    .unwrap();
    bytes += checkpoints.len() as u64 * CHECKPOINT_BYTES;
    let fences = store.catalog().fences().iter().count();
    let files = disk.files().into_iter();
    let files = files.filter(|path| path.extension().is_some_and(|of| of == "fence"));
    assert_eq!(fences, files.count(), "{context}");
    bytes += fences as u64 * CHECKPOINT_BYTES;
    let usage = store.usage(None);
    assert!(bad.is_empty(), "{context}: {bad:?}");
    assert_eq!(
        (usage.counts.shards, usage.counts.committed),
        (shards, manifests),
        "{context}"
    );
    assert_eq!(usage.used_bytes, bytes, "{context}");
    assert_eq!(
        disk.list(std::path::Path::new("incoming")).unwrap(),
        [""; 0],
        "{context}"
    );
}

fn restarts_well(disk: &CrashDisk, client: &Client, context: &str) {
    let disk = disk.restart();
    let (store, _) = open_at(&disk, NOW_UNIX);
    client.check(&store, context);
    check_books(&disk, &store, context);
    let next = Sample::new(&owner(1), "42", 100, 100);
    put(&store, &next, 0).unwrap();
    commit(&store, &next).unwrap();
    assert!(reads(&store, &next, 0).unwrap(), "{context}: works again");
}

/// The number of operations of a run in which nothing fails.
fn operations() -> u64 {
    let disk = CrashDisk::new(Fault::None, 0);
    let store = open(&disk);
    let mut client = Client::new();
    for op in SCRIPT {
        client.run(&store, op).unwrap();
    }
    client.check(&store, "no fault");
    check_books(&disk, &store, "no fault");
    disk.operations()
}

/// The number of operations that create the directories of an empty store.
fn opening() -> u64 {
    let disk = CrashDisk::new(Fault::None, 0);
    open(&disk);
    disk.operations()
}

#[test]
fn power_can_be_lost_at_any_step() {
    let operations = operations();
    assert!(operations > 60, "{operations}");
    // Before the directories exist, there is no store to lose.
    for at in opening()..operations {
        for seed in 0..12 {
            let context = format!("power lost at {at}, seed {seed}");
            let disk = CrashDisk::new(Fault::PowerLoss(at), seed);
            let store = open(&disk);
            let mut client = Client::new();
            for op in SCRIPT {
                if client.run(&store, op).is_err() {
                    break;
                }
            }
            assert!(disk.is_down(), "{context}");
            restarts_well(&disk, &client, &context);
        }
    }
}

#[test]
fn power_can_be_lost_while_starting() {
    for at in 0..opening() {
        for seed in 0..12 {
            let disk = CrashDisk::new(Fault::PowerLoss(at), seed);
            let shared = std::sync::Arc::new(disk.clone());
            assert!(Store::open(shared, Lent::default(), NOW, NOW_UNIX).is_err());
            restarts_well(&disk, &Client::new(), &format!("power lost at {at}"));
        }
    }
}

#[test]
fn the_disk_can_fail_at_any_step() {
    let operations = operations();
    for kind in [io::ErrorKind::Other, io::ErrorKind::StorageFull] {
        for at in opening()..operations {
            for seed in 0..4 {
                let context = format!("{kind:?} at {at}, seed {seed}");
                let disk = CrashDisk::new(Fault::Error(at, kind), seed);
                let store = open(&disk);
                let mut client = Client::new();
                let failures = SCRIPT
                    .iter()
                    .filter(|op| client.run(&store, **op).is_err())
                    .count();
                // A deletion makes room for its own notice.
                let may_help_itself = kind == io::ErrorKind::StorageFull;
                assert!(
                    failures > 0 || may_help_itself || at + 1 >= operations,
                    "{context}: nobody noticed"
                );
                client.check(&store, &context);
                restarts_well(&disk, &client, &context);
            }
        }
    }
}

#[test]
fn a_full_disk_is_distinguished_from_a_broken_one() {
    use protocol::wire::Code;
    let sample = Sample::new(&owner(1), "42", 1, 1);
    for (kind, code) in [
        (io::ErrorKind::StorageFull, Code::NoSpace),
        (io::ErrorKind::QuotaExceeded, Code::NoSpace),
        (io::ErrorKind::Other, Code::DiskFailed),
    ] {
        // The second operation of the put is its first write.
        let disk = CrashDisk::new(Fault::Error(opening() + 1, kind), 0);
        let store = open(&disk);
        let refused = put(&store, &sample, 0).unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        put(&store, &sample, 0).unwrap();
    }
}

#[test]
fn after_a_directory_was_not_synced_nothing_is_changed() {
    let sample = Sample::new(&owner(1), "42", 1, 1);
    let steps = {
        let disk = CrashDisk::new(Fault::None, 0);
        put(&open(&disk), &sample, 0).unwrap();
        disk.operations()
    };
    // The last operation of a put is the sync of the directory.
    let disk = CrashDisk::new(Fault::Error(steps - 1, io::ErrorKind::Other), 0);
    let store = open(&disk);
    assert!(put(&store, &sample, 0).is_err());
    assert!(reads(&store, &sample, 0).is_err(), "not served");
    let again = put(&store, &sample, 0).unwrap_err();
    assert!(again.to_string().contains("restart"), "{again}");
    put(&open(&disk.restart()), &sample, 1).unwrap();
}

/// A list of void job keys and a newer one. Returns the limit of the newest that was acknowledged.
fn enter_two_void_lists(store: &Store) -> u64 {
    let mut heard = 0;
    for serials_below in [5, 8] {
        let list = VoidList::sign(&owner(1), serials_below).unwrap();
        if store.enter_voids(&list).is_ok() {
            heard = serials_below;
        }
    }
    heard
}

fn newest_void(store: &Store) -> u64 {
    let lists = store.voids_of(&[owner(1).id()]);
    lists.first().map_or(0, VoidList::serials_below)
}

#[test]
fn job_keys_stay_void_whatever_step_of_a_newer_list_fails() {
    let operations = {
        let disk = CrashDisk::new(Fault::None, 0);
        assert_eq!(enter_two_void_lists(&open(&disk)), 8);
        disk.operations()
    };
    for at in opening()..operations {
        for seed in 0..12 {
            for fault in [Fault::PowerLoss(at), Fault::Error(at, io::ErrorKind::Other)] {
                let disk = CrashDisk::new(fault, seed);
                let heard = enter_two_void_lists(&open(&disk));
                let (store, _) = open_at(&disk.restart(), NOW_UNIX);
                let left = newest_void(&store);
                assert!(
                    left >= heard,
                    "{fault:?}, seed {seed}: {left} after {heard}"
                );
            }
        }
    }
}
