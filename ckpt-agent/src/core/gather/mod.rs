//! Asking all hosts: who has answered enough, and how long the others are waited for. [`silence`] decides what
//! may be concluded when some do not answer.

pub mod silence;

use std::collections::BTreeSet;

use codec::Version;

use super::{HostIndex, Millis};

/// How long hosts that are alive but slow are waited for, once enough others have answered.
const SLOW_HOSTS_GRACE_MS: u64 = 300;

/// A host counts as silent when it has not answered for this long, if the others have.
const SILENCE_MS: u64 = 1_300;

/// If the others take longer, a host counts as silent after this many times their time: on a busy machine,
/// all answers are late.
const SILENCE_FACTOR: u64 = 4;

/// When hosts count as silent that were asked at `begun`, if the last answer of the others came at `now`.
pub fn silent_at(begun: Millis, now: Millis) -> Millis {
    begun.plus(SILENCE_MS.max(now.since(begun).saturating_mul(SILENCE_FACTOR)))
}

/// For which hosts to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// All hosts, up to the time limits of connections and requests.
    ForAll,
    /// Hosts that are silent once others have answered are left out.
    NotForSilent,
}

/// How much has to be known before an operation goes on. All waits are bounded by the time limits of
/// connections and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitUntil {
    /// The answers of these hosts.
    Answers(Wait),
    /// Enough hosts have answered to place a checkpoint of `shards` shards, and fewer than `shards` are
    /// missing: of each checkpoint with as many shards, at least one holder has answered. The newest checkpoint
    /// can be restored: what it builds on and can't be read would be stored again.
    ToSave {
        /// Shards of the new checkpoint.
        shards: usize,
    },
    /// The checkpoint of this version can be restored.
    ToRestoreVersion(Version),
    /// The newest checkpoint can be restored, and the silent hosts are too few to be all the holders of a
    /// newer one.
    ToRestoreNewest,
}

impl WaitUntil {
    /// The answers of all hosts.
    pub const ALL: Self = Self::Answers(Wait::ForAll);

    /// Whether enough is known when `answered` hosts have answered, and `silent` ones have not, or not yet.
    fn is_enough(self, best: Option<Best>, answered: usize, silent: usize) -> bool {
        let can_be_restored = best.is_some_and(|best| best.can_be_restored);
        match self {
            Self::Answers(_) => false,
            Self::ToSave { shards } => {
                let is_short = best.is_some() && !can_be_restored;
                answered >= shards && silent < shards && !is_short
            }
            Self::ToRestoreVersion(_) => can_be_restored,
            Self::ToRestoreNewest => {
                can_be_restored && best.is_some_and(|best| silent < best.shards)
            }
        }
    }

    /// Whether an early answer matters more than what silent hosts may know: a save asks them again itself,
    /// and at least one holder of every checkpoint with as many shards as the new one has answered.
    const fn is_hurried(self, answered: usize, silent: usize) -> bool {
        match self {
            Self::ToSave { shards } => answered > 0 && silent < shards,
            Self::Answers(Wait::NotForSilent) => answered > 0,
            Self::Answers(Wait::ForAll) | Self::ToRestoreVersion(_) | Self::ToRestoreNewest => {
                false
            }
        }
    }
}

/// The best that hosts have shown so far of what is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Best {
    /// Its data and parity shards.
    pub shards: usize,
    /// Whether enough of them were found, and enough of those of all that it builds on.
    pub can_be_restored: bool,
}

/// Waits for the answers of hosts that were all asked at one time.
#[derive(Clone, Debug)]
pub struct Gathering {
    wait_until: WaitUntil,
    begun: Millis,
    last_answer: Millis,
    /// Hosts that have neither answered nor failed.
    waiting: BTreeSet<HostIndex>,
    answered: usize,
    failed: usize,
    /// When slow hosts are left out, since enough is known.
    grace_until: Option<Millis>,
    /// When hosts count as silent.
    silence_until: Option<Millis>,
}

impl Gathering {
    /// All `hosts` are asked at `now`.
    pub fn begin(
        wait_until: WaitUntil,
        hosts: impl IntoIterator<Item = HostIndex>,
        now: Millis,
    ) -> Self {
        Self {
            wait_until,
            begun: now,
            last_answer: now,
            waiting: hosts.into_iter().collect(),
            answered: 0,
            failed: 0,
            grace_until: None,
            silence_until: None,
        }
    }

    /// A host answered; `best` is what hosts have shown by now.
    pub fn answered(&mut self, host: HostIndex, best: Option<Best>, now: Millis) {
        if self.waiting.remove(&host) {
            self.answered += 1;
            self.last_answer = now;
        }
        self.look(best, now);
    }

    /// A host failed, and will not answer any more.
    pub fn failed(&mut self, host: HostIndex, best: Option<Best>, now: Millis) {
        self.failed += usize::from(self.waiting.remove(&host));
        self.look(best, now);
    }

    fn look(&mut self, best: Option<Best>, now: Millis) {
        let silent = self.waiting.len() + self.failed;
        if self.grace_until.is_none() && self.wait_until.is_enough(best, self.answered, silent) {
            self.grace_until = Some(now.plus(SLOW_HOSTS_GRACE_MS));
        }
        if self.wait_until.is_hurried(self.answered, silent) {
            self.silence_until = Some(silent_at(self.begun, self.last_answer));
        }
    }

    /// Until when to wait for further answers; `None`: until all hosts have answered or failed.
    pub fn deadline(&self) -> Option<Millis> {
        self.grace_until.or(self.silence_until)
    }

