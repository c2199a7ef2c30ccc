//! Image bytes to coded blocks and back: everything `ckpt` knows about bytes.
//!
//! The way of the bytes in a save: [`segment::Segmenter`] cuts the image stream and drops zero
//! segments, [`encode::RowEncoder`] hashes, compresses ([`compress`]), seals ([`seal`]) and codes
//! ([`rs`]) each segment into one row of blocks, [`shard_file`] says what a shard of such blocks
//! looks like and what its root is, [`index`] and [`manifest`] say how to get the image back. A
//! restore goes the other way through [`decode::RowDecoder`].
//!
//! This crate is pure: no async, no sockets, no files, no clock, no random source. What it needs
//! of these (time, random ids) is an argument. Formats are described in `docs/format.md`.

pub mod anchors;
pub mod base;
pub mod compress;
pub mod decode;
pub mod encode;
pub mod geometry;
pub mod grant;
pub mod hash;
pub mod holding;
pub mod id;
pub mod index;
pub mod job;
pub mod keys;
pub mod labels;
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
mod shuffle;
mod signed;
pub mod slice;

pub use geometry::{Redundancy, RedundancyError, ShardIndex};
pub use hash::{BlockHash, ManifestHash, PageHash, SegmentHash, ShardRoot};
pub use id::{CheckpointId, JobTag, OwnerId, PublicKey, Version};
pub use job::{JobId, JobIdError, JobScope};
