//! Tests of the operations of a host for an owner, on a simulated disk.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use codec::keys::Keys;
use codec::manifest::Manifest;
use codec::proposal::{Ballot, Proposal};
use codec::seal::OwnerSecret;
use codec::{OwnerId, ShardRoot};
use protocol::wire::Code;
use protocol::wire::limits::UNCOMMITTED_LIFETIME;
use protocol::wire::message::{PutEnd, RowRun};

use super::reader::RowBytes;
use super::sample::Sample;
use super::{Batch, Lent, Loaded, Store, StoreError, Witnessed};
use crate::core::catalog::Claimed;
use crate::core::fence::Bidder;
use crate::core::ledger::{CHECKPOINT_BYTES, Quota};
use crate::core::places::Who;
use crate::core::{Key, Millis};
use crate::disk::Disk;
use crate::disk::crash::{CrashDisk, Fault};

/// The monotonic clock of all tests, and the wall clock.
pub(super) const NOW: Millis = Millis(1_000_000);
pub(super) const NOW_UNIX: u64 = 1_800_000_000;

pub(super) fn owner(number: u8) -> OwnerSecret {
    OwnerSecret::new([number; 32])
}

pub(super) fn open(disk: &CrashDisk) -> Arc<Store> {
    open_at(disk, NOW_UNIX).0
}

pub(super) fn open_at(disk: &CrashDisk, unix_seconds: u64) -> (Arc<Store>, Loaded) {
    let disk = Arc::new(disk.clone());
    let (store, loaded) = Store::open(disk, lent(1 << 30), NOW, unix_seconds).unwrap();
    (Arc::new(store), loaded)
}

/// Stores a shard of `sample` for its owner.
pub(super) fn put(store: &Arc<Store>, sample: &Sample, shard: u8) -> Result<(), StoreError> {
    let owner = sample.manifest.public().owner;
    let mut upload = store.begin_put(NOW, NOW_UNIX, owner, &sample.put(shard))?;
    for block in &sample.blocks[usize::from(shard)] {
        let mut batch = Batch::default();
        batch.begin_block(block.len())?;
        batch.extend(block);
        upload.write(&batch)?;
    }
    upload.finish(NOW, &sample.end(shard))?;
    Ok(())
}

pub(super) fn commit(store: &Store, sample: &Sample) -> Result<(), StoreError> {
    let public = sample.manifest.public();
    store.commit(public.owner, sample.manifest.bytes().to_vec())?;
    Ok(())
}

/// Whether the whole shard can be read and is right.
pub(super) fn reads(store: &Store, sample: &Sample, shard: u8) -> Result<bool, StoreError> {
    let owner = sample.manifest.public().owner;
    let reader = store.open_shard(owner, &sample.name(shard))?;
    let blocks = &sample.blocks[usize::from(shard)];
    let all = RowRun {
        first: 0,
        count: blocks.len() as u32,
    };
    let rows = store.rows(owner, &sample.name(shard), &[all])?;
    let bytes = read_all(rows, 1000).map_err(StoreError::disk("reading"))?;
    Ok(reader.check().is_ok() && bytes == blocks.concat())
}

/// Reads all these bytes, at most `most` at once.
fn read_all(mut rows: RowBytes, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut memory = Vec::new();
    loop {
        let pieces = rows.next(&mut memory, most)?;
        if pieces.is_empty() {
            return Ok(bytes);
        }
        for piece in pieces {
            bytes.extend_from_slice(&memory[piece]);
        }
    }
}

pub(super) fn found(store: &Store, owner: OwnerId) -> Vec<Manifest> {
    let (records, more) = store.find(owner, None, None).unwrap();
    assert!(!more);
    let manifest = |record: protocol::wire::message::Record| Manifest::parse(record.manifest);
    records
        .into_iter()
        .map(|record| manifest(record).unwrap())
        .collect()
}

fn lent(capacity: u64) -> Lent {
    Lent {
        capacity: Some(capacity),
        quota: Quota::Percent(100),
    }
}

fn code<T>(result: Result<T, StoreError>) -> Option<Code> {
    result.err().map(|refused| refused.code())
}

