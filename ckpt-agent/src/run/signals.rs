//! Signals that come to the supervisor.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// Numbers of the signals that are taken (POSIX and Linux fix them): HUP, INT, QUIT, USR1, USR2, TERM,
/// TSTP, WINCH.
const TAKEN: [u8; 8] = [1, 2, 3, 10, 12, 15, 20, 28];

/// Signals that wait to be heard.
const WAITING_MAX: usize = 16;

/// Number of SIGTSTP.
pub(super) const TSTP: u8 = 20;

/// A child has ended, and signals that are the supervisor's or the job's.
#[derive(Debug)]
pub(super) struct Signals {
    children: Signal,
    others: mpsc::Receiver<u8>,
}

impl Signals {
    /// From now on none of them ends this process.
    ///
    /// # Errors
    /// When the system refuses.
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

    /// Waits for the next signal that is not of a child; its number.
    pub(super) async fn next(&mut self) -> u8 {
        match self.others.recv().await {
            Some(number) => number,
            None => std::future::pending().await,
        }
    }

    /// Waits for the next signal of either kind; none when a child has ended.
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
