//! How a supervised job can end, and the exit status for each.

/// How the job's own process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobStatus {
    /// It exited with this status.
    Exited(u8),
    /// A signal of this number ended it.
    Signalled(u8),
}

impl JobStatus {
    /// The exit status as shells give it: that of the process, or 128 plus the number of the signal.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Signalled(signal) => 128_u8.saturating_add(signal),
        }
    }

    /// Whether the job ended as after a `SIGTERM` or `SIGKILL` from outside, which shutdowns and batch
    /// systems send to all processes of a job.
    pub(crate) const fn is_as_if_terminated(self) -> bool {
        const KILL: u8 = 9;
        const TERM: u8 = 15;
        matches!(self, Self::Signalled(KILL | TERM) | Self::Exited(137 | 143))
    }
}

/// Why a job was never started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartFailure {
    /// Something failed before the start: the lock, the restore, the supervisor itself.
    BeforeStart,
    /// The command was found and cannot be executed.
    NotExecutable,
    /// The command was not found.
    NotFound,
}

impl StartFailure {
    /// The exit status 125, 126 or 127, with the meanings that `env` and `nohup` give them.
    #[must_use]
    pub const fn status(self) -> u8 {
        match self {
            Self::BeforeStart => 125,
            Self::NotExecutable => 126,
            Self::NotFound => 127,
        }
    }
}

/// Why a job has to leave its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// The owner has needed the processor for longer than [`crate::LeaveAfter`] allows.
    Load,
    /// The memory does not suffice for both the owner and the job.
    Memory,
    /// The machine's daemon announces that the machine leaves, is drained or shuts down.
    MachineLeaves,
    /// The supervisor got this signal.
    Signal(u8),
    /// The cloud takes the machine back.
    Spot,
    /// The machine shuts down.
    Shutdown,
    /// The time limit of the batch system ends.
    TimeLimit,
    /// The job showed no sign of life for too long.
    Hang,
}

/// Who ended the job, and in which state it is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    /// The job ended by itself, with this status.
    Job(JobStatus),
    /// The job left, and this committed version holds the state that it had.
    LeftSaved {
        /// Why it had to leave.
        why: Why,
        /// The committed version.
        version: u64,
    },
    /// The job left, and the newest committed version is older than the state that it had.
    LeftOlder {
        /// Why it had to leave.
        why: Why,
        /// The newest committed version, if there is one.
        version: Option<u64>,
    },
    /// The job left before it had written any state, and no version of it exists. It begins anew, as it would
    /// have without `ckpt run`.
    LeftStateless {
        /// Why it had to leave.
        why: Why,
    },
    /// Another incarnation of the job has committed a successor of the version from which this one was
    /// restored.
    OtherIncarnation,
    /// The job showed no sign of life and was ended.
    Hung,
}

/// How a supervised job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Who ended it, and in which state it is saved.
    pub ended_by: EndedBy,
    /// Whether the job's processes are known to be gone. If not, they were still there some time after
    /// `SIGKILL`.
    pub job_gone: bool,
}

impl Ending {
    /// Exit status: the job left with its state saved, and may be started again.
    pub const SAVED: u8 = 75;
    /// Exit status: the job left, and its last checkpoint is older than its state.
    pub const OLDER: u8 = 76;
    /// Exit status: another incarnation of the job has gone on.
    pub const OTHER: u8 = 77;
    /// Exit status: the job hung and was ended.
    pub const HUNG: u8 = 78;

    /// The exit status. `evict_exit` replaces 75, and only 75, for batch systems that restart a job on
    /// another status: a batch system that gets it may rely on the saved state.
    #[must_use]
    pub fn status(self, evict_exit: Option<u8>) -> u8 {
        match self.ended_by {
            EndedBy::Job(status) => status.code(),
            EndedBy::LeftSaved { .. } | EndedBy::LeftStateless { .. } => {
                evict_exit.unwrap_or(Self::SAVED)
            }
            EndedBy::LeftOlder { .. } => Self::OLDER,
            EndedBy::OtherIncarnation => Self::OTHER,
            EndedBy::Hung => Self::HUNG,
        }
    }

    /// The word for `ended_by` in the journal: `job` or `supervisor`.
    #[must_use]
    pub const fn who(self) -> &'static str {
        match self.ended_by {
            EndedBy::Job(_) => "job",
            _ => "supervisor",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_those_of_the_page() {
        let of = |ended_by| Ending {
            ended_by,
            job_gone: true,
        };
        let why = Why::Load;
        let saved = of(EndedBy::LeftSaved { why, version: 4 });
        assert_eq!((saved.status(None), saved.status(Some(85))), (75, 85));
        let stateless = of(EndedBy::LeftStateless { why });
        assert_eq!(
            (stateless.status(None), stateless.status(Some(85))),
            (75, 85)
        );
        let older = of(EndedBy::LeftOlder { why, version: None });
        assert_eq!((older.status(None), older.status(Some(85))), (76, 76));
        assert_eq!(of(EndedBy::OtherIncarnation).status(Some(85)), 77);
        assert_eq!(of(EndedBy::Hung).status(None), 78);
        let own = of(EndedBy::Job(JobStatus::Signalled(11)));
        assert_eq!((own.status(None), own.who()), (139, "job"));
        assert_eq!(saved.who(), "supervisor");
        let starts = [
            StartFailure::BeforeStart,
            StartFailure::NotExecutable,
            StartFailure::NotFound,
        ];
        assert_eq!(starts.map(StartFailure::status), [125, 126, 127]);
    }

    #[test]
    fn a_status_of_the_job_that_looks_like_ours_is_passed_on_and_said_to_be_its_own() {
        for code in [75, 76, 77, 78, 125, 126, 127] {
            let ended_by = EndedBy::Job(JobStatus::Exited(code));
            let ending = Ending {
                ended_by,
                job_gone: true,
            };
            assert_eq!((ending.status(Some(85)), ending.who()), (code, "job"));
        }
    }
}
