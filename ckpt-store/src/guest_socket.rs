//! The socket over which guests of this machine register. A process that connects is a guest, with all
//! processes that it starts, for as long as the connection lasts. Every process may connect. Users are
//! treated alike, except that none of them can take all places. No process can register another one.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use machine::ProcessId;
use machine::local::{FromDaemon, FromGuest, Lines, Message, MessageError, Shortened, Uses};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::clock::Clock;
use crate::core::quiet::Quiet;
use crate::monitor::Monitor;
use crate::monitor::guests::{Conditions, Seat, Viewpoint};

/// Every user of the machine may connect.
const SOCKET_MODE: u32 = 0o666;

/// Most messages that a guest may send in [`ALLOWANCE_PERIOD`].
const ALLOWANCE: u32 = 40;
const ALLOWANCE_PERIOD: Duration = Duration::from_secs(10);

/// Most connections of one user that are accepted in [`ALLOWANCE_PERIOD`]. Guests stay connected; a user that
/// connects more often is turned away without a word.
const ACCEPTED_MAX: u32 = 200;

/// Most users whose connections are counted.
const USERS_MAX: usize = 1024;

/// Pause of the socket after a failure, such as too many open files.
const FAILURE_PAUSE: Duration = Duration::from_millis(500);

/// Most bytes that are read in one step.
const READ_BYTES: usize = 1024;

/// A listening socket. Its file is removed when this is dropped.
#[derive(Debug)]
pub struct GuestSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file.
    file: (u64, u64),
}

impl GuestSocket {
    /// Listens at `path`. The directory of `path` is created if its parent exists. A socket file that a
    /// killed daemon has left is replaced.
    ///
    /// # Errors
    /// When another daemon listens there, or the file can't be created.
    pub fn bind(path: &Path) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            // An error is usual, because the directory mostly exists.
            let _ = fs::create_dir(directory);
        }
        let short = Shortened::of(path)?;
        if let Ok(found) = fs::symlink_metadata(short.path()) {
            let taken = |why| Err(io::Error::new(io::ErrorKind::AddrInUse, why));
            if !found.file_type().is_socket() {
                return taken("a file of this name exists and is not a socket");
            }
            if std::os::unix::net::UnixStream::connect(short.path()).is_ok() {
                return taken("another daemon listens there");
            }
            fs::remove_file(short.path())?;
        }
        let listener = UnixListener::bind(short.path())?;
        fs::set_permissions(short.path(), fs::Permissions::from_mode(SOCKET_MODE))?;
        let file = fs::symlink_metadata(short.path())?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            file: (file.dev(), file.ino()),
        })
    }

    /// Accepts guests for as long as this future is polled.
    pub async fn serve(self, monitor: Arc<Monitor>, clock: Clock) {
        info!(path = %self.path.display(), "listening for guests");
        let quiet = Arc::new(Mutex::new(Quiet::default()));
        let mut counted = Counted::new(Instant::now());
        let mut guests = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let user = stream.peer_cred().map_or(u32::MAX, |peer| peer.uid());
                        if counted.is_too_many(user, Instant::now()) {
                            continue;
                        }
                        let monitor = Arc::clone(&monitor);
                        let quiet = Arc::clone(&quiet);
                        guests.spawn(async move { receive(stream, &monitor, &quiet, clock).await });
                    }
                    Err(cause) => {
                        debug!(%cause, "a guest was refused");
                        tokio::time::sleep(FAILURE_PAUSE).await;
                    }
                },
                Some(_) = guests.join_next() => {}
            }
        }
    }
}

impl Drop for GuestSocket {
    fn drop(&mut self) {
        let is_ours = Shortened::of(&self.path).and_then(|short| {
            let file = fs::symlink_metadata(short.path())?;
            Ok(((file.dev(), file.ino()) == self.file).then_some(short))
        });
        if let Ok(Some(short)) = is_ours {
            // If the file stays, the next daemon replaces it.
            let _ = fs::remove_file(short.path());
        }
    }
}

/// How many connections of each user were accepted in the current period.
#[derive(Debug)]
struct Counted {
    since: Instant,
    users: BTreeMap<u32, u32>,
}

impl Counted {
    const fn new(since: Instant) -> Self {
        let users = BTreeMap::new();
        Self { since, users }
    }

    /// Counts a connection, and returns whether it is one too many.
    fn is_too_many(&mut self, user: u32, now: Instant) -> bool {
        if now.duration_since(self.since) >= ALLOWANCE_PERIOD || self.users.len() >= USERS_MAX {
            *self = Self::new(now);
        }
        let count = self.users.entry(user).or_default();
        *count = count.saturating_add(1);
        *count > ACCEPTED_MAX
    }
}

