//! Predictors for comparison with [`hazard`](placement::hazard): the linear time series models of the paper,
//! window frequencies, and counters by recent history. Only measurements use them.

pub mod history_counters;
pub mod load_model;
pub mod window_frequency;

pub use history_counters::HistoryCounters;
pub use load_model::LoadModel;
pub use window_frequency::window_frequency;
