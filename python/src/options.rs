//! The options of a save in Python, as a request to the client's library.

use std::path::PathBuf;
use std::time::Duration;

use ckpt_agent::client::{
    After, AfterWhich, JobId, NamedPath, Redundancy, Save, SaveInput, Strength, Tenure,
};
use pyo3::prelude::*;

use crate::failure::usage;

/// Options of a save; `None` is the default of `ckpt save`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct SaveOptions {
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

impl SaveOptions {
    pub(crate) fn request(self, py: Python<'_>, job: &JobId, input: SaveInput) -> PyResult<Save> {
        let mut save = Save::of(job, input);
        for (key, value) in self.labels {
            save = save.label(&key, value).map_err(|cause| usage(py, &cause))?;
        }
        if let Some(keep) = self.keep {
            save = save.keep(keep);
        }
        if let Some((data, parity)) = self.redundancy {
            let redundancy = Redundancy::new(data, parity);
            save = save.redundancy(redundancy.map_err(|cause| usage(py, &cause))?);
        }
        if let Some(after) = self.after {
            let which: AfterWhich = after.parse().map_err(|cause| usage(py, &cause))?;
            save = save.after(After {
                which,
                strength: Strength::default(),
                is_unfenced: false,
            });
        }
        if let Some(deadline) = self.deadline {
            save = save.deadline(seconds(py, deadline)?);
        }
        if let Some(ttl) = self.ttl {
            save = save.tenure(if ttl == f64::INFINITY {
                Tenure::Forever
            } else {
                Tenure::For(seconds(py, ttl)?)
            });
        }
        if self.allow_empty {
            save = save.allow_empty();
        }
        Ok(if self.full { save.full() } else { save })
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
