//! What was seen of hosts and repairs over the last days, in bounded memory.

use std::collections::VecDeque;

use crate::Health;

/// Least time between two samples, seconds.
pub const SAMPLE_PERIOD_S: u64 = 600;

/// How many samples are kept: those of a week.
pub const SAMPLES_MAX: usize = 7 * 24 * 6;

/// Hosts and repairs at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When the sample was taken, Unix seconds.
    pub at: u64,
    /// How many hosts were known.
    pub known: usize,
    /// How many of them answered.
    pub up: usize,
    /// Bytes that the answering hosts lent.
    pub capacity_bytes: u64,
    /// Bytes of these that were used.
    pub used_bytes: u64,
    /// Checkpoints that had fewer shards than they were saved with, as [`Health::awaiting_repair`] counts.
    pub awaiting_repair: Option<u64>,
}

/// The samples of the last days, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History(VecDeque<Sample>);

impl History {
    /// Adds what a report says, unless the last sample is less than [`SAMPLE_PERIOD_S`] old. A clock that
    /// was set back starts the history anew.
    pub fn enter(&mut self, health: &Health) {
        match self.0.back().map(|last| last.at) {
            Some(last) if health.at < last => self.0.clear(),
            Some(last) if health.at - last < SAMPLE_PERIOD_S => return,
            _ => {}
        }
        if self.0.len() >= SAMPLES_MAX {
            self.0.pop_front();
        }
        let hosts = &health.hosts;
        self.0.push_back(Sample {
            at: health.at,
            known: hosts.known,
            up: hosts.up.value,
            capacity_bytes: hosts.capacity_bytes.value,
            used_bytes: hosts.used_bytes.value,
            awaiting_repair: health.awaiting_repair(),
        });
    }

    /// The samples, oldest first.
    pub fn samples(&self) -> impl DoubleEndedIterator<Item = &Sample> + Clone {
        self.0.iter()
    }

    /// Seconds from the oldest sample to the newest.
    pub fn length_s(&self) -> u64 {
        match (self.0.front(), self.0.back()) {
            (Some(first), Some(last)) => last.at.saturating_sub(first.at),
            _ => 0,
        }
    }

    /// A point for each sample that has a `value`: its time, as a share of the whole length, and the value.
    pub fn points(&self, value: impl Fn(&Sample) -> Option<f64>) -> Vec<(f64, f64)> {
        let first = self.0.front().map_or(0, |first| first.at);
        let length = self.length_s().max(1) as f64;
        let x = |sample: &Sample| sample.at.saturating_sub(first) as f64 / length;
        let point = |one| Some((x(one), value(one)?));
        self.0.iter().filter_map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at: u64) -> Health {
        Health {
            at,
            ..Health::default()
        }
    }

    #[test]
    fn a_week_of_samples_is_kept() {
        let mut history = History::default();
        for minute in 0..20 * 24 * 60 {
            history.enter(&at(1_000_000 + minute * 60));
        }
        let samples: Vec<u64> = history.samples().map(|sample| sample.at).collect();
        assert_eq!(samples.len(), SAMPLES_MAX);
        assert!(
            samples
                .windows(2)
                .all(|pair| pair[1] - pair[0] == SAMPLE_PERIOD_S)
        );
        history.enter(&at(5));
        assert_eq!(history.samples().count(), 1, "the clock was set back");
    }
}
