//! What may be concluded when members of the grid are silent. A member is silent from the time when it was last
//! seen until it answers or is removed from the grid: it may come back with what it holds.
//!
//! Any one holder shows a version, so a version is hidden only if all of its holders are silent, or lie.

use codec::{Redundancy, ShardIndex, Version};
use std::collections::BTreeSet;

use codec::geometry::{DATA_USUAL, PARITY_USUAL};

/// Members from which on the usual code is used.
const MEMBERS_FOR_USUAL_CODE: usize = (DATA_USUAL + PARITY_USUAL) as usize;

/// How many members there are, and how many of them do not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Silence {
    /// All members of the grid: those that answered, and the silent ones.
    pub members: usize,
    /// Members that did not answer, also those that no registry names as being there.
    pub silent: usize,
}

/// What this machine remembers of a job of which no host that answers shows a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remembered {
    /// It has never seen a version, or its owner deleted what it saw.
    Nothing,
    /// It has seen a version that is still to be kept.
    Version,
    /// An older program has recorded a version. Whether its owner deleted it is not known.
    Perhaps,
}

/// What is known of a version that no host that answers shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unshown {
    /// There is none.
    None,
    /// Silent members may hold it.
    MayBeAway,
    /// It was there, and all members have answered: it is lost.
    Lost,
}

/// The first version of a line of versions; `None` in the first line of a job. A job that is begun anew while
/// its versions may be away has two lines once they are back, and neither follows from the other.
pub type Line = Option<Version>;

/// What a job on this machine goes on with: what it was restored from, or last saved as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoesOn {
    /// Nothing: it began anew, without what silent members may hold.
    Anew,
    /// A version of this line.
    With(Line),
}

/// How a job's next version is numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextNumber {
    /// The number.
    pub number: Version,
    /// Whether silent members may hold versions that this one does not continue.
    pub begins_line: bool,
}

impl NextNumber {
    /// The line of a version that got the number `number`, since others may have had this one. What the job
    /// goes on with decides; on a machine that does not know that, `newest`: the line of the newest version
    /// that hosts show.
    pub fn line(self, number: Version, goes_on: Option<GoesOn>, newest: Line) -> Line {
        match goes_on {
            _ if self.begins_line => Some(number),
            Some(GoesOn::With(line)) => line,
            // What began anew begins a line.
            Some(GoesOn::Anew) => Some(number),
            None => newest,
        }
    }
}

impl Silence {
    /// The fewest holders that a version may have which no answering host shows: as many as its data shards,
    /// since a version may be committed without its parity. `said`: the data shards with which the job is
    /// saved at least, if the caller knows that. In a grid that is too small for the usual code, it can be 1.
    pub fn least_holders(self, said: Option<u8>) -> usize {
        let usual = self.members >= MEMBERS_FOR_USUAL_CODE;
        let assumed = if usual { usize::from(DATA_USUAL) } else { 1 };
        said.map_or(assumed, usize::from).max(1)
    }

    /// Whether so many members are silent that they may hold a version of which nobody else has a shard. `said`
    /// is as in [`Self::least_holders`].
    pub fn may_hide_versions(self, said: Option<u8>) -> bool {
        self.silent >= self.least_holders(said)
    }

    /// What is known of a job of which no host that answers shows a version. `is_new`: the user knows that the
    /// job has none, or wants to begin it anew.
    pub fn of_unshown(self, remembered: Remembered, said: Option<u8>, is_new: bool) -> Unshown {
        if is_new {
            return Unshown::None;
        }
        match remembered {
            Remembered::Version | Remembered::Perhaps if self.silent > 0 => Unshown::MayBeAway,
            Remembered::Version => Unshown::Lost,
            Remembered::Nothing if self.may_hide_versions(said) => Unshown::MayBeAway,
            Remembered::Nothing | Remembered::Perhaps => Unshown::None,
        }
    }

    /// How many shards that are not among the `good` ones may come back: the `unread` ones, whose hosts broke
    /// off, and those that no answering host has, but at most one for each silent member, since each host
    /// holds one shard.
    pub fn may_come_back(
        self,
        redundancy: Redundancy,
        good: &BTreeSet<ShardIndex>,
        unread: &BTreeSet<ShardIndex>,
        held: &BTreeSet<ShardIndex>,
    ) -> usize {
        let unread = unread.difference(good).count();
        let absent = redundancy.shards().filter(|shard| !held.contains(shard));
        unread + absent.count().min(self.silent)
    }

