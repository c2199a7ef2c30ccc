//! What the supervisor knows of the job.

/// Why the job is stopped; both reasons may hold at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoldFor {
    /// The owner needs the machine.
    Owner,
    /// The image of the job is being read.
    Reading,
}

/// What the supervisor knows of the job's processes and state.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobState {
    /// Some of its processes are there.
    pub(super) alive: bool,
    held_for_owner: bool,
    held_for_reading: bool,
    /// It cannot be asked for a checkpoint now.
    pub(super) busy: bool,
    /// The checkpoint on disk, if it is not being saved and was not saved before.
    pub(super) image: Option<ImageOnDisk>,
    /// The newest committed checkpoint.
    pub(super) committed: Option<Committed>,
    /// It has ended without any file of its state.
    pub(super) is_stateless: bool,
}

/// A checkpoint on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ImageOnDisk {
    /// Work that it holds, milliseconds since the start of this incarnation.
    pub(super) work_ms: u64,
    /// The job wrote it when it was asked for its last checkpoint, and has stood still since.
    pub(super) answers_last: bool,
    /// The job was still writing it when it ended.
    pub(super) is_torn: bool,
}

/// A committed checkpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Committed {
    pub(super) version: u64,
    /// As in [`ImageOnDisk`].
    pub(super) work_ms: u64,
    /// As in [`ImageOnDisk`].
    pub(super) answers_last: bool,
}

impl JobState {
    /// A job that runs; `committed` is the version that it was restored from.
    pub(super) const fn new(committed: Option<Committed>) -> Self {
        Self {
            alive: true,
            held_for_owner: false,
            held_for_reading: false,
            busy: false,
            image: None,
            committed,
            is_stateless: false,
        }
    }

    /// Whether the job is stopped.
    pub(super) const fn is_held(&self) -> bool {
        self.held_for_owner || self.held_for_reading
    }

    /// Whether the job is stopped for this reason.
    pub(super) const fn is_held_for(&self, reason: HoldFor) -> bool {
        match reason {
            HoldFor::Owner => self.held_for_owner,
            HoldFor::Reading => self.held_for_reading,
        }
    }

    /// Adds a reason to hold the job.
    pub(super) const fn hold(&mut self, reason: HoldFor) {
        match reason {
            HoldFor::Owner => self.held_for_owner = true,
            HoldFor::Reading => self.held_for_reading = true,
        }
    }

    /// Ends a reason to hold the job.
    pub(super) const fn release(&mut self, reason: HoldFor) {
        match reason {
            HoldFor::Owner => self.held_for_owner = false,
            HoldFor::Reading => self.held_for_reading = false,
        }
    }

    /// Ends every reason to hold the job.
    pub(super) const fn release_all(&mut self) {
        self.held_for_owner = false;
        self.held_for_reading = false;
    }

    /// The committed version that holds the state of the job after `work_ms` milliseconds of work, if one
    /// does.
    pub(super) fn version_with_its_state(&self, work_ms: u64) -> Option<u64> {
        let committed = self.committed?;
        let holds = committed.answers_last || committed.work_ms == work_ms;
        holds.then_some(committed.version)
    }

    /// Whether the checkpoint on disk holds the state of the job after `work_ms` milliseconds of work.
    pub(super) fn image_has_its_state(&self, work_ms: u64) -> bool {
        self.image
            .is_some_and(|image| !image.is_torn && (image.answers_last || image.work_ms == work_ms))
    }
}
