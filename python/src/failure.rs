//! Failures as Python exceptions.

use ckpt_agent::client::{ExitStatus, Failure};
use pyo3::prelude::*;

/// The exception for a failure. The Python package chooses its class by the exit status.
pub(crate) fn exception(py: Python<'_>, failure: &Failure) -> PyErr {
    let fields = serde_json::to_string(failure).unwrap_or_default();
    let made = py
        .import("ckpt._errors")
        .and_then(|module| module.getattr("exception"))
        .and_then(|make| make.call1((failure.exit_code(), fields)));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(cause) => cause,
    }
}

/// The exception for a wrong argument.
pub(crate) fn usage(py: Python<'_>, cause: &dyn std::error::Error) -> PyErr {
    exception(py, &Failure::new(ExitStatus::Usage, cause.to_string()))
}

/// A report as JSON.
pub(crate) fn report<R: serde::Serialize>(report: &R) -> PyResult<String> {
    serde_json::to_string(report)
        .map_err(|cause| pyo3::exceptions::PyRuntimeError::new_err(cause.to_string()))
}
