//! The computing of a save and of a restore, on threads of its own: [`encode`] makes rows of blocks of
//! segments, and [`decode`] makes segments of blocks again. All memory of rows in flight is taken from one
//! [`budget`].

mod ahead;
pub mod budget;
pub mod decode;
pub mod encode;
mod governor;
pub mod hash_file;
mod hashing;

#[cfg(test)]
mod tests;
