//! What the daemon's commands refuse, with what to try next.

/// A refusal. It is printed as its message, and on a line of its own what to try.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct Refusal {
    message: String,
    next: String,
}

impl Refusal {
    pub(super) fn new(message: impl Into<String>, next: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            next: next.into(),
        }
    }

    /// What the user can try next.
    pub(super) fn next(&self) -> &str {
        &self.next
    }
}
