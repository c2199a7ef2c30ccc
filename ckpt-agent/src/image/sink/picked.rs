//! Selects from an image's stream the bytes of the chosen files.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Run, Sink, SinkError, SinkOptions, Target};
use crate::core::pick::Pick;
use crate::pipeline::decode::StreamSink;

/// Writes some files of an image. Only the segments come that these files need.
#[derive(Debug)]
pub struct PickedSink {
    inner: Sink,
    /// Offsets in the whole stream of the segments to come.
    begins: VecDeque<u64>,
    /// Ranges of the whole stream that are written.
    parts: VecDeque<Range<u64>>,
    /// Ranges of the whole stream that later segments are made of; they are kept in the scratch file.
    sources: Vec<Range<u64>>,
    scratch: Option<File>,
}

impl PickedSink {
    /// Begins to write the selected files.
    ///
    /// # Errors
    /// As [`Sink::create`], or when the scratch file can't be made.
    pub fn create(pick: &Pick, target: &Target, options: SinkOptions) -> Result<Self, SinkError> {
        let inner = Sink::create(&pick.index, target, options)?;
        let scratch = if pick.sources.is_empty() {
            None
        } else {
            let dir = match target {
                Target::Path(path) => match path.parent() {
                    Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
                    _ => PathBuf::from("."),
                },
                Target::Stdout => std::env::temp_dir(),
            };
            Some(
                tempfile::tempfile_in(&dir)
                    .map_err(|cause| failed("making a file in", &dir, cause))?,
            )
        };
        Ok(Self {
            inner,
            begins: pick.begins.iter().copied().collect(),
            parts: pick.parts.iter().cloned().collect(),
            sources: pick.sources.clone(),
            scratch,
        })
    }

    fn advance(&mut self, run: Run<'_>) -> Result<(), SinkError> {
        let begin = self.begins.pop_front().ok_or(SinkError::TooLong)?;
        let whole = begin..begin + run.len();
        if let (Run::Bytes(bytes), Some(scratch)) = (run, &self.scratch) {
            for source in overlapping(&self.sources, &whole) {
                let at = source.start;
                let written = scratch.write_all_at(cut(bytes, begin, &source), at);
                written.map_err(|cause| failed("writing", Path::new("a scratch file"), cause))?;
            }
        }
        while let Some(part) = self.parts.front() {
            let own = part.start.max(whole.start)..part.end.min(whole.end);
            let is_over = part.end <= whole.end;
            if !own.is_empty() {
                match run {
                    Run::Bytes(bytes) => self.inner.write(cut(bytes, begin, &own))?,
                    Run::Zeros(_) => self.inner.zeros(own.end - own.start)?,
                }
            }
            if !is_over {
                break;
            }
            self.parts.pop_front();
        }
        Ok(())
    }
}

/// The intersections of these ascending parts with a range of the stream.
fn overlapping(parts: &[Range<u64>], whole: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let first = parts.partition_point(|part| part.end <= whole.start);
    let after = parts.get(first..).unwrap_or_default().iter();
    let start = whole.start;
    let end = whole.end;
    after
        .take_while(move |part| part.start < end)
        .map(move |part| part.start.max(start)..part.end.min(end))
}

/// A range of the stream, cut out of `bytes`, which begin at offset `begin`.
fn cut<'a>(bytes: &'a [u8], begin: u64, part: &Range<u64>) -> &'a [u8] {
    let at = |offset: u64| usize::try_from(offset.saturating_sub(begin)).unwrap_or(usize::MAX);
    bytes.get(at(part.start)..at(part.end)).unwrap_or_default()
}

impl StreamSink for PickedSink {
    type Error = SinkError;
    type Written = ();

    fn write(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        self.advance(Run::Bytes(bytes))
    }

    fn zeros(&mut self, count: u64) -> Result<(), SinkError> {
        self.advance(Run::Zeros(count))
    }

    fn read_back(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), SinkError> {
        let Some(scratch) = &self.scratch else {
            return Err(SinkError::TooShort);
        };
        // Zeros were not written to the scratch file, so all bytes beyond its end are zeros.
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match scratch.read_at(rest, offset + done as u64) {
                Ok(0) => {
                    rest.fill(0);
                    break;
                }
                Ok(read) => done += read,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(failed("reading", Path::new("a scratch file"), cause)),
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<(), SinkError> {
        if !self.parts.is_empty() || !self.begins.is_empty() {
            return Err(SinkError::TooShort);
        }
        self.inner.finish()
    }
}

fn failed(doing: &'static str, path: &Path, cause: io::Error) -> SinkError {
    SinkError::Io {
        doing,
        path: path.to_owned(),
        cause,
    }
}
