//! How hard to compress: as hard as is free.
//!
//! What a stronger level saves on the network costs processor time. When rows wait for the network
//! while processors are idle, the next ones are compressed harder; when processors are what everything
//! waits for, less. On memory images the fastest of these levels makes 5% more bytes than the level in
//! the middle in a quarter of its time (`benches --bin compress-image`).

use codec::compress::Level;

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Always this level.
    Fixed(Level),
    /// What the link and the processors allow.
    Auto,
}

/// What is known when a level is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Share of the memory for rows that holds rows on their way.
    pub filled: f64,
    /// Share of this machine's processor time that nobody used lately.
    pub idle: f64,
}

/// The ladder of levels, weakest first.
const LADDER: [Level; 4] = [
    Level::of::<-5>(),
    Level::of::<-1>(),
    Level::of::<1>(),
    Level::of::<3>(),
];

/// Rows wait for the network when they fill more than this share of the memory.
const WAITING: f64 = 0.5;
/// They do not when they fill less than this.
const FLOWING: f64 = 0.25;
/// Processors have time for more when this share of it is unused.
const IDLE: f64 = 0.3;
/// They are busy when less than this is.
const BUSY: f64 = 0.1;

/// Goes up and down the ladder, one step at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ladder {
    step: usize,
}

impl Default for Ladder {
    /// Begins below the middle: nothing is known of the link.
    fn default() -> Self {
        Self { step: 1 }
    }
}

impl Ladder {
    /// The level to use now.
    #[allow(
        clippy::indexing_slicing,
        reason = "`next` keeps the step below the number of levels"
    )]
    pub const fn level(self) -> Level {
        LADDER[self.step]
    }

    /// Where to go from here.
    #[must_use]
    pub fn next(self, load: Load) -> Self {
        let step = if load.idle < BUSY || load.filled < FLOWING {
            self.step.saturating_sub(1)
        } else if load.idle > IDLE && load.filled > WAITING {
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
