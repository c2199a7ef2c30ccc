//! What a pool of machines is like: availability, time between failures, patterns, groups of failures,
//! and fits of distributions, after Iosup et al., *On the Dynamic Resources Availability in Grids* (2007).
//!
//! Pure: [`Pool::new`] takes the timelines of a pool's hosts, and [`Pool::describe`] returns a
//! [`PoolDescription`]. Times are Unix seconds, lengths are seconds.

mod describe;
pub mod description;
pub mod distribution;
mod figures;
mod groups;
mod past;
pub mod plot;
mod sample;
mod special;
mod spread;

pub use describe::{Options, Pool};
pub use description::PoolDescription;
pub use groups::{Failure, Group, groups};
pub use past::{Counts, HostPast};
pub use sample::Sample;
pub use spread::Spread;
