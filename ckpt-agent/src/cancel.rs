//! How a running command is told to stop.

use tokio::sync::watch;

/// The side that says stop.
#[derive(Debug)]
pub struct Canceller(watch::Sender<bool>);

/// The side that listens; clones listen to the same canceller.
#[derive(Clone, Debug)]
pub struct Cancel(watch::Receiver<bool>);

/// A canceller and its listener.
pub fn canceller() -> (Canceller, Cancel) {
    let (sender, receiver) = watch::channel(false);
    (Canceller(sender), Cancel(receiver))
}

impl Canceller {
    /// Says stop; saying it again changes nothing.
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }
}

impl Cancel {
    /// Whether stop was said.
    pub fn is_cancelled(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until stop is said; for ever when the canceller is dropped without saying it.
    pub async fn cancelled(&mut self) {
        if self.0.wait_for(|&stop| stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
