//! `ckpt cat`: writes a file of a checkpoint, or a part of it, to a pipe or a file.

use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use codec::JobId;
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant};

use crate::agent::{Agent, Image, Which};
use crate::cancel::Cancel;
use crate::core::read::FileNumber;
use crate::report::{CatReport, ExitStatus, Failure, Observer, Progress, ProgressEvent};

/// One in this many bytes of the memory is for bytes that are being written while the next are read.
const CHUNK_SHARE: u64 = 32;

/// Fewest bytes that are read at once.
const CHUNK_BYTES_MIN: u64 = 256 << 10;

/// Buffers that take turns: one is written while the next is filled.
const BUFFERS: usize = 2;

const PROGRESS_PERIOD: Duration = Duration::from_millis(200);

/// A part of a file, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes; `None`: to the end of the file.
    pub len: Option<u64>,
}

impl ByteRange {
    /// The part that lies within a file of `size` bytes.
    fn within(self, size: u64) -> Range<u64> {
        let len = self.len.unwrap_or(u64::MAX);
        let end = self.offset.saturating_add(len).min(size);
        self.offset.min(end)..end
    }
}

/// Which file of which checkpoint to write.
#[derive(Clone, Debug)]
pub struct CatRequest {
    /// Name of the job whose checkpoint is read.
    pub job: JobId,
    /// The checkpoint that is read.
    pub which: Which,
    /// The file's path in the image; `None` for the only file of the image.
    pub path: Option<Vec<u8>>,
    /// Which part of the file.
    pub range: ByteRange,
}

impl Agent {
    /// Writes a file of a checkpoint, or a part of it, to `out`. If the reader of `out` closes it early, that
    /// is no failure; the report states it.
    ///
    /// # Errors
    /// When the file can't be read or written; `out` may hold the beginning of it then.
    pub async fn cat(
        &self,
        request: &CatRequest,
        out: impl Write + Send + 'static,
        observer: Arc<dyn Observer>,
        mut cancel: Cancel,
    ) -> Result<CatReport, Failure> {
        let started = Instant::now();
        let job = &request.job;
        let interrupted = || {
            let message = format!("cannot read job {job}: interrupted");
            Failure::new(ExitStatus::Interrupted, message)
        };
        let image = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(interrupted()),
            image = self.open(job, request.which) => image?,
        };
        let file = image.file(request.path.as_deref())?;
        for skip in image.skipped() {
            observer.event(ProgressEvent::VersionSkipped(skip.clone()));
        }
        for message in image.warnings().iter().cloned() {
            observer.event(ProgressEvent::Warning { message });
        }
        let chunk = self.resources.memory_bytes / CHUNK_SHARE;
        let mut copy = Copy {
            image: &image,
            file,
            chunk: chunk.max(CHUNK_BYTES_MIN),
            observer,
            written: 0,
        };
        let range = request.range.within(image.size(file));
        let copied = tokio::select! {
            biased;
            () = cancel.cancelled() => Err(interrupted()),
            copied = copy.run(range.clone(), out) => copied,
        };
        let written = copy.written;
        let complete = copied.map_err(|mut failure| {
            failure.image_on_stdout = written > 0;
            failure
        })?;
        let cost = image.cost().await;
        let shown = image.files().nth(file.0);
        Ok(CatReport {
            job: job.clone(),
            version: image.version(),
            path: shown.map_or_else(String::new, |(_, file)| file.path.display().to_string()),
            offset: range.start,
            bytes: written,
            complete,
            fetched_bytes: cost.fetched_bytes,
            fetched_rows: cost.rows,
            seconds: started.elapsed().as_secs_f64(),
            skipped: image.skipped().to_vec(),
            warnings: image.warnings().to_vec(),
        })
    }
}

/// Copies a part of a file to the writer.
struct Copy<'a> {
    image: &'a Image,
    file: FileNumber,
    /// Bytes that are read at once.
    chunk: u64,
    observer: Arc<dyn Observer>,
    written: u64,
}

