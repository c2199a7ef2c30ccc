//! Codes with which connections are closed and streams are given up.

use quinn::VarInt;

/// Code with which a connection is closed that is not needed any more.
pub const DONE: VarInt = VarInt::from_u32(0);

/// Code with which either side gives a stream up.
pub const GIVEN_UP: VarInt = VarInt::from_u32(1);

/// Code of a connection whose client is not admitted; the close has the reason as text.
pub const NOT_ALLOWED: VarInt = VarInt::from_u32(2);

/// Code of a connection whose host shuts down.
pub const STOPPING: VarInt = VarInt::from_u32(3);

/// Code of a connection whose client's key was revoked.
pub const REVOKED: VarInt = VarInt::from_u32(4);

/// Code of a connection whose client's certificate expired.
pub const EXPIRED: VarInt = VarInt::from_u32(5);

/// Code of a connection of a member that already has as many as it may have.
pub const TOO_MANY: VarInt = VarInt::from_u32(6);
