use proptest::prelude::*;

use super::*;
use crate::grant::CLOCK_SLACK_S;
use crate::job::{JOB_COMPONENTS_MAX, JobId};
use crate::keys::{JobKeys, NewJobKeys};
use crate::seal::OwnerSecret;

fn owner() -> OwnerSecret {
    OwnerSecret::new([9; 32])
}

fn keys() -> Keys {
    owner().into()
}

fn ids(gone: &[u8]) -> Vec<CheckpointId> {
    gone.iter().map(|byte| CheckpointId([*byte; 16])).collect()
}

fn stamps(all: &[u8]) -> Vec<Stamp> {
    let stamp = |byte: &u8| Stamp {
        created: u64::from(*byte) * 100,
        checkpoint: CheckpointId([*byte; 16]),
    };
    all.iter().map(stamp).collect()
}

fn job(text: &str) -> JobId {
    text.parse().unwrap()
}

fn sign(
    keys: &Keys,
    name: &str,
    last: Option<&Words>,
    now: u64,
    gone: &[u8],
) -> Result<Notice, NoticeError> {
    let (tag, path) = Keys::from(owner()).tag_and_path(&job(name)).unwrap();
    let lease = Some(Lease::from(now / 1000, 60));
    let intervals = Intervals::default().with(&stamps(gone));
    let words = Words::following(
        last,
        (owner().id(), tag),
        now,
        lease,
        &ids(gone),
        &intervals,
    );
    Notice::sign(keys, &path.blinded(), &words)
}

fn notice(last: Option<&Notice>, now: u64, gone: &[u8]) -> Notice {
    sign(&keys(), "42", last.map(Notice::words), now, gone).unwrap()
}

#[test]
fn notices_are_counted_and_add_up() {
    let first = notice(None, 5_000, &[1, 2]);
    assert_eq!(first.words().number, 5_000);
    let lease = Lease {
        ttl_s: 60,
        until: 65,
    };
    assert_eq!(first.words().lease, Some(lease));
    // The owner's clock went back by a second.
    let second = notice(Some(&first), 4_000, &[2, 3]);
    assert_eq!(second.words().number, 5_001);
    assert_eq!(second.words().gone, ids(&[1, 2, 3]));
    let covers = |byte: u8| second.words().intervals.has(stamps(&[byte])[0]);
    assert_eq!([1, 2, 3, 4].map(covers), [true, true, true, false]);
}

#[test]
fn the_longest_notice_fits_and_forgets_the_oldest_ids() {
    let all: Vec<u8> = (0..200).collect();
    let longest = notice(None, u64::MAX, &all);
    assert_eq!(longest.words().gone.len(), GONE_MAX);
    assert_eq!(
        longest.words().gone[0],
        CheckpointId([200 - GONE_MAX as u8; 16])
    );
    assert_eq!(Notice::parse(longest.bytes().to_vec()), Ok(longest.clone()));
    assert_eq!(notice(Some(&longest), 0, &[]).words().number, u64::MAX);
    // As many intervals and components as are allowed, all numbers long, signed with a grant.
    let name = vec!["x"; JOB_COMPONENTS_MAX].join("/");
    let many = (0..2 * INTERVALS_MAX as u64).map(|number| Stamp {
        created: u64::MAX - number,
        checkpoint: CheckpointId([255; 16]),
    });
    let intervals = Intervals::default().with(&many.collect::<Vec<_>>());
    let keys = granted("x/", Rights::REMOVE);
    let (tag, path) = keys.tag_and_path(&job(&name)).unwrap();
    let gone = ids(&all);
    let lease = Some(Lease::from(u64::MAX, u64::MAX));
    let words = Words::following(
        None,
        (owner().id(), tag),
        1_000_000_000,
        lease,
        &gone,
        &intervals,
    );
    assert_eq!(words.intervals.len(), INTERVALS_MAX);
    let signed = Notice::sign(&keys, &path.blinded(), &words).unwrap();
    assert_eq!(signed.words(), &words);
}

#[test]
fn one_that_was_changed_is_not_believed() {
    let good = notice(None, 1_000, &[1]);
    for at in 0..good.bytes().len() {
        let mut bad = good.bytes().to_vec();
        bad[at] ^= 1;
        assert!(Notice::parse(bad).is_err(), "byte {at}");
        assert!(Notice::parse(good.bytes()[..at].to_vec()).is_err());
    }
}

