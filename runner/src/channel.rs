//! The socket on which a job sends notices. Its path is in the variable `CKPT_NOTIFY`.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram as BlockingDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::UnixDatagram;

use super::notice::{JobNotice, NOTICE_BYTES_MAX};

/// Variable with the path of the socket.
pub const CKPT_NOTIFY: &str = "CKPT_NOTIFY";

/// Prefix of the names of the directories with sockets, and the name of a socket.
const PREFIX: &str = "ckpt-run-";
const SOCKET: &str = "notify";

/// Most entries of a directory that are looked through for sockets that were left.
const ENTRIES_MAX: usize = 10_000;

/// Longest path of a socket on Linux, bytes, without the zero at its end.
const SOCKET_PATH_MAX: usize = 107;

/// How long a notice waits for a supervisor that does not read.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// The supervisor's end of the socket.
#[derive(Debug)]
pub struct Channel {
    socket: UnixDatagram,
    path: PathBuf,
    /// The directory with the socket, which is removed at the end.
    _dir: TempDir,
}

impl Channel {
    /// Makes a new socket in a directory that only this user can enter.
    ///
    /// # Errors
    /// When no directory for it can be made.
    pub fn open() -> io::Result<Self> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let places = [runtime, Some(std::env::temp_dir()), Some("/tmp".into())];
        let mut refused = io::Error::other("no directory");
        for place in places.into_iter().flatten() {
            match Self::open_in(&place) {
                Ok(channel) => return Ok(channel),
                Err(cause) => refused = cause,
            }
        }
        Err(refused)
    }

    fn open_in(place: &Path) -> io::Result<Self> {
        remove_left(place);
        let dir = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir_in(place)?;
        let path = dir.path().join(SOCKET);
        if path.as_os_str().len() > SOCKET_PATH_MAX {
            return Err(io::Error::other(
                "the directory's name is too long for a socket",
            ));
        }
        Ok(Self {
            socket: UnixDatagram::bind(&path)?,
            path,
            _dir: dir,
        })
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the next datagram. If it is not valid, returns the reason.
    ///
    /// # Errors
    /// When the socket fails.
    pub async fn receive(&self) -> io::Result<Result<Vec<JobNotice>, String>> {
        let mut buffer = [0; NOTICE_BYTES_MAX + 1];
        let length = self.socket.recv(&mut buffer).await?;
        let datagram = buffer.get(..length).unwrap_or_default();
        Ok(JobNotice::parse(datagram).map_err(|cause| cause.to_string()))
    }
}

/// Removes what runs left here that were killed: their sockets are there, and nobody reads them.
fn remove_left(place: &Path) {
    let entries = std::fs::read_dir(place).into_iter().flatten();
    for entry in entries.flatten().take(ENTRIES_MAX) {
        let is_one = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if !is_one {
            continue;
        }
        let socket = entry.path().join(SOCKET);
        let left = BlockingDatagram::unbound().and_then(|probe| probe.connect(&socket));
        if left.is_err_and(|cause| cause.kind() == io::ErrorKind::ConnectionRefused) {
            // Fails for the directories of other users.
            let _ = std::fs::remove_file(&socket);
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// Sends notices to the supervisor whose socket is at `path`.
///
/// # Errors
/// When no supervisor reads there.
pub fn send(path: &Path, notices: &[JobNotice]) -> io::Result<()> {
    let text: String = notices.iter().map(|notice| format!("{notice}\n")).collect();
    let socket = BlockingDatagram::unbound()?;
    socket.set_write_timeout(Some(SEND_TIMEOUT))?;
    socket.send_to(text.as_bytes(), path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_killed_run_left_is_removed_by_the_next() {
        let place = tempfile::tempdir().unwrap();
        let lives = Channel::open_in(place.path()).unwrap();
        let dir = place.path().join("ckpt-run-killed");
        std::fs::create_dir(&dir).unwrap();
        // The socket stays when its process is gone.
        drop(BlockingDatagram::bind(dir.join(SOCKET)).unwrap());
        let another = place.path().join("ckpt-run-begins");
        std::fs::create_dir(&another).unwrap();
        let _next = Channel::open_in(place.path()).unwrap();
        assert!(!dir.exists() && another.exists() && lives.path().exists());
    }

    #[tokio::test]
    async fn messages_arrive_and_junk_is_refused_with_a_reason() {
        let channel = Channel::open().unwrap();
        let mode = std::fs::metadata(channel.path().parent().unwrap()).unwrap();
        assert_eq!(mode.permissions().mode() & 0o777, 0o700);
        send(channel.path(), &[JobNotice::Saved, JobNotice::Step(3)]).unwrap();
        let received = channel.receive().await.unwrap();
        assert_eq!(received, Ok(vec![JobNotice::Saved, JobNotice::Step(3)]));
        let raw = BlockingDatagram::unbound().unwrap();
        raw.send_to(&vec![b'x'; 2 * NOTICE_BYTES_MAX], channel.path())
            .unwrap();
        let refused = channel.receive().await.unwrap().unwrap_err();
        assert!(refused.contains("at most"), "{refused}");
        let path = channel.path().to_owned();
        drop(channel);
        assert!(send(&path, &[JobNotice::Saved]).is_err());
        assert!(!path.exists());
    }
}