    /// Whether to go on at the deadline. `is_any_connected`: whether the connection to one of the hosts that
    /// are waited for stands. Such a host is alive and may take its time, unless enough is known.
    pub fn goes_on(&mut self, is_any_connected: bool, now: Millis) -> bool {
        if self.grace_until.is_none() && is_any_connected {
            self.silence_until = Some(now.plus(SLOW_HOSTS_GRACE_MS));
            return false;
        }
        true
    }

    /// Whether enough was known before all hosts had answered or failed.
    pub const fn was_enough(&self) -> bool {
        self.grace_until.is_some()
    }

    /// When the last host answered, once at least half of the hosts that have not failed have answered.
    pub fn half_at(&self) -> Option<Millis> {
        let has_half = self.answered > 0 && self.answered >= self.waiting.len();
        has_half.then_some(self.last_answer)
    }

    /// The hosts that have neither answered nor failed.
    pub const fn waiting(&self) -> &BTreeSet<HostIndex> {
        &self.waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Millis = Millis(1_000);

    fn begin(wait_until: WaitUntil, hosts: usize) -> Gathering {
        Gathering::begin(wait_until, (0..hosts).map(HostIndex), T0)
    }

    fn answer(gathering: &mut Gathering, hosts: std::ops::Range<usize>, best: Option<Best>) {
        for host in hosts {
            gathering.answered(HostIndex(host), best, T0.plus(10));
        }
    }

    const WHOLE: Option<Best> = Some(Best {
        shards: 5,
        can_be_restored: true,
    });

    #[test]
    fn the_newest_is_enough_once_the_silent_can_not_hold_a_newer_one() {
        let mut gathering = begin(WaitUntil::ToRestoreNewest, 9);
        answer(&mut gathering, 0..4, WHOLE);
        assert_eq!(gathering.deadline(), None, "five may hold a newer one");
        answer(&mut gathering, 4..5, WHOLE);
        assert_eq!(gathering.deadline(), Some(T0.plus(310)));
        assert!(gathering.goes_on(true, T0.plus(310)) && gathering.was_enough());
        assert_eq!(gathering.waiting().len(), 4);
    }

    #[test]
    fn lists_have_time_from_when_half_of_the_hosts_that_can_be_reached_have_answered() {
        let mut gathering = begin(WaitUntil::ALL, 5);
        answer(&mut gathering, 0..2, None);
        assert_eq!(gathering.half_at(), None, "three may have more to show");
        // Hosts that are down are not counted: of two others and a liar, two have answered.
        gathering.failed(HostIndex(2), None, T0.plus(5_000));
        assert_eq!(gathering.half_at(), Some(T0.plus(10)));
        assert_eq!(begin(WaitUntil::ALL, 0).half_at(), None);
    }

    #[test]
    fn a_named_version_is_enough_when_it_can_be_restored() {
        let mut gathering = begin(WaitUntil::ToRestoreVersion(Version::FIRST), 9);
        let short = Some(Best {
            shards: 5,
            can_be_restored: false,
        });
        answer(&mut gathering, 0..2, short);
        assert_eq!(gathering.deadline(), None);
        answer(&mut gathering, 2..3, WHOLE);
        assert!(gathering.deadline().is_some());
    }

    #[test]
    fn a_save_waits_for_a_silent_host_no_longer_than_for_four_times_the_others() {
        let mut gathering = begin(WaitUntil::ToSave { shards: 5 }, 6);
        answer(&mut gathering, 0..1, None);
        assert_eq!(
            gathering.deadline(),
            None,
            "five silent hosts hide a version"
        );
        answer(&mut gathering, 1..4, None);
        assert_eq!(gathering.deadline(), Some(T0.plus(SILENCE_MS)));
        gathering.answered(HostIndex(4), None, T0.plus(1_000));
        // Five have answered, which is enough.
        assert_eq!(gathering.deadline(), Some(T0.plus(1_300)));
        let slow = silent_at(T0, T0.plus(1_000));
        assert_eq!(slow, T0.plus(4_000));
    }

    #[test]
    fn a_save_waits_for_hosts_of_what_the_newest_version_builds_on() {
        let short = WHOLE.map(|best| Best {
            can_be_restored: false,
            ..best
        });
        let mut gathering = begin(WaitUntil::ToSave { shards: 5 }, 9);
        answer(&mut gathering, 0..7, short);
        assert!(!gathering.was_enough());
        answer(&mut gathering, 7..8, WHOLE);
        assert!(gathering.was_enough());
    }

    #[test]
    fn a_connected_host_is_waited_for_until_its_own_time_limit() {
        let mut gathering = begin(WaitUntil::Answers(Wait::NotForSilent), 3);
        answer(&mut gathering, 0..1, None);
        gathering.failed(HostIndex(1), None, T0.plus(20));
        let at = gathering.deadline().unwrap();
        assert!(!gathering.goes_on(true, at));
        let again = gathering.deadline().unwrap();
        assert_eq!(again, at.plus(SLOW_HOSTS_GRACE_MS));
        assert!(gathering.goes_on(false, again) && !gathering.was_enough());
    }

    #[test]
    fn all_answers_are_waited_for_without_a_deadline() {
        let mut gathering = begin(WaitUntil::ALL, 3);
        answer(&mut gathering, 0..2, WHOLE);
        assert_eq!(gathering.deadline(), None);
        // A host that answers twice counts once.
        answer(&mut gathering, 0..2, WHOLE);
        assert_eq!(gathering.answered, 2);
    }
}
