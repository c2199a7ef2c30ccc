//! The options of a save in Python, as a request to the client's library.

use std::path::PathBuf;
use std::time::Duration;

use ckpt_agent::client::{
    After, AfterWhich, JobId, Labels, NamedPath, Redundancy, SaveOptions, Strength, Tenure,
};
use pyo3::prelude::*;

use crate::failure::usage;

/// Options of a save as Python passes them; `None` is the default of `ckpt save`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Keywords {
    labels: Vec<(String, String)>,
    keep: Option<u32>,
    redundancy: Option<(u8, u8)>,
    /// A version, an id, or `none`.
    after: Option<String>,
    /// Seconds from the start of the save to its latest end.
    deadline: Option<f64>,
    /// Seconds; infinity stands for a lease without an end.
    ttl: Option<f64>,
    full: bool,
    allow_empty: bool,
}

impl Keywords {
    pub(crate) fn options(self, py: Python<'_>) -> PyResult<SaveOptions> {
        let usual = SaveOptions::default();
        let code = self
            .redundancy
            .map(|(data, parity)| Redundancy::new(data, parity));
        let after = self.after.map(|after| after.parse::<AfterWhich>());
        let after = after.transpose().map_err(|cause| usage(py, &cause))?;
        let tenure = |ttl: f64| match ttl {
            f64::INFINITY => Ok(Tenure::Forever),
            ttl => seconds(py, ttl).map(Tenure::For),
        };
        Ok(SaveOptions {
            labels: Labels::of_user(self.labels).map_err(|cause| usage(py, &cause))?,
            keep: self.keep.unwrap_or(usual.keep),
            redundancy: code.transpose().map_err(|cause| usage(py, &cause))?,
            after: after.map(|which| After {
                which,
                strength: Strength::default(),
                is_unfenced: false,
            }),
            deadline: self.deadline.map(|time| seconds(py, time)).transpose()?,
            tenure: self.ttl.map(tenure).transpose()?,
            full: self.full,
            allow_empty: self.allow_empty,
            ..usual
        })
    }
}

fn seconds(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|cause| usage(py, &cause))
}

/// Paths on this machine; a path with a second part is stored under this name.
pub(crate) fn named(
    py: Python<'_>,
    paths: Vec<(PathBuf, Option<PathBuf>)>,
) -> PyResult<Vec<NamedPath>> {
    let named = paths.into_iter().map(|(path, name)| match name {
        None => Ok(NamedPath::own(path)),
        Some(name) => NamedPath::renamed(path, name.as_os_str()),
    });
    named
        .collect::<Result<_, _>>()
        .map_err(|cause| usage(py, &cause))
}

/// Parses the name of a job.
pub(crate) fn job(py: Python<'_>, name: &str) -> PyResult<JobId> {
    name.parse().map_err(|cause| usage(py, &cause))
}
