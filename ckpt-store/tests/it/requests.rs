//! All requests, by the owner and by others.

use std::net::SocketAddr;

use codec::holding::{Asking, ShardSet};
use codec::keys::Keys;
use codec::notice::{Intervals, Notice, Stamp, Words};
use codec::proof::Spot;
use codec::shard_file::{Outline, Page};
use codec::{JobTag, PageHash, Version};
use protocol::grid::GridHost;
use protocol::identity::{Identity, Role};
use protocol::net::read_exact;
use protocol::net::stream::ExchangeError;
use protocol::wire::Code;
use protocol::wire::message::{Claim, HeldTag, PutEnd, PutRebuilt, Request, Response};

use crate::client::{Client, Put, code};
use crate::lab::{Lab, MIB};
use crate::sample::{Sample, root_of};

#[tokio::test]
async fn a_checkpoint_goes_there_and_back() {
    let lab = Lab::new();
    let daemon = lab.start().await;
    let owner = lab.member(Role::Submitter);
    let client = Client::connect(&lab, &owner, daemon.local_addr()).await;
    // Two pages of rows, with blocks up to the largest.
    let mut lengths = vec![1; 1100];
    lengths.extend([MIB + 16, 17, MIB / 2]);
    let sample = Sample::with_rows(&owner.secret, "42", 1, 1, &lengths);
    client.put(&sample, 0).await.unwrap();
    assert!(client.find().await.unwrap().is_empty());
    client.commit(&sample).await.unwrap();
    let found = client.find().await.unwrap();
    assert_eq!(found, [(sample.manifest.clone(), vec![0])]);

    the_table_is_read_and_checked(&client, &sample).await;
    rows_are_read_or_refused(&client, &sample).await;
    runs_of_rows_are_read_or_refused(&client, &sample).await;

    let status = client.status().await;
    assert_eq!((status.shards, status.checkpoints), (1, 1));
    assert!(client.forget(sample.id()).await.unwrap());
    assert!(!client.forget(sample.id()).await.unwrap());
    assert_eq!(client.status().await.used_bytes, 0);
    daemon.stop().await;
}

/// The outline and a page of the table of shard 0 arrive, and match the manifest.
async fn the_table_is_read_and_checked(client: &Client, sample: &Sample) {
    let asked = Request::Outline(sample.name(0));
    let (response, mut exchange) = client.ask(&asked).await.unwrap();
    let Response::Outline {
        rows,
        block_bytes,
        pages,
    } = response
    else {
        panic!("{response:?}");
    };
    let bytes = read_exact(&mut exchange.recv, pages as usize * 32)
        .await
        .unwrap();
    let hashes = bytes.as_chunks::<32>().0.iter().map(|hash| PageHash(*hash));
    let outline = Outline {
        rows,
        block_bytes,
        pages: hashes.collect(),
    };
    let shard = sample.put(0).shard().unwrap();
    let (identity, root) = sample.manifest.public().shard(shard).unwrap();
    outline.verify(&identity, root).unwrap();

    let asked = Request::Page {
        shard: sample.name(0),
        page: 1,
    };
    let (response, mut exchange) = client.ask(&asked).await.unwrap();
    let Response::Page { bytes } = response else {
        panic!("{response:?}");
    };
    let page = read_exact(&mut exchange.recv, bytes as usize)
        .await
        .unwrap();
    let page = Page::parse(&page, rows - 1024, outline.pages[1]).unwrap();
    assert_eq!(page.entries().len(), 79);
}

/// Rows of shard 0 arrive, across a page's end, too. Rows that do not exist, and too many at once, are refused.
async fn rows_are_read_or_refused(client: &Client, sample: &Sample) {
    let across = client.rows(sample, 0, 1000, 64).await.unwrap();
    assert_eq!(across, sample.blocks[0][1000..1064].concat());
    let last = client.rows(sample, 0, 1100, 3).await.unwrap();
    assert!(last == sample.blocks[0][1100..].concat());
    let rows = sample.blocks[0].len() as u64;
    for (first, count, expected) in [
        (rows, 1, Code::NotFound),
        (rows - 1, 2, Code::NotFound),
        (u64::MAX, 64, Code::NotFound),
        (0, 0, Code::BadRequest),
        (0, 65, Code::BadRequest),
    ] {
        assert_eq!(code(client.rows(sample, 0, first, count).await), expected);
    }
    assert_eq!(code(client.rows(sample, 1, 0, 1).await), Code::NotFound);
}

