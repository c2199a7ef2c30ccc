//! Empties and removes the control groups of a job whose supervisor was killed.

use std::path::Path;
use std::time::{Duration, Instant};

use machine::cgroup;
use machine::control::is_a_guest_s;
use rustix::process::{Pid, Signal, kill_process};

use super::ending::{END_POLL, write_to};

/// How long the processes in a control group may take to end after they were killed.
const EMPTY_PATIENCE: Duration = Duration::from_secs(5);

/// Kills all processes in a control group that was made for a guest, and removes the group. Any other control
/// group is left alone.
pub(super) fn empty(group: &Path) {
    if !is_a_guest_s(group) {
        return;
    }
    let began = Instant::now();
    while group.exists() && began.elapsed() < EMPTY_PATIENCE {
        // Works with version 2 of control groups, since Linux 5.14; the others are killed one by one below.
        let _ = write_to(&group.join("cgroup.kill"), "1");
        let pids = cgroup::processes(group).unwrap_or_default();
        for pid in pids.into_iter().filter(|pid| *pid > 1) {
            if let Some(pid) = Pid::from_raw(pid) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        // Fails until the last process is gone.
        if cgroup::remove(group).is_err() {
            std::thread::sleep(END_POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::{Child, Command, Stdio};

    use super::super::keeper::{Marked, carry_out};
    use super::*;

    /// A process that runs all the time and ignores SIGTERM; it ends with the test.
    struct Deaf(Child);

    impl Deaf {
        fn start() -> Self {
            let mut command = Command::new("sh");
            let script = "trap '' TERM; while :; do :; done";
            let child = command.args(["-c", script]).stdin(Stdio::null()).spawn();
            Self(child.unwrap())
        }

        /// Whether it ends within a few seconds.
        fn ends(&mut self) -> bool {
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(10) {
                if self.0.try_wait().unwrap().is_some() {
                    return true;
                }
                std::thread::sleep(END_POLL);
            }
            false
        }
    }

    impl Drop for Deaf {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn order(group: &Path, thaw: (&str, &'static str)) -> String {
        let family = Marked {
            mark: "0123456789abcdef".to_owned(),
            thaw: vec![(group.join(thaw.0), thaw.1)],
            groups: vec![group.to_owned()],
        };
        family.order()
    }

    #[test]
    fn processes_in_a_version_1_freezer_are_ended_and_their_group_is_removed() {
        let name = format!("ckpt-guest-keeper-{}", std::process::id());
        let group = Path::new("/sys/fs/cgroup/freezer").join(name);
        if let Err(cause) = fs::create_dir(&group) {
            eprintln!("not tested: no freezer of version 1 can be used here: {cause}");
            return;
        }
        let mut deaf = Deaf::start();
        let pid = deaf.0.id().to_string();
        write_to(&group.join("cgroup.procs"), &pid).unwrap();
        write_to(&group.join("freezer.state"), "FROZEN").unwrap();
        let state = || fs::read_to_string(group.join("freezer.state")).unwrap();
        while state().trim() != "FROZEN" {
            std::thread::sleep(END_POLL);
        }
        // A process that was killed while frozen still exists.
        let of_deaf = Pid::from_child(&deaf.0);
        kill_process(of_deaf, Signal::KILL).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let was_there = deaf.0.try_wait().unwrap().is_none();
        carry_out(&order(&group, ("freezer.state", "THAWED")));
        let is_gone = deaf.ends() && !group.exists();
        // The group must be thawed, even if the test fails.
        let _ = write_to(&group.join("freezer.state"), "THAWED");
        drop(deaf);
        let _ = fs::remove_dir(&group);
        assert!(was_there && is_gone, "{was_there} {is_gone}");
    }

    #[test]
    fn a_group_of_version_2_is_thawed_and_killed_as_its_kernel_wants() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("ckpt-guest-1-2");
        fs::create_dir(&group).unwrap();
        let mut deaf = Deaf::start();
        let of_deaf = deaf.0.id().to_string();
        for (name, text) in [
            ("cgroup.freeze", "1"),
            ("cgroup.kill", ""),
            ("cgroup.procs", &of_deaf),
        ] {
            fs::write(group.join(name), text).unwrap();
        }
        // The kernel removes a group's files with the group; a plain directory has to be emptied first.
        let read = std::thread::scope(|scope| {
            let kernel = scope.spawn(|| {
                let gone = deaf.ends();
                let read = |name: &str| fs::read_to_string(group.join(name)).unwrap();
                let read = (gone, read("cgroup.freeze"), read("cgroup.kill"));
                for file in ["cgroup.freeze", "cgroup.kill", "cgroup.procs"] {
                    fs::remove_file(group.join(file)).unwrap();
                }
                read
            });
            carry_out(&order(&group, ("cgroup.freeze", "0")));
            kernel.join().unwrap()
        });
        assert_eq!(read, (true, "0".to_owned(), "1".to_owned()));
        assert!(!group.exists());
    }

    #[test]
    fn a_directory_that_is_no_guest_s_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut other = Deaf::start();
        fs::write(dir.path().join("cgroup.procs"), other.0.id().to_string()).unwrap();
        carry_out(&format!("empty {}\nmark short\n", dir.path().display()));
        assert!(other.0.try_wait().unwrap().is_none() && dir.path().exists());
    }
}
