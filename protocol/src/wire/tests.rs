//! The bytes of every message, which may not change any more. Any other bytes can be read without harm.

use codec::hash::ShardRoot;
use codec::hex;
use codec::proof::{ShardProof, Spot};
use codec::scope::Blinded;
use codec::{CheckpointId, JobTag, OwnerId, Redundancy, Version};
use proptest::prelude::*;
use serde_bytes::ByteBuf;

use super::Code;
use super::announcement::Announcement;
use super::limits::{CENSUS_OWNERS_MAX, JOINERS_MAX, TEXT_BYTES_MAX};
use super::message::{
    Audit, AuditFault, CardDay, CardRecord, Claim, HeldTag, HoldsPage, HostCensus, HostStatus,
    JoinRequest, Joined, JoinerRecord, MemberRecord, Message, OwnerUse, Presence, PutEnd,
    PutRebuilt, PutShard, Record, Refusal, Request, Response, RowRun, ShardName, ShardRows,
    StoredShard,
};
use super::parts::Parts;

/// Checks that the frame of `message` is `frozen`, and that no shorter one is read. In `frozen`, `ID`,
/// `TAG` and `ROOT` stand for 16, 32 and 32 bytes.
fn check<M: Message + PartialEq + std::fmt::Debug>(message: &M, frozen: &str) {
    let expected = frozen
        .replace("ID", &"11".repeat(16))
        .replace("TAG", &"22".repeat(32))
        .replace("ROOT", &"33".repeat(32))
        .replace(' ', "");
    let frame = message.to_frame().unwrap();
    assert_eq!(hex::encode(&frame), expected, "{message:?}");
    assert_eq!(&M::from_frame(&frame).unwrap(), message);
    for kept in 0..frame.len() {
        assert!(M::from_frame(&frame[..kept]).is_err(), "{message:?}");
    }
}

const ID: CheckpointId = CheckpointId([0x11; 16]);

const TAG: JobTag = JobTag([0x22; 32]);

const ROOT: ShardRoot = ShardRoot([0x33; 32]);

fn claim() -> Claim {
    Claim {
        job_tag: TAG,
        version: Version::new(300).unwrap(),
        checkpoint: ID,
    }
}

fn shard() -> ShardName {
    ShardName {
        checkpoint: ID,
        shard: 4,
    }
}

#[test]
fn requests_about_shards_are_as_they_were() {
    check(&Request::Status, "00");
    check(&Request::Claim(claim()), "01 TAG fb2c01 ID");
    let put = PutShard {
        claim: claim(),
        redundancy: Redundancy::new(3, 2).unwrap(),
        shard: 4,
        expected_bytes: 1 << 40,
    };
    check(
        &Request::PutShard(put),
        "02 TAG fb2c01 ID 03 02 04 fd0000000000010000",
    );
    let manifest = vec![0xaa, 0xbb];
    check(&Request::Commit { manifest }, "03 02 aabb");
    let find = |job_tag, after| Request::Find { job_tag, after };
    check(&find(None, None), "04 00 00");
    check(&find(Some(TAG), Some(ID)), "04 01 TAG 01 ID");
    check(&Request::Outline(shard()), "05 ID 04");
    let page = Request::Page {
        shard: shard(),
        page: 7,
    };
    check(&page, "06 ID 04 07");
    let rows = Request::Rows {
        shard: shard(),
        first: 70_000,
        count: 64,
    };
    check(&rows, "07 ID 04 fc70110100 40");
    let runs = vec![
        RowRun { first: 0, count: 2 },
        RowRun {
            first: 70_000,
            count: 62,
        },
    ];
    let runs = Request::RowRuns {
        shard: shard(),
        runs,
    };
    check(&runs, "2a ID 04 02 00 02 fc70110100 3e");
    check(&Request::Forget { checkpoint: ID }, "08 ID");
    check(&Request::Announcement, "09");
    check(&Request::Probe { bytes: 250 }, "0a fa");
}

#[test]
fn a_request_has_no_more_runs_of_rows_than_it_may_have_rows() {
    let read = |count: u64| {
        let runs = (0..count).map(|run| RowRun {
            first: 2 * run,
            count: 1,
        });
        let asked = Request::RowRuns {
            shard: shard(),
            runs: runs.collect(),
        };
        Request::from_frame(&asked.to_frame().unwrap())
    };
    assert!(read(64).is_ok());
    assert!(read(65).is_err());
}

