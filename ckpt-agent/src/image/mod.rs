//! Images on this machine: files, directories, streams and commands in; files and directories out.
//!
//! Of every file is kept: its name (any bytes), its kind (directory, regular file, symbolic link, hard link
//! to another file of the image, fifo), permission bits, time of last change, and which parts of it are
//! holes. If the user asks for it, its owner and group, and its extended attributes, with access control lists and
//! file capabilities. Not kept: access times, inode flags, and hard links to files outside of the image. Sockets and device nodes
//! are left out with a warning. Directories on which another file system is mounted are entered.
//!
//! All functions here block, so they run on threads outside of the async runtime.

pub mod at_hand;
mod beneath;
pub mod command;
mod emptied;
mod ending;
mod group;
pub mod keeper;
pub mod sink;
pub mod source;
mod stream;
#[cfg(test)]
mod tests;

pub use sink::{
    Content, Existing, Sink, SinkError, SinkOptions, Target, is_unfinished, place, place_in, roots,
    taken,
};
pub use source::{
    Exclude, NameError, NamedPath, OnceReader, Remark, Source, SourceError, SourceOptions, Weight,
    data_extents, exclude_pattern,
};

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A path with exactly these bytes, which come from an index.
pub(crate) fn path_from_bytes(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}
