//! How long to wait for silent hosts when others have answered.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::core::gather::{self, Wait};
use crate::core::{Fault, HostIndex, Millis};

/// When hosts count as silent that were asked at `begun`, if the last answer of the others came at `now`.
fn silent_at(begun: Instant, now: Instant) -> Instant {
    let Millis(ms) = gather::silent_at(Millis(0), Millis(0).after(now - begun));
    begun + Duration::from_millis(ms)
}

impl Wait {
    /// Collects the answers of `hosts`. Returns the hosts that did not do what they were asked, and why.
    pub(crate) async fn answers(
        self,
        hosts: &BTreeSet<HostIndex>,
        mut asking: JoinSet<(HostIndex, Result<(), Fault>)>,
    ) -> Vec<(HostIndex, Fault)> {
        let begun = Instant::now();
        let mut waiting = hosts.clone();
        let mut failed = Vec::new();
        let mut until = None;
        loop {
            let next = match until {
                Some(until) => timeout_at(until, asking.join_next()).await,
                None => Ok(asking.join_next().await),
            };
            let Ok(Some(answer)) = next else { break };
            // A task that panicked counts as a silent host.
            let Ok((host, answer)) = answer else { continue };
            waiting.remove(&host);
            if self == Self::NotForSilent {
                until = Some(silent_at(begun, Instant::now()));
            }
            failed.extend(answer.err().map(|fault| (host, fault)));
        }
        let waited = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let silent = waiting.into_iter();
        failed.extend(silent.map(|host| (host, Fault::Stalled(waited))));
        failed.sort_by_key(|(host, _)| *host);
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn failed_of(wait: Wait, slow: Duration) -> (Vec<HostIndex>, Duration) {
        let mut asking = JoinSet::new();
        for host in 0..5 {
            let slow = if host == 3 { slow } else { Duration::ZERO };
            asking.spawn(async move {
                tokio::time::sleep(slow).await;
                let refused = Fault::Gone("reset".into());
                (
                    HostIndex(host),
                    if host == 1 { Err(refused) } else { Ok(()) },
                )
            });
        }
        let hosts = (0..5).map(HostIndex).collect();
        let begun = Instant::now();
        let failed = wait.answers(&hosts, asking).await;
        (
            failed.into_iter().map(|(host, _)| host).collect(),
            begun.elapsed(),
        )
    }

    #[tokio::test]
    async fn a_silent_host_delays_no_answer() {
        let minute = Duration::from_secs(60);
        let (failed, took) = failed_of(Wait::NotForSilent, minute).await;
        assert_eq!(failed, [HostIndex(1), HostIndex(3)]);
        assert!(took < minute / 4, "{took:?}");
        let late = Duration::from_millis(1_500);
        let (failed, took) = failed_of(Wait::ForAll, late).await;
        assert_eq!(failed, [HostIndex(1)]);
        assert!(took >= late);
    }
}
