//! What can go wrong with a host, in kinds that decide what is done about it.

use protocol::net::{ConnectError, ExchangeError};
use protocol::wire::{Code, escaped};

/// Longest time for which a host's wish to be asked again later is respected, milliseconds.
pub const RETRY_AFTER_MAX_MS: u64 = 30_000;

/// Why a host did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The host can't be reached, or the connection broke.
    #[error("{0}")]
    Gone(String),
    /// The host made no progress for this many milliseconds.
    #[error("no progress for {} s", .0 / 1000)]
    Stalled(u64),
    /// No datagram has arrived from the host for this many milliseconds.
    #[error("no packet for {} s: host or network down", .0 / 1000)]
    Silent(u64),
    /// The host refused the request.
    #[error("refused: {code}{}{detail}", if detail.is_empty() { "" } else { ": " })]
    Refused {
        /// The reason, as a number.
        code: Code,
        /// The explanation in the host's words; may be empty.
        detail: String,
        /// When the host wants to be asked again, milliseconds; 0 if it does not.
        retry_after_ms: u32,
    },
    /// The host is much slower than the others and delays them, so another host is tried.
    #[error("takes {:.1} MB/s, much less than the others", *bytes_per_second as f64 / 1e6)]
    Slow {
        /// Bytes per second that the host took.
        bytes_per_second: u64,
    },
    /// The host's answer is wrong.
    #[error("wrong data: {0}")]
    Lied(String),
    /// A shard can't be rebuilt for this host, because too few other shards can be read.
    #[error("too few other shards to rebuild this one")]
    Starved,
}

/// A host that wants to be asked again within this time counts as crowded, milliseconds.
const SOON_MS: u32 = 2_000;

impl Fault {
    /// The fault of a host that did not answer for `waited_ms`.
    pub fn no_answer(waited_ms: u64) -> Self {
        Self::Gone(format!(
            "no answer within {}.{} s: host down, wrong address, or UDP blocked on the way",
            waited_ms / 1000,
            waited_ms % 1000 / 100
        ))
    }

    /// When the host wants to be asked again, milliseconds. `None` if it does not.
    pub const fn named_wait_ms(&self) -> Option<u64> {
        match self {
            Self::Refused { retry_after_ms, .. } if *retry_after_ms > 0 => {
                Some(*retry_after_ms as u64)
            }
            _ => None,
        }
    }

    /// How long to wait before the same host is asked again, milliseconds. `None` if the host does not
    /// want that. At most [`RETRY_AFTER_MAX_MS`], whatever the host states.
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Self::Refused { retry_after_ms, .. } if *retry_after_ms > 0 => {
                Some(u64::from(*retry_after_ms).min(RETRY_AFTER_MAX_MS))
            }
            _ => None,
        }
    }

    /// Whether the host takes shards, but is receiving too many now: it wants to be asked again soon. A
    /// host whose owner needs it states a longer time.
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

    /// Whether the version belongs to another checkpoint at this host.
    pub const fn is_version_taken(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                code: Code::VersionTaken,
                ..
            }
        )
    }

    /// Whether the host refused for this reason.
    pub fn is_refused_as(&self, reason: Code) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == reason)
    }

    /// Whether the host does not accept this client, or not this request of it.
    pub const fn is_forbidden(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                code: Code::Forbidden,
                ..
            }
        )
    }

    /// Whether the host answered, and asking it again would not change the answer.
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
                detail: escaped(&refusal.detail),
                retry_after_ms: refusal.retry_after_ms,
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
    fn a_host_that_asks_for_a_retry_soon_is_crowded() {
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
