//! Prints the job's output, in a thread of its own: a reader that pauses does not delay the reports of
//! the host.

use std::io::{self, Write};
use std::sync::mpsc;
use std::thread::JoinHandle;

use tokio::sync::mpsc as news;

/// Where output is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

/// Output that was printed: of which incarnation, to which stream, and how many bytes.
pub(super) type Done = (u32, Stream, u64);

/// Prints the job's output in a thread of its own, so that a slow reader holds nothing else up.
#[derive(Debug)]
pub(super) struct Printer {
    parts: Option<mpsc::Sender<(u32, Stream, Vec<u8>)>>,
    thread: Option<JoinHandle<()>>,
    /// Output that was printed.
    pub done: news::UnboundedReceiver<Done>,
}

impl Printer {
    /// Starts the thread. Its queue has no limit of its own: the host sends only
    /// [`super::words::WINDOW_BYTES`] more than was printed.
    pub(super) fn begin() -> Self {
        let (parts, waiting) = mpsc::channel::<(u32, Stream, Vec<u8>)>();
        let (said, done) = news::unbounded_channel();
        let thread = std::thread::spawn(move || {
            for (number, stream, part) in waiting {
                // If nobody reads the output any more, the job goes on.
                let _ = match stream {
                    Stream::Out => show(&mut io::stdout().lock(), &part),
                    Stream::Err => show(&mut io::stderr().lock(), &part),
                };
                let _ = said.send((number, stream, part.len() as u64));
            }
        });
        Self {
            parts: Some(parts),
            thread: Some(thread),
            done,
        }
    }

    /// Queues output for printing.
    pub(super) fn show(&self, number: u32, stream: Stream, part: Vec<u8>) {
        if let Some(parts) = &self.parts {
            let _ = parts.send((number, stream, part));
        }
    }

    /// Waits until everything was printed.
    pub(super) async fn end(mut self) {
        self.parts = None;
        if let Some(thread) = self.thread.take() {
            let _ = tokio::task::spawn_blocking(|| thread.join()).await;
        }
    }
}

fn show(out: &mut impl Write, part: &[u8]) -> io::Result<()> {
    out.write_all(part)?;
    out.flush()
}
