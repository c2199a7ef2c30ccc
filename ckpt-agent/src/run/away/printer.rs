//! Shows the job's output, on a thread of its own: whoever reads it may take a rest, and reports of the
//! host are heard all the same.

use std::io::{self, Write};
use std::sync::mpsc;
use std::thread::JoinHandle;

use tokio::sync::mpsc as news;

/// Where something is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

/// Something that was shown: of which incarnation, where, and how many bytes.
pub(super) type Done = (u32, Stream, u64);

/// Shows output.
#[derive(Debug)]
pub(super) struct Printer {
    parts: Option<mpsc::Sender<(u32, Stream, Vec<u8>)>>,
    thread: Option<JoinHandle<()>>,
    /// What was shown.
    pub done: news::UnboundedReceiver<Done>,
}

impl Printer {
    /// Begins. What waits is bounded by the sender, who waits for what was shown.
    pub(super) fn begin() -> Self {
        let (parts, waiting) = mpsc::channel::<(u32, Stream, Vec<u8>)>();
        let (said, done) = news::unbounded_channel();
        let thread = std::thread::spawn(move || {
            for (number, stream, part) in waiting {
                // Whoever does not want to read it any more does not end the job.
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

    /// Shows this.
    pub(super) fn show(&self, number: u32, stream: Stream, part: Vec<u8>) {
        if let Some(parts) = &self.parts {
            let _ = parts.send((number, stream, part));
        }
    }

    /// Waits until all was shown.
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
