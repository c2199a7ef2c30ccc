//! Messages to and from the bytes of a frame.

use codec::serial::{self, SerialError};

use super::limits::FRAME_BYTES_MAX;
use super::message::{MemberRecord, NoticeRecord, Record, Request, Response};

/// A message that travels as one frame.
pub trait Message: Sized {
    /// The bytes of the frame, without its length, which goes before it.
    ///
    /// # Errors
    /// When the message is longer than [`FRAME_BYTES_MAX`].
    fn to_frame(&self) -> Result<Vec<u8>, SerialError>;

    /// Reads the message of a frame.
    ///
    /// # Errors
    /// When the bytes are not exactly one message of this type.
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
message!(Request, Response, Record, MemberRecord, NoticeRecord);
