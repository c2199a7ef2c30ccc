//! The signals that the supervisor handles. [`supervision::signals`] decides what each of them means.

use std::fs;
use std::io;
use std::pin::pin;
use std::time::Duration;

use codec::JobId;
use rustix::process::{Signal as SystemSignal, getpid, kill_process};
use supervision::signals::{
    HUP, Meaning, Phase, TAKEN, asks_to_leave, leaving_first, meaning, name,
};
use supervision::{Ending, JobStatus};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use super::not_started;
use ckpt_agent::cancel::Canceller;
use ckpt_agent::report::{ExitStatus, Failure};

/// Length of the queue of signals.
const WAITING_MAX: usize = 16;

/// Signals that come within this time came together.
const TOGETHER: Duration = Duration::from_millis(50);

/// Longest wait for a cancelled call to tidy up.
const TIDY_TIMEOUT: Duration = Duration::from_secs(5);

/// Notifies of ended children, and of signals for the supervisor or the job.
#[derive(Debug)]
pub struct Signals {
    children: Signal,
    others: mpsc::Receiver<u8>,
}

/// A signal that ended a call during which no process of the job was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    signal: u8,
    /// Whether the job is to be started again.
    leaves: bool,
}

impl Asked {
    /// The failure if the job was not started because of the signal. `evict_exit` replaces 75.
    pub fn not_started(self, job: &JobId, evict_exit: Option<u8>) -> Failure {
        let state = "nothing of it ran: its newest version, if it has one, holds all of its state";
        let mut failure = self.failure(&format!("job {job} was not started"), evict_exit);
        failure.state = Some(state.to_owned());
        failure.next("start it again, here or elsewhere")
    }

    /// A failure with the status for this signal; `what` has not happened. Nothing is lost, so after a signal
    /// that asks to leave the status asks a batch system to start the job again.
    pub(super) fn failure(self, what: &str, evict_exit: Option<u8>) -> Failure {
        let (status, exit_code) = if self.leaves {
            let again = evict_exit.unwrap_or(Ending::SAVED);
            (ExitStatus::Terminated, again)
        } else {
            let ended = JobStatus::Signalled(self.signal).code();
            (ExitStatus::Interrupted, ended)
        };
        let mut failure = Failure::new(status, format!("{what}: {}", name(self.signal)));
        failure.exit_code = Some(exit_code);
        failure
    }
}

impl Signals {
    /// Handles these signals from now on, so that none of them ends this process.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub fn new() -> Result<Self, Failure> {
        Self::taken().map_err(|cause| {
            not_started(Failure::new(
                ExitStatus::Failed,
                format!("signals: {cause}"),
            ))
        })
    }

    fn taken() -> io::Result<Self> {
        let (sender, arrived) = mpsc::channel(WAITING_MAX);
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        for number in TAKEN {
            // `nohup` asks for that, and for the same in the job.
            if number == HUP && is_ignored(&status, HUP) {
                continue;
            }
            let mut taken = signal(SignalKind::from_raw(i32::from(number)))?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while taken.recv().await.is_some() && sender.send(number).await.is_ok() {}
            });
        }
        let (sender, others) = mpsc::channel(WAITING_MAX);
        tokio::spawn(order(arrived, sender));
        Ok(Self {
            children: signal(SignalKind::child())?,
            others,
        })
    }

    /// Waits for the next signal that means something in this phase, and returns its number. Stops this
    /// process at a signal that means [`Meaning::Pause`].
    pub(super) async fn meant(&mut self, phase: Phase) -> (Meaning, u8) {
        loop {
            let number = next(&mut self.others).await;
            match meaning(phase, number) {
                Meaning::Nothing => {}
                Meaning::Pause => stop_this_process(),
                means => return (means, number),
            }
        }
    }

    /// Waits for the end of a call during which no process of the job is there.
    ///
    /// # Errors
    /// When a signal came that ends this process or asks the job to leave. The call is dropped.
    pub async fn unless_asked<T>(&mut self, call: impl Future<Output = T>) -> Result<T, Asked> {
        let (means, signal) = tokio::select! {
            // A signal that came together with the end of the call must not get lost.
            biased;
            meant = self.meant(Phase::Transfer) => meant,
            ended = call => return Ok(ended),
        };
        Err(Asked {
            signal,
            leaves: means == Meaning::Leave,
        })
    }

    /// As [`Self::unless_asked`], but such a signal first cancels the call, which gets some time to tidy up.
    ///
    /// # Errors
    /// As there. Whatever the call returns after the signal is dropped.
    pub(super) async fn cancelling<T>(
        &mut self,
        canceller: &Canceller,
        call: impl Future<Output = T>,
    ) -> Result<T, Asked> {
        let mut call = pin!(call);
        let ended = self.unless_asked(call.as_mut()).await;
        if ended.is_err() {
            canceller.cancel();
            let _ = timeout(TIDY_TIMEOUT, call).await;
        }
        ended
    }

    /// Waits for the next signal. `None` means SIGCHLD: a child has ended.
    pub(super) async fn any(&mut self) -> Option<u8> {
        tokio::select! {
            number = next(&mut self.others) => Some(number),
            _ = self.children.recv() => None,
        }
    }
}

