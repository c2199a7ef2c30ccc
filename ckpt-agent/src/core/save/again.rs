//! Which hosts are asked again after they failed to do their part, and when.
//!
//! Without a deadline, no save should wait for a machine that is gone: after silence a host is asked once
//! more, and a host that refuses and names a time within a minute is waited for. A deadline says how long the
//! caller is ready to wait, and is used up: silent and refusing hosts are asked again until it ends. The
//! times differ between clients, since machines that are vacated together save together.

use protocol::wire::Code;

use super::attempt::{Attempt, Phase};
use super::{SaveSession, Setback};
use crate::core::{Fault, HostIndex, Millis};

/// How many times a host that names a time is asked again when there is no deadline.
pub(super) const RETRIES_MAX: u32 = 3;

/// Without a deadline, how long after its beginning a save asks hosts again that have too many transfers at the
/// moment, milliseconds: eight clients that each save 256 MiB over links of 200 Mbit/s need 190 s for all. The
/// sessions of a save that begins again share this time.
pub(crate) const CROWDED_MS: u64 = 300_000;

/// Without a deadline, a host that refuses is waited for only if the time that it names is at most this many
/// milliseconds after the beginning of the save.
pub(super) const NAMED_WAIT_MS: u64 = 62_000;

/// How many times a host that was lost before it had the whole shard is tried again, after all others.
pub(super) const LOST_RETRIES_MAX: u32 = 2;

/// Rest before a host that named no time is tried again, milliseconds; doubles each time.
pub(super) const REST_MS: u64 = 500;

/// Most doublings of a rest, and of the time that a silent host is given.
const DOUBLINGS_MAX: u32 = 4;

/// How long the other hosts are awaited once it is known that there are too few, milliseconds: the report
/// should state what each of them did.
pub(super) const HEARING_MS: u64 = 1_200;

/// Most setbacks that are kept for the report.
const SETBACKS_MAX: usize = 1_000;

/// A host that may be asked to hold a shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) host: HostIndex,
    pub(super) not_before: Millis,
    pub(super) retries: u32,
    /// It was replaced because it was slow: better than no host, but no spare for another slow host.
    pub(super) was_slow: bool,
    /// It did not answer when it was asked last: it gets less time to accept.
    pub(super) was_silent: bool,
    /// Its tries are used up: it is asked only while there are too few other hosts.
    pub(super) for_need: bool,
}

impl Candidate {
    pub(super) const fn new(host: HostIndex, not_before: Millis) -> Self {
        Self {
            host,
            not_before,
            retries: 0,
            was_slow: false,
            was_silent: false,
            for_need: false,
        }
    }

    /// A host that did not answer when it was asked before the save.
    pub(super) const fn silent(host: HostIndex, not_before: Millis) -> Self {
        Self {
            retries: LOST_RETRIES_MAX,
            was_silent: true,
            ..Self::new(host, not_before)
        }
    }
}

impl SaveSession {
    /// A host that failed, as a candidate for another try; `None` when it is not asked again.
    pub(super) fn again(
        &mut self,
        attempt: (HostIndex, Phase, u32),
        fault: &Fault,
    ) -> Option<Candidate> {
        let (host, phase, retries) = attempt;
        let mut again = Candidate::new(host, self.now);
        again.retries = retries.saturating_add(1);
        match fault {
            // The host is not to blame: the next try may read from other sources.
            Fault::Starved => {
                again.not_before = self.now.plus(REST_MS << retries.min(DOUBLINGS_MAX));
                (retries < RETRIES_MAX).then_some(again)
            }
            // The host may come back with a shard that this save no longer counts on. Sending it another
            // shard would race with the removal of that one.
            _ if phase.may_hold_shard() => None,
            Fault::Lied(_) => None,
            Fault::Slow { .. } => {
                again.not_before = self.now.plus(REST_MS);
                again.was_slow = true;
                Some(again)
            }
            Fault::Gone(_) | Fault::Silent(_) | Fault::Stalled(_) => {
                self.after_silence(again, fault, retries)
            }
            Fault::Refused { code, .. } => self.after_refusal(again, fault, *code, retries),
        }
    }

