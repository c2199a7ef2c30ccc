//! Chooses the level of compression for the next segment, from the load of processors and network.

use std::time::{Duration, Instant};

use codec::compress::Level;
use procfs::CurrentSI;

use super::budget::Budget;
use crate::core::effort::{Effort, Ladder, Load};

/// Shortest time between two steps of the level. The system counts processor time in hundredths of a second.
const STEP_PERIOD_MIN: Duration = Duration::from_millis(100);

/// The load of this machine's processors.
#[derive(Debug, Default)]
struct Processors {
    last: Option<(Instant, Times)>,
}

#[derive(Clone, Copy, Debug)]
struct Times {
    idle: u64,
    all: u64,
}

impl Processors {
    /// Share of their time that was unused since the last call; `None` if that was less than
    /// [`STEP_PERIOD_MIN`] ago, or if the system does not report processor times.
    fn idle(&mut self) -> Option<f64> {
        let now = Instant::now();
        if let Some((asked, _)) = self.last
            && now - asked < STEP_PERIOD_MIN
        {
            return None;
        }
        let times = times()?;
        let (_, before) = self.last.replace((now, times))?;
        let all = times.all.checked_sub(before.all).filter(|all| *all > 0)?;
        Some(times.idle.saturating_sub(before.idle) as f64 / all as f64)
    }
}

/// Clock ticks of all processors together since the system started.
fn times() -> Option<Times> {
    let total = procfs::KernelStats::current().ok()?.total;
    let waiting = total.iowait.unwrap_or(0);
    let others = [total.irq, total.softirq, total.steal];
    let others: u64 = others.into_iter().flatten().sum();
    let idle = total.idle + waiting;
    let all = total.user + total.nice + total.system + others + idle;
    Some(Times { idle, all })
}

/// Chooses levels: the user's fixed level, or one that follows the load.
#[derive(Debug)]
pub(super) struct Governor {
    effort: Effort,
    ladder: Ladder,
    processors: Processors,
}

impl Governor {
    pub(super) fn new(effort: Effort) -> Self {
        Self {
            effort,
            ladder: Ladder::default(),
            processors: Processors::default(),
        }
    }

    /// The level for the next segment, whose row takes its memory from `budget`.
    pub(super) fn level(&mut self, budget: &Budget) -> Level {
        if let Effort::Fixed(level) = self.effort {
            return level;
        }
        if let Some(idle) = self.processors.idle() {
            let filled = budget.filled();
            self.ladder = self.ladder.next(Load { filled, idle });
        }
        self.ladder.level()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_watched_for_a_while_before_anything_is_said() {
        let mut processors = Processors::default();
        assert_eq!(processors.idle(), None);
        let began = Instant::now();
        let said = loop {
            if let Some(idle) = processors.idle() {
                break idle;
            }
        };
        assert!(began.elapsed() >= STEP_PERIOD_MIN / 2);
        assert!((0.0..=1.0).contains(&said), "{said}");
    }

    #[test]
    fn an_effort_that_the_user_set_stays() {
        let level = Level::of::<6>();
        let mut governor = Governor::new(Effort::Fixed(level));
        assert_eq!(governor.level(&Budget::new(1)), level);
    }
}