    /// How a job's next version is numbered. `shown` is the newest that hosts show, `seen` the newest that this
    /// machine remembers, and `now` the time in Unix seconds. `goes_on`: what the job goes on with.
    ///
    /// If the job began anew, or silent members may hold versions and hosts show none, the number is the time.
    /// So versions that come back later are older by their numbers, too: no job is saved more often than once
    /// a second.
    pub fn next_number(
        self,
        shown: Option<Version>,
        seen: Option<Version>,
        goes_on: Option<GoesOn>,
        now: u64,
    ) -> NextNumber {
        let next = shown.max(seen).map_or(Version::FIRST, Version::next);
        let remembered = match seen {
            Some(_) => Remembered::Version,
            None => Remembered::Nothing,
        };
        let is_hidden = self.of_unshown(remembered, None, false) == Unshown::MayBeAway;
        let begins_line = goes_on == Some(GoesOn::Anew) || (shown.is_none() && is_hidden);
        let by_time = Version::new(now).filter(|_| begins_line);
        NextNumber {
            number: by_time.map_or(next, |by_time| next.max(by_time)),
            begins_line,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silence(members: usize, silent: usize) -> Silence {
        Silence { members, silent }
    }

    #[test]
    fn fewer_silent_members_than_data_shards_hide_nothing() {
        use Remembered::Nothing;
        let of = |members, silent, said| silence(members, silent).of_unshown(Nothing, said, false);
        assert_eq!(of(7, 2, None), Unshown::None);
        assert_eq!(of(7, 3, None), Unshown::MayBeAway);
        // Two mirrors, as the user states; and a grid that is too small for the usual code.
        assert_eq!(of(7, 1, Some(1)), Unshown::MayBeAway);
        assert_eq!(of(4, 1, None), Unshown::MayBeAway);
        assert_eq!(of(4, 1, Some(2)), Unshown::None);
        // All of the members that are there now answer, and as many are silent.
        assert_eq!(of(5, 5, None), Unshown::MayBeAway);
    }

    #[test]
    fn what_this_machine_has_seen_is_away_or_lost_but_there() {
        let of = |silent, remembered| silence(9, silent).of_unshown(remembered, None, false);
        assert_eq!(of(1, Remembered::Version), Unshown::MayBeAway);
        assert_eq!(of(0, Remembered::Version), Unshown::Lost);
        assert_eq!(of(1, Remembered::Perhaps), Unshown::MayBeAway);
        assert_eq!(of(0, Remembered::Perhaps), Unshown::None);
        let anew = silence(9, 9).of_unshown(Remembered::Version, None, true);
        assert_eq!(anew, Unshown::None, "the user says so");
    }

    #[test]
    fn shards_on_silent_hosts_are_not_lost() {
        let redundancy = Redundancy::new(3, 2).unwrap();
        let set = |numbers: &[u8]| -> BTreeSet<ShardIndex> {
            let shards = numbers.iter().map(|number| redundancy.shard(*number));
            shards.map(Option::unwrap).collect()
        };
        let away = |good, unread, held, silent| {
            let silence = silence(9, silent);
            silence.may_come_back(redundancy, &set(good), &set(unread), &set(held))
        };
        assert_eq!(away(&[0, 1], &[], &[0, 1], 3), 3);
        assert_eq!(away(&[0, 1], &[], &[0, 1], 1), 1);
        assert_eq!(away(&[0, 1], &[], &[0, 1], 0), 0);
        // Damaged shards do not come back; those of hosts that broke off may.
        assert_eq!(away(&[0, 1], &[], &[0, 1, 2, 3, 4], 2), 0);
        assert_eq!(away(&[0, 1], &[2, 3], &[0, 1, 2, 3, 4], 0), 2);
        // A shard with another, whole copy is there.
        assert_eq!(away(&[0, 1], &[1], &[0, 1, 2, 3, 4], 0), 0);
    }

    #[test]
    fn the_next_number_is_above_what_may_come_back() {
        let version = |number| Version::new(number).unwrap();
        let of = |silent, shown: Option<u64>, seen: Option<u64>, goes_on| {
            let shown = shown.map(version);
            let seen = seen.map(version);
            silence(9, silent).next_number(shown, seen, goes_on, 1_700_000_000)
        };
        let next = |silent, shown, seen| {
            let next = of(silent, shown, seen, None);
            assert!(next.begins_line || next.number.number() < 1_700_000_000);
            next.number.number()
        };
        assert_eq!(next(0, None, None), 1);
        assert_eq!(next(2, None, None), 1);
        assert_eq!(next(3, None, None), 1_700_000_000);
        assert_eq!(
            next(5, Some(3), None),
            4,
            "the job goes on from what is shown"
        );
        assert_eq!(next(0, None, Some(7)), 8);
        assert_eq!(next(1, None, Some(7)), 1_700_000_000);
        assert_eq!(next(5, None, Some(1_800_000_000)), 1_800_000_001);
        // The job began anew, and what it was begun without is back before its first save.
        let anew = of(0, Some(3), Some(3), Some(GoesOn::Anew));
        assert_eq!(anew.number.number(), 1_700_000_000);
        assert!(anew.begins_line);
    }

    #[test]
    fn a_version_is_of_the_line_that_its_job_goes_on_with() {
        let version = |number| Version::new(number).unwrap();
        let number = version(9);
        let line = |begins_line, goes_on| {
            let next = NextNumber {
                number,
                begins_line,
            };
            next.line(number, goes_on, Some(version(5)))
        };
        assert_eq!(line(false, None), Some(version(5)));
        // The newest version that hosts show may be another's.
        assert_eq!(line(false, Some(GoesOn::With(None))), None);
        assert_eq!(line(true, Some(GoesOn::With(None))), Some(number));
        assert_eq!(line(true, Some(GoesOn::Anew)), Some(number));
    }
}
