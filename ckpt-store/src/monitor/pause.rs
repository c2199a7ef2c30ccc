//! The owner's pause: the file `pause` in the data directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A host whose pause has no end may be asked again after this many seconds.
const ENDLESS_RETRY_SECONDS: u32 = 3600;

/// Whether the owner has paused the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// The host is not paused.
    No,
    /// The host is paused until this time, in Unix seconds.
    Until(u64),
    /// The host is paused until the owner resumes it.
    Endless,
}

impl Pause {
    /// Reads the file. A file with other content counts as a pause without an end, because the owner
    /// wanted a pause.
    pub fn read(data_dir: &Path) -> Self {
        match fs::read_to_string(path(data_dir)) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Self::No,
            Err(_) => Self::Endless,
            Ok(text) => match text.trim().strip_prefix("until ") {
                Some(until) => until.parse().map_or(Self::Endless, Self::Until),
                None => Self::Endless,
            },
        }
    }

    /// Writes the file. [`Self::No`] removes it.
    ///
    /// # Errors
    /// When the file can't be written or removed.
    pub fn write(self, data_dir: &Path) -> io::Result<()> {
        let path = path(data_dir);
        let text = match self {
            Self::No => {
                return match fs::remove_file(path) {
                    Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(cause),
                    _ => Ok(()),
                };
            }
            Self::Until(until) => format!("until {until}\n"),
            Self::Endless => "until resumed\n".to_owned(),
        };
        let mut file = tempfile::NamedTempFile::new_in(data_dir)?;
        io::Write::write_all(&mut file, text.as_bytes())?;
        file.persist(path).map_err(|persist| persist.error)?;
        Ok(())
    }

    /// Seconds after which the host may be asked again. `None` if it is not paused at `now`, in Unix
    /// seconds.
    pub fn seconds_left(self, now: u64) -> Option<u32> {
        match self {
            Self::No => None,
            Self::Endless => Some(ENDLESS_RETRY_SECONDS),
            Self::Until(until) if until <= now => None,
            Self::Until(until) => Some(u32::try_from(until - now).unwrap_or(u32::MAX)),
        }
    }
}

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("pause")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_kept_until_its_end_or_until_it_is_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path();
        assert_eq!(Pause::read(data), Pause::No);
        Pause::No.write(data).unwrap();
        Pause::Until(1000).write(data).unwrap();
        let pause = Pause::read(data);
        assert_eq!(pause.seconds_left(990), Some(10));
        assert_eq!(pause.seconds_left(1000), None);
        Pause::Endless.write(data).unwrap();
        assert_eq!(Pause::read(data), Pause::Endless);
        assert_eq!(Pause::Endless.seconds_left(u64::MAX), Some(3600));
        Pause::No.write(data).unwrap();
        assert_eq!(Pause::read(data), Pause::No);
        fs::write(path(data), "for a while").unwrap();
        assert_eq!(Pause::read(data), Pause::Endless);
    }
}
