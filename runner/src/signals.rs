//! The signals that the supervisor handles.

use std::io;
use std::pin::pin;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use ckpt_agent::cancel::Canceller;

/// Numbers of the handled signals: HUP, INT, QUIT, USR1, USR2, TERM, TSTP, WINCH. POSIX and Linux fix
/// these numbers.
const TAKEN: [u8; 8] = [1, 2, 3, 10, 12, 15, 20, 28];

/// Those of them that ask a process to end: HUP, INT, QUIT, USR1, TERM.
const ENDING: [u8; 5] = [1, 2, 3, 10, 15];

/// Length of the queue of signals.
const WAITING_MAX: usize = 16;

/// Number of SIGTSTP.
pub(super) const TSTP: u8 = 20;

/// Notifies of ended children, and of signals for the supervisor or the job.
#[derive(Debug)]
pub(super) struct Signals {
    children: Signal,
    others: mpsc::Receiver<u8>,
}

impl Signals {
    /// Handles these signals from now on, so that none of them ends this process.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub(super) fn new() -> io::Result<Self> {
        let (sender, others) = mpsc::channel(WAITING_MAX);
        for number in TAKEN {
            let mut taken = signal(SignalKind::from_raw(i32::from(number)))?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while taken.recv().await.is_some() && sender.send(number).await.is_ok() {}
            });
        }
        Ok(Self {
            children: signal(SignalKind::child())?,
            others,
        })
    }

    /// Waits for the next signal other than SIGCHLD, and returns its number.
    pub(super) async fn next(&mut self) -> u8 {
        match self.others.recv().await {
            Some(number) => number,
            None => std::future::pending().await,
        }
    }

    /// Waits for the next signal that asks this process to end, and returns its number. Others have no effect.
    pub(super) async fn ending(&mut self) -> u8 {
        loop {
            let number = self.next().await;
            if ENDING.contains(&number) {
                return number;
            }
        }
    }

    /// Waits for the end of a call. Cancels the call at the first signal that asks this process to end, and
    /// returns the number of that signal, too.
    pub(super) async fn cancelling<T>(
        &mut self,
        call: impl Future<Output = T>,
        canceller: &Canceller,
    ) -> (T, Option<u8>) {
        let mut call = pin!(call);
        let mut signalled = None;
        loop {
            tokio::select! {
                ended = &mut call => return (ended, signalled),
                signal = self.ending(), if signalled.is_none() => {
                    signalled = Some(signal);
                    canceller.cancel();
                }
            }
        }
    }

    /// Waits for the next signal. `None` means SIGCHLD: a child has ended.
    pub(super) async fn any(&mut self) -> Option<u8> {
        tokio::select! {
            number = self.others.recv() => match number {
                Some(number) => Some(number),
                None => std::future::pending().await,
            },
            _ = self.children.recv() => None,
        }
    }
}
