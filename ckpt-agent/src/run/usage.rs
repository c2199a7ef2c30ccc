//! What a job uses, and the command that asks it for a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;

use supervision::JobUse;
use tokio::sync::mpsc;

use super::channel::CKPT_NOTIFY;
use super::saver::News;

/// Process id of the job, as the command that asks it finds it.
const CKPT_PID: &str = "CKPT_PID";

/// Directory of the image, as that command finds it.
const CKPT_DIR: &str = "CKPT_DIR";

/// CPU time and bytes of all processes that a job ever had; it never becomes less.
#[derive(Debug, Default)]
pub(super) struct Usage {
    /// What each process that is there has used: clock ticks, bytes.
    there: BTreeMap<i32, (u64, u64)>,
    /// What those used that are gone.
    gone: (u64, u64),
}

impl Usage {
    /// Looks at the processes that there are now.
    pub(super) fn look(&mut self, processes: &BTreeSet<i32>) -> JobUse {
        let mut there = BTreeMap::new();
        for pid in processes {
            let before = self.there.remove(pid).unwrap_or_default();
            let (ticks, bytes) = used(*pid).unwrap_or_default();
            there.insert(*pid, (ticks.max(before.0), bytes.max(before.1)));
        }
        for (ticks, bytes) in self.there.values() {
            self.gone.0 += ticks;
            self.gone.1 += bytes;
        }
        self.there = there;
        let sum = |of: fn(&(u64, u64)) -> u64| self.there.values().map(of).sum::<u64>();
        let ticks = self.gone.0 + sum(|one| one.0);
        let per_second = procfs::ticks_per_second().max(1);
        JobUse {
            cpu_ms: ticks * 1000 / per_second,
            io_bytes: self.gone.1 + sum(|one| one.1),
        }
    }
}

/// Clock ticks and bytes moved of a process.
fn used(pid: i32) -> Option<(u64, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let user: u64 = fields.nth(11)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let moved = io.lines().filter_map(|line| {
        let (key, value) = line.split_once(':')?;
        matches!(key, "rchar" | "wchar").then(|| value.trim().parse::<u64>().ok())?
    });
    Some((user + system, moved.sum()))
}

/// The command that asks a job for a checkpoint, or takes one of it.
#[derive(Clone, Debug)]
pub(super) struct Asking {
    /// For `sh -c`.
    pub command: String,
    /// Process id of the job.
    pub pid: i32,
    /// Directory that the image goes to: empty when the command starts.
    pub dir: Option<PathBuf>,
    /// The job's socket.
    pub notify: PathBuf,
}

impl Asking {
    /// Starts it in a process group of its own; its process id. News follow when it has ended.
    ///
    /// # Errors
    /// When it does not start.
    pub(super) fn start(&self, news: mpsc::Sender<News>) -> io::Result<i32> {
        let mut command = std::process::Command::new("sh");
        command
            .args(["-c", &self.command])
            .env(CKPT_PID, self.pid.to_string())
            .env(CKPT_NOTIFY, &self.notify)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0);
        if let Some(dir) = &self.dir {
            super::files::remove(dir)?;
            fs::create_dir_all(dir)?;
            command.env(CKPT_DIR, dir);
        }
        let mut child = command.spawn()?;
        let pid = child.id().cast_signed();
        let name = self.command.clone();
        tokio::task::spawn_blocking(move || {
            let ended = match child.wait() {
                Ok(status) if status.success() => Ok(()),
                Ok(status) => Err(format!("{name:?} ended with {status}")),
                Err(cause) => Err(format!("{name:?}: {cause}")),
            };
            // Fails when nobody wants to know any more.
            let _ = news.blocking_send(News::Asked(pid, ended));
        });
        Ok(pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_processes_used_is_not_forgotten() {
        let own = BTreeSet::from([std::process::id().cast_signed()]);
        let mut usage = Usage::default();
        let first = usage.look(&own);
        assert!(first.io_bytes > 0);
        let then = usage.look(&BTreeSet::new());
        assert_eq!(then.io_bytes, first.io_bytes);
        assert!(usage.look(&own).io_bytes >= 2 * first.io_bytes);
    }
}
