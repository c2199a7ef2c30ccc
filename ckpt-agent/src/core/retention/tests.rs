use codec::{CheckpointId, JobTag, ManifestHash, OwnerId, Version};
use proptest::prelude::*;

use super::*;

fn stamp(number: u8) -> Stamp {
    Stamp {
        created: u64::from(number) * 10,
        checkpoint: CheckpointId([number; 16]),
    }
}

fn reference(number: u8, is_dated: bool) -> BaseRef {
    BaseRef {
        checkpoint: stamp(number).checkpoint,
        manifest: ManifestHash([number; 32]),
        created: is_dated.then(|| stamp(number).created),
    }
}

/// A checkpoint that needs others, by references with their times.
fn on(number: u8, needs: &[u8]) -> Checkpoint {
    Checkpoint {
        stamp: stamp(number),
        contents: Some(Contents {
            needs: needs
                .iter()
                .map(|need| Arc::new(reference(*need, true)))
                .collect(),
            line: None,
        }),
    }
}

fn whole(number: u8) -> Checkpoint {
    on(number, &[])
}

fn unopened(number: u8) -> Checkpoint {
    Checkpoint {
        contents: None,
        ..whole(number)
    }
}

fn words(gone: &[u8], intervals: Intervals) -> Words {
    Words {
        owner: OwnerId([1; 32]),
        job_tag: JobTag([2; 32]),
        number: 1,
        lease: None,
        gone: gone
            .iter()
            .map(|number| stamp(*number).checkpoint)
            .collect(),
        intervals,
    }
}

fn numbers(stamps: &[Stamp]) -> Vec<u8> {
    stamps.iter().map(|one| one.checkpoint.0[0]).collect()
}

fn ends(intervals: &Intervals) -> Vec<(u64, u64)> {
    let all = intervals.iter();
    all.map(|one| (one.from.created / 10, one.to.created / 10))
        .collect()
}

#[test]
fn what_a_kept_version_needs_stays_and_is_named() {
    let plan = plan(
        &[on(4, &[2])],
        &[whole(3), whole(2), whole(1)],
        None,
        Reach::Between,
    );
    assert_eq!(numbers(&plan.gone), [3, 1]);
    assert_eq!(plan.needed[&stamp(2).checkpoint], stamp(4));
    assert_eq!(ends(&plan.intervals), [(1, 1), (3, 3)]);
}

#[test]
fn a_need_that_is_away_has_its_place_in_the_history() {
    let plan = plan(&[on(4, &[2])], &[whole(3), whole(1)], None, Reach::Between);
    assert_eq!(ends(&plan.intervals), [(1, 1), (3, 3)]);
}

#[test]
fn a_need_that_is_away_and_whose_time_is_not_known_may_be_anywhere_before() {
    let mut old = on(6, &[]);
    old.contents.as_mut().unwrap().needs = [Arc::new(reference(2, false))].into();
    let gone = [whole(7), whole(8), whole(5), whole(3), whole(1)];
    let all = plan(&[old.clone()], &gone, None, Reach::Between);
    assert_eq!(ends(&all.intervals), [(1, 1), (3, 3), (5, 5), (7, 8)]);
    // Where it is seen, its time is known.
    let seen = plan(
        &[old],
        &[&gone[..], &[whole(2)]].concat(),
        None,
        Reach::Between,
    );
    assert_eq!(ends(&seen.intervals), [(1, 1), (3, 5), (7, 8)]);
}

#[test]
fn needs_of_needs_are_kept_only_where_a_kept_version_names_them() {
    let gone = |needs: &[u8]| {
        let unwanted = [on(4, &[3, 2, 1]), on(3, &[2, 1]), whole(2), whole(1)];
        let plan = plan(&[on(5, needs)], &unwanted, None, Reach::Between);
        numbers(&plan.gone)
    };
    assert!(gone(&[4, 3, 2, 1]).is_empty());
    assert_eq!(gone(&[4, 2]), [3, 1]);
    assert_eq!(gone(&[]), [4, 3, 2, 1]);
}