#[test]
fn requests_of_hosts_to_registries_are_as_they_were() {
    let presence = Presence {
        name: "h1".into(),
        addr: ([10, 0, 0, 1], 7600).into(),
        site: Some("lab".into()),
        owner: None,
        capacity_bytes: 3,
        free_bytes: 2,
        epoch: 1,
        announcement: Announcement::default(),
        parts: Parts::default(),
    };
    check(
        &Request::Announce(Box::new(presence)),
        "16 026831 00 0a000001 fbb01d 01036c6162 00 03 02 01 00 00 00 00 00 00 00 00 00 00 00",
    );
    let beat = Request::Heartbeat {
        epoch: 1,
        holdings: 2,
    };
    check(&beat, "0d 01 02");
    let page = HoldsPage {
        epoch: 2,
        first: true,
        last: false,
        shards: vec![shard()],
    };
    check(&Request::Holds(page), "0e 02 01 00 01 ID 04");
    check(&Request::Members { after: None }, "0f 00");
    check(&Request::Holders { checkpoint: ID }, "10 ID");
    let join = JoinRequest {
        token: "t".into(),
        name: "h1".into(),
        key: OwnerId([0x22; 32]),
        signature: vec![1, 2],
        numbered: true,
    };
    check(&Request::Join(join), "11 0174 026831 TAG 020102 01");
}

#[test]
fn requests_between_hosts_are_as_they_were() {
    let audit = |fault| {
        Request::Audited(Audit {
            checkpoint: ID,
            shard: 4,
            blocks: 16,
            fault,
        })
    };
    check(&audit(None), "0b ID 04 10 00");
    check(&audit(Some(AuditFault::Damaged)), "0b ID 04 10 01 01");
    let put = PutShard {
        claim: claim(),
        redundancy: Redundancy::new(3, 2).unwrap(),
        shard: 4,
        expected_bytes: 9,
    };
    let rebuilt = PutRebuilt {
        put,
        manifest: vec![1, 2],
    };
    check(
        &Request::PutRebuilt(Box::new(rebuilt)),
        "13 TAG fb2c01 ID 03 02 04 09 020102",
    );
    let notice = vec![1, 2];
    check(&Request::Notice { notice }, "14 020102");
    let jobs = vec![(OwnerId([0x22; 32]), JobTag([0x22; 32]))];
    check(&Request::Notices { jobs }, "15 01 TAG TAG");
    let holds = Request::PeerHolds {
        salt: [0x22; 32],
        tags: vec![[0x11; 16]],
    };
    check(&holds, "17 TAG 01 ID");
    let prove = Request::Prove {
        owner: OwnerId([0x22; 32]),
        shard: shard(),
        spot: Spot {
            row: 70_000,
            draw: 250,
        },
    };
    check(&prove, "18 TAG ID 04 fc70110100 fa");
}

#[test]
fn responses_about_shards_are_as_they_were() {
    let mut refusal = Refusal::new(Code::Busy, "ab");
    refusal.retry_after_ms = 2000;
    check(&Response::Refused(refusal), "00 08 02 6162 fbd007");
    let status = HostStatus {
        name: "h1".into(),
        software: "0.1".into(),
        capacity_bytes: 1,
        used_bytes: 2,
        free_bytes: 3,
        shards: 4,
        checkpoints: 5,
        uptime_s: 6,
        parts: Parts::default(),
    };
    check(
        &Response::Status(Box::new(status)),
        "15 02 6831 03 302e31 01 02 03 04 05 06 00",
    );
    check(&Response::Claimed, "02");
    check(
        &Response::Taken {
            next: Version::new(9).unwrap(),
        },
        "03 09",
    );
    check(&Response::Accepted, "04");
    let stored = StoredShard {
        rows: 250,
        root: ROOT,
    };
    check(&Response::Stored(stored), "05 fa ROOT");
    check(&Response::Committed, "06");
    let found = Response::Found {
        count: 251,
        more: true,
    };
    check(&found, "07 fbfb00 01");
    let outline = Response::Outline {
        rows: 1,
        block_bytes: 2,
        pages: 3,
    };
    check(&outline, "08 01 02 03");
    check(&Response::Page { bytes: 36 }, "09 24");
    check(&Response::Rows { bytes: 65_536 }, "0a fc00000100");
    check(&Response::Forgotten { existed: false }, "0b 00");
}

