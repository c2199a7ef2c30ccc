//! What the benchmarks and evaluations share: availability traces and the evaluation of predictors.

pub mod predict_eval;
pub mod quic;
pub mod traces;
