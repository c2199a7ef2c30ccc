//! The CPU's part of a save and a restore, on threads of its own: segments in, rows of blocks out,
//! and back. All memory in flight is taken from one [`budget`].

mod ahead;
pub mod budget;
pub mod decode;
pub mod encode;
mod governor;
mod hashing;

#[cfg(test)]
mod tests;
