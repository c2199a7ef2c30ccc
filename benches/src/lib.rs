//! What the benchmarks and evaluations share: availability traces and the evaluations of predictors,
//! of placement, of supervision and of batch schedulers.

pub mod falcon;
pub mod meter;
pub mod placement_sim;
pub mod pool_sim;
pub mod predict_eval;
pub mod quic;
pub mod scheduling_sim;
pub mod supervision_sim;
pub mod traces;
pub mod usage;
