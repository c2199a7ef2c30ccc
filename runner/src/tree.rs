//! The processes of a job, found in `/proc`: all descendants of this process except its helpers. This
//! process is a subreaper, so orphans of the job become its children and are found, too.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use machine::open_files::all_processes;

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

/// Children of a process. `/proc` lists them under the thread that started them. Where it can't be read, the
/// processes are searched whose parent the process is: none seen is not none there.
fn children(process: &Path) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(process.join("task")) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for task in tasks.flatten() {
        let text = match fs::read_to_string(task.path().join("children")) {
            Ok(text) => text,
            // The thread has ended, or this kernel has no such lists.
            Err(_) if !task.path().join("stat").exists() => continue,
            Err(_) => return children_of(process),
        };
        found.extend(
            text.split_whitespace()
                .filter_map(|pid| pid.parse::<i32>().ok()),
        );
    }
    found
}

/// The processes whose parent is this one.
fn children_of(process: &Path) -> Vec<i32> {
    let own = process.join("stat");
    let Some(parent) = fs::read(own).ok().and_then(|stat| {
        let text = String::from_utf8_lossy(&stat).into_owned();
        text.split_whitespace().next()?.parse::<i32>().ok()
    }) else {
        return Vec::new();
    };
    let is_child = |pid: &i32| {
        let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
        let text = String::from_utf8_lossy(&stat).into_owned();
        let fields = text.rsplit_once(')').map(|(_, fields)| fields.to_owned());
        let of = fields.and_then(|fields| fields.split_whitespace().nth(1)?.parse().ok());
        of == Some(parent)
    };
    all_processes().into_iter().filter(is_child).collect()
}

/// The state of a process, such as `R` or `T`; `None` if the process is gone.
pub(super) fn state(pid: i32) -> Option<char> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&stat);
    let (_, rest) = text.rsplit_once(')')?;
    rest.trim_start().chars().next()
}

#[cfg(test)]
mod tests {
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
        let me = children_of("/proc/self".as_ref());
        assert!(me.contains(&pid) && !me.contains(&grandchild), "{me:?}");
        assert_eq!(
            children_of(Path::new(&format!("/proc/{pid}"))),
            [grandchild]
        );
        let without = descendants(&BTreeSet::from([pid]));
        assert!(!without.contains(&pid) && !without.contains(&grandchild));
        let grandchild = rustix::process::Pid::from_raw(grandchild).unwrap();
        rustix::process::kill_process(grandchild, rustix::process::Signal::KILL).unwrap();
        child.wait().unwrap();
        assert_eq!(state(pid), None);
    }
}
