//! The job's processes: started in a process group of their own, stopped, resumed, ended and reaped.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use machine::control::Control;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, set_child_subreaper,
    waitid,
};

use super::tree;
use ckpt_agent::image::keeper::{Group, Keeper, Kept, MARK, Marked, carry_out};

/// How often the processes of a job are listed again while new ones appear.
const LISTINGS_MAX: usize = 8;

/// How often the end of all processes is checked at the very end, and the time between two checks.
const END_CHECKS_MAX: u32 = 200;
const END_CHECK_PERIOD: Duration = Duration::from_millis(5);

/// Longest accepted record of how a job is ended, bytes.
const RECORD_BYTES_MAX: u64 = 64 << 10;

/// Ends what is left of a job whose supervisor was killed together with its keeper. `record` is the file
/// that the supervisor wrote. The caller has to hold the job's lock, so that no other supervisor runs.
pub(super) fn end_what_was_left(record: &Path) {
    let Ok(file) = fs::File::open(record) else {
        return;
    };
    let mut text = String::new();
    if file
        .take(RECORD_BYTES_MAX)
        .read_to_string(&mut text)
        .is_ok()
    {
        carry_out(&text);
    }
    // A record that stays is harmless, because no other job ever gets the same mark.
    let _ = fs::remove_file(record);
}

/// The command to start.
#[derive(Clone, Debug)]
pub(super) struct JobCommand {
    /// The program, followed by its arguments.
    pub words: Vec<OsString>,
    /// Variables that it gets in addition to those of this process.
    pub variables: Vec<(&'static str, OsString)>,
    /// Its working directory; that of this process if `None`.
    pub dir: Option<PathBuf>,
}

/// Why a job was not started.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    /// The program does not exist.
    #[error("{program:?}: {cause}")]
    NotFound {
        /// The program that was to be started.
        program: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// The program can't be executed.
    #[error("{program:?}: {cause}")]
    NotExecutable {
        /// The program that was to be started.
        program: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// There is no keeper, so nothing would end the job if this process were killed.
    #[error("starting the process that ends the job if this one is killed: {0}")]
    Keeper(io::Error),
    /// The record of how the job is ended could not be written.
    #[error("recording how to end the job if this process is killed: {0}")]
    Record(io::Error),
    /// There is no socket for the job's notices.
    #[error("a socket for the job's notices: {0}")]
    Channel(io::Error),
    /// This process can't adopt the job's orphans.
    #[error("becoming the subreaper of the job: {0}")]
    Subreaper(io::Error),
}

impl StartError {
    /// The exit status that shells and `env` give for this error.
    pub(super) const fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound { .. } => 127,
            Self::NotExecutable { .. } => 126,
            Self::Keeper(_) | Self::Record(_) | Self::Subreaper(_) | Self::Channel(_) => 125,
        }
    }
}

/// Has the keeper keep the group of this child, which was not waited for.
fn keep_group(kept: &mut Kept, leader: Pid) -> io::Result<Group> {
    let group = Group::of_leader(leader)?;
    kept.add(group)?;
    Ok(group)
}

/// A running job.
#[derive(Debug)]
pub(super) struct Job {
    child: Child,
    group: Pid,
    /// The same, also when its first process has ended.
    known_group: Group,
    family: Marked,
    /// The file that records how all processes of the job are ended. The next start needs it if this
    /// process and the keeper are killed together.
    record: PathBuf,
    keeper: Keeper,
    kept: Kept,
    /// Children of this process that do not belong to the job.
    helpers: BTreeSet<i32>,
    ended: Option<ExitStatus>,
    is_stopped: bool,
    /// What holds the job back for the machine's owner, if the owner is watched.
    control: Option<Control>,
}