    /// Whether hosts with too many transfers are still asked again when there is no deadline.
    const fn may_wait_for_crowds(&self) -> bool {
        self.now.0 < CROWDED_MS
    }

    fn after_silence(
        &self,
        mut again: Candidate,
        fault: &Fault,
        retries: u32,
    ) -> Option<Candidate> {
        let rest = REST_MS << retries.min(DOUBLINGS_MAX);
        again.was_silent = true;
        // A host that did nothing for long has cost enough time already.
        if matches!(fault, Fault::Gone(_)) && retries < LOST_RETRIES_MAX {
            again.not_before = self.now.plus(rest);
            return Some(again);
        }
        // A silent host was pinged for long enough: it is asked once more, without a rest.
        if matches!(fault, Fault::Silent(_)) && retries < LOST_RETRIES_MAX {
            again.retries = LOST_RETRIES_MAX;
            return Some(again);
        }
        again.not_before = self.rested(rest, again);
        self.within_deadline(again)
    }

    fn after_refusal(
        &mut self,
        mut again: Candidate,
        fault: &Fault,
        code: Code,
        retries: u32,
    ) -> Option<Candidate> {
        let Some(named) = fault.named_wait_ms() else {
            again.not_before = self.rested(REST_MS << retries.min(DOUBLINGS_MAX), again);
            // The host drops what it got of an earlier transfer as soon as it sees the end of that.
            if matches!(code, Code::Exists) && self.may_wait_for_crowds() {
                again.for_need = !self.wants_all() && retries >= RETRIES_MAX;
                return Some(again);
            }
            let may_change = matches!(code, Code::Busy | Code::Stopping | Code::NoSpace);
            return self.within_deadline(again).filter(|_| may_change);
        };
        // Whatever time a host names, it is not asked without a rest.
        let at = self.now.plus(named.max(REST_MS));
        self.soonest = Some(self.soonest.map_or(at, |soonest| soonest.min(at)));
        if self.plan.deadline.is_some() {
            again.not_before = self.with_jitter(named, again);
            let is_worth_a_wait = fault.is_crowded() && retries < RETRIES_MAX;
            return self.within_deadline(again).map(|again| Candidate {
                for_need: again.for_need && !is_worth_a_wait,
                ..again
            });
        }
        again.not_before = at;
        // When many clients save at once, those that came first end soon.
        if fault.is_crowded() && self.may_wait_for_crowds() {
            // A caller that accepts fewer shards waits longer only while there are too few hosts for those.
            again.for_need = !self.wants_all() && retries >= RETRIES_MAX;
            return Some(again);
        }
        again.for_need = !fault.is_crowded() && !self.wants_all();
        let is_in_time = at <= self.began.plus(NAMED_WAIT_MS);
        (is_in_time && retries < RETRIES_MAX).then_some(again)
    }

    /// The candidate, if its time comes before the deadline; `None` without a deadline.
    fn within_deadline(&self, mut again: Candidate) -> Option<Candidate> {
        let end = self.commit_by?;
        again.for_need = !self.wants_all();
        (again.not_before < end).then_some(again)
    }

    /// Whether the caller would rather wait than commit with fewer shards.
    fn wants_all(&self) -> bool {
        usize::from(self.plan.min_parity) >= self.plan.redundancy.parity()
    }

    /// The time after a wait of `wait_ms` and up to half as much again; differs between hosts, tries and
    /// clients.
    fn with_jitter(&self, wait_ms: u64, again: Candidate) -> Millis {
        let drawn =
            scrambled(self.plan.draw ^ scrambled(again.host.0 as u64) ^ u64::from(again.retries));
        self.now.plus(wait_ms).plus(drawn % (wait_ms / 2).max(1))
    }

    /// The time after a rest that no host asked for; always before the deadline.
    fn rested(&self, rest_ms: u64, again: Candidate) -> Millis {
        let at = self.with_jitter(rest_ms, again);
        let last = self.commit_by.map(|end| Millis(end.0.saturating_sub(1)));
        last.map_or(at, |last| at.min(last.max(self.now)))
    }

