//! Image bytes to coded blocks and back.
//!
//! In a save, bytes go through these modules in order:
//!
//! - [`segment::Segmenter`] cuts the image stream into segments and leaves out segments of zeros; [`base`]
//!   and [`pieces`] find segments of which most bytes are stored already;
//! - [`encode::RowEncoder`] hashes each segment, compresses it ([`compress`]), seals it ([`seal`]) and codes
//!   it ([`rs`]) into one row of blocks;
//! - [`shard_file`] defines the file in which a host keeps one block of each row, and its root;
//! - [`index`] lists files and segments, and [`manifest`] is the signed record with which a restore begins.
//!
//! A restore goes the other way, through [`decode::RowDecoder`].
//!
//! This crate is pure: it has no async, no sockets, no files, no clock, no random source. Time and random
//! ids are arguments. Formats are described in `docs/inside/format.md`.

pub mod anchors;
pub mod base;
pub mod chain;
pub mod compress;
pub mod decode;
pub mod encode;
pub mod format;
pub mod geometry;
pub mod grant;
pub mod hash;
pub mod hex;
pub mod holding;
pub mod id;
pub mod index;
pub mod job;
pub mod journal;
pub mod keys;
pub mod labels;
pub mod layers;
pub mod manifest;
pub mod notice;
pub mod pieces;
pub mod proof;
pub mod proposal;
pub mod rs;
#[cfg(test)]
mod samples;
pub mod scope;
pub mod seal;
pub mod segment;
pub mod serial;
pub mod shard_file;
mod signed;
pub mod slice;
mod stored;

pub use geometry::{Redundancy, RedundancyError, ShardIndex};
pub use hash::{BlockHash, ManifestHash, PageHash, SegmentHash, ShardRoot};
pub use id::{CheckpointId, JobTag, OwnerId, PublicKey, Version};
pub use job::{JobId, JobIdError, JobScope};
