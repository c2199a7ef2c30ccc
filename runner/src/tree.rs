//! The processes of a job, found in `/proc`: all descendants of this process except its helpers. This
//! process is a subreaper, so orphans of the job become its children and are found, too.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Most processes of a job that are listed.
const PROCESSES_MAX: usize = 100_000;

/// Process ids of all descendants of this process except `helpers`, zombies included.
pub(super) fn descendants(helpers: &BTreeSet<i32>) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    let mut open = children("/proc/self".as_ref());
    open.retain(|pid| !helpers.contains(pid));
    while let Some(pid) = open.pop() {
        if found.len() < PROCESSES_MAX && found.insert(pid) {
            open.extend(children(Path::new(&format!("/proc/{pid}"))));
        }
    }
    found
}

/// Process ids of all processes of this machine.
pub(super) fn all() -> BTreeSet<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.take(PROCESSES_MAX).collect()
}

/// Children of a process. `/proc` lists them under the thread that started them.
fn children(process: &Path) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(process.join("task")) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for task in tasks.flatten() {
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(
            text.split_whitespace()
                .filter_map(|pid| pid.parse::<i32>().ok()),
        );
    }
    found
}

/// The state of a process, such as `R` or `T`; `None` if the process is gone.
pub(super) fn state(pid: i32) -> Option<char> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&stat);
    let (_, rest) = text.rsplit_once(')')?;
    rest.trim_start().chars().next()
}

/// A file below one of `roots` (absolute paths without links) to which one of these processes can write
/// now: the process has it open for writing, or has mapped it shared and writable.
pub(super) fn written_to(pids: &BTreeSet<i32>, roots: &[PathBuf]) -> Option<PathBuf> {
    let is_beneath = |path: &Path| roots.iter().any(|root| path.starts_with(root));
    pids.iter()
        .find_map(|pid| open_to_write(*pid, &is_beneath).or_else(|| mapped(*pid, &is_beneath)))
}

fn open_to_write(pid: i32, is_beneath: &impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    for fd in fds.flatten() {
        let Ok(path) = fs::read_link(fd.path()) else {
            continue;
        };
        if is_beneath(&path) && may_write(pid, &fd.file_name().to_string_lossy()) {
            return Some(path);
        }
    }
    None
}

fn may_write(pid: i32, fd: &str) -> bool {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok());
    flags.is_some_and(|flags| flags & (OFlags::WRONLY | OFlags::RDWR).bits() != 0)
}

fn mapped(pid: i32, is_beneath: &impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let maps = fs::read(format!("/proc/{pid}/maps")).ok()?;
    maps.split(|&byte| byte == b'\n').find_map(|line| {
        let start = line.iter().position(|&byte| byte == b'/')?;
        let (fields, path) = line.split_at(start);
        let permissions = fields.split(|&byte| byte == b' ').nth(1)?;
        let is_shared = matches!(permissions, [_, b'w', _, b's', ..]);
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        (is_shared && is_beneath(path)).then(|| path.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn children_of_children_are_found_and_helpers_are_not() {
        let mut child = Command::new("sh")
            .args(["-c", "sleep 100 & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        let grandchild: i32 = line.trim().parse().unwrap();
        let pid = child.id().cast_signed();
        let found = descendants(&BTreeSet::new());
        assert!(
            found.contains(&pid) && found.contains(&grandchild),
            "{found:?}"
        );
        let without = descendants(&BTreeSet::from([pid]));
        assert!(!without.contains(&pid) && !without.contains(&grandchild));
        let grandchild = rustix::process::Pid::from_raw(grandchild).unwrap();
        rustix::process::kill_process(grandchild, rustix::process::Signal::KILL).unwrap();
        child.wait().unwrap();
        assert_eq!(state(pid), None);
    }

    #[test]
    fn a_file_that_is_open_for_writing_is_found_and_one_that_is_read_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let path = root.join("state");
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(b"x").unwrap();
        let own = BTreeSet::from([std::process::id().cast_signed()]);
        let roots = [root];
        assert_eq!(written_to(&own, &roots), Some(path.clone()));
        drop(file);
        let _reader = fs::File::open(&path).unwrap();
        assert_eq!(written_to(&own, &roots), None);
    }
}