/// Runs of rows arrive together. Runs that do not ascend, and too many rows, are refused.
async fn runs_of_rows_are_read_or_refused(client: &Client, sample: &Sample) {
    let blocks = &sample.blocks[0];
    let runs = [(0, 1), (5, 3), (8, 2), (1000, 40), (1100, 3)];
    let expected = runs.map(|(first, count)| blocks[first..first + count].concat());
    let runs = runs.map(|(first, count)| (first as u64, count as u32));
    assert!(client.row_runs(sample, &runs).await.unwrap() == expected.concat());
    let rows = blocks.len() as u64;
    let refused: [(&[(u64, u32)], Code); 9] = [
        (&[], Code::BadRequest),
        (&[(0, 1), (5, 0)], Code::BadRequest),
        (&[(0, 33), (50, 32)], Code::BadRequest),
        (&[(5, 1), (0, 1)], Code::BadRequest),
        (&[(5, 3), (7, 1)], Code::BadRequest),
        (&[(5, 3), (5, 3)], Code::BadRequest),
        (&[(u64::MAX, 2), (7, 1)], Code::BadRequest),
        (&[(0, 1), (u64::MAX, 2)], Code::NotFound),
        (&[(0, 1), (rows - 1, 2)], Code::NotFound),
    ];
    for (runs, expected) in refused {
        let answer = client.row_runs(sample, runs).await;
        assert_eq!(code(answer), expected, "{runs:?}");
    }
}

#[tokio::test]
async fn versions_are_claimed_over_the_wire() {
    let lab = Lab::new();
    let daemon = lab.start().await;
    let owner = lab.member(Role::Submitter);
    let client = Client::connect(&lab, &owner, daemon.local_addr()).await;
    let claim = |seed| Sample::new(&owner.secret, "42", 3, seed).claim();
    let ask = async |claim: Claim| client.ask(&Request::Claim(claim)).await.unwrap().0;
    assert_eq!(ask(claim(1)).await, Response::Claimed);
    assert_eq!(ask(claim(1)).await, Response::Claimed);
    let next = Version::new(4).unwrap();
    assert_eq!(ask(claim(2)).await, Response::Taken { next });
    let other = Sample::new(&owner.secret, "42", 3, 2);
    assert_eq!(code(client.put(&other, 0).await), Code::VersionTaken);
    daemon.stop().await;
}

#[tokio::test]
async fn a_stranger_learns_nothing_and_changes_nothing() {
    let lab = Lab::new();
    let daemon = lab.start().await;
    let owner = lab.member(Role::Submitter);
    let stranger = lab.member(Role::Submitter);
    let client = Client::connect(&lab, &owner, daemon.local_addr()).await;
    let other = Client::connect(&lab, &stranger, daemon.local_addr()).await;
    let sample = Sample::new(&owner.secret, "42", 1, 1);
    client.put(&sample, 0).await.unwrap();
    client.commit(&sample).await.unwrap();
    assert!(other.find().await.unwrap().is_empty());
    assert_eq!(code(other.rows(&sample, 0, 0, 1).await), Code::NotFound);
    assert_eq!(
        code(other.ask(&Request::Outline(sample.name(0))).await),
        Code::NotFound
    );
    let page = Request::Page {
        shard: sample.name(0),
        page: 0,
    };
    assert_eq!(code(other.ask(&page).await), Code::NotFound);
    assert_eq!(code(other.commit(&sample).await), Code::Mismatch);
    assert!(!other.forget(sample.id()).await.unwrap());
    assert!(client.holds(&sample, 0).await.unwrap());
    daemon.stop().await;
}

/// Sends shard 0 of `sample` as a repairing host does, with this manifest.
async fn put_rebuilt(
    client: &Client,
    sample: &Sample,
    manifest: Vec<u8>,
) -> Result<(), ExchangeError> {
    let mut put = begin_rebuilt(client, sample, manifest).await?;
    put.blocks(sample, 0).await?;
    put.end(sample, 0).await
}

/// The same with wrong blocks, and at the end with the root of these blocks: everything is consistent,
/// but is not what the owner signed.
async fn put_rebuilt_consistently(
    client: &Client,
    wrong: &Sample,
    manifest: Vec<u8>,
) -> Result<(), ExchangeError> {
    let signed = wrong.end(0);
    let public = wrong.manifest.public();
    let (identity, _) = public.shard(public.redundancy.shard(0).unwrap()).unwrap();
    let end = PutEnd {
        root: root_of(&wrong.blocks[0], &identity),
        ..signed
    };
    assert_ne!(end.root, signed.root, "the blocks are right");
    let mut put = begin_rebuilt(client, wrong, manifest).await?;
    put.blocks(wrong, 0).await?;
    put.end_as(&end).await
}

