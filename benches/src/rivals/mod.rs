//! Predictors with which the shipped one is compared. No program of a donor or a submitter uses them.

pub mod reference;
pub mod semi_markov;