#[test]
fn a_committed_checkpoint_is_found_and_read_until_it_is_forgotten() {
    let disk = CrashDisk::new(Fault::None, 0);
    let store = open(&disk);
    let sample = Sample::new(&owner(1), "42", 1, 7);
    let id = owner(1).id();
    assert_eq!(store.claim(NOW, id, &sample.claim()).unwrap(), Claimed::Yes);
    put(&store, &sample, 0).unwrap();
    put(&store, &sample, 1).unwrap();
    assert!(found(&store, id).is_empty(), "not committed yet");
    commit(&store, &sample).unwrap();
    commit(&store, &sample).unwrap();
    assert_eq!(found(&store, id), std::slice::from_ref(&sample.manifest));
    assert!(reads(&store, &sample, 0).unwrap() && reads(&store, &sample, 1).unwrap());
    assert!(store.forget(NOW, id, sample.id()).unwrap());
    assert!(!store.forget(NOW, id, sample.id()).unwrap());
    assert!(found(&store, id).is_empty());
    assert_eq!(code(reads(&store, &sample, 0)), Some(Code::NotFound));
    assert_eq!(store.usage(None).used_bytes, 0);
    assert!(disk.files().is_empty(), "{:?}", disk.files());
}

#[test]
fn a_copy_that_is_about_to_go_is_proved_to_nobody() {
    let disk = CrashDisk::new(Fault::None, 0);
    let store = open(&disk);
    let sample = Sample::new(&owner(1), "42", 1, 7);
    for shard in [0, 1] {
        put(&store, &sample, shard).unwrap();
    }
    commit(&store, &sample).unwrap();
    let owner = owner(1).id();
    let key = Key {
        owner,
        checkpoint: sample.id(),
    };
    let spot = codec::proof::Spot { row: 0, draw: 3 };
    let proves = |shard| {
        let proof = store.prove(owner, &sample.name(shard), spot);
        proof.unwrap().is_some()
    };
    let leaving = sample.manifest.public().redundancy.shard(0).unwrap();
    assert!(proves(0) && proves(1));
    // Of two that hold the same shard, one that gives its copy back can't prove it, so the other keeps its own.
    // For two tasks.
    store.begin_leaving(key, leaving);
    store.begin_leaving(key, leaving);
    store.end_leaving(key, leaving);
    assert!(!proves(0) && proves(1));
    store.end_leaving(key, leaving);
    assert!(proves(0));
}

#[test]
fn a_checkpoint_does_not_exist_for_another_owner() {
    let disk = CrashDisk::new(Fault::None, 0);
    let store = open(&disk);
    let mine = Sample::new(&owner(1), "42", 1, 7);
    // Another owner chose the same id.
    let other = Sample::new(&owner(2), "42", 1, 7);
    assert_eq!(mine.id(), other.id());
    put(&store, &mine, 0).unwrap();
    commit(&store, &mine).unwrap();
    let stranger = owner(2).id();
    assert!(found(&store, stranger).is_empty());
    let name = mine.name(0);
    for refused in [
        code(store.open_shard(stranger, &name)),
        code(store.page(stranger, &name, 0)),
        code(store.rows(stranger, &name, &[RowRun { first: 0, count: 1 }])),
    ] {
        assert_eq!(refused, Some(Code::NotFound));
    }
    assert!(!store.forget(NOW, stranger, mine.id()).unwrap());
    let stolen = store.commit(stranger, mine.manifest.bytes().to_vec());
    assert_eq!(code(stolen), Some(Code::Mismatch));
    put(&store, &other, 0).unwrap();
    commit(&store, &other).unwrap();
    assert!(store.forget(NOW, stranger, other.id()).unwrap());
    assert!(reads(&store, &mine, 0).unwrap(), "untouched");
}

#[test]
fn a_shard_with_a_wrong_root_or_number_of_rows_is_removed() {
    let disk = CrashDisk::new(Fault::None, 0);
    let store = open(&disk);
    let sample = Sample::new(&owner(1), "42", 1, 7);
    let id = owner(1).id();
    let good = sample.end(0);
    let wrong_root = PutEnd {
        root: ShardRoot([1; 32]),
        ..good
    };
    let wrong_rows = PutEnd {
        rows: good.rows + 1,
        ..good
    };
    for end in [wrong_root, wrong_rows] {
        let mut upload = store.begin_put(NOW, NOW_UNIX, id, &sample.put(0)).unwrap();
        for block in &sample.blocks[0] {
            let mut batch = Batch::default();
            batch.begin_block(block.len()).unwrap();
            batch.extend(block);
            upload.write(&batch).unwrap();
        }
        assert_eq!(code(upload.finish(NOW, &end)), Some(Code::Mismatch));
        assert!(disk.files().is_empty(), "{:?}", disk.files());
        assert_eq!(store.usage(None).used_bytes, 0);
    }
    let empty = store.begin_put(NOW, NOW_UNIX, id, &sample.put(0)).unwrap();
    assert_eq!(code(empty.finish(NOW, &good)), Some(Code::BadRequest));
    drop(store.begin_put(NOW, NOW_UNIX, id, &sample.put(0)).unwrap());
    assert!(disk.files().is_empty(), "{:?}", disk.files());
}

