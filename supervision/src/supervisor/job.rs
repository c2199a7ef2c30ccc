//! What the supervisor knows of the job.

/// The job.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobState {
    /// Some of its processes are there.
    pub(super) alive: bool,
    /// It is stopped because the owner needs the machine.
    pub(super) held_for_owner: bool,
    /// It is stopped because its image is being read. Both reasons may hold at once.
    pub(super) held_for_reading: bool,
    /// It cannot be asked for a checkpoint now.
    pub(super) busy: bool,
    /// The checkpoint on disk, if it is not being saved and was not saved before.
    pub(super) image: Option<ImageOnDisk>,
    /// The newest committed checkpoint.
    pub(super) committed: Option<Committed>,
}

/// A checkpoint on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ImageOnDisk {
    /// Work that it holds, milliseconds since the start of this incarnation.
    pub(super) work_ms: u64,
    /// The job wrote it when it was asked for its last checkpoint, and has stood still since.
    pub(super) answers_last: bool,
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
        }
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
            .is_some_and(|image| image.answers_last || image.work_ms == work_ms)
    }
}
