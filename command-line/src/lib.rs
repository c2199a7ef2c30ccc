//! Parts that the command lines of client and daemon share: sizes and times as people type and read them,
//! tables, man pages, and secrets as arguments.

pub mod man;
pub mod secret;
pub mod size;
pub mod text;
pub mod time;
