//! Messages as the bytes of a frame.

use codec::serial::{self, SerialError};

use super::limits::FRAME_BYTES_MAX;
use super::message::{MemberRecord, NoticeRecord, Record, Request, Response};
use super::parts::Extended;

/// A message that can be a frame.
pub trait Message: Sized {
    /// The frame's bytes, without the length before it.
    ///
    /// # Errors
    /// When it is longer than a frame may be.
    fn to_frame(&self) -> Result<Vec<u8>, SerialError>;

    /// Reads a frame.
    ///
    /// # Errors
    /// When it is not exactly one such message.
    fn from_frame(bytes: &[u8]) -> Result<Self, SerialError>;
}

macro_rules! message {
    ($($name:ty),*) => {$(
        impl Message for $name {
            fn to_frame(&self) -> Result<Vec<u8>, SerialError> {
                serial::encode(self, FRAME_BYTES_MAX)
            }

            fn from_frame(bytes: &[u8]) -> Result<Self, SerialError> {
                serial::decode(bytes, FRAME_BYTES_MAX)
            }
        }
    )*};
}
message!(
    Request,
    Response,
    Record,
    MemberRecord,
    Extended<MemberRecord>,
    NoticeRecord
);
