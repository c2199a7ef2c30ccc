//! Limits the log lines that peers cause, so that each has a share of them.

use std::sync::{Mutex, PoisonError};

use codec::OwnerId;

use crate::clock::Clock;
use crate::core::quiet::Quiet;

/// Counts the lines of each member, and those of all strangers together.
#[derive(Debug)]
pub struct Lines {
    clock: Clock,
    quiet: Mutex<Quiet<Option<OwnerId>>>,
}

impl Lines {
    /// Counters for which no member has written a line yet.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            quiet: Mutex::default(),
        }
    }

    /// Whether a line about `who` may be written; `None` stands for a peer that has shown no certificate.
    /// If so, the inner value is the number of lines about `who` that were held back since the last one,
    /// or `None` if there were none.
    pub fn about(&self, who: Option<OwnerId>) -> Option<Option<u64>> {
        let mut quiet = self.quiet.lock().unwrap_or_else(PoisonError::into_inner);
        let held_back = quiet.line(self.clock.now(), who)?;
        Some((held_back > 0).then_some(held_back))
    }
}
