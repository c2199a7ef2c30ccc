//! The class `Canceller`: ends a save from another thread.

use ckpt_agent::client;
use pyo3::prelude::*;

/// Ends the save that it is passed to.
#[pyclass(frozen, module = "ckpt._ckpt")]
#[derive(Debug)]
pub(crate) struct Canceller {
    pub(crate) cancels: client::Canceller,
    pub(crate) cancelled: client::Cancel,
}

#[pymethods]
impl Canceller {
    #[new]
    fn new() -> Self {
        let (cancels, cancelled) = client::canceller();
        Self { cancels, cancelled }
    }

    /// Ends the save, without committing anything unless it is committed already.
    fn cancel(&self) {
        self.cancels.cancel();
    }
}