    /// Fewest shards with which the save may commit.
    pub(super) fn needed(&self) -> usize {
        let redundancy = self.plan.redundancy;
        redundancy.data() + usize::from(self.plan.min_parity).min(redundancy.parity())
    }

    /// Whether a candidate may be asked, now or later: if it is `for_need`, only while hosts are missing.
    pub(super) fn may_ask(&self, candidate: &Candidate) -> bool {
        !candidate.for_need || self.live().count() < self.needed()
    }

    /// Whether every shard that can get an attempt has one.
    pub(super) fn is_placed(&self) -> bool {
        self.unplaced.is_empty() || !self.candidates.iter().any(|c| self.may_ask(c))
    }

    /// How long the host of an attempt may take to accept.
    pub(super) fn open_ms(&self, attempt: &Attempt) -> u64 {
        let limits = &self.plan.limits;
        if !attempt.was_silent {
            return limits.open_ms;
        }
        let more = attempt
            .retries
            .saturating_sub(LOST_RETRIES_MAX)
            .min(DOUBLINGS_MAX);
        (limits.again_ms << more).min(limits.open_ms)
    }

    /// Too few hosts do their part: ends the save as soon as the other hosts have answered.
    pub(super) fn lacks_hosts(&mut self, needed: usize) {
        let since = *self.lacking_since.get_or_insert(self.now);
        let is_heard = self.in_phase(Phase::Opening).is_empty();
        if is_heard || self.now >= since.plus(HEARING_MS) {
            let placed = self.accepted_count().min(needed.saturating_sub(1));
            self.fail(super::SaveFailure::NotEnoughHosts { placed, needed });
        }
    }

    /// How many hosts have accepted a shard and not failed since.
    pub(super) fn accepted_count(&self) -> usize {
        self.live()
            .filter(|(_, a)| a.phase != Phase::Opening)
            .count()
    }

    /// When the other hosts have been awaited for long enough.
    pub(super) fn heard_at(&self) -> Option<Millis> {
        Some(self.lacking_since?.plus(HEARING_MS))
    }

    /// Records how a host failed, and when it is asked again.
    pub(super) fn note(&mut self, host: HostIndex, fault: Fault, again: Option<Millis>) {
        self.troubles.insert(host, fault.clone());
        let setback = Setback { host, fault, again };
        let is_known = |one: &Setback| {
            one.host == host && one.fault == setback.fault && one.again.is_some() == again.is_some()
        };
        if self.setbacks.len() < SETBACKS_MAX && !self.setbacks.iter().any(is_known) {
            self.setbacks.push(setback);
        }
    }

    /// Has those hosts asked now that wanted to be asked later: a host does not accept this client any more. If
    /// the user was revoked, others do not either, and waiting for them is of no use. A host that does not
    /// accept the client is not asked again, so no host can have the others asked twice.
    pub(super) fn ask_at_once(&mut self, is_meant: impl Fn(HostIndex) -> bool) {
        let now = self.now;
        let meant = self.candidates.iter_mut();
        for candidate in meant.filter(|candidate| is_meant(candidate.host)) {
            candidate.not_before = candidate.not_before.min(now);
        }
    }

    /// The faults up to now, in order; the same fault of the same host is listed once.
    pub fn setbacks(&self) -> &[Setback] {
        &self.setbacks
    }

    /// Hosts that failed and have no shard now, by index, with their last fault.
    pub fn troubles(&self) -> impl Iterator<Item = (HostIndex, &Fault)> {
        let holds = |host: HostIndex| {
            let accepted =
                |attempt: &Attempt| attempt.host == host && attempt.phase != Phase::Opening;
            self.live().any(|(_, attempt)| accepted(attempt))
        };
        let troubles = self.troubles.iter().filter(move |(host, _)| !holds(**host));
        troubles.map(|(host, fault)| (*host, fault))
    }

    /// The earliest time that a refusing host named for asking again.
    pub const fn soonest(&self) -> Option<Millis> {
        self.soonest
    }
}

/// Mixes all bits of a number into each other (splitmix64).
const fn scrambled(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
