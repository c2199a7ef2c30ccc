//! `ckpt._ckpt`: the client's library for the Python package `ckpt`, in `package/ckpt`.
//!
//! This module moves bytes and waits; names, defaults and exceptions are the package's. Reports and failures
//! are JSON, with the fields of `docs/json.md`. While a call waits, other Python threads run, and a signal
//! handler of Python that raises (as that of Ctrl-C does) ends the call.

mod client;
mod failure;
mod image;
mod options;
mod session;
mod writer;

/// Python's view of this crate.
#[pyo3::pymodule]
mod _ckpt {
    #[pymodule_export]
    use crate::client::Client;
    #[pymodule_export]
    use crate::image::Image;
    #[pymodule_export]
    use crate::writer::Writer;
}