#[test]
fn a_shard_comes_once() {
    let store = open(&CrashDisk::new(Fault::None, 0));
    let sample = Sample::new(&owner(1), "42", 1, 7);
    let id = owner(1).id();
    let begin = || store.begin_put(NOW, NOW_UNIX, id, &sample.put(0));
    let first = begin().unwrap();
    assert_eq!(code(begin()), Some(Code::Exists));
    drop(first);
    put(&store, &sample, 0).unwrap();
    assert_eq!(code(begin()), Some(Code::Exists));
}

#[test]
fn a_version_belongs_to_one_checkpoint() {
    let store = open(&CrashDisk::new(Fault::None, 0));
    let first = Sample::new(&owner(1), "42", 5, 1);
    let second = Sample::new(&owner(1), "42", 5, 2);
    let id = owner(1).id();
    let next = codec::Version::new(6).unwrap();
    assert_eq!(store.claim(NOW, id, &first.claim()).unwrap(), Claimed::Yes);
    assert_eq!(store.claim(NOW, id, &first.claim()).unwrap(), Claimed::Yes);
    assert_eq!(
        store.claim(NOW, id, &second.claim()).unwrap(),
        Claimed::Taken { next }
    );
    assert_eq!(code(put(&store, &second, 0)), Some(Code::VersionTaken));
    put(&store, &first, 0).unwrap();
    commit(&store, &first).unwrap();
    assert_eq!(
        store.claim(NOW, id, &second.claim()).unwrap(),
        Claimed::Taken { next }
    );
    let other_job = Sample::new(&owner(1), "43", 5, 3);
    assert_eq!(
        store.claim(NOW, id, &other_job.claim()).unwrap(),
        Claimed::Yes
    );
}

#[test]
fn only_what_is_here_and_right_is_committed() {
    let store = open(&CrashDisk::new(Fault::None, 0));
    let sample = Sample::new(&owner(1), "42", 1, 1);
    assert_eq!(code(commit(&store, &sample)), Some(Code::NotFound));
    put(&store, &sample, 0).unwrap();
    // The same checkpoint with other rows has other roots.
    let other = Sample::with_rows(&owner(1), "42", 1, 1, &[5]);
    assert_eq!(other.id(), sample.id());
    assert_eq!(code(commit(&store, &other)), Some(Code::Mismatch));
    let mut changed = sample.manifest.bytes().to_vec();
    changed[100] ^= 1;
    let refused = store.commit(owner(1).id(), changed);
    assert_eq!(code(refused), Some(Code::Mismatch));
    commit(&store, &sample).unwrap();
    assert_eq!(
        code(put(&store, &other, 1)),
        Some(Code::Mismatch),
        "not its shard"
    );
    put(&store, &sample, 1).unwrap();
    // A manifest that is signed again is another manifest, and the first one stands.
    let mut again = Sample::new(&owner(1), "42", 1, 1);
    again.manifest = Sample::with_rows(&owner(1), "43", 1, 1, &[5]).manifest;
    assert_eq!(code(commit(&store, &again)), Some(Code::Mismatch));
}

