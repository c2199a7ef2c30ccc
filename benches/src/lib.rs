//! Parts of the benchmarks and evaluations: availability traces, measuring, and the evaluations of
//! predictors, placement, supervision and schedulers.

pub mod falcon;
pub mod meter;
pub mod placement_sim;
pub mod pool_sim;
pub mod predict_eval;
pub mod quic;
pub mod rivals;
pub mod scheduling_sim;
pub mod supervision_sim;
pub mod traces;
pub mod usage;
