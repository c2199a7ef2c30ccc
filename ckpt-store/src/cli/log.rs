//! Where the log goes, and how long it may become.

use std::io::{self, Stderr, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use rustix::fs::{FileType, fstat, ftruncate};
use tracing::{Level, Metadata};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Form of the log.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum LogFormat {
    Text,
    Json,
}

/// Bytes that are written between two looks at the length of the log.
const LOOKED_AFTER: u64 = 16 << 10;

/// The line that takes the place of what was dropped.
const DROPPED: &[u8] = b"earlier lines of the log were dropped: it had become too long\n";

/// Logs to standard error. If that is a file that becomes longer than `bytes_max`, it begins anew.
pub(super) fn log_to_stderr(format: LogFormat, bytes_max: Option<u64>) {
    let wanted = std::env::var("RUST_LOG").ok();
    let wanted: Option<Targets> = wanted.and_then(|wanted| wanted.parse().ok());
    let filter = wanted.unwrap_or_else(|| Targets::new().with_default(Level::INFO));
    let bounded = Bounded {
        has_priorities: fstat(io::stderr()).is_ok_and(|found| {
            let stream = std::env::var("JOURNAL_STREAM").ok();
            is_journal(stream.as_deref(), found.st_dev, found.st_ino)
        }),
        bytes_max,
        since: AtomicU64::new(LOOKED_AFTER),
    };
    let log = tracing_subscriber::fmt::layer().with_writer(bounded);
    let log = match format {
        LogFormat::Text => log.with_ansi(false).boxed(),
        LogFormat::Json => log.json().boxed(),
    };
    // An error means that a logger is set already, and that one is used.
    let _ = tracing_subscriber::registry()
        .with(log.with_filter(filter))
        .try_init();
}

/// Whether the file with this device and inode is the stream of the journal that systemd names in
/// `JOURNAL_STREAM` (systemd.exec(5)).
fn is_journal(stream: Option<&str>, device: u64, inode: u64) -> bool {
    stream == Some(&format!("{device}:{inode}"))
}

/// The priority of a line for the journal (sd-daemon(3)).
const fn priority(level: Level) -> &'static [u8] {
    match level {
        Level::ERROR => b"<3>",
        Level::WARN => b"<4>",
        Level::INFO => b"<6>",
        _ => b"<7>",
    }
}

/// Standard error, if it is a file, with a bound.
struct Bounded {
    /// Whether each line begins with its priority, which the journal takes off.
    has_priorities: bool,
    bytes_max: Option<u64>,
    /// Bytes that were written since the last look.
    since: AtomicU64,
}

impl Bounded {
    fn look(&self, written: usize) {
        let Some(bytes_max) = self.bytes_max else {
            return;
        };
        let since = self.since.fetch_add(written as u64, Ordering::Relaxed);
        if since < LOOKED_AFTER {
            return;
        }
        self.since.store(0, Ordering::Relaxed);
        let log = io::stderr();
        let is_long = fstat(&log).is_ok_and(|found| {
            let is_file = FileType::from_raw_mode(found.st_mode).is_file();
            is_file && u64::try_from(found.st_size).is_ok_and(|size| size > bytes_max)
        });
        // The file was opened to append, so what follows is written to its beginning.
        if is_long && ftruncate(&log, 0).is_ok() {
            let _ = log.lock().write_all(DROPPED);
        }
    }
}

impl<'a> MakeWriter<'a> for Bounded {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        let to = io::stderr();
        Line {
            bounded: self,
            begins_with: b"",
            to,
        }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line<'a> {
        let mut line = self.make_writer();
        if self.has_priorities {
            line.begins_with = priority(*meta.level());
        }
        line
    }
}

/// One line of the log.
struct Line<'a> {
    bounded: &'a Bounded,
    /// What is written before the first byte.
    begins_with: &'static [u8],
    to: Stderr,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bounded.look(bytes.len());
        if self.begins_with.is_empty() {
            return self.to.write(bytes);
        }
        // In one piece, or the lines of two threads would take each other's priorities.
        let line = [std::mem::take(&mut self.begins_with), bytes].concat();
        self.to.write_all(&line)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_stream_that_systemd_names_is_the_journal() {
        assert!(is_journal(Some("8:123"), 8, 123));
        for stream in [None, Some(""), Some("8:124"), Some("9:123"), Some("8:1234")] {
            assert!(!is_journal(stream, 8, 123), "{stream:?}");
        }
    }
}
