//! `ckpt._ckpt`: the client's library for the Python package `ckpt`, in `package/ckpt`.
//!
//! This module moves bytes and waits; the package has the names, defaults and exceptions. Reports and failures
//! are JSON, with the fields of `docs/use/json.md`. While a call waits, other Python threads run. A signal handler
//! of Python that raises an exception, such as that of Ctrl-C, ends the call.

mod canceller;
mod client;
mod failure;
mod image;
mod options;
mod session;
mod writer;

/// The module as Python sees it.
#[pyo3::pymodule]
mod _ckpt {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::canceller::Canceller;
    #[pymodule_export]
    use crate::client::Client;
    #[pymodule_export]
    use crate::image::Image;
    #[pymodule_export]
    use crate::writer::Writer;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