#[test]
fn responses_to_and_about_hosts_are_as_they_were() {
    let announcement = Announcement {
        at: 1,
        storage_state: 2,
        guest_state: 3,
        refuses_for_s: 4,
        receives_bytes_per_s: 5,
        curve_step_s: 6,
        presence: vec![7],
        guest: vec![8, 9],
        presence_bitmap: vec![0xaa],
        guest_bitmap: vec![0xbb],
        parts: Parts::default(),
    };
    check(
        &Response::Announcement(Box::new(announcement.into())),
        "16 01 02 03 04 05 06 01 07 02 08 09 01 aa 01 bb 00",
    );
    check(&Response::Probed, "0d");
    check(&Response::Noted, "0e");
    let heard = Response::Heard {
        announce: true,
        holdings: false,
    };
    check(&heard, "0f 01 00");
    let members = Response::Members {
        count: 3,
        more: true,
    };
    check(&members, "10 03 01");
    let holders = vec![(OwnerId([0x22; 32]), 4)];
    check(&Response::Holders { holders }, "11 01 TAG 04");
    let joined = Joined {
        certificate: vec![1],
        issuer: vec![2, 3],
        grid: "g".into(),
    };
    check(&Response::Joined(Box::new(joined)), "12 0101 020203 0167");
    let notices = Response::Notices {
        clock: 250,
        count: 2,
    };
    check(&notices, "14 fa 02");
    let held = vec![HeldTag {
        place: 250,
        shards: 0b10001,
        tag: [0x11; 16],
    }];
    check(&Response::PeerHolds { held }, "17 01 fa 11 ID");
    let proof = ShardProof {
        outline: vec![1],
        page: vec![2, 3],
        block: vec![],
    };
    check(&Response::Proof(proof), "18 0101 020203 00");
}

fn parts() -> Parts {
    Parts::new([(1, vec![0xcc]), (300, vec![])]).unwrap()
}

#[test]
fn messages_about_job_keys_and_lists_are_as_they_were() {
    let path = vec![Blinded([0x22; 32])];
    check(&Request::Within { path }, "19 01 TAG");
    check(&Request::Void { list: vec![1, 2] }, "1a 020102");
    let owners = vec![OwnerId([0x22; 32])];
    check(&Request::Voids { owners }, "1b 01 TAG");
    check(&Request::List { number: 300 }, "1c fb2c01");
    let number = 300;
    let bytes = 70_000;
    check(&Request::PutList { number, bytes }, "1d fb2c01 fc70110100");
    check(&Response::List { number, bytes }, "1a fb2c01 fc70110100");
    let lists = vec![ByteBuf::from(vec![1, 2])];
    check(&Response::Voids { lists }, "19 01 020102");
}

#[test]
fn messages_about_what_hosts_count_are_as_they_were() {
    check(&Request::Census, "1e");
    let census = HostCensus {
        clock: 1,
        software: "v".into(),
        capacity_bytes: 2,
        used_bytes: 3,
        free_bytes: 4,
        stance: 1,
        withheld: 8,
        refuses_for_s: 60,
        counted_at: 5,
        can_lose: vec![6, 7],
        too_few: 8,
        below: 9,
        unchecked: 10,
        failed_checks: 11,
        failed_proofs: 12,
        owners: vec![OwnerUse {
            key: "k".into(),
            name: String::new(),
            used_bytes: 13,
        }],
    };
    check(
        &Response::Census(Box::new(census)),
        "1b 01 0176 02 03 04 01 08 3c 05 020607 08 09 0a 0b 0c 01 016b 00 0d",
    );
    // The longest census fits into a frame.
    let owner = OwnerUse {
        key: "01234567".into(),
        name: "n".repeat(crate::identity::NAME_BYTES_MAX),
        used_bytes: u64::MAX,
    };
    let longest = HostCensus {
        can_lose: vec![u64::MAX; 33],
        owners: vec![owner; CENSUS_OWNERS_MAX],
        ..HostCensus::default()
    };
    assert!(Response::Census(Box::new(longest)).to_frame().is_ok());
}

#[test]
fn a_manifest_to_be_kept_is_as_it_was() {
    let manifest = vec![1, 2];
    check(&Request::KeepManifest { manifest }, "22 020102");
}

#[test]
fn messages_about_what_hosts_learnt_are_read_no_more() {
    // As earlier programs sent them: a request of this number, and sums.
    assert!(Request::from_frame(&[0x21]).is_err());
    let sums = [0x1f, 0xfb, 0x2c, 0x01, 0x02, 0x01, 0x02, 0x01, 0x03];
    assert!(Response::from_frame(&sums).is_err());
}

