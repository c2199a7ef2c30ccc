//! Answer of `ckpt doctor`.

use serde::Serialize;

/// Answer of `ckpt doctor`.
#[derive(Clone, Debug, Serialize)]
pub struct DoctorReport {
    /// The findings, in the order of the checks.
    pub findings: Vec<Finding>,
}

impl DoctorReport {
    /// Adds a check without a problem.
    pub fn good(&mut self, check: Check, what: impl Into<String>) {
        self.findings.push(Finding {
            check,
            verdict: Verdict::Good,
            what: what.into(),
            remedy: None,
        });
    }

    /// Adds a problem.
    pub fn bad(&mut self, check: Check, what: impl Into<String>, remedy: impl Into<String>) {
        self.findings.push(Finding {
            check,
            verdict: Verdict::Bad,
            what: what.into(),
            remedy: Some(remedy.into()),
        });
    }
}

/// The result of one check.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The check that was made.
    pub check: Check,
    /// How the check came out.
    pub verdict: Verdict,
    /// What the check found, for people.
    pub what: String,
    /// What helps, if the verdict is bad.
    pub remedy: Option<String>,
}

/// The verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is as it should be.
    Good,
    /// It is not as it should be.
    Bad,
}

/// What `ckpt doctor` checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// The directory that keeps what is learnt of hosts.
    StateDirectory,
    /// Free space on the disk.
    Disk,
    /// Limits that the shell sets for the program.
    Limits,
    /// Whether the grid file can be read.
    GridFile,
    /// Key, certificate and role.
    Identity,
    /// When the certificates end.
    Certificate,
    /// The network path to each host.
    Network,
    /// The clocks of this machine and the hosts.
    Clock,
}

impl Check {
    /// Its name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::StateDirectory => "state directory",
            Self::Disk => "disk",
            Self::Limits => "limits",
            Self::GridFile => "grid file",
            Self::Identity => "identity",
            Self::Certificate => "certificate",
            Self::Network => "network",
            Self::Clock => "clock",
        }
    }
}