/// Begins to send a rebuilt shard, of the length that its manifest states.
async fn begin_rebuilt(
    client: &Client,
    sample: &Sample,
    manifest: Vec<u8>,
) -> Result<Put, ExchangeError> {
    let put = sample.put_of(sample.manifest.public().block_bytes);
    let asked = Request::PutRebuilt(Box::new(PutRebuilt { put, manifest }));
    let (response, exchange) = client.ask(&asked).await?;
    assert_eq!(response, Response::Accepted);
    Ok(Put { exchange })
}

/// A shard that has the right length and the right root at its end, but other blocks; and a shard that is
/// longer. Nothing of either is kept, and neither keeps the right shard out.
#[tokio::test]
async fn a_wrong_rebuilt_shard_leaves_nothing_and_blocks_no_other() {
    let lab = Lab::new();
    let daemon = lab.start().await;
    let owner = lab.member(Role::Submitter);
    let bad = lab.member(Role::Donor);
    let good = lab.member(Role::Donor);
    let client = Client::connect(&lab, &bad, daemon.local_addr()).await;
    let sample = Sample::with_rows(&owner.secret, "42", 1, 1, &[MIB, MIB]);
    let manifest = sample.manifest.bytes().to_vec();
    let files = || {
        let shards = std::fs::read_dir(lab.data().join("shards")).unwrap();
        let of_owner = |owner: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_dir(owner.unwrap().path()).unwrap().count()
        };
        shards.map(of_owner).sum::<usize>()
    };

    let mut wrong = sample.clone();
    wrong.blocks[0][0][0] ^= 1;
    let refused = put_rebuilt_consistently(&client, &wrong, manifest.clone()).await;
    assert_eq!(code(refused), Code::Mismatch);
    let refused = put_rebuilt(&client, &wrong, manifest.clone()).await;
    assert_eq!(code(refused), Code::Mismatch);
    assert_eq!((files(), client.status().await.used_bytes), (0, 0));

    // More bytes than the manifest states, until the host takes no more.
    let mut put = begin_rebuilt(&client, &sample, manifest.clone())
        .await
        .unwrap();
    let mut sent = 0;
    while sent < 64 && put.block(&vec![7; MIB]).await.is_ok() {
        sent += 1;
    }
    assert_eq!(code(put.answer().await), Code::Mismatch);
    assert!(sent < 64);
    assert_eq!((files(), client.status().await.used_bytes), (0, 0));

    // A shard that is announced with another length is refused at once.
    let greedy = sample.put_of(1 << 29);
    let asked = PutRebuilt {
        put: greedy,
        manifest: manifest.clone(),
    };
    let refused = client.ask(&Request::PutRebuilt(Box::new(asked))).await;
    assert_eq!(code(refused), Code::Mismatch);

    // A shard that never ends is charged to the donor that sends it. It keeps neither another donor nor
    // the owner out.
    let mut slow = begin_rebuilt(&client, &wrong, manifest.clone())
        .await
        .unwrap();
    slow.block(&wrong.blocks[0][0]).await.unwrap();
    let again = begin_rebuilt(&client, &sample, manifest.clone()).await;
    assert_eq!(code(again), Code::Exists);
    let right = Client::connect(&lab, &good, daemon.local_addr()).await;
    put_rebuilt(&right, &sample, manifest).await.unwrap();
    let reader = Client::connect(&lab, &owner, daemon.local_addr()).await;
    assert!(reader.holds(&sample, 0).await.unwrap());
    slow.block(&wrong.blocks[0][1]).await.unwrap();
    let late = slow.end(&sample, 0).await;
    assert_eq!(code(late), Code::Mismatch);
    assert!(reader.holds(&sample, 0).await.unwrap());
    daemon.stop().await;
}

