//! Images on this machine: files, directories, streams and commands in; files and directories out.
//!
//! Everything here blocks and runs on threads for that.

pub mod command;
pub mod sink;
pub mod source;
#[cfg(test)]
mod tests;

pub use sink::{Sink, SinkError, SinkOptions, Target};
pub use source::{Source, SourceError, SourceOptions, Warning};

use std::path::PathBuf;

/// A path made of the bytes of an index.
fn path_from_bytes(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}