#[test]
fn two_notices_joined_in_any_order_delete_what_either_deletes() {
    let one = notice(None, 1_000, &[1]);
    let two = notice(None, 2_000, &[2]);
    let both = one.words().and(two.words());
    assert_eq!(both, two.words().and(one.words()));
    assert_eq!((both.number, &both.lease), (2_000, &two.words().lease));
    assert_eq!(both.gone, ids(&[1, 2]));
    assert!(
        stamps(&[1, 2])
            .into_iter()
            .all(|stamp| both.intervals.has(stamp))
    );
}

fn granted(scope: &str, rights: Rights) -> Keys {
    let new = NewJobKeys {
        grid: [1; 32],
        scope: scope.parse().unwrap(),
        rights,
        serial: 7,
        not_before: 0,
        not_after: 1_000_000,
    };
    JobKeys::issue(&owner(), [2; 32], new).unwrap().into()
}

#[test]
fn a_grant_has_to_allow_removing_and_to_be_for_the_job() {
    let now = 1_000_000;
    for (scope, mine) in [
        ("42", vec!["42"]),
        ("a/", vec!["a/b", "a/b/c"]),
        ("a/b", vec!["a/b"]),
    ] {
        let keys = granted(scope, Rights::REMOVE);
        for name in ["42", "43", "a", "a/b", "a/b/c"] {
            let signed = sign(&keys, name, None, now, &[1]);
            assert_eq!(signed.is_ok(), mine.contains(&name), "{scope} {name}");
        }
        let late = (1_000_001 + CLOCK_SLACK_S) * 1000;
        let refused = sign(&keys, mine[0], None, late, &[1]);
        assert_eq!(refused, Err(NoticeError::NotGranted(Refused::Time)));
        let others = granted(scope, Rights::SAVE.and(Rights::RESTORE));
        let refused = sign(&others, mine[0], None, now, &[1]);
        assert_eq!(
            refused,
            Err(NoticeError::NotGranted(Refused::Right(Rights::REMOVE)))
        );
    }
}

#[test]
fn a_notice_of_another_format_is_refused_and_says_what_to_do() {
    let good = notice(None, 1_000, &[1]);
    for (digit, remedy) in [(b'1', "ckpt 0.1.0 wrote it"), (b'3', "upgrade ckpt")] {
        let mut bytes = good.bytes().to_vec();
        bytes[MAGIC.len() - 1] = digit;
        let refused = Notice::parse(bytes).unwrap_err();
        assert!(refused.to_string().contains(remedy), "{refused}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut signed = [MAGIC.as_slice(), &bytes].concat();
        signed.extend(owner().sign(&signed));
        let _ = Notice::parse(signed);
        let _ = Notice::parse(bytes);
    }
}

#[test]
fn a_notice_that_states_the_lease_again_does_not_outrank_one_that_renewed_it_meanwhile() {
    let job = (OwnerId([1; 32]), JobTag([2; 32]));
    let none = Intervals::default();
    let lease = |until| Some(Lease { ttl_s: 60, until });
    let say =
        |last: Option<&Words>, now, lease| Words::following(last, job, now, lease, &[], &none);
    let first = say(None, 1_000_000, lease(1_060));
    for (asked, renewed) in [
        // A renewal right after the look, and one much later.
        (1_000_005, 1_000_006),
        (1_900_000, 1_900_001),
        (1_900_000, 9_000_000),
        // The clock of who deletes is an hour fast.
        (5_500_000, 1_900_001),
    ] {
        let renewed = say(Some(&first), renewed, lease(9_060));
        let again = say(
            Some(&first),
            Words::restated_at(Some(&first), asked),
            first.lease,
        );
        assert!(again.number > first.number);
        for both in [again.and(&renewed), renewed.and(&again)] {
            assert_eq!(both.lease, renewed.lease, "{asked} {again:?}");
        }
        // What was seen after the renewal is above it.
        let after = say(
            Some(&renewed),
            Words::restated_at(Some(&renewed), asked),
            renewed.lease,
        );
        assert!(after.number > renewed.number);
    }
    // The clock of who deletes is slow, or nothing was said before.
    assert_eq!(
        say(Some(&first), Words::restated_at(Some(&first), 5), None).number,
        1_000_001
    );
    assert_eq!(Words::restated_at(None, 5), 5);
}
