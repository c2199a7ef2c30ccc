//! Parts of end-to-end tests: the real programs, grids of real daemons, images to save, and faults.

pub mod chaos;
pub mod claimant;
pub mod cluster;
pub mod damage;
pub mod grid;
pub mod hash_job;
pub mod image;
pub mod liar;
mod lies;
pub mod machines;
mod members;
pub mod mixed;
pub mod net;
mod passed_on;
pub mod port;
pub mod program;
pub mod relay;
pub mod replay;
pub mod skip;
pub mod solo;
pub mod supervised;
mod witness;

pub use grid::Grid;
pub use program::{Outcome, ckpt};
