//! Shards and manifests on a disk, and the books of them: everything that a host does, except networking.
//!
//! The functions here block on the disk. The network side calls them on blocking threads.

mod aside;
mod broken;
mod error;
mod fences;
pub mod layout;
mod load;
mod notices;
mod opening;
mod peers;
mod reader;
mod reading;
mod store;
mod upload;
mod voids;
mod writer;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod sample;
#[cfg(test)]
mod tests;

pub(crate) use aside::{BROKEN_BYTES, BROKEN_MAX};
pub use error::StoreError;
pub use fences::{FENCE_BYTES_MAX, FenceFile, FenceFileError, Witnessed};
pub use load::{FoundFile, Loaded, check, scan, signed_by};
pub use notices::NoticeSource;
pub use peers::Holding;
pub use reader::{ReadError, RowBytes, ShardReader};
pub use reading::Scrubbed;
pub(crate) use store::FOUND_BYTES_MAX;
pub use store::{Lent, Store, Usage};
pub use upload::{Batch, Upload};