#[test]
fn nothing_is_deleted_where_something_does_not_open() {
    let said = words(&[], Intervals::default().with(&[stamp(1)]));
    let all = [
        plan(
            &[whole(9), unopened(5)],
            &[whole(3)],
            Some(&said),
            Reach::Between,
        ),
        plan(
            &[whole(9)],
            &[unopened(5), whole(3)],
            Some(&said),
            Reach::Named,
        ),
        plan(&[], &[unopened(5)], Some(&said), Reach::FromFirst),
    ];
    for plan in all {
        assert_eq!(plan.gone, []);
        assert_eq!(plan.intervals, said.intervals);
        assert_eq!(plan.stopped_by, Some(stamp(5)));
    }
}

#[test]
fn all_is_deleted_from_the_first_one_on_only_if_nothing_is_kept() {
    let all = plan(&[], &[whole(3), whole(5)], None, Reach::FromFirst);
    assert_eq!(ends(&all.intervals), [(0, 5)]);
    let some = plan(&[whole(4)], &[whole(3), whole(5)], None, Reach::FromFirst);
    assert_eq!(ends(&some.intervals), [(3, 3), (5, 5)]);
    let named = plan(&[whole(9)], &[whole(3), whole(5)], None, Reach::Named);
    assert_eq!(ends(&named.intervals), [(3, 3), (5, 5)]);
}

#[test]
fn stretches_of_one_line_do_not_reach_into_the_one_before() {
    let of_line = |number| {
        let mut one = whole(number);
        one.contents.as_mut().unwrap().line = Version::new(50);
        one
    };
    let said = words(&[], Intervals::default().with(&[stamp(2)]));
    let keeps = [of_line(9)];
    let all = plan(
        &keeps,
        &[of_line(8), of_line(6)],
        Some(&said),
        Reach::Between,
    );
    assert_eq!(ends(&all.intervals), [(2, 2), (6, 8)]);
}

#[test]
fn just_before_an_id_is_the_id_less_one() {
    let of = |id: [u8; 16]| {
        let checkpoint = CheckpointId(id);
        just_before(Stamp {
            created: 5,
            checkpoint,
        })
    };
    let mut id = [7; 16];
    id[14..].copy_from_slice(&[3, 0]);
    let mut less = [7; 16];
    less[14..].copy_from_slice(&[2, 255]);
    assert_eq!(of(id).map(|it| it.checkpoint.0), Some(less));
    assert!(
        of(id)
            < Some(Stamp {
                created: 5,
                checkpoint: CheckpointId(id)
            })
    );
    assert_eq!(of([0; 16]), None);
}

#[test]
fn after_its_commit_a_save_finds_what_became_of_it() {
    let shown = |numbers: &[u8]| -> BTreeSet<CheckpointId> {
        numbers.iter().map(|one| stamp(*one).checkpoint).collect()
    };
    let before = shown(&[1, 2]);
    let judge = |needs: &[BaseRef], now: &[u8], said: Option<&Words>| {
        let now = shown(now);
        let before = View {
            shown: &before,
            said: None,
        };
        after_commit(stamp(5), needs, before, View { shown: &now, said })
    };
    let needs = [reference(2, true)];
    assert_eq!(judge(&needs, &[1, 2, 5], None), AfterCommit::Kept);
    let deleted = AfterCommit::NeedDeleted(stamp(2).checkpoint);
    let named = words(&[2], Intervals::default());
    assert_eq!(judge(&needs, &[1, 5], Some(&named)), deleted);
    assert_eq!(
        judge(&[reference(2, false)], &[1, 5], Some(&named)),
        deleted
    );
    let inside = words(&[], Intervals::default().with(&[stamp(2)]));
    assert_eq!(judge(&needs, &[1, 2, 5], Some(&inside)), deleted);
    let itself = words(&[], Intervals::default().with(&[stamp(5)]));
    assert_eq!(judge(&[], &[1, 2], Some(&itself)), AfterCommit::Deleted);
    // Somebody else saved, or announces a deletion.
    assert_eq!(judge(&needs, &[1, 2, 4, 5], None), AfterCommit::InDoubt);
    let announced = words(&[77], Intervals::default());
    assert_eq!(
        judge(&needs, &[1, 2, 5], Some(&announced)),
        AfterCommit::InDoubt
    );
    // What builds on nothing loses nothing by that, unless a stretch may come to cover it.
    let later = words(&[77], Intervals::default().with(&[stamp(6)]));
    assert_eq!(judge(&[], &[1, 2, 5], Some(&later)), AfterCommit::InDoubt);
    assert_eq!(
        judge(&[], &[1, 2, 4, 5], Some(&announced)),
        AfterCommit::Kept
    );
}

