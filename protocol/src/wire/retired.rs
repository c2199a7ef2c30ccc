//! Numbers of messages that nobody sends any more. They are not used again.

use serde::{Deserialize, Serialize};

/// What a message with a retired number carries: no bytes can be read as this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Retired {}