/// Finds out which process connected, and serves it for as long as the connection lasts.
async fn receive(
    stream: UnixStream,
    monitor: &Arc<Monitor>,
    quiet: &Mutex<Quiet<u32>>,
    clock: Clock,
) {
    let peer = stream.peer_cred().ok();
    let process = peer.and_then(|peer| {
        let process = ProcessId::of(monitor.machine(), peer.pid()?)?;
        Some((process, peer.uid()))
    });
    let Some((process, user)) = process else {
        refuse(
            &stream,
            "the daemon can't see the process that has connected",
        );
        return;
    };
    let monitor = Arc::clone(monitor);
    let conditions = monitor.conditions();
    // `admit` reads the process and its descendants from /proc.
    let admitted = tokio::task::spawn_blocking(move || monitor.admit(process, user)).await;
    let seat = match admitted {
        Ok(Ok(seat)) => seat,
        Ok(Err(full)) => {
            refuse(&stream, &full.to_string());
            return;
        }
        Err(cause) => {
            warn!(%cause, "a thread ended");
            return;
        }
    };
    debug!(?process, "a guest has connected");
    let ended = Conversation::new(&stream, &seat).run(conditions).await;
    match ended {
        Ok(()) => debug!(?process, "a guest has disconnected"),
        Err(cause) => {
            refuse(&stream, &cause.to_string());
            let mut quiet = quiet.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(held_back) = quiet.line(clock.now(), user) {
                let held_back = (held_back > 0).then_some(held_back);
                info!(pid = process.pid, user, %cause, held_back, "a guest was disconnected");
            }
        }
    }
}

/// Sends the reason if the socket has room for it, and closes.
fn refuse(stream: &UnixStream, why: &str) {
    if let Ok(line) = FromDaemon::Refused(why.to_owned()).line() {
        let _ = stream.try_write(&line);
    }
}

/// Why a guest is disconnected.
#[derive(Debug, thiserror::Error)]
enum Misconduct {
    #[error(transparent)]
    Message(#[from] MessageError),
    #[error("more than {ALLOWANCE} messages in {} seconds", ALLOWANCE_PERIOD.as_secs())]
    Chatter,
}

/// The exchange of messages over one connection.
struct Conversation<'a> {
    stream: &'a UnixStream,
    seat: &'a Seat,
    lines: Lines,
    uses: Uses,
    viewpoint: Viewpoint,
    /// The part of a report that has not been written yet. The newest report follows it.
    unsent: Vec<u8>,
    next: Option<FromDaemon>,
    heard: u32,
    heard_since: Instant,
}

impl<'a> Conversation<'a> {
    fn new(stream: &'a UnixStream, seat: &'a Seat) -> Self {
        Self {
            stream,
            seat,
            lines: Lines::default(),
            uses: Uses::default(),
            viewpoint: Viewpoint::default(),
            unsent: Vec::new(),
            next: None,
            heard: 0,
            heard_since: Instant::now(),
        }
    }

    /// Exchanges messages until the guest disconnects. An error means that the guest has to be
    /// disconnected.
    async fn run(mut self, mut conditions: watch::Receiver<Conditions>) -> Result<(), Misconduct> {
        conditions.mark_changed();
        loop {
            let has_more = !self.unsent.is_empty() || self.next.is_some();
            tokio::select! {
                changed = conditions.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    let seen = conditions.borrow_and_update();
                    let report = self.viewpoint.report(&seen, &self.uses);
                    self.next = report.map(FromDaemon::Report);
                }
                readable = self.stream.readable() => {
                    if readable.is_err() || !self.hear()? {
                        return Ok(());
                    }
                }
                writable = self.stream.writable(), if has_more => {
                    if writable.is_err() || !self.say()? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Reads what has arrived. Returns false if the guest has disconnected.
    fn hear(&mut self) -> Result<bool, Misconduct> {
        let mut bytes = [0; READ_BYTES];
        let read = match self.stream.try_read(&mut bytes) {
            Ok(0) => return Ok(false),
            Ok(read) => read,
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(_) => return Ok(false),
        };
        for line in self.lines.take(bytes.get(..read).unwrap_or_default())? {
            self.count()?;
            let FromGuest::Uses(uses) = FromGuest::parse(&line)?;
            self.uses = uses;
            self.seat.says(uses);
        }
        Ok(true)
    }

    fn count(&mut self) -> Result<(), Misconduct> {
        if self.heard_since.elapsed() > ALLOWANCE_PERIOD {
            (self.heard, self.heard_since) = (0, Instant::now());
        }
        self.heard += 1;
        if self.heard > ALLOWANCE {
            return Err(Misconduct::Chatter);
        }
        Ok(())
    }

    /// Writes as much as the socket takes. Returns false if the guest has disconnected.
    fn say(&mut self) -> Result<bool, Misconduct> {
        if self.unsent.is_empty()
            && let Some(message) = self.next.take()
        {
            self.unsent = message.line()?;
        }
        match self.stream.try_write(&self.unsent) {
            Ok(written) => {
                self.unsent.drain(..written);
                Ok(true)
            }
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(_) => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_that_connects_again_and_again_is_turned_away_and_no_other_is() {
        let begun = Instant::now();
        let mut counted = Counted::new(begun);
        let accepted = |counted: &mut Counted, user, at| {
            let tries = (0..4000).filter(|_| !counted.is_too_many(user, at));
            tries.count()
        };
        assert_eq!(accepted(&mut counted, 7, begun), ACCEPTED_MAX as usize);
        assert!(!counted.is_too_many(8, begun));
        let later = begun + ALLOWANCE_PERIOD;
        assert_eq!(accepted(&mut counted, 7, later), ACCEPTED_MAX as usize);
        for user in 0..3000 {
            counted.is_too_many(user, later);
        }
        assert!(counted.users.len() <= USERS_MAX);
    }
}
