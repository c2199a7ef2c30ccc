//! Predictors with which the shipped one is compared. No program of a donor or a submitter uses them.

pub mod competing_risks;
pub mod reference;
