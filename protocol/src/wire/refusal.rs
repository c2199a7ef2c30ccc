//! How a refusal is made and shown.

use super::limits::TEXT_BYTES_MAX;
use super::message::Refusal;
use super::{Code, escaped};

impl Refusal {
    /// A refusal that will not change (`retry_after_ms` is 0); `detail` is cut to the allowed length.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let mut detail = detail.into();
        let end = (0..=TEXT_BYTES_MAX.min(detail.len()))
            .rev()
            .find(|&end| detail.is_char_boundary(end))
            .unwrap_or(0);
        detail.truncate(end);
        Self {
            code,
            detail,
            retry_after_ms: 0,
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.code)?;
        if !self.detail.is_empty() {
            write!(f, " ({})", escaped(&self.detail))?;
        }
        Ok(())
    }
}
