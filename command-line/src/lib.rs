//! Parts that the command lines of client and daemon share: sizes and times as people type and read them,
//! tables, and man pages.

pub mod man;
pub mod size;
pub mod text;
pub mod time;
