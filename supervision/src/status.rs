//! How a supervised job can end, and the exit status that says so.

/// How the job's own process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobStatus {
    /// It exited with this status.
    Exited(u8),
    /// A signal of this number ended it.
    Signalled(u8),
}

impl JobStatus {
    /// The status as shells give it: that of the exit, or 128 and the signal's number.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Signalled(signal) => 128_u8.saturating_add(signal),
        }
    }

    /// Whether it ended as one that somebody sent `SIGTERM` or `SIGKILL`: what shutdowns and batch
    /// systems do to all processes of a job.
    pub(crate) const fn is_as_if_terminated(self) -> bool {
        const KILL: u8 = 9;
        const TERM: u8 = 15;
        matches!(self, Self::Signalled(KILL | TERM) | Self::Exited(137 | 143))
    }
}

/// Why a job was never started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartFailure {
    /// Something failed before: the lock, the restore, the supervisor itself.
    BeforeStart,
    /// The command was found and cannot be executed.
    NotExecutable,
    /// The command was not found.
    NotFound,
}

impl StartFailure {
    /// 125, 126 or 127, as `env` and `nohup` have them.
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
    /// The owner has needed the processor for longer than patience goes.
    Load,
    /// The memory does not suffice for the owner and the job.
    Memory,
    /// The machine's daemon says that the machine leaves, is drained or shut down.
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

/// Whose decision the end was, and what it leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    /// The job ended by itself, with this status.
    Job(JobStatus),
    /// It left with the state that it had in this committed version.
    LeftSaved {
        /// Why it had to go.
        why: Why,
        /// The version.
        version: u64,
    },
    /// It left, and the newest committed version is older than the state that it had.
    LeftOlder {
        /// Why it had to go.
        why: Why,
        /// The newest version, if there is one.
        version: Option<u64>,
    },
    /// Another incarnation of the job has committed a successor of the version that this one began
    /// with.
    OtherIncarnation,
    /// It showed no sign of life, and was given up.
    Hung,
}

/// How it all ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Whose decision it was.
    pub ended_by: EndedBy,
    /// Whether the job's processes are known to be gone; otherwise they outlived `SIGKILL` for longer
    /// than was waited.
    pub job_gone: bool,
}

impl Ending {
    /// Left with its state saved: start me again.
    pub const SAVED: u8 = 75;
    /// Left, the last checkpoint is older.
    pub const OLDER: u8 = 76;
    /// Another incarnation of the job has gone on.
    pub const OTHER: u8 = 77;
    /// Hung, given up.
    pub const HUNG: u8 = 78;

    /// The exit status. `evict_exit` takes the place of 75 alone, for batch systems that know a job to
    /// be started again by another number: whoever gets it may rely on the state.
    #[must_use]
    pub fn status(self, evict_exit: Option<u8>) -> u8 {
        match self.ended_by {
            EndedBy::Job(status) => status.code(),
            EndedBy::LeftSaved { .. } => evict_exit.unwrap_or(Self::SAVED),
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
