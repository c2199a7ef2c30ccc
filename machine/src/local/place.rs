//! Paths of a daemon's local socket.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// File name of the socket in its directory.
pub const SOCKET_NAME: &str = "guests.sock";

/// The socket of a daemon that the system runs, as `packaging/ckpt-store.service` has it.
pub const SYSTEM_SOCKET: &str = "/run/ckpt-store/guests.sock";

/// Environment variable with the path of the socket.
pub const SOCKET_VARIABLE: &str = "CKPT_GUEST_SOCKET";

/// Longest path of a socket, bytes: the system has room for 108 bytes, of which the last is a zero.
const PATH_BYTES_MAX: usize = 107;

/// The socket of the daemon whose data are in `directory`.
#[must_use]
pub fn socket_in(directory: &Path) -> PathBuf {
    directory.join(SOCKET_NAME)
}

/// The socket of a daemon that an ordinary user runs, in the user's `XDG_RUNTIME_DIR`, where all programs of
/// the user look for it; `None` if there is no such directory. `variable` reads the environment.
#[must_use]
pub fn user_socket(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let directory = PathBuf::from(variable("XDG_RUNTIME_DIR")?);
    let is_usable = directory.is_absolute();
    is_usable.then(|| directory.join("ckpt-store").join(SOCKET_NAME))
}

/// The sockets at which to look for a daemon, in this order. If [`SOCKET_VARIABLE`] is set, only the socket
/// that it names; otherwise those of the system's daemon, of this user's, and of the one whose data are in
/// `data`. `variable` reads the environment.
#[must_use]
pub fn usual_sockets(
    variable: impl Fn(&str) -> Option<OsString>,
    data: Option<&Path>,
) -> Vec<PathBuf> {
    if let Some(named) = variable(SOCKET_VARIABLE).filter(|named| !named.is_empty()) {
        return vec![named.into()];
    }
    let mut usual = vec![PathBuf::from(SYSTEM_SOCKET)];
    usual.extend(user_socket(variable));
    usual.extend(data.map(socket_in));
    usual
}

/// A path that is short enough for a socket. It is valid for as long as this value lives.
#[derive(Debug)]
pub struct Shortened {
    path: PathBuf,
    /// Keeps the descriptor open through which the path leads.
    _directory: Option<File>,
}

impl Shortened {
    /// The path itself or, if it is too long, a path through a descriptor of its directory.
    ///
    /// # Errors
    /// When the directory can't be opened.
    pub fn of(path: &Path) -> io::Result<Self> {
        if path.as_os_str().len() <= PATH_BYTES_MAX {
            return Ok(Self {
                path: path.to_owned(),
                _directory: None,
            });
        }
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = File::from(rustix::fs::open(directory, flags, Mode::empty())?);
        let own = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        Ok(Self {
            path: own.join(name),
            _directory: Some(directory),
        })
    }

    /// The short path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}
