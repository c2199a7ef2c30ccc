//! Cancels a running command from elsewhere, such as from a signal handler.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// The side that cancels.
#[derive(Debug)]
pub struct Canceller(watch::Sender<bool>);

/// The side that is cancelled. All clones belong to the same [`Canceller`].
#[derive(Clone, Debug)]
pub struct Cancel(watch::Receiver<bool>);

/// A canceller, and the handle that a command watches.
pub fn canceller() -> (Canceller, Cancel) {
    let (sender, receiver) = watch::channel(false);
    (Canceller(sender), Cancel(receiver))
}

impl Canceller {
    /// Cancels everything that has the matching [`Cancel`]. A second call changes nothing.
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }
}

impl Cancel {
    /// Whether the command was cancelled.
    pub fn is_cancelled(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the command is cancelled; for ever if the canceller is dropped first.
    pub async fn cancelled(&mut self) {
        if self.0.wait_for(|&stop| stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The number of the next SIGINT or SIGTERM; `None` if these signals can't be caught.
pub async fn next_signal() -> Option<i32> {
    let mut interrupt = signal(SignalKind::interrupt()).ok()?;
    let mut terminate = signal(SignalKind::terminate()).ok()?;
    let kind = tokio::select! {
        _ = interrupt.recv() => SignalKind::interrupt(),
        _ = terminate.recv() => SignalKind::terminate(),
    };
    Some(kind.as_raw_value())
}
