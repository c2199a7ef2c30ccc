//! A job that takes checkpoints at Daly's interval and is killed when its host fails or its owner needs it.

use placement::interval::daly;
use placement::state::{AvailabilityState, ModelState};

use super::{Ground, Left, Stand};
use crate::knowledge::Knowledge;
use crate::outcome::JobOutcome;

/// Shortest time between checkpoints, seconds.
const LEAST_INTERVAL_SECONDS: f64 = 30.0;
/// Time for which a job is stopped before it is killed, seconds.
const STOPPED_SECONDS: f64 = 60.0;

impl Ground<'_> {
    /// Runs a job's stay on a host from `from` on.
    pub(super) fn daly(
        &self,
        knowledge: &Knowledge<'_>,
        stand: &Stand,
        from: f64,
        outcome: &mut JobOutcome,
    ) -> Left {
        let failure = self.next_state(stand.host, from, ModelState::is_failure);
        let leaves = failure.map_or(f64::INFINITY, |(at, _)| at).min(self.end);
        let checkpoint = self.jobs.checkpoint_seconds;
        let mut now = from;
        let mut worked = stand.saved;
        let mut saved = stand.saved;
        // The checkpoint that is being stored: when it will be committed, and the work that it holds.
        let mut storing: Option<(f64, f64)> = None;
        let mut number = 0;
        while now < leaves {
            let stay = knowledge.mean_stay(stand.host, self.unix(now));
            let interval = daly(checkpoint, stay).max(LEAST_INTERVAL_SECONDS);
            let left = self.jobs.work_seconds - worked;
            // A checkpoint begins only when the one before is stored.
            let begins = (now + interval).max(storing.map_or(0.0, |(at, _)| at));
            let stops = begins.min(now + left).min(leaves);
            outcome.computing_seconds += stops - now;
            worked += stops - now;
            now = stops;
            if let Some((_, content)) = storing.take_if(|(at, _)| *at <= now) {
                saved = content;
                outcome.stored += 1;
            }
            if worked >= self.jobs.work_seconds - 1e-6 {
                return Left {
                    at: now,
                    saved,
                    done: true,
                };
            }
            if now >= leaves {
                break;
            }
            number += 1;
            let takes = self.save_seconds(stand, number, worked - saved);
            storing = Some((now + takes.max(checkpoint), worked));
            let goes_on = (now + checkpoint).min(leaves);
            outcome.storing_seconds += goes_on - now;
            now = goes_on;
        }
        if let Some((_, content)) = storing.filter(|(at, _)| *at <= leaves) {
            saved = content;
            outcome.stored += 1;
        }
        outcome.lost_seconds += worked - saved;
        let is_taken = matches!(failure, Some((_, AvailabilityState::CpuTaken)));
        let stopped = if is_taken { STOPPED_SECONDS } else { 0.0 };
        outcome.waiting_seconds += stopped;
        Left {
            at: leaves + stopped,
            saved,
            done: false,
        }
    }
}