#[test]
fn messages_about_cards_are_as_they_were() {
    let id = OwnerId([0x22; 32]);
    let addr = ([10, 0, 0, 1], 7600).into();
    let digest = [0x22; 32];
    let after = Some(id);
    check(&Request::CompareCards { digest, after }, "23 TAG 01 TAG");
    check(&Request::Cards { ids: vec![id] }, "24 01 TAG");
    let card = vec![1, 2];
    let cards = vec![CardRecord { card, addr }];
    let bytes = "01 020102 00 0a000001 fbb01d";
    let put = Request::PutCards {
        cards: cards.clone(),
    };
    check(&put, &format!("25 {bytes}"));
    check(&Response::Cards { cards }, &format!("21 {bytes}"));
    let answer = Response::CardDays {
        same: false,
        days: vec![CardDay { id, day: 300 }],
        more: true,
    };
    check(&answer, "20 00 01 TAG fb2c01 01");
}

#[test]
fn messages_about_the_way_to_a_donor_are_as_they_were() {
    check(&Request::Reached, "27");
    for (answered, bytes) in [
        (None, "23 00"),
        (Some(false), "23 01 00"),
        (Some(true), "23 01 01"),
    ] {
        check(&Response::Reached { answered }, bytes);
    }
}

#[test]
fn messages_about_broken_transfers_are_as_they_were() {
    check(&Request::RowsHeld(claim()), "28 TAG fb2c01 ID");
    let put = PutShard {
        claim: claim(),
        redundancy: Redundancy::new(3, 2).unwrap(),
        shard: 4,
        expected_bytes: 0,
    };
    let end = Request::EndEarly {
        put,
        rows: 300,
        root: ROOT,
    };
    check(&end, "29 TAG fb2c01 ID 0302 04 00 fb2c01 ROOT");
    let rows = ShardRows {
        shard: 4,
        rows: 300,
        ended: true,
    };
    let answer = Response::RowsHeld { shards: vec![rows] };
    check(&answer, "24 01 04 fb2c01 01");
}

#[test]
fn messages_about_who_joined_are_as_they_were() {
    let id = OwnerId([0x22; 32]);
    check(&Request::Joiners { after: Some(id) }, "26 01 TAG");
    let ada = JoinerRecord {
        id,
        name: "ada".into(),
        submitter: true,
        token: [0x11; 16],
        at: 1,
        until: 300,
        seen_at: 2,
    };
    let answer = Response::Joiners {
        donors: true,
        submitters: false,
        joiners: vec![ada.clone()],
        more: true,
    };
    check(&answer, "22 01 00 01 TAG 03616461 01 ID 01 fb2c01 02 01");
    let longest = JoinerRecord {
        name: "n".repeat(crate::identity::NAME_BYTES_MAX),
        at: u64::MAX,
        until: u64::MAX,
        seen_at: u64::MAX,
        ..ada
    };
    let most = Response::Joiners {
        donors: true,
        submitters: true,
        joiners: vec![longest; JOINERS_MAX],
        more: true,
    };
    assert!(most.to_frame().is_ok());
}

#[test]
fn parts_follow_all_other_fields() {
    const PARTS: &str = "02 01 01cc fb2c01 00";
    let presence = Presence {
        name: "h1".into(),
        addr: ([10, 0, 0, 1], 7600).into(),
        site: None,
        owner: None,
        capacity_bytes: 3,
        free_bytes: 2,
        epoch: 1,
        announcement: Announcement::default(),
        parts: parts(),
    };
    let body = "026831 00 0a000001 fbb01d 00 00 03 02 01 00 00 00 00 00 00 00 00 00 00";
    let announce = Request::Announce(Box::new(presence.clone()));
    check(&announce, &format!("16 {body} {PARTS}"));

    let status = HostStatus {
        name: "h1".into(),
        software: "0.2".into(),
        capacity_bytes: 1,
        used_bytes: 2,
        free_bytes: 3,
        shards: 4,
        checkpoints: 5,
        uptime_s: 6,
        parts: parts(),
    };
    check(
        &Response::Status(Box::new(status)),
        &format!("15 02 6831 03 302e32 01 02 03 04 05 06 {PARTS}"),
    );
    let announcement = Announcement {
        at: 1,
        parts: parts(),
        ..Announcement::default()
    };
    check(
        &Response::Announcement(Box::new(announcement.into())),
        &format!("16 01 00 00 00 00 00 00 00 00 00 {PARTS}"),
    );

    let record = MemberRecord {
        id: OwnerId([0x22; 32]),
        silent_ms: 7,
        alive: true,
        presence,
    };
    check(&record, &format!("TAG 07 01 {body} {PARTS}"));
}