/// Waits for the next signal. It is private to this module, so that nobody handles signals but by the table.
async fn next(others: &mut mpsc::Receiver<u8>) -> u8 {
    match others.recv().await {
        Some(number) => number,
        None => std::future::pending().await,
    }
}

/// Passes signals on, of those that came together the ones first that ask to leave.
async fn order(mut arrived: mpsc::Receiver<u8>, ordered: mpsc::Sender<u8>) {
    while let Some(first) = arrived.recv().await {
        let mut together = vec![first];
        if !asks_to_leave(first) {
            let end = Instant::now() + TOGETHER;
            while together.len() < WAITING_MAX
                && let Ok(Some(next)) = timeout_at(end, arrived.recv()).await
            {
                together.push(next);
            }
            leaving_first(&mut together);
        }
        for number in together {
            if ordered.send(number).await.is_err() {
                return;
            }
        }
    }
}

/// Stops this process, as SIGTSTP does with a process that does not handle it. Returns when it goes on.
pub(super) fn stop_this_process() {
    // A process may always send itself a signal.
    let _ = kill_process(getpid(), SystemSignal::STOP);
}

/// Whether a process ignores a signal, by its file `status` in `/proc`.
fn is_ignored(status: &str, number: u8) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Signal 1 has the lowest bit.
    ignored.is_some_and(|mask| mask >> number.saturating_sub(1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ckpt_agent::cancel::canceller;

    /// Signals that the test sends, in place of the system.
    fn signals() -> (Signals, mpsc::Sender<u8>) {
        let (sender, others) = mpsc::channel(WAITING_MAX);
        let children = signal(SignalKind::child()).unwrap();
        (Signals { children, others }, sender)
    }

    #[tokio::test]
    async fn each_signal_ends_a_restore_or_has_no_effect_on_it() {
        for number in TAKEN {
            // It would stop the test.
            if meaning(Phase::Transfer, number) == Meaning::Pause {
                continue;
            }
            let (mut signals, sender) = signals();
            let (canceller, mut cancel) = canceller();
            sender.send(number).await.unwrap();
            let seen = std::cell::Cell::new(false);
            let restore = async {
                tokio::select! {
                    biased;
                    () = cancel.cancelled() => seen.set(true),
                    // The queue is empty: the signal was handled and did not cancel.
                    _ = sender.reserve_many(WAITING_MAX) => {}
                }
            };
            let ended = signals.cancelling(&canceller, restore).await;
            let expected = match meaning(Phase::Transfer, number) {
                Meaning::Leave => Err(Asked {
                    signal: number,
                    leaves: true,
                }),
                Meaning::End => Err(Asked {
                    signal: number,
                    leaves: false,
                }),
                _ => Ok(()),
            };
            assert_eq!(ended, expected, "signal {number}");
            assert_eq!(seen.get(), expected.is_err(), "signal {number}");
        }
    }

    #[tokio::test]
    async fn a_signal_that_comes_with_the_end_of_a_restore_is_not_lost() {
        let (mut signals, sender) = signals();
        sender.send(15).await.unwrap();
        let ended = signals.unless_asked(async {}).await;
        let asked = Asked {
            signal: 15,
            leaves: true,
        };
        assert_eq!(ended, Err(asked));
    }

    #[tokio::test]
    async fn a_hangup_that_comes_with_sigterm_comes_after_it() {
        let (sender, arrived) = mpsc::channel(WAITING_MAX);
        let (ordered, mut others) = mpsc::channel(WAITING_MAX);
        for number in [1, 28, 15] {
            sender.send(number).await.unwrap();
        }
        drop(sender);
        order(arrived, ordered).await;
        let mut came = Vec::new();
        while let Some(number) = others.recv().await {
            came.push(number);
        }
        assert_eq!(came, [15, 1, 28]);
    }

    #[test]
    fn only_a_signal_that_asks_to_leave_asks_for_another_start() {
        let job = "42".parse().unwrap();
        let code = |signal, evict_exit| {
            let leaves = asks_to_leave(signal);
            let asked = Asked { signal, leaves };
            asked.not_started(&job, evict_exit).exit_code()
        };
        assert_eq!(
            [1, 2, 3, 10, 15].map(|one| code(one, None)),
            [129, 130, 131, 75, 75]
        );
        assert_eq!([2, 15].map(|one| code(one, Some(85))), [130, 85]);
    }

    #[test]
    fn an_ignored_signal_is_found_in_the_status_of_a_process() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(status, 1) && is_ignored(status, 13));
        assert!(!is_ignored(status, 2) && !is_ignored("", 1));
    }
}
