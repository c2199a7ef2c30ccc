//! The client: saves images to the hosts of a grid and gets them back.
//!
//! [`report`] says what every command is asked and what it answers; everything else is how.

pub mod agent;
pub mod cancel;
pub mod cli;
pub mod core;
pub mod image;
pub mod inventory;
pub mod knowledge;
pub mod pipeline;
pub mod report;
pub mod run;
pub mod transfer;
