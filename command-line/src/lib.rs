//! What the command lines of client and daemon have in common: sizes and times as they are typed and
//! printed, and man pages.

pub mod man;
pub mod size;
pub mod time;
