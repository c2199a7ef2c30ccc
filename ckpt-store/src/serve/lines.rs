//! Lines of the log that others cause: each has a share of them.

use std::sync::{Mutex, PoisonError};

use codec::OwnerId;

use super::Clock;
use crate::core::quiet::Quiet;

/// Counts the lines that members cause, each for itself, and strangers all together.
#[derive(Debug)]
pub struct Lines {
    clock: Clock,
    quiet: Mutex<Quiet<Option<OwnerId>>>,
}

impl Lines {
    /// Nobody has caused any.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            quiet: Mutex::default(),
        }
    }

    /// Whether a line about `who` may be written, `None` for somebody who has not shown who it is.
    /// If so, how many about it were held back before; nothing inside when none were.
    pub fn about(&self, who: Option<OwnerId>) -> Option<Option<u64>> {
        let mut quiet = self.quiet.lock().unwrap_or_else(PoisonError::into_inner);
        let held_back = quiet.line(self.clock.now(), who)?;
        Some((held_back > 0).then_some(held_back))
    }
}
