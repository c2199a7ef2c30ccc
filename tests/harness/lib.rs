//! What end-to-end tests need: the real programs, a grid of real daemons, images, and damage.

pub mod damage;
pub mod grid;
pub mod image;
pub mod program;

pub use grid::Grid;
pub use program::{Outcome, ckpt};
