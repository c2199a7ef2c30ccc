//! Messages as plain data. Nothing here does I/O.

pub mod announcement;
pub mod code;
pub mod limits;
pub mod message;
pub mod parts;
mod version;

#[cfg(test)]
mod tests;

pub use code::Code;
pub use version::WireVersion;
