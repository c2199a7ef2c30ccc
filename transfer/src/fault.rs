//! What can go wrong with a host, by what is to be done about it.

use protocol::net::{ConnectError, ExchangeError};
use protocol::wire::Code;

/// Longest time that a host is waited for because it asked for it.
pub const RETRY_AFTER_MAX_MS: u64 = 30_000;

/// Why a host did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It can't be reached, or the connection broke.
    #[error("{0}")]
    Gone(String),
    /// It did nothing for too long.
    #[error("no progress for {} s", .0 / 1000)]
    Stalled(u64),
    /// Not even its network has answered for so long.
    #[error("nothing heard for {} s: host or network down", .0 / 1000)]
    Silent(u64),
    /// It said no.
    #[error("refused: {code}{}{detail}", if detail.is_empty() { "" } else { ": " })]
    Refused {
        /// Why.
        code: Code,
        /// In its words.
        detail: String,
        /// When it wants to be asked again; 0 when not.
        retry_after_ms: u32,
    },
    /// It holds all others up; another host is tried.
    #[error("takes {:.1} MB/s, much less than the others", *bytes_per_second as f64 / 1e6)]
    Slow {
        /// Bytes per second that it took.
        bytes_per_second: u64,
    },
    /// What it says or sends is wrong.
    #[error("wrong data: {0}")]
    Lied(String),
    /// Too few of the other hosts could still be read to rebuild a shard for it.
    #[error("too few other shards to rebuild this one")]
    Starved,
}

/// Longest time that is soon.
const SOON_MS: u32 = 2_000;

impl Fault {
    /// Nothing was heard of it for so long.
    pub fn no_answer(waited_ms: u64) -> Self {
        Self::Gone(format!(
            "no answer within {}.{} s: host down, wrong address, or UDP blocked on the way",
            waited_ms / 1000,
            waited_ms % 1000 / 100
        ))
    }

    /// After how long the host wants to be asked again, as it says; `None` when it does not.
    pub const fn named_wait_ms(&self) -> Option<u64> {
        match self {
            Self::Refused { retry_after_ms, .. } if *retry_after_ms > 0 => {
                Some(*retry_after_ms as u64)
            }
            _ => None,
        }
    }

    /// How long to wait before the same host is asked again; `None` when it did not ask for that.
    /// Never more than [`RETRY_AFTER_MAX_MS`], whatever the host says.
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Self::Refused { retry_after_ms, .. } if *retry_after_ms > 0 => {
                Some(u64::from(*retry_after_ms).min(RETRY_AFTER_MAX_MS))
            }
            _ => None,
        }
    }

    /// Whether the host takes shards, but too many are coming in right now: it wants to be asked again
    /// soon. One that its owner needs names a longer time.
    pub const fn is_crowded(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                code: Code::Busy,
                retry_after_ms: 1..=SOON_MS,
                ..
            }
        )
    }

    /// Whether the host has the version for another checkpoint.
    pub const fn is_version_taken(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                code: Code::VersionTaken,
                ..
            }
        )
    }

    /// Whether the host refused, with this reason.
    pub fn is_refused_as(&self, reason: Code) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == reason)
    }

    /// Whether the host does not let us in, or not do this.
    pub const fn is_forbidden(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                code: Code::Forbidden,
                ..
            }
        )
    }

    /// Whether the host answered, and what it has (or says) will not change by asking again.
    pub const fn is_final(&self) -> bool {
        match self {
            Self::Gone(_)
            | Self::Silent(_)
            | Self::Slow { .. }
            | Self::Stalled(_)
            | Self::Starved => false,
            Self::Lied(_) => true,
            Self::Refused { retry_after_ms, .. } => *retry_after_ms == 0,
        }
    }
}

impl From<ConnectError> for Fault {
    fn from(cause: ConnectError) -> Self {
        match cause {
            ConnectError::Rejected(_) => Self::Refused {
                code: Code::Forbidden,
                detail: cause.to_string(),
                retry_after_ms: 0,
            },
            _ => Self::Gone(cause.to_string()),
        }
    }
}

impl From<ExchangeError> for Fault {
    fn from(cause: ExchangeError) -> Self {
        match cause {
            ExchangeError::Lost(what) => Self::Gone(what),
            ExchangeError::Stalled(limit) => {
                Self::Stalled(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX))
            }
            ExchangeError::Refused(refusal) => Self::Refused {
                code: refusal.code,
                detail: refusal.detail.escape_debug().to_string(),
                retry_after_ms: refusal.retry_after_ms,
            },
            // What it would have answered, had it been asked.
            ExchangeError::TooOld { .. } => Self::Refused {
                code: Code::BadRequest,
                detail: cause.to_string(),
                retry_after_ms: 0,
            },
            other => Self::Lied(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(retry_after_ms: u32) -> Fault {
        Fault::Refused {
            code: Code::Busy,
            detail: String::new(),
            retry_after_ms,
        }
    }

    #[test]
    fn who_wants_to_be_asked_again_soon_is_crowded() {
        assert!(busy(1_000).is_crowded());
        assert!(!busy(3_600_000).is_crowded() && !busy(0).is_crowded());
    }

    #[test]
    fn a_host_can_not_make_anybody_wait_for_long() {
        assert_eq!(busy(u32::MAX).retry_after_ms(), Some(RETRY_AFTER_MAX_MS));
        assert_eq!(busy(40).retry_after_ms(), Some(40));
        assert_eq!(busy(0).retry_after_ms(), None);
    }

    #[test]
    fn only_answers_are_final() {
        assert!(busy(0).is_final());
        assert!(Fault::Lied("root".into()).is_final());
        let gone = Fault::Gone("reset".into());
        for passing in [busy(1), gone, Fault::Stalled(1), Fault::Silent(1)] {
            assert!(!passing.is_final(), "{passing}");
        }
    }
}
