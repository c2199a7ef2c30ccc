//! The class `Image`: a checkpoint that is open for reading.

use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use ckpt_agent::client::{FileNumber, Image as Opened};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::failure::{exception, report};
use crate::session::{OfProcess, Session};

/// A checkpoint that is open for reading. Its files have numbers.
#[pyclass(frozen, module = "ckpt._ckpt")]
#[derive(Debug)]
pub(crate) struct Image {
    opened: OfProcess<(Opened, Arc<Session>)>,
}

impl Image {
    pub(crate) fn new(session: &Arc<Session>, image: Opened) -> Self {
        Self {
            opened: OfProcess::new((image, Arc::clone(session))),
        }
    }
}

#[pymethods]
impl Image {
    /// The version that is open.
    fn version(&self) -> PyResult<u64> {
        Ok(self.opened.get()?.0.version().number())
    }

    /// Newer versions that can't be read, with the reasons: a list of SkippedVersion.
    fn skipped(&self) -> PyResult<String> {
        report(&self.opened.get()?.0.skipped())
    }

    /// Path, length in bytes, and readability of all files, in the order of their numbers.
    fn files(&self) -> PyResult<Vec<(Vec<u8>, u64, bool)>> {
        let files = self.opened.get()?.0.files().map(|(_, file)| {
            let path = file.path.into_os_string().into_vec();
            (path, file.bytes, file.can_be_read)
        });
        Ok(files.collect())
    }

    /// The number of the file with this path; without a path, that of the only file.
    fn file(&self, py: Python<'_>, path: Option<Vec<u8>>) -> PyResult<usize> {
        let number = self.opened.get()?.0.file(path.as_deref());
        Ok(number.map_err(|failure| exception(py, &failure))?.0)
    }

    /// Length of a file in bytes.
    fn size(&self, file: usize) -> PyResult<u64> {
        Ok(self.opened.get()?.0.size(FileNumber(file)))
    }

    /// Reads `len` bytes of a file from `offset` on; fewer only at the file's end.
    fn read_at<'py>(
        &self,
        py: Python<'py>,
        file: usize,
        offset: u64,
        len: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (image, session) = self.opened.get()?;
        let rest = image.size(FileNumber(file)).saturating_sub(offset);
        let mut buffer = vec![0; len.min(usize::try_from(rest).unwrap_or(usize::MAX))];
        let read = image.read_at(FileNumber(file), offset, &mut buffer);
        let read = session.wait(py, read, None)?;
        Ok(PyBytes::new(py, buffer.get(..read).unwrap_or_default()))
    }

    /// Bytes of blocks that hosts have sent so far, and the number of rows of these blocks.
    fn cost(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let (image, session) = self.opened.get()?;
        let cost = session.wait(py, async { Ok(image.cost().await) }, None)?;
        Ok((cost.fetched_bytes, cost.rows))
    }
}
