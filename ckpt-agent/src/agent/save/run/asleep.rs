//! A session and the sleep of this machine.

use super::{SaveShell, millis};
use crate::agent::SaveInput;
use crate::core::Millis;

impl SaveShell<'_> {
    /// The time of the session. It stands still while this machine sleeps: no host is late for that.
    pub(super) fn now(&self) -> Millis {
        let awake = self.started.elapsed().saturating_sub(self.slept.by_timers);
        Millis(millis(awake))
    }

    /// Whether this machine slept, so that its connections are of no use, and the image can be saved once more from
    /// its beginning. From the first commit on, the session goes on.
    pub(super) fn is_to_begin_again(&mut self) -> bool {
        self.slept = self.sleep.slept();
        let is_there = matches!(
            self.request.input,
            SaveInput::Paths(_) | SaveInput::Named(_)
        );
        self.slept.times > 0
            && self.signed.is_none()
            && is_there
            && self.request.options.after.is_none()
    }
}
