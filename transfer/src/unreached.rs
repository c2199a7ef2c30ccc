//! Hosts that can't be reached: whoever asks all hosts again and again need not wait for these each time.

use std::time::Instant;

use crate::{Fault, HostIndex, Hosts};

impl Hosts {
    /// Whether a host fell silent and was not reached since.
    pub fn is_silent(&self, host: HostIndex) -> bool {
        self.watches().is_silent(host)
    }

    /// Why a host could not be reached within the last minute; `None` if it was reached since, or was not tried.
    pub fn lately_unreached(&self, host: HostIndex) -> Option<Fault> {
        self.watches().lately_unreached(host, Instant::now())
    }

    /// Tries in the background to reach a host, unless that is done already. If it can't be reached,
    /// [`Self::lately_unreached`] knows of that.
    pub fn try_again(&self, host: HostIndex) {
        if self.watches().tries(host) {
            let hosts = self.clone();
            tokio::spawn(async move {
                hosts.reach_aside(host).await;
                hosts.watches().tried(host);
            });
        }
    }
}