impl Copy<'_> {
    /// Reads each part while the part before it is written. Returns whether all of it was taken.
    async fn run(
        &mut self,
        range: Range<u64>,
        out: impl Write + Send + 'static,
    ) -> Result<bool, Failure> {
        let mut writer = Writer::start(out);
        let total = range.end - range.start;
        let mut at = range.start;
        let mut shown = Instant::now();
        let mut buffer = Vec::new();
        while at < range.end {
            // Parts end at multiples of the chunk, which are ends of segments in a file that begins one.
            let end = ((at / self.chunk + 1) * self.chunk).min(range.end);
            buffer.resize(usize::try_from(end - at).unwrap_or(usize::MAX), 0);
            let read = self
                .image
                .read_within(self.file, at, &mut buffer, range.end)
                .await?;
            buffer.truncate(read);
            at = end;
            let Some(next) = writer.write(std::mem::take(&mut buffer)).await? else {
                return Ok(false);
            };
            self.written += read as u64;
            buffer = next;
            if shown.elapsed() >= PROGRESS_PERIOD {
                shown = Instant::now();
                self.show(total).await;
            }
        }
        let complete = writer.end().await?;
        self.show(total).await;
        Ok(complete)
    }

    async fn show(&self, total: u64) {
        self.observer.event(ProgressEvent::Progress(Progress {
            done_bytes: self.written,
            total_bytes: Some(total),
            network_bytes: self.image.cost().await.fetched_bytes,
            ..Progress::default()
        }));
    }
}

/// A thread that writes. The reader of a pipe may take nothing for hours, and no thread of the runtime may be
/// blocked for that.
struct Writer {
    full: Option<SyncSender<Vec<u8>>>,
    /// Buffers that come back empty after they were written, or the error of a write.
    empty: mpsc::UnboundedReceiver<io::Result<Vec<u8>>>,
    /// How many buffers may be given to the thread before one has to come back.
    spare: usize,
}

impl Writer {
    fn start(mut out: impl Write + Send + 'static) -> Self {
        let (full, to_write) = sync_channel::<Vec<u8>>(BUFFERS);
        let (done, empty) = mpsc::unbounded_channel();
        thread::spawn(move || {
            while let Ok(buffer) = to_write.recv() {
                let written = out.write_all(&buffer).and_then(|()| out.flush());
                let failed = written.is_err();
                // Fails only when the other side has ended.
                if done.send(written.map(|()| buffer)).is_err() || failed {
                    return;
                }
            }
        });
        Self {
            full: Some(full),
            empty,
            spare: BUFFERS - 1,
        }
    }

    /// Has a buffer written. Returns an empty buffer for the next bytes, once one is free; `None` when the
    /// reader takes no more.
    async fn write(&mut self, buffer: Vec<u8>) -> Result<Option<Vec<u8>>, Failure> {
        if let Some(full) = &self.full {
            // The channel has room for all buffers. The call fails only when the thread has ended, which has
            // reported why.
            let _ = full.try_send(buffer);
        }
        if self.spare > 0 {
            self.spare -= 1;
            return Ok(Some(Vec::new()));
        }
        self.one().await
    }

    async fn one(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        match self.empty.recv().await {
            Some(Ok(buffer)) => Ok(Some(buffer)),
            Some(Err(cause)) if cause.kind() == io::ErrorKind::BrokenPipe => Ok(None),
            Some(Err(cause)) => {
                let message = format!("cannot write the output: {cause}");
                Err(Failure::new(ExitStatus::LocalIo, message).next_for(&cause))
            }
            None => Ok(None),
        }
    }

    /// Waits until all is written, and returns whether all was taken.
    async fn end(mut self) -> Result<bool, Failure> {
        self.full = None;
        while let Some(written) = self.empty.recv().await {
            match written {
                Ok(_) => {}
                Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => return Ok(false),
                Err(cause) => {
                    let message = format!("cannot write the output: {cause}");
                    return Err(Failure::new(ExitStatus::LocalIo, message).next_for(&cause));
                }
            }
        }
        Ok(true)
    }
}