#[test]
fn space_is_reserved_before_bytes_flow_and_given_back() {
    let disk = CrashDisk::new(Fault::None, 0);
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let lent = lent((1 << 20) + CHECKPOINT_BYTES);
    let (store, _) = Store::open(shared, lent, NOW, NOW_UNIX).unwrap();
    let store = Arc::new(store);
    let id = owner(1).id();
    let begin = |seed, expected_bytes| {
        let sample = Sample::new(&owner(1), "42", seed, seed);
        let put = sample.put_of(expected_bytes);
        store.begin_put(NOW, NOW_UNIX, id, &put)
    };
    assert_eq!(
        code(begin(1, 1 << 20)),
        Some(Code::NoSpace),
        "table and header"
    );
    let first = begin(2, 600 << 10).unwrap();
    let refused = begin(3, 600 << 10).unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("bytes wanted") && text.contains("left"),
        "{text}"
    );
    drop(first);
    drop(begin(4, 600 << 10).unwrap());
    assert_eq!(store.usage(None).used_bytes, 0);

    // A shard of unknown length grows until there is no more space.
    let mut upload = begin(5, 0).unwrap();
    let mut batch = Batch::default();
    batch.begin_block(300 << 10).unwrap();
    batch.extend(&vec![1; 300 << 10]);
    for _ in 0..3 {
        upload.write(&batch).unwrap();
    }
    assert_eq!(code(upload.write(&batch)), Some(Code::NoSpace));
    drop(upload);
    assert_eq!(store.usage(None).free_bytes, (1 << 20) + CHECKPOINT_BYTES);
    // The disk itself can be the limit.
    disk.set_free_bytes(1000);
    assert_eq!(code(begin(6, 5000)), Some(Code::NoSpace));
}

#[test]
fn uncommitted_shards_are_removed_after_their_time() {
    let disk = CrashDisk::new(Fault::None, 0);
    let store = open(&disk);
    let kept = Sample::new(&owner(1), "42", 1, 1);
    let dropped = Sample::new(&owner(1), "42", 2, 2);
    let claimed = Sample::new(&owner(1), "42", 3, 3);
    let writing = Sample::new(&owner(1), "42", 4, 4);
    let id = owner(1).id();
    put(&store, &kept, 0).unwrap();
    commit(&store, &kept).unwrap();
    put(&store, &dropped, 0).unwrap();
    store.claim(NOW, id, &claimed.claim()).unwrap();
    let upload = store.begin_put(NOW, NOW_UNIX, id, &writing.put(0)).unwrap();
    let end = NOW.after(UNCOMMITTED_LIFETIME);
    assert_eq!(store.sweep(Millis(end.0 - 1)), 0);
    assert_eq!(store.sweep(end), 2);
    assert_eq!(code(reads(&store, &dropped, 0)), Some(Code::NotFound));
    assert!(reads(&store, &kept, 0).unwrap());
    drop(upload);
    assert_eq!(store.sweep(end), 1);
    assert_eq!(disk.files().len(), 2, "{:?}", disk.files());
}

#[test]
fn the_age_of_a_shard_survives_a_restart() {
    let disk = CrashDisk::new(Fault::None, 0);
    let sample = Sample::new(&owner(1), "42", 1, 1);
    put(&open(&disk), &sample, 0).unwrap();
    let half = UNCOMMITTED_LIFETIME.as_secs() / 2;
    let (store, _) = open_at(&disk, NOW_UNIX + half);
    let soon = NOW.after(Duration::from_secs(half));
    assert_eq!(store.sweep(Millis(soon.0 - 1)), 0);
    assert_eq!(store.sweep(soon), 1);
}

#[test]
fn forgetting_ends_what_is_being_written() {
    let disk = CrashDisk::new(Fault::None, 0);
    let store = open(&disk);
    let sample = Sample::new(&owner(1), "42", 1, 1);
    let id = owner(1).id();
    let mut upload = store.begin_put(NOW, NOW_UNIX, id, &sample.put(0)).unwrap();
    let mut batch = Batch::default();
    for block in &sample.blocks[0] {
        batch.begin_block(block.len()).unwrap();
        batch.extend(block);
    }
    upload.write(&batch).unwrap();
    assert!(store.forget(NOW, id, sample.id()).unwrap());
    assert_eq!(
        code(upload.finish(NOW, &sample.end(0))),
        Some(Code::NotFound)
    );
    assert!(disk.files().is_empty(), "{:?}", disk.files());
    put(&store, &sample, 0).unwrap();
}

#[test]
fn records_come_in_order_and_in_parts() {
    let store = open(&CrashDisk::new(Fault::None, 0));
    let id = owner(1).id();
    let mut ids = Vec::new();
    for version in 1..=30 {
        let sample = Sample::new(&owner(1), "42", version, version);
        put(&store, &sample, 1).unwrap();
        commit(&store, &sample).unwrap();
        ids.push(sample.id());
    }
    ids.sort();
    let (records, more) = store.find(id, None, Some(ids[9])).unwrap();
    assert!(!more);
    let found = records.into_iter().map(|record| {
        assert_eq!(record.shards, [1]);
        Manifest::parse(record.manifest)
            .unwrap()
            .public()
            .checkpoint
    });
    assert_eq!(found.collect::<Vec<_>>(), ids[10..]);
    let other_job = Keys::from(owner(1))
        .job_tag(&"43".parse().unwrap())
        .unwrap();
    assert!(store.find(id, Some(other_job), None).unwrap().0.is_empty());
}