impl Job {
    /// Starts a job in a process group of its own with the standard streams of this process, and a keeper
    /// that ends the job if this process is killed. `mark` distinguishes its processes from others, and
    /// `record` is written for [`end_what_was_left`].
    ///
    /// # Errors
    /// When the job does not run; then none of its processes does.
    pub(super) fn start(
        command: &JobCommand,
        keeper: Keeper,
        mark: &str,
        record: PathBuf,
        mut control: Option<Control>,
    ) -> Result<Self, StartError> {
        set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|cause| StartError::Subreaper(cause.into()))?;
        let family = Marked {
            mark: mark.to_owned(),
            thaw: control.as_ref().map(Control::thaw).unwrap_or_default(),
            groups: control
                .as_ref()
                .map(Control::group_directories)
                .unwrap_or_default(),
        };
        fs::write(&record, family.order()).map_err(StartError::Record)?;
        let kept = keeper.keep_marked(&family);
        let mut kept = kept.map_err(StartError::Keeper)?;
        let (program, args) = match command.words.split_first() {
            Some((program, args)) => (PathBuf::from(program), args),
            None => (PathBuf::new(), [].as_slice()),
        };
        let mut starting = Command::new(&program);
        if let Some(dir) = &command.dir {
            starting.current_dir(dir);
        }
        let started = starting
            .args(args)
            .envs(command.variables.iter().map(|(name, value)| (*name, value)))
            .env(MARK, mark)
            .process_group(0)
            .spawn();
        let mut child = started.map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound => StartError::NotFound { program, cause },
            _ => StartError::NotExecutable { program, cause },
        })?;
        let group = Pid::from_child(&child);
        let known_group = keep_group(&mut kept, group).inspect_err(|_| {
            let _ = kill_process_group(group, Signal::KILL);
            let _ = child.wait();
        });
        let known_group = known_group.map_err(StartError::Keeper)?;
        let helpers = BTreeSet::from([kept.pid()]);
        let adopted = control
            .as_mut()
            .map(|control| control.adopt(&|| tree::descendants(&helpers)));
        if let Some(Err(cause)) = adopted {
            // Without a control group the job is stopped by signals.
            tracing::warn!(%cause, "the job has no control group of its own");
            control = None;
        }
        Ok(Self {
            child,
            group,
            known_group,
            family,
            record,
            keeper,
            kept,
            helpers,
            ended: None,
            is_stopped: false,
            control,
        })
    }

    /// Process id of the job's first process.
    pub(super) const fn pid(&self) -> Pid {
        self.group
    }

    /// Excludes a child of this process from the job's processes.
    pub(super) fn add_helper(&mut self, pid: i32) {
        self.helpers.insert(pid);
    }

    /// That child has ended.
    pub(super) fn remove_helper(&mut self, pid: i32) {
        self.helpers.remove(&pid);
    }

    /// All processes of the job.
    pub(super) fn processes(&self) -> BTreeSet<i32> {
        tree::descendants(&self.helpers)
    }

    /// Whether the job is stopped by [`Self::stop`].
    pub(super) const fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Sends a signal to the job's process group.
    pub(super) fn signal(&self, signal: Signal) {
        if self.ended.is_none() {
            // Fails if no process is left.
            let _ = kill_process_group(self.group, signal);
        }
    }

    /// Sends a signal to the job's first process only.
    pub(super) fn signal_first(&self, signal: Signal) {
        if self.ended.is_none() {
            let _ = kill_process(self.group, signal);
        }
    }

    /// Stops all processes of the job.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
        let helpers = &self.helpers;
        match &mut self.control {
            Some(control) => control.stop(&|| tree::descendants(helpers)),
            None => self.send_to_all(Signal::STOP),
        }
    }

    /// Lets all processes of the job run again.
    pub(super) fn resume(&mut self) {
        self.is_stopped = false;
        let helpers = &self.helpers;
        if let Some(control) = &mut self.control {
            control.go_on(&|| tree::descendants(helpers));
        }
        self.send_to_all(Signal::CONT);
    }

    /// Asks all processes of the job to end.
    pub(super) fn ask_to_end(&mut self) {
        self.send_to_all(Signal::TERM);
        // A process that is stopped does not handle the signal.
        self.resume();
    }

    /// Kills all processes of the job.
    pub(super) fn kill(&mut self) {
        self.send_to_all(Signal::KILL);
        // A process also needs processor time to end. If this fails, it only ends a little later.
        let _ = self.raise();
        if self.is_stopped {
            // A frozen process ends only after it is thawed.
            self.resume();
        }
    }

    /// Gives the job the lowest priority. Returns the error if that failed.
    pub(super) fn lower(&mut self) -> Option<io::Error> {
        let helpers = &self.helpers;
        let control = self.control.as_mut()?;
        control.lowest(&|| tree::descendants(helpers)).err()
    }

    /// Gives the job the priority that it was started with, if the system allows to raise it. Returns the
    /// error if that failed.
    pub(super) fn raise(&mut self) -> Option<io::Error> {
        let helpers = &self.helpers;
        let control = self.control.as_mut()?;
        control.normal(&|| tree::descendants(helpers)).err()
    }

    /// Whether every process of the job is stopped, frozen or dead.
    pub(super) fn is_at_a_standstill(&self) -> bool {
        let frozen = self.frozen();
        let mut processes = self.processes().into_iter();
        processes.all(|pid| {
            frozen.contains(&pid) || matches!(tree::state(pid), None | Some('T' | 't' | 'Z' | 'X'))
        })
    }

    /// The job's processes in frozen control groups.
    fn frozen(&self) -> BTreeSet<i32> {
        let groups = self.control.as_ref().map(Control::group_directories);
        let mut frozen = BTreeSet::new();
        for group in groups.into_iter().flatten() {
            let read = |name: &str| fs::read_to_string(group.join(name)).unwrap_or_default();
            let is_frozen = read("freezer.state").trim() == "FROZEN"
                || read("cgroup.events").lines().any(|line| line == "frozen 1");
            if is_frozen {
                let pids = read("cgroup.procs");
                frozen.extend(pids.lines().filter_map(|pid| pid.parse::<i32>().ok()));
            }
        }
        frozen
    }

    /// Sends a signal to the group, then to all descendants until no new ones appear, so that a process
    /// which forks meanwhile is reached, too.
    fn send_to_all(&self, signal: Signal) {
        if self.ended.is_none() {
            let _ = kill_process_group(self.group, signal);
        }
        let mut reached = BTreeSet::new();
        for _ in 0..LISTINGS_MAX {
            let mut new = self.processes();
            new.retain(|pid| reached.insert(*pid));
            if new.is_empty() {
                return;
            }
            for pid in new.into_iter().filter_map(Pid::from_raw) {
                // Fails if the process has just ended.
                let _ = kill_process(pid, signal);
            }
        }
    }

    /// Reaps ended processes, and starts another keeper if the keeper was killed. Returns the exit status
    /// of the job's first process, once it has one.
    pub(super) fn reap(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.reap_orphans();
        if self.kept.has_ended() {
            self.helpers.remove(&self.kept.pid());
            let kept = self.keeper.keep_marked(&self.family);
            let added = kept.and_then(|mut kept| kept.add(self.known_group).map(|()| kept));
            match added {
                Ok(kept) => {
                    self.helpers.insert(kept.pid());
                    self.kept = kept;
                }
                Err(cause) => {
                    tracing::warn!(%cause, "the job is not ended if this process is killed")
                }
            }
        }
        self.ended
    }

    fn reap_orphans(&self) {
        let first = self.group.as_raw_nonzero().get();
        for pid in self.processes() {
            if pid == first || tree::state(pid) != Some('Z') {
                continue;
            }
            if let Some(pid) = Pid::from_raw(pid) {
                // Fails for a zombie that is a child of another process.
                let _ = waitid(
                    WaitId::Pid(pid),
                    WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
                );
            }
        }
    }

    /// Whether no process of the job is left.
    pub(super) fn is_gone(&self) -> bool {
        self.ended.is_some() && self.processes().is_empty()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Waits at most a second: the kernel may be unable to end a process.
        for _ in 0..END_CHECKS_MAX {
            if self.is_gone() {
                // All processes are gone, so the next start needs no record.
                let _ = fs::remove_file(&self.record);
                return;
            }
            self.kill();
            self.reap();
            std::thread::sleep(END_CHECK_PERIOD);
        }
    }
}
