//! Guest processes: their load is not the owner's.
//!
//! A job wrapper registers a guest with `ckpt-store guest --data DIR PID`, which leaves a file in
//! the data directory. The name of the file is the process id, its content the time at which the
//! process started, in ticks since boot: a process id that is used again is another process. The
//! owner can name commands that are always guests (`guest_commands` in the preferences).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use machine::{Guests, Machine, ProcessId};

/// Guests that are remembered at once; more can't be registered.
const GUESTS_MAX: usize = 4096;

/// The guests registered in `data_dir`, and all processes that run one of `commands`. Files of
/// processes that have ended are removed.
#[must_use]
pub fn registered(data_dir: &Path, machine: &Machine, commands: &[String]) -> Guests {
    let entries = fs::read_dir(directory(data_dir));
    let alive = entries
        .into_iter()
        .flatten()
        .flatten()
        .take(GUESTS_MAX)
        .filter_map(|entry| alive(&entry.path(), machine));
    Guests::of(alive).and_commands(commands)
}

/// Registers a process as a guest.
///
/// # Errors
/// When there is no such process, there are too many guests, or the file can't be written.
pub fn register(data_dir: &Path, machine: &Machine, pid: i32) -> io::Result<()> {
    let process = ProcessId::of(machine, pid);
    let process = process.ok_or_else(|| io::Error::other(format!("no process {pid}")))?;
    let directory = directory(data_dir);
    fs::create_dir_all(&directory)?;
    if fs::read_dir(&directory)?.count() >= GUESTS_MAX {
        return Err(io::Error::other(format!("{GUESTS_MAX} guests already")));
    }
    fs::write(directory.join(pid.to_string()), process.started.to_string())
}

fn directory(data_dir: &Path) -> PathBuf {
    data_dir.join("guests")
}

fn alive(path: &Path, machine: &Machine) -> Option<ProcessId> {
    let pid: i32 = path.file_name()?.to_str()?.parse().ok()?;
    let started: u64 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    let process = ProcessId { pid, started };
    if process.is_there(machine) {
        return Some(process);
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
        let (dir, here) = (tempfile::tempdir().unwrap(), Machine::here());
        let mut child = std::process::Command::new("sleep")
            .arg("100")
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        register(dir.path(), &here, pid).unwrap();
        let process = ProcessId::of(&here, pid).unwrap();
        assert_eq!(registered(dir.path(), &here, &[]), Guests::of([process]));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(registered(dir.path(), &here, &[]).is_empty());
        assert_eq!(fs::read_dir(directory(dir.path())).unwrap().count(), 0);
        assert!(register(dir.path(), &here, pid).is_err());
    }
}
