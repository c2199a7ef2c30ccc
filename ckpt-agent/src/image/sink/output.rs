//! Writes a single file to standard output, with holes as zeros.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;

use codec::index::{Extent, FileKind, Index};

use super::{Run, SinkError};

/// Writes to standard output, or in tests to any writer.
pub struct OutputSink {
    out: Box<dyn Write + Send>,
    extents: VecDeque<Extent>,
    size: u64,
    at: u64,
}

impl OutputSink {
    /// Writes to standard output, without its line buffer.
    ///
    /// # Errors
    /// When the image is not a single file, or there is no standard output.
    pub(super) fn stdout(index: &Index) -> Result<Self, SinkError> {
        let stdout = io::stdout().as_fd().try_clone_to_owned();
        Self::new(index, File::from(stdout.map_err(failed)?))
    }

    /// Writes to `out`.
    ///
    /// # Errors
    /// When the image is not a single file.
    pub(in crate::image) fn new(
        index: &Index,
        out: impl Write + Send + 'static,
    ) -> Result<Self, SinkError> {
        let [file] = index.files.as_slice() else {
            return Err(SinkError::TreeToStdout);
        };
        let FileKind::Regular { size, extents } = &file.kind else {
            return Err(SinkError::TreeToStdout);
        };
        Ok(Self {
            out: Box::new(out),
            extents: extents.iter().copied().collect(),
            size: *size,
            at: 0,
        })
    }

    pub(super) fn advance(&mut self, mut run: Run<'_>) -> Result<(), SinkError> {
        while run.len() > 0 {
            let extent = *self.extents.front().ok_or(SinkError::TooLong)?;
            self.write_zeros(extent.offset.saturating_sub(self.at))?;
            let end = extent.offset + extent.len;
            let (head, tail) = run.split(run.len().min(end - self.at));
            match head {
                Run::Bytes(bytes) => {
                    self.out.write_all(bytes).map_err(failed)?;
                    self.at += bytes.len() as u64;
                }
                Run::Zeros(count) => self.write_zeros(count)?,
            }
            if self.at == end {
                self.extents.pop_front();
            }
            run = tail;
        }
        Ok(())
    }

    fn write_zeros(&mut self, count: u64) -> Result<(), SinkError> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let mut left = count;
        while left > 0 {
            let len = usize::try_from(left).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
            let zeros = ZEROS.get(..len).unwrap_or_default();
            self.out.write_all(zeros).map_err(failed)?;
            left -= len as u64;
        }
        self.at += count;
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<(), SinkError> {
        if !self.extents.is_empty() {
            return Err(SinkError::TooShort);
        }
        self.write_zeros(self.size.saturating_sub(self.at))?;
        self.out.flush().map_err(failed)
    }
}

impl fmt::Debug for OutputSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutputSink")
            .field("extents", &self.extents)
            .field("size", &self.size)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

fn failed(cause: io::Error) -> SinkError {
    SinkError::Io {
        doing: "writing to",
        path: PathBuf::from("standard output"),
        cause,
    }
}