#[test]
fn records_and_ends_are_as_they_were() {
    let record = Record {
        manifest: vec![0xaa],
        shards: vec![0, 4],
    };
    check(&record, "01 aa 02 00 04");
    let end = PutEnd {
        rows: 0x0102,
        root: ROOT,
    };
    let frozen = format!("0201000000000000{}", "33".repeat(32));
    assert_eq!(hex::encode(&end.encode()), frozen);
    assert_eq!(PutEnd::decode(&end.encode()), end);
}

#[test]
fn codes_have_the_numbers_that_they_had() {
    let codes = [
        Code::BadRequest,
        Code::Forbidden,
        Code::NotFound,
        Code::NoSpace,
        Code::DiskFailed,
        Code::Exists,
        Code::VersionTaken,
        Code::Mismatch,
        Code::Busy,
        Code::Stopping,
        Code::Internal,
        Code::Guarded,
    ];
    for (number, code) in codes.into_iter().enumerate() {
        let refused = Response::Refused(Refusal::new(code, ""));
        check(&refused, &format!("00 {number:02x} 00 00"));
    }
    assert!(Response::from_frame(&[0, 12, 0, 0]).is_err());
}

#[test]
fn unknown_messages_are_refused() {
    assert!(Request::from_frame(&[31]).is_err());
    assert!(Response::from_frame(&[28]).is_err());
    for retired in [12, 18] {
        assert!(Request::from_frame(&[&[retired][..], &[0; 200]].concat()).is_err());
        assert!(Request::from_frame(&[retired]).is_err());
    }
    for retired in [1, 12, 19] {
        assert!(Response::from_frame(&[&[retired][..], &[0; 200]].concat()).is_err());
        assert!(Response::from_frame(&[retired]).is_err());
    }
}

#[test]
fn impossible_redundancies_are_refused() {
    // Version 1 of a job: the tag of the job, the version, the checkpoint.
    let claim = [[0; 32].as_slice(), &[1], &[0; 16]].concat();
    let put = |data, parity| [[2].as_slice(), &claim, &[data, parity, 0, 0]].concat();
    assert!(Request::from_frame(&put(3, 2)).is_ok());
    assert!(Request::from_frame(&put(0, 2)).is_err());
    assert!(Request::from_frame(&put(33, 2)).is_err());
    assert!(Request::from_frame(&put(3, 33)).is_err());
}

#[test]
fn details_are_cut_between_characters_and_printed_harmlessly() {
    let refusal = Refusal::new(Code::Busy, "\u{e9}".repeat(TEXT_BYTES_MAX));
    assert_eq!(refusal.detail.len(), TEXT_BYTES_MAX);
    let odd = Refusal::new(Code::Busy, format!("x{}", "\u{e9}".repeat(TEXT_BYTES_MAX)));
    assert_eq!(odd.detail.len(), TEXT_BYTES_MAX - 1);
    let hostile = Refusal::new(Code::Busy, "\u{1b}[2J\n");
    assert_eq!(hostile.to_string(), "busy (\\u{1b}[2J\\n)");
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        check_any::<Request>(&bytes)?;
        check_any::<Response>(&bytes)?;
        check_any::<Record>(&bytes)?;
        check_any::<MemberRecord>(&bytes)?;
    }

    #[test]
    fn any_bytes_after_the_number_of_a_variant_are_read_or_refused(
        // More than there are of either, so that the first unknown one is among them.
        variant in 0_u8..40,
        bytes in prop::collection::vec(any::<u8>(), 0..120),
    ) {
        let bytes = [[variant].as_slice(), &bytes].concat();
        check_any::<Request>(&bytes)?;
        check_any::<Response>(&bytes)?;
    }

    #[test]
    fn every_end_comes_back(bytes in any::<[u8; PutEnd::BYTES]>()) {
        prop_assert_eq!(PutEnd::decode(&bytes).encode(), bytes);
    }
}

/// Checks that a message that can be read is the same when it is written and read again.
fn check_any<M: Message + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(message) = M::from_frame(bytes) {
        let frame = message.to_frame();
        let frame = frame.map_err(|cause| TestCaseError::fail(cause.to_string()))?;
        prop_assert_eq!(M::from_frame(&frame), Ok(message));
    }
    Ok(())
}
