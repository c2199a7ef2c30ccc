//! FALCON's experiments (Bagchi et al.) with real programs over links of limited rate: what each part of the
//! checkpoint path gives, many clients at once, donors that die, and makespans under evictions.

pub mod lab;
pub mod makespan;
pub mod server;
pub mod storage;
