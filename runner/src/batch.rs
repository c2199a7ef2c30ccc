//! Batch systems. Where a batch system controls the machine, it deals with the owner, and only its
//! signals and its time limit count here.

use std::ffi::OsString;
use std::time::Duration;

/// A batch system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// HTCondor, which sets `_CONDOR_SLOT` or `_CONDOR_SCRATCH_DIR`.
    HtCondor,
    /// Slurm, which sets `SLURM_JOB_ID`.
    Slurm,
    /// Another one, by `--batch`.
    Other,
}

impl Batch {
    /// The batch system that has started this process, by the variables that it sets.
    pub fn of(variable: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        let is_set = |name| variable(name).is_some_and(|value| !value.is_empty());
        if is_set("_CONDOR_SLOT") || is_set("_CONDOR_SCRATCH_DIR") {
            Some(Self::HtCondor)
        } else if is_set("SLURM_JOB_ID") {
            Some(Self::Slurm)
        } else {
            None
        }
    }

    /// Its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HtCondor => "HTCondor",
            Self::Slurm => "Slurm",
            Self::Other => "a batch system",
        }
    }

    /// The usual time between its signal and its kill: `KillWait` of Slurm, `MachineMaxVacateTime` of
    /// HTCondor.
    pub const fn usual_grace(self) -> Duration {
        match self {
            Self::HtCondor => Duration::from_secs(600),
            Self::Slurm | Self::Other => Duration::from_secs(30),
        }
    }
}

/// The time at which the batch system ends the job, Unix seconds, if a variable gives it.
pub fn end_of_time_limit(variable: impl Fn(&str) -> Option<OsString>) -> Option<u64> {
    variable("SLURM_JOB_END_TIME")?.to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pairs: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<OsString> {
        move |name| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).into())
        }
    }

    #[test]
    fn batch_systems_are_known_by_their_variables() {
        assert_eq!(Batch::of(set(&[])), None);
        assert_eq!(Batch::of(set(&[("SLURM_JOB_ID", "")])), None);
        assert_eq!(Batch::of(set(&[("SLURM_JOB_ID", "7")])), Some(Batch::Slurm));
        let condor = set(&[("_CONDOR_SCRATCH_DIR", "/x")]);
        assert_eq!(Batch::of(condor), Some(Batch::HtCondor));
        let limit = [("SLURM_JOB_END_TIME", "1790000000")].as_slice();
        let limit = |name: &str| {
            let found = limit.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        };
        assert_eq!(end_of_time_limit(limit), Some(1_790_000_000));
        assert_eq!(end_of_time_limit(set(&[("SLURM_JOB_END_TIME", "x")])), None);
    }
}