#[tokio::test]
async fn a_host_proves_what_it_holds_to_its_owner_and_to_donors() {
    let lab = Lab::new();
    let daemon = lab.start().await;
    let owner = lab.member(Role::Submitter);
    let donor = lab.member(Role::Donor);
    let client = Client::connect(&lab, &owner, daemon.local_addr()).await;
    let sample = Sample::with_rows(&owner.secret, "42", 1, 1, &[5000, 17, MIB]);
    client.put(&sample, 0).await.unwrap();
    client.commit(&sample).await.unwrap();
    let peer = Client::connect(&lab, &donor, daemon.local_addr()).await;
    let public = sample.manifest.public();
    let ask = |row| Request::Prove {
        owner: owner.secret.id(),
        shard: sample.name(0),
        spot: Spot { row, draw: 3 },
    };
    for asker in [&client, &peer] {
        for row in 0..3 {
            let spot = Spot { row, draw: 3 };
            let (Response::Proof(proof), _) = asker.ask(&ask(row)).await.unwrap() else {
                panic!("another answer");
            };
            assert!(proof.check(public.roots[0], public.rows, spot).is_ok());
            assert!(proof.check(public.roots[1], public.rows, spot).is_err());
        }
        assert_eq!(code(asker.ask(&ask(3)).await), Code::NotFound);
    }
    let stranger = lab.member(Role::Submitter);
    let stranger = Client::connect(&lab, &stranger, daemon.local_addr()).await;
    assert_eq!(code(stranger.ask(&ask(0)).await), Code::NotFound);

    // A host reveals what it holds only to a host that knows the checkpoint.
    let held = |owner, id| {
        let asking = Asking::new(donor.secret.id(), lab.host_id().0, &[1; 32]);
        let asked = Request::PeerHolds {
            salt: [1; 32],
            tags: vec![asking.question(owner, id)],
        };
        (asking, asked)
    };
    let (asking, asked) = held(owner.secret.id(), sample.id());
    let (response, _) = peer.ask(&asked).await.unwrap();
    let tag = HeldTag {
        place: 0,
        shards: 1,
        tag: asking.answer(owner.secret.id(), sample.id(), ShardSet(1)),
    };
    assert_eq!(response, Response::PeerHolds { held: vec![tag] });
    // The host holds nothing of another owner's checkpoint with the same id.
    let (_, asked) = held(donor.secret.id(), sample.id());
    let (response, _) = peer.ask(&asked).await.unwrap();
    assert_eq!(response, Response::PeerHolds { held: vec![] });
    daemon.stop().await;
}

/// What happens if a donor kept a deleted checkpoint and brings it back, even when the owner's last
/// notice lists the ids of other checkpoints only.
#[tokio::test]
async fn a_checkpoint_older_than_a_deletion_of_all_is_taken_from_its_owner_alone() {
    let lab = Lab::new();
    let daemon = lab.start().await;
    let owner = lab.member(Role::Submitter);
    let donor = lab.member(Role::Donor);
    let client = Client::connect(&lab, &owner, daemon.local_addr()).await;
    let donor = Client::connect(&lab, &donor, daemon.local_addr()).await;
    let mut samples = [1, 2, 3, 4].map(|seed| Sample::new(&owner.secret, "42", seed, seed));
    samples.sort_by_key(Sample::id);
    let [first, second, held, later] = &samples;
    client.put(held, 0).await.unwrap();
    client.commit(held).await.unwrap();

    let keys = Keys::from(owner.secret.clone());
    let (tag, path) = keys.tag_and_path(&"42".parse().unwrap()).unwrap();
    let stamp = |sample: &Sample| Stamp {
        created: sample.manifest.public().created,
        checkpoint: sample.id(),
    };
    let say = |number, gone: &[Stamp]| {
        let none = Intervals::default();
        let intervals = none.with_stretches(gone, &[stamp(held).into()]);
        let job = (owner.secret.id(), tag);
        let words = Words::following(None, job, number, None, &[], &intervals);
        let notice = Notice::sign(&keys, &path.blinded(), &words).unwrap();
        Request::Notice {
            notice: notice.bytes().to_vec(),
        }
    };
    // Two notices race: the one with the lower number arrives later and declares more gone.
    client.ask(&say(2_000, &[stamp(first)])).await.unwrap();
    client.ask(&say(1_000, &[stamp(second)])).await.unwrap();
    for sample in [first, second] {
        let brought = put_rebuilt(&donor, sample, sample.manifest.bytes().to_vec());
        assert_eq!(code(brought.await), Code::NotFound);
    }
    // A checkpoint that is not deleted is accepted, and what the host holds stays.
    let brought = put_rebuilt(&donor, later, later.manifest.bytes().to_vec());
    brought.await.unwrap();
    assert!(client.holds(held, 0).await.unwrap());
    // The owner itself may send any checkpoint.
    client.put(second, 0).await.unwrap();
    client.commit(second).await.unwrap();
    assert_eq!(client.find().await.unwrap().len(), 3);

    // Both notices are passed on: the last one, and the one that declares more gone.
    let asked = Request::Notices {
        jobs: vec![(owner.secret.id(), tag)],
    };
    let (response, _) = donor.ask(&asked).await.unwrap();
    assert!(
        matches!(response, Response::Notices { count: 2, .. }),
        "{response:?}"
    );
    let heard = heard(&lab, daemon.local_addr(), &owner, tag).await;
    assert_eq!(heard, [2_000, 1_000]);
}

