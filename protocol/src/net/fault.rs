//! What errors of connections and of requests mean for the use of a host.

use crate::fault::Fault;
use crate::net::{ConnectError, ExchangeError};
use crate::wire::{Code, escaped};

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
