//! The class `Writer`: a checkpoint that is saved while it is written.

use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

use ckpt_agent::client::{
    Canceller, ExitStatus, Failure, JobId, OnceReader, Save, SaveInput, SaveReport, canceller,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::failure::report;
use crate::options::Keywords;
use crate::session::{OfProcess, Session};

/// Most bytes that the program hands to the save at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Most chunks in the queue between the program and the save.
const CHUNKS_WAITING: usize = 4;

/// A message from the program to the save.
#[derive(Debug)]
enum Part {
    Bytes(Vec<u8>),
    /// The end of the file. Without this message nothing may be committed.
    End,
}

/// The save's end of the queue: reads the bytes that the program writes.
struct Parts {
    parts: mpsc::Receiver<Part>,
    current: io::Cursor<Vec<u8>>,
    has_ended: bool,
}

impl Read for Parts {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.current.read(room)?;
            if read > 0 || self.has_ended || room.is_empty() {
                return Ok(read);
            }
            match self.parts.blocking_recv() {
                Some(Part::Bytes(bytes)) => self.current = io::Cursor::new(bytes),
                Some(Part::End) => self.has_ended = true,
                None => return Err(io::Error::other("the program did not finish the file")),
            }
        }
    }
}

/// A save of the bytes that the program writes until `finish` or `abort`. Only `finish` commits it.
#[pyclass(frozen, module = "ckpt._ckpt")]
#[derive(Debug)]
pub(crate) struct Writer {
    inner: OfProcess<(Mutex<Option<Saving>>, Arc<Session>)>,
    canceller: Arc<Canceller>,
}

#[derive(Debug)]
struct Saving {
    parts: mpsc::Sender<Part>,
    save: JoinHandle<Result<SaveReport, Failure>>,
    canceller: Arc<Canceller>,
}

impl Writer {
    pub(crate) fn start(
        py: Python<'_>,
        session: &Arc<Session>,
        job: &JobId,
        options: Keywords,
    ) -> PyResult<Self> {
        let (sender, parts) = mpsc::channel(CHUNKS_WAITING);
        let reader = Parts {
            parts,
            current: io::Cursor::new(Vec::new()),
            has_ended: false,
        };
        let input = SaveInput::Reader(OnceReader::new(reader));
        let (canceller, cancel) = canceller();
        let save = Save::of(job, input)
            .options(options.options(py)?)
            .cancel(cancel);
        let saver = Arc::clone(session);
        let save = session
            .runtime()?
            .spawn(async move { saver.save(save).await });
        let canceller = Arc::new(canceller);
        let saving = Saving {
            parts: sender,
            save,
            canceller: Arc::clone(&canceller),
        };
        Ok(Self {
            inner: OfProcess::new((Mutex::new(Some(saving)), Arc::clone(session))),
            canceller,
        })
    }

    /// Takes the save out for one call. A second call at the same time, or a call after the end, fails.
    fn take(&self) -> PyResult<(Saving, &Arc<Session>)> {
        let (saving, session) = self.inner.get()?;
        let taken = saving.lock().unwrap_or_else(PoisonError::into_inner).take();
        let taken = taken.ok_or_else(|| {
            PyValueError::new_err("this save has ended, or another thread writes to it")
        })?;
        Ok((taken, session))
    }

    fn put_back(&self, saving: Saving) -> PyResult<()> {
        let (place, _) = self.inner.get()?;
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(saving);
        Ok(())
    }
}

/// Waits for the end of the save's task.
async fn ended(save: JoinHandle<Result<SaveReport, Failure>>) -> Result<SaveReport, Failure> {
    let ended = save.await;
    ended.unwrap_or_else(|cause| Err(Failure::new(ExitStatus::Failed, cause.to_string())))
}

#[pymethods]
impl Writer {
    /// Writes bytes. Waits while the queue is full.
    fn write(&self, py: Python<'_>, bytes: &[u8]) -> PyResult<()> {
        let (saving, session) = self.take()?;
        let mut is_taken = true;
        for chunk in bytes.chunks(CHUNK_BYTES) {
            let part = Part::Bytes(chunk.to_vec());
            is_taken &= session.wait(
                py,
                async { Ok(saving.parts.send(part).await.is_ok()) },
                None,
            )?;
        }
        if is_taken {
            return self.put_back(saving);
        }
        // The save has failed: it can't succeed without `Part::End`.
        session.wait(py, ended(saving.save), None).map(|_| ())
    }

    /// Ends the file and commits it. Returns a SaveReport.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        let (saving, session) = self.take()?;
        let Saving {
            parts,
            save,
            canceller,
        } = saving;
        let call = async {
            // Fails only if the save has ended; then the save's error has the reason.
            let _ = parts.send(Part::End).await;
            ended(save).await
        };
        let saved = session.wait(py, call, Some(&canceller))?;
        report(&saved)
    }

    /// Ends the save while another thread waits in `finish`, without committing anything unless it is committed
    /// already.
    fn cancel(&self) {
        self.canceller.cancel();
    }

    /// Ends the save without committing anything. Does nothing if it has ended.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let (place, session) = self.inner.get()?;
        let saving = place.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(saving) = saving else {
            return Ok(());
        };
        saving.canceller.cancel();
        drop(saving.parts);
        let call = async {
            // It fails because it was cancelled.
            let _ = ended(saving.save).await;
            Ok(())
        };
        session.wait(py, call, None)
    }
}