/// A job's versions: for each, how it is kept (0: unwanted, 1: kept, 2: away) and how far before it its need is
/// (0: it has none).
fn jobs() -> impl Strategy<Value = Vec<(u8, u8)>> {
    prop::collection::vec((0..3_u8, 0..4_u8), 1..30)
}

proptest! {
    #[test]
    fn no_plan_covers_what_is_kept(job in jobs(), earlier in jobs()) {
        let checkpoint = |number: usize, back: u8| {
            let number = number as u8 + 1;
            match number.checked_sub(back).filter(|need| back > 0 && *need > 0) {
                Some(need) => on(number, &[need]),
                None => whole(number),
            }
        };
        let of = |job: &[(u8, u8)], wanted: u8| -> Vec<Checkpoint> {
            let all = job.iter().enumerate().filter(|(_, (how, _))| *how == wanted);
            all.map(|(number, (_, back))| checkpoint(number, *back)).collect()
        };
        // What an earlier plan deleted is neither seen nor needed any more, as the rule sees to it.
        let keeps = of(&job, 1);
        let kept: BTreeSet<CheckpointId> = closure(&keeps, &of(&job, 0)).into_keys()
            .chain(keeps.iter().map(|one| one.stamp.checkpoint)).collect();
        let is_free = |one: &Checkpoint| !kept.contains(&one.stamp.checkpoint);
        let before: Vec<Checkpoint> = of(&earlier, 0).into_iter().filter(is_free).collect();
        let before: Vec<Stamp> = before.iter().map(|one| one.stamp).collect();
        let said = words(&[], Intervals::default().with(&before));

        let all = plan(&keeps, &of(&job, 0), Some(&said), Reach::Between);
        for id in &kept {
            let place = stamp(id.0[0]);
            prop_assert!(!all.gone.contains(&place), "deletes {}", id.0[0]);
            prop_assert!(!all.intervals.has(place), "covers {}", id.0[0]);
        }
        for one in of(&job, 0).iter().filter(|one| is_free(one)) {
            prop_assert!(all.gone.contains(&one.stamp), "leaves what nobody needs");
        }
        prop_assert!(all.intervals.cover(&said.intervals), "what was deleted stays deleted");
        if !all.gone.is_empty() {
            prop_assert!(all.intervals.len() <= kept.len() + 1);
        }
    }
}

#[test]
fn a_version_builds_on_what_the_owner_or_its_own_signer_signed() {
    let owner = OwnerId([1; 32]);
    let may = |by: u8, own: u8, said: Option<&Words>| {
        admits(
            stamp(2),
            PublicKey([by; 32]),
            owner,
            PublicKey([own; 32]),
            said,
        )
    };
    assert!(may(1, 1, None) && may(1, 7, None) && may(7, 7, None));
    assert!(!may(7, 8, None) && !may(7, 1, None), "another key's");
    let named = words(&[2], Intervals::default());
    let inside = words(&[], Intervals::default().with(&[stamp(2)]));
    let announced = plan(&[], &[whole(2)], None, Reach::Named).announcing();
    let announced = words(&[99], announced.unwrap().intervals);
    assert!(is_announced([stamp(1), stamp(2)], Some(&announced)));
    assert!(!is_announced([stamp(1), stamp(3)], Some(&announced)));
    assert!(!is_announced([stamp(2)], Some(&inside)), "carried out");
    assert!(
        !may(1, 1, Some(&named)) && !may(1, 1, Some(&inside)),
        "a deleted one"
    );
}
