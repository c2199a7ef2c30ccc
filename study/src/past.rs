//! A host's past as times up and down, from which failures and recoveries follow.

use placement::history::Timeline;
use placement::state::{AvailabilityState, ModelState};

/// Which states count as unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// The states in which a guest can't run: S3, S4 and S5.
    Guest,
    /// Only the state of a host that is gone: S5.
    Gone,
}

/// A host and its observed states.
#[derive(Clone, Copy, Debug)]
pub struct HostPast<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its failure domain by place; may be empty.
    pub site: &'a str,
    /// Its states.
    pub timeline: &'a Timeline<AvailabilityState>,
}

/// A time in which a host was up, or down, throughout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stay {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) is_up: bool,
    /// State in which it began.
    pub(crate) cause: AvailabilityState,
    /// Whether its beginning was observed: the host was known to be down (or up) just before.
    pub(crate) begins: bool,
    /// Whether its end was observed.
    pub(crate) ends: bool,
}

impl Stay {
    pub(crate) const fn seconds(&self) -> u64 {
        self.end - self.start
    }
}

impl Counts {
    fn is_up(self, state: AvailabilityState) -> bool {
        match self {
            Self::Guest => !state.is_failure(),
            Self::Gone => state != AvailabilityState::Gone,
        }
    }

    /// The stays of a host in order of time. Unknown times lie between stays and belong to none.
    pub(crate) fn stays(self, timeline: &Timeline<AvailabilityState>) -> Vec<Stay> {
        let mut stays: Vec<Stay> = Vec::new();
        for run in timeline.runs(0..u64::MAX) {
            let Some(state) = run.state else { continue };
            let is_up = self.is_up(state);
            let mut begins = false;
            if let Some(last) = stays.last_mut().filter(|last| last.end == run.span.start) {
                if last.is_up == is_up {
                    last.end = run.span.end;
                    continue;
                }
                last.ends = true;
                begins = true;
            }
            stays.push(Stay {
                start: run.span.start,
                end: run.span.end,
                is_up,
                cause: state,
                begins,
                ends: false,
            });
        }
        stays
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AvailabilityState::{Busy, CpuTaken, Gone, Idle};

    #[test]
    fn neighbours_of_one_kind_are_one_stay_and_the_unknown_ends_none() {
        let mut timeline = Timeline::new(0);
        let runs = [
            (0, 10, Idle),
            (10, 20, Busy),
            (20, 25, CpuTaken),
            (25, 40, Gone),
            (40, 50, Idle),
            (60, 70, Gone),
        ];
        for (start, end, state) in runs {
            timeline.push(start..end, Some(state));
        }
        let seen: Vec<_> = Counts::Guest
            .stays(&timeline)
            .into_iter()
            .map(|stay| (stay.start, stay.end, stay.is_up, stay.begins, stay.ends))
            .collect();
        let expected = [
            (0, 20, true, false, true),
            (20, 40, false, true, true),
            (40, 50, true, true, false),
            (60, 70, false, false, false),
        ];
        assert_eq!(seen, expected);
        let gone = Counts::Gone.stays(&timeline);
        assert_eq!((gone[0].end, gone[1].start, gone[1].cause), (25, 25, Gone));
    }
}
