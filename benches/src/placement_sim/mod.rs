//! How well the ways of choosing storage hosts do for jobs on real and modelled hosts.
//!
//! A [`Case`] is a world of hosts with the jobs that run in it ([`case`]); [`trial`] runs them under
//! every scheme in grids drawn from the world; [`score`] sums up and compares; [`report`] writes
//! the document, `calibration` a part of it.

mod calibration;
pub mod case;
pub(crate) mod figures;
mod intervals;
pub mod report;
pub mod score;
mod targets;
pub mod trial;
mod versions;

pub use case::Case;
pub use trial::{Effort, Study, study, versions_study};