#[test]
fn damaged_files_are_not_served() {
    let disk = CrashDisk::new(Fault::None, 0);
    let sample = Sample::new(&owner(1), "42", 1, 1);
    let store = open(&disk);
    put(&store, &sample, 0).unwrap();
    commit(&store, &sample).unwrap();
    let files = disk.files();
    let shard = files
        .iter()
        .find(|path| path.extension().unwrap() == "shard");
    let shard = shard.unwrap();
    let size = disk.open(shard).unwrap().size() as usize;
    for offset in (0..size).step_by(7) {
        disk.flip(shard, offset);
        let whole = reads(&store, &sample, 0);
        assert!(!matches!(whole, Ok(true)) || offset < 128, "byte {offset}");
        let mut bad = 0;
        super::check(&disk, &mut |found| {
            bad += u64::from(matches!(found, super::FoundFile::Damaged { .. }));
        })
        .unwrap();
        assert_eq!(bad, 1, "byte {offset}");
        disk.flip(shard, offset);
    }
    assert!(reads(&store, &sample, 0).unwrap());
    disk.flip(shard, size - 20);
    let (store, loaded) = open_at(&disk, NOW_UNIX);
    assert_eq!((loaded.damaged, loaded.shards, loaded.manifests), (1, 0, 1));
    assert_eq!(code(reads(&store, &sample, 0)), Some(Code::NotFound));
    let (records, _) = store.find(owner(1).id(), None, None).unwrap();
    assert!(
        records[0].shards.is_empty(),
        "known to be committed, without a shard here"
    );
    assert_eq!(code(commit(&store, &sample)), Some(Code::NotFound));
    put(&store, &sample, 0).unwrap();
    commit(&store, &sample).unwrap();
}

/// A manifest without a shard is found like any other, and goes when its checkpoint is removed.
#[test]
fn a_manifest_is_kept_without_a_shard() {
    let disk = CrashDisk::new(Fault::None, 0);
    let store = open(&disk);
    let sample = Sample::new(&owner(1), "42", 1, 1);
    let other = Sample::new(&owner(1), "42", 1, 2);
    let who = Who::itself(owner(1).id());
    let keep = |store: &Store, who, sample: &Sample| {
        store.keep_manifest(NOW, who, sample.manifest.bytes().to_vec())
    };
    let stranger = Who::itself(owner(2).id());
    assert_eq!(code(keep(&store, stranger, &sample)), Some(Code::Mismatch));
    keep(&store, who, &sample).unwrap();
    keep(&store, who, &sample).unwrap();
    assert_eq!(
        code(keep(&store, who, &other)),
        Some(Code::VersionTaken),
        "another checkpoint of this version"
    );
    assert_eq!(store.usage(None).used_bytes, CHECKPOINT_BYTES);
    let (store, loaded) = open_at(&disk, NOW_UNIX);
    assert_eq!((loaded.shards, loaded.manifests), (0, 1));
    store.sweep(NOW.after(UNCOMMITTED_LIFETIME * 2));
    assert_eq!(
        found(&store, owner(1).id()),
        std::slice::from_ref(&sample.manifest)
    );
    assert!(store.held().is_empty(), "not a holder");
    // A shard may come later, by a repair. It has to be the one that the manifest promises.
    put(&store, &sample, 0).unwrap();
    assert!(reads(&store, &sample, 0).unwrap());
    assert!(store.forget(NOW, who.member, sample.id()).unwrap());
    assert_eq!(found(&store, owner(1).id()), []);
    assert_eq!(store.usage(None).used_bytes, 0);

    let full = Arc::new(disk.clone());
    let (full, _) = Store::open(full, lent(CHECKPOINT_BYTES - 1), NOW, NOW_UNIX).unwrap();
    assert_eq!(code(keep(&full, who, &sample)), Some(Code::NoSpace));
}

