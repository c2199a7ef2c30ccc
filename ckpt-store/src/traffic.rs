//! Counts the bytes that the daemon's connections move, and keeps the sums of each day in the file
//! `traffic.json` in the data directory.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quinn::Connection;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tracing::warn;

use crate::core::traffic::{Days, Moved};
use crate::json_file;

/// No such file is longer, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The file is written at most this often.
const WRITE_PERIOD: Duration = Duration::from_secs(60);

#[derive(Debug, Default, Serialize, Deserialize)]
struct FileText {
    days: Vec<DayText>,
}

#[derive(Debug, Serialize, Deserialize)]
struct DayText {
    /// Days since 1970 (UTC).
    day: u64,
    received_bytes: u64,
    sent_bytes: u64,
}

/// Counts what the daemon's connections move: all bytes of their UDP datagrams.
#[derive(Debug)]
pub struct Traffic {
    data: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    days: Days,
    /// Connections that clients opened, and what each had moved at the last look.
    served: Vec<(Connection, Moved)>,
    /// What each connection that the daemon opened had moved at the last look, by its stable id.
    opened: BTreeMap<usize, Moved>,
    /// What was moved since the daemon started.
    since_start: Moved,
    is_changed: bool,
    written: Option<Instant>,
}

impl Traffic {
    /// Reads the file in the data directory. A file that can't be read counts as empty, with a line in
    /// the log.
    pub fn open(data: PathBuf) -> Self {
        let days = load(&data).unwrap_or_else(|cause| {
            warn!(%cause, file = %path(&data).display(), "can't read a file of the data directory: starting without it");
            Days::default()
        });
        Self {
            data,
            state: Mutex::new(State {
                days,
                served: Vec::new(),
                opened: BTreeMap::new(),
                since_start: Moved::default(),
                is_changed: false,
                written: None,
            }),
        }
    }

    /// Counts a connection of a client until the connection ends.
    pub fn serve(&self, connection: &Connection) {
        let begun = (connection.clone(), Moved::default());
        self.lock().served.push(begun);
    }

    /// Adds what each of these connections, which the daemon opened, has moved since the last call.
    /// Connections that are not in the list any more are forgotten.
    pub fn opened(&self, connections: &[Connection], now: u64) {
        let mut state = self.lock();
        let earlier = std::mem::take(&mut state.opened);
        for connection in connections {
            let number = connection.stable_id();
            let total = moved_by(connection);
            let before = earlier.get(&number).copied().unwrap_or_default();
            state.enter(now, since(total, before));
            state.opened.insert(number, total);
        }
    }

    /// The sums of each day, up to `now` in Unix seconds.
    pub fn days(&self, now: u64) -> Days {
        let mut state = self.lock();
        state.count(now);
        state.days.clone()
    }

    /// What was moved since the daemon started, up to the last time that it was added up.
    pub fn since_start(&self) -> Moved {
        self.lock().since_start
    }

    /// Like [`Self::write`], but at most once a minute.
    pub fn write_if_due(&self, now: u64) {
        let written = self.lock().written;
        if written.is_none_or(|at| at.elapsed() >= WRITE_PERIOD) {
            self.write(now);
        }
    }

    /// Writes the file if something was moved since it was written. Blocks on the disk. `now` is in Unix
    /// seconds.
    pub fn write(&self, now: u64) {
        let days = {
            let mut state = self.lock();
            state.count(now);
            if !state.is_changed {
                return;
            }
            state.is_changed = false;
            state.written = Some(Instant::now());
            state.days.clone()
        };
        if let Err(cause) = save(&self.data, &days) {
            warn!(%cause, "can't write the counts of transferred bytes");
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn count(&mut self, now: u64) {
        let mut more = Moved::default();
        self.served.retain_mut(|(connection, before)| {
            let has_ended = connection.close_reason().is_some();
            let total = moved_by(connection);
            more = more.and(since(total, *before));
            *before = total;
            !has_ended
        });
        self.enter(now, more);
    }

    fn enter(&mut self, now: u64, moved: Moved) {
        if moved.both() > 0 {
            self.days.enter(now, moved);
            self.since_start = self.since_start.and(moved);
            self.is_changed = true;
        }
    }
}

fn moved_by(connection: &Connection) -> Moved {
    let stats = connection.stats();
    Moved {
        received: stats.udp_rx.bytes,
        sent: stats.udp_tx.bytes,
    }
}

const fn since(total: Moved, before: Moved) -> Moved {
    Moved {
        received: total.received.saturating_sub(before.received),
        sent: total.sent.saturating_sub(before.sent),
    }
}

fn path(data: &Path) -> PathBuf {
    data.join("traffic.json")
}

/// Reads the file. Without a file the sums are zero.
///
/// # Errors
/// When the file can't be read.
pub fn load(data: &Path) -> io::Result<Days> {
    let Some(text) = json_file::read::<FileText>(&path(data), FILE_BYTES_MAX)? else {
        return Ok(Days::default());
    };
    let days = text.days.iter().map(|day| {
        let moved = Moved {
            received: day.received_bytes,
            sent: day.sent_bytes,
        };
        (day.day, moved)
    });
    Ok(Days::of(days.collect()))
}

fn save(data: &Path, days: &Days) -> io::Result<()> {
    let days = days.by_day().iter().map(|(day, moved)| DayText {
        day: *day,
        received_bytes: moved.received,
        sent_bytes: moved.sent,
    });
    let text = FileText {
        days: days.collect(),
    };
    json_file::write(data, &path(data), &text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn counted_traffic_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let traffic = Traffic::open(dir.path().to_owned());
        let moved = Moved {
            received: 5,
            sent: 7,
        };
        traffic.lock().enter(86_400 * 3, moved);
        traffic.write_if_due(86_400 * 3);
        assert_eq!(load(dir.path()).unwrap().within(86_400 * 3, 1), moved);
        // Less than a minute later, only the last write happens.
        traffic.lock().enter(86_400 * 3, moved);
        traffic.write_if_due(86_400 * 3);
        assert_eq!(load(dir.path()).unwrap().since(0), moved);
        traffic.write(86_400 * 3);
        assert_eq!(load(dir.path()).unwrap().since(0), moved.and(moved));
        assert_eq!(traffic.since_start(), moved.and(moved));
        let again = Traffic::open(dir.path().to_owned());
        assert_eq!(again.since_start(), Moved::default());
        fs::write(path(dir.path()), "{").unwrap();
        assert!(load(dir.path()).is_err());
    }
}
