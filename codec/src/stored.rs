//! How a row is stored.

use serde::{Deserialize, Serialize};

use crate::compress::Method;
use crate::geometry::SEGMENT_BYTES;

/// How one segment is stored in its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredSegment {
    /// Image bytes of the segment.
    pub raw_len: u32,
    /// Bytes of the segment after compression, before sealing.
    pub stored_len: u32,
    /// How the segment is compressed.
    pub method: Method,
}

impl StoredSegment {
    /// Whether the lengths fit each other and the limits.
    pub const fn is_possible(&self) -> bool {
        let fits = self.raw_len as usize <= SEGMENT_BYTES && self.stored_len <= self.raw_len;
        let kept = !matches!(self.method, Method::Raw) || self.stored_len == self.raw_len;
        self.stored_len > 0 && fits && kept
    }
}
