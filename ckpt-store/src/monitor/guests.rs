//! Guest processes: their load is not the owner's.
//!
//! A job wrapper registers a guest with `ckpt-store guest --data DIR PID`, which leaves a file in
//! the data directory. The name of the file is the process id, its content the time at which the
//! process started, in ticks since boot: a process id that is used again is another process. The
//! owner can name commands that are always guests (`guest_commands` in the preferences).

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use procfs::process::Stat;
use procfs::{FromRead, ProcError};

/// Guests that are remembered at once; more can't be registered.
const GUESTS_MAX: usize = 4096;

/// Which processes are guests; their descendants are, too.
#[derive(Clone, Debug, Default)]
pub struct Guests {
    processes: HashSet<(i32, u64)>,
    commands: Vec<String>,
}

impl Guests {
    /// Guests by process id and start time.
    #[must_use]
    pub fn of(processes: impl IntoIterator<Item = (i32, u64)>) -> Self {
        Self {
            processes: processes.into_iter().collect(),
            commands: Vec::new(),
        }
    }

    /// The guests registered in `data_dir`, and all processes that run one of `commands`. Files of
    /// processes that have ended are removed.
    #[must_use]
    pub fn registered(data_dir: &Path, proc: &Path, commands: &[String]) -> Self {
        let entries = fs::read_dir(directory(data_dir));
        let alive = entries
            .into_iter()
            .flatten()
            .flatten()
            .take(GUESTS_MAX)
            .filter_map(|entry| alive(&entry.path(), proc));
        Self {
            processes: alive.collect(),
            // The kernel cuts the names of commands.
            commands: commands
                .iter()
                .map(|name| name.chars().take(15).collect())
                .collect(),
        }
    }

    /// Whether there can be none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.commands.is_empty()
    }

    /// Whether this process is one, by itself.
    #[must_use]
    pub fn contains(&self, pid: i32, started: u64, command: &str) -> bool {
        self.processes.contains(&(pid, started)) || self.commands.iter().any(|name| name == command)
    }
}

/// Registers a process as a guest.
///
/// # Errors
/// When there is no such process, there are too many guests, or the file can't be written.
pub fn register(data_dir: &Path, proc: &Path, pid: i32) -> io::Result<()> {
    let stat = stat(proc, pid).map_err(|cause| io::Error::other(cause.to_string()))?;
    let directory = directory(data_dir);
    fs::create_dir_all(&directory)?;
    if fs::read_dir(&directory)?.count() >= GUESTS_MAX {
        return Err(io::Error::other(format!("{GUESTS_MAX} guests already")));
    }
    fs::write(directory.join(pid.to_string()), stat.starttime.to_string())
}

fn directory(data_dir: &Path) -> PathBuf {
    data_dir.join("guests")
}

fn stat(proc: &Path, pid: i32) -> Result<Stat, ProcError> {
    Stat::from_file(proc.join(pid.to_string()).join("stat"))
}

fn alive(path: &Path, proc: &Path) -> Option<(i32, u64)> {
    let pid: i32 = path.file_name()?.to_str()?.parse().ok()?;
    let started: u64 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    if stat(proc, pid).is_ok_and(|stat| stat.starttime == started) {
        return Some((pid, started));
    }
    // Fails when somebody else has removed it, which is as well.
    let _ = fs::remove_file(path);
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_forgotten_when_it_ends() {
        let (dir, proc) = (tempfile::tempdir().unwrap(), Path::new("/proc"));
        let mut child = std::process::Command::new("sleep")
            .arg("100")
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        register(dir.path(), proc, pid).unwrap();
        let started = stat(proc, pid).unwrap().starttime;
        let guests = Guests::registered(dir.path(), proc, &[]);
        assert!(guests.contains(pid, started, "sleep"));
        assert!(!guests.contains(pid, started + 1, "sleep"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(Guests::registered(dir.path(), proc, &[]).is_empty());
        assert_eq!(fs::read_dir(directory(dir.path())).unwrap().count(), 0);
        assert!(register(dir.path(), proc, pid).is_err());
    }

    #[test]
    fn commands_are_compared_as_the_kernel_cuts_them() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["condor_starter_with_a_long_name".to_owned()];
        let guests = Guests::registered(dir.path(), Path::new("/proc"), &names);
        assert!(guests.contains(1, 1, "condor_starter_"));
        assert!(!guests.contains(1, 1, "condor"));
    }
}