/// The numbers of a job's notices that a host passes on to the owner.
async fn heard(lab: &Lab, addr: SocketAddr, owner: &Identity, tag: JobTag) -> Vec<u64> {
    let mut grid = lab.grid.clone();
    grid.hosts.push(GridHost {
        name: "h1".into(),
        addr: addr.into(),
        id: lab.host_id(),
        site: None,
        owner: None,
    });
    let hosts = transfer::Hosts::new(&grid, owner, 1 << 20).unwrap();
    let jobs = std::sync::Arc::new(vec![(owner.secret.id(), tag)]);
    let mut hearing = hosts.fetch_notices(transfer::HostIndex(0), jobs);
    let mut heard = Vec::new();
    while let Some(notice) = hearing.next().await.unwrap() {
        heard.push(notice.words().number);
    }
    assert!(hearing.clock().unwrap() > 0);
    heard
}

#[tokio::test]
async fn a_rebuilt_shard_has_to_be_what_the_owner_signed() {
    let lab = Lab::new();
    let daemon = lab.start().await;
    let owner = lab.member(Role::Submitter);
    let donor = lab.member(Role::Donor);
    let client = Client::connect(&lab, &donor, daemon.local_addr()).await;
    let sample = Sample::new(&owner.secret, "42", 1, 1);
    let manifest = sample.manifest.bytes().to_vec();

    let mut forged = manifest.clone();
    let middle = forged.len() / 2;
    forged[middle] ^= 1;
    assert_eq!(
        code(put_rebuilt(&client, &sample, forged).await),
        Code::Mismatch
    );
    let other = Sample::new(&owner.secret, "42", 2, 2);
    let of_other = other.manifest.bytes().to_vec();
    assert_eq!(
        code(put_rebuilt(&client, &sample, of_other).await),
        Code::Mismatch
    );
    // The blocks are consistent with each other, but not with the manifest.
    let mut wrong = sample.clone();
    wrong.blocks[0][0][0] ^= 1;
    let refused = put_rebuilt_consistently(&client, &wrong, manifest.clone()).await;
    assert_eq!(code(refused), Code::Mismatch);
    assert_eq!(client.status().await.used_bytes, 0, "nothing of it stays");
    let tags = Vec::new();
    let salt = [0; 32];
    assert!(client.ask(&Request::PeerHolds { salt, tags }).await.is_ok());

    put_rebuilt(&client, &sample, manifest.clone())
        .await
        .unwrap();
    // The shard belongs to the owner and needs no further commit. The donor can read it as ciphertext.
    let reader = Client::connect(&lab, &owner, daemon.local_addr()).await;
    assert!(reader.holds(&sample, 0).await.unwrap());
    assert_eq!(reader.find().await.unwrap().len(), 1);
    assert!(client.holds(&sample, 0).await.unwrap());
    // Another submitter can't read it, and no submitter may repair.
    let stranger = lab.member(Role::Submitter);
    let stranger = Client::connect(&lab, &stranger, daemon.local_addr()).await;
    assert_eq!(code(stranger.holds(&sample, 0).await), Code::NotFound);
    assert_eq!(
        code(put_rebuilt(&stranger, &other, other.manifest.bytes().to_vec()).await),
        Code::Forbidden
    );
    daemon.stop().await;
}

#[tokio::test]
async fn only_submitters_store_and_read() {
    let lab = Lab::new();
    let daemon = lab.start().await;
    let donor = lab.member(Role::Donor);
    let client = Client::connect(&lab, &donor, daemon.local_addr()).await;
    assert_eq!(client.status().await.name, "h1");
    let sample = Sample::new(&donor.secret, "42", 1, 1);
    assert_eq!(code(client.put(&sample, 0).await), Code::Forbidden);
    assert_eq!(code(client.find().await), Code::Forbidden);
    assert_eq!(code(client.forget(sample.id()).await), Code::Forbidden);
    daemon.stop().await;
}

#[tokio::test]
async fn a_shard_that_does_not_fit_is_refused_before_bytes_flow() {
    let lab = Lab::new();
    let daemon = lab.start().await;
    let owner = lab.member(Role::Submitter);
    let client = Client::connect(&lab, &owner, daemon.local_addr()).await;
    let sample = Sample::new(&owner.secret, "42", 1, 1);
    let put = sample.put_of(2 << 30);
    match client.begin(put).await.err() {
        Some(ExchangeError::Refused(refusal)) => {
            assert_eq!(refusal.code, Code::NoSpace);
            // Half of what is lent is left for one submitter.
            assert!(refusal.detail.contains("536870912 left"), "{refusal}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(client.status().await.used_bytes, 0);
    daemon.stop().await;
}
