//! How hard to compress: as hard as idle processors can without slowing the save down.
//!
//! A stronger level saves bytes on the network and costs processor time. When rows wait for the network
//! while processors are idle, the next rows are compressed harder; when everything waits for the
//! processors, less hard. On memory images the fastest of these levels makes 5% more bytes than the level in
//! the middle in a quarter of its time (`benches --bin compress-image`).

use codec::compress::Level;

/// The compression effort that the user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// This level for all segments.
    Fixed(Level),
    /// The level that fits the speed of the link and of the processors.
    Auto,
}

/// What a choice of level is based on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Share, 0 to 1, of the memory for rows that is taken by rows on their way to the hosts.
    pub filled: f64,
    /// Share, 0 to 1, of this machine's processor time that was unused lately.
    pub idle: f64,
}

/// The zstd levels to choose from, weakest first.
const LADDER: [Level; 4] = [
    Level::of::<-5>(),
    Level::of::<-1>(),
    Level::of::<1>(),
    Level::of::<3>(),
];

/// If rows fill more than this share of the memory, the network is what limits the save.
const FILLED_HIGH: f64 = 0.5;
/// If rows fill less than this share of the memory, the network keeps up.
const FILLED_LOW: f64 = 0.25;
/// If more than this share of the processor time is unused, a stronger level is free.
const IDLE_HIGH: f64 = 0.3;
/// If less than this share of the processor time is unused, the processors limit the save.
const IDLE_LOW: f64 = 0.1;

/// The present level; goes up and down in `LADDER`, one step at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ladder {
    step: usize,
}

impl Default for Ladder {
    /// Begins at the second weakest level, since nothing is known of the link.
    fn default() -> Self {
        Self { step: 1 }
    }
}

impl Ladder {
    /// The level for the next rows.
    #[allow(
        clippy::indexing_slicing,
        reason = "`next` keeps the step below the number of levels"
    )]
    pub const fn level(self) -> Level {
        LADDER[self.step]
    }

    /// The ladder one step up or down, or unchanged, as `load` demands.
    #[must_use]
    pub fn next(self, load: Load) -> Self {
        let step = if load.idle < IDLE_LOW || load.filled < FILLED_LOW {
            self.step.saturating_sub(1)
        } else if load.idle > IDLE_HIGH && load.filled > FILLED_HIGH {
            (self.step + 1).min(LADDER.len() - 1)
        } else {
            self.step
        };
        Self { step }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(loads: &[(f64, f64)]) -> Level {
        let climbed = loads.iter().fold(Ladder::default(), |ladder, load| {
            let (filled, idle) = *load;
            ladder.next(Load { filled, idle })
        });
        climbed.level()
    }

    #[test]
    fn a_slow_link_and_idle_processors_lead_up() {
        assert_eq!(after(&[(0.9, 0.8)]), LADDER[2]);
        assert_eq!(after(&[(0.9, 0.8); 9]), LADDER[3]);
    }

    #[test]
    fn busy_processors_lead_down_even_when_rows_wait() {
        assert_eq!(after(&[(0.9, 0.02); 9]), LADDER[0]);
    }

    #[test]
    fn a_link_that_takes_everything_leads_down() {
        assert_eq!(after(&[(0.05, 0.6); 9]), LADDER[0]);
    }

    #[test]
    fn between_the_two_nothing_changes() {
        assert_eq!(after(&[(0.4, 0.5), (0.9, 0.2)]), LADDER[1]);
    }
}
