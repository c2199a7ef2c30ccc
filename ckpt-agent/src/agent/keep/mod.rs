//! What becomes of checkpoints that were saved: notices, deletion, job keys, and checks of what hosts hold.

pub(crate) mod forget;
pub(crate) mod gc;
pub(crate) mod job_keys;
pub(crate) mod line;
pub(crate) mod notices;
pub(crate) mod verdict;
pub(crate) mod verify;