/// A host of a checkpoint is a witness of it until the checkpoint is forgotten, also after it has handed
/// the checkpoint over. A host that never held the checkpoint is no witness.
#[test]
fn a_host_is_a_witness_of_a_checkpoint_until_that_is_forgotten() {
    let disk = CrashDisk::new(Fault::None, 0);
    let store = open(&disk);
    let id = owner(1).id();
    let keys = Keys::from(owner(1));
    let [first, second, other] = [1, 2, 3].map(|n| Sample::new(&owner(1), "42", n, n));
    let who = Who::itself(id);
    let ballot = |round| Ballot {
        round,
        proposer: second.id(),
    };
    let tag = first.claim().job_tag;
    let asks =
        |store: &Store, round| store.promise((who, Bidder::Owner), first.id(), tag, ballot(round));
    assert_eq!(code(asks(&store, 1)), Some(Code::NotFound), "never seen");
    put(&store, &first, 0).unwrap();
    assert_eq!(code(asks(&store, 1)), Some(Code::NotFound), "not committed");
    commit(&store, &first).unwrap();
    let stranger = Who::itself(owner(2).id());
    let refused = store.promise((stranger, Bidder::Owner), first.id(), tag, ballot(1));
    assert_eq!(code(refused), Some(Code::NotFound));
    assert_eq!(asks(&store, 4).unwrap(), Witnessed::Promised(None));
    assert_eq!(asks(&store, 3).unwrap(), Witnessed::Outbid(ballot(4)));
    // An accepted successor waits for its commit without limit of time.
    put(&store, &second, 0).unwrap();
    put(&store, &other, 0).unwrap();
    let job = "42".parse().unwrap();
    let propose = |round| {
        let named = (first.id(), ballot(round));
        Proposal::sign(&keys, &job, named, &second.manifest).unwrap()
    };
    assert_eq!(
        store.accept(who, propose(2)).unwrap(),
        Witnessed::Outbid(ballot(4))
    );
    let stolen = store.accept(stranger, propose(4));
    assert_eq!(code(stolen), Some(Code::Mismatch));
    assert_eq!(store.accept(who, propose(4)).unwrap(), Witnessed::Accepted);
    let much_later = NOW.after(100 * UNCOMMITTED_LIFETIME);
    assert_eq!(store.sweep(much_later), 1, "the other one");
    assert!(reads(&store, &second, 0).unwrap());
    // The host hands the checkpoint over and is restarted.
    let key = Key {
        owner: id,
        checkpoint: first.id(),
    };
    let shard = first.put(0).shard().unwrap();
    store.release(NOW, key, shard).unwrap();
    drop(store);
    let store = open(&disk.restart());
    let shown = asks(&store, 5).unwrap();
    assert_eq!(shown, Witnessed::Promised(Some(Box::new(propose(4)))));
    assert_eq!(asks(&store, 4).unwrap(), Witnessed::Outbid(ballot(5)));
    assert!(store.usage(None).used_bytes >= CHECKPOINT_BYTES);
    store.forget(NOW, id, first.id()).unwrap();
    store.forget(NOW, id, second.id()).unwrap();
    assert_eq!(code(asks(&store, 9)), Some(Code::NotFound), "forgotten");
    assert_eq!(store.usage(None).used_bytes, 0);
}

#[test]
fn a_promise_that_can_not_be_read_is_not_taken_for_none() {
    let disk = CrashDisk::new(Fault::None, 0);
    let store = open(&disk);
    let sample = Sample::new(&owner(1), "42", 1, 7);
    put(&store, &sample, 0).unwrap();
    commit(&store, &sample).unwrap();
    let who = Who::itself(owner(1).id());
    let tag = sample.claim().job_tag;
    let ballot = Ballot {
        round: 1,
        proposer: sample.id(),
    };
    let asks = |store: &Store| store.promise((who, Bidder::Owner), sample.id(), tag, ballot);
    asks(&store).unwrap();
    let mut files = disk.files().into_iter();
    let file = files.find(|path| path.extension().is_some_and(|of| of == "fence"));
    let file = file.unwrap();
    disk.remove(&file).unwrap();
    let mut damaged = disk.create(&file).unwrap();
    damaged
        .append(b"CKPTFNC1 and what was not written")
        .unwrap();
    damaged.sync().unwrap();
    drop(store);
    let store = open(&disk);
    assert_eq!(code(asks(&store)), Some(Code::DiskFailed));
    store.forget(NOW, who.member, sample.id()).unwrap();
    assert!(disk.files().is_empty(), "{:?}", disk.files());
}
