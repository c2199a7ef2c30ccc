//! The client's operations, one method of [`Agent`] each.

mod absent;
mod advise;
mod after;
mod base;
mod cat;
mod census;
mod choices;
mod doctor;
mod fencing;
mod forget;
mod gather;
mod health;
mod hearing;
mod hosts;
mod jobkeys;
mod lane;
mod learning;
mod list;
mod lists;
mod missed;
mod notices;
mod open;
mod outlook;
mod place;
mod plan;
mod restore;
mod rows;
mod save;
mod seek;
mod shortage;
mod sources;
mod superseded;
mod verdict;
mod verify;
mod waiting;

use std::path::PathBuf;
use std::time::Duration;

use codec::grant::{Grant, GrantScope, Rights};
use codec::keys::Keys;
use codec::labels::Labels;
use codec::seal::Cipher;
use codec::{JobId, JobTag, Redundancy, ShardIndex, Version};
pub(crate) use protocol::errors::chain;
use protocol::grid::Grid;
use protocol::identity::{Identity, Role};
use protocol::list::ListFiles;
use transfer::registry::Registries;
use transfer::roster::{self, Roster};

use crate::core::effort::Effort;
use crate::core::glob::Glob;
use crate::core::sought::Sought;
use crate::core::{Fault, HostIndex};
use crate::image::keeper::Keeper;
use crate::image::{Exclude, NamedPath, OnceReader};
use crate::knowledge::{Notebook, Observation};
use crate::learning::Learning;
use crate::report::{ExitStatus, Failure, Holder, HostNote};
use crate::unix_time::unix_seconds;
use transfer::Hosts;

pub use absent::unless_hidden;
pub use advise::{AdviseRequest, YEAR_SECONDS, advise};
pub use cat::{ByteRange, CatRequest};
pub use census::grid_health;
pub use codec::geometry::{DATA_USUAL, PARITY_USUAL};
pub use doctor::{MTU_USUAL, Reached, Unreached, Way};
pub use fencing::{After, AfterError, AfterWhich, Strength};
pub use health::{HealthRequest, health_status, registries_health};
pub use jobkeys::Voided;
pub use notices::{Disposal, Tenure};
pub use open::{Image, ImageFile, ReadCost};
pub use outlook::{HostSays, MachineOutlook, Neighbours};
pub use place::{Choose, PlacementWish};
pub use verify::Depth;

/// The probability of being able to restart that `--redundancy auto` aims at without `--target`.
pub const TARGET_USUAL: f64 = 0.999;

/// Memory for data in flight by default, bytes.
pub const MEMORY_USUAL: u64 = 256 << 20;

/// What helps when an empty image is refused.
pub const ALLOW_EMPTY: &str =
    "look why nothing came; --allow-empty (in Python allow_empty=True) saves it nevertheless";

/// What to save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveInput {
    /// Files and directories, under their own names.
    Paths(Vec<PathBuf>),
    /// Files and directories, some under other names than their own.
    Named(Vec<NamedPath>),
    /// Standard input, read to its end.
    Stdin,
    /// All that this reader gives, to its end.
    Reader(OnceReader),
    /// The output of a command; the save fails unless the command exits with 0. If this process is killed,
    /// the keeper ends the command.
    Command(Vec<std::ffi::OsString>, Option<Keeper>),
}

/// What to save, and how.
#[derive(Clone, Debug)]
pub struct SaveRequest {
    /// Name of the job to which the checkpoint belongs.
    pub job: JobId,
    /// The image that is saved.
    pub input: SaveInput,
    /// How many data and parity shards. `None`: by forecast, at least 2 parity shards, where enough is known
    /// of the hosts; else 3 and 2, and where fewer than five hosts take a shard, 2 and 2, or 1 and 2.
    pub redundancy: Option<Redundancy>,
    /// Fewest parity shards with which to commit, when hosts for all can't be had. `None`: all are needed.
    pub allow_degraded: Option<u8>,
    /// Versions to keep, this one included; at least 1.
    pub keep: u32,
    /// Store everything, also what an earlier version has stored already.
    pub full: bool,
    /// For how long the job's checkpoints are to be kept. `None`: as the job's last notice says.
    pub tenure: Option<Tenure>,
    /// Finish within this time, or fail and leave the older versions as they are.
    pub deadline: Option<Duration>,
    /// The state is lost if this save is not in time: where a patch on an earlier version can be stored, the
    /// image is not stored whole.
    pub is_last: bool,
    /// How much processor time compression may take.
    pub effort: Effort,
    /// How the image is encrypted, or that hosts may read it.
    pub cipher: Cipher,
    /// Which files below directories are left out.
    pub exclude: Exclude,
    /// Skip unreadable files with a warning instead of failing.
    pub skip_unreadable: bool,
    /// Accept files that change while they are read, with a warning, instead of failing.
    pub accept_changed: bool,
    /// Save a stream without bytes, or an image without files and directories, instead of failing: it takes the
    /// place of an earlier version.
    pub allow_empty: bool,
    /// How hosts are to be chosen.
    pub placement: PlacementWish,
    /// The user's labels of the checkpoint; hosts can't read them.
    pub labels: Labels,
    /// Commit only as the one checkpoint that follows this one. If another checkpoint follows it, or may, the
    /// save fails with the status `AnotherSuccessor`, and [`Failure::successor`] names the other one. With
    /// any other status, [`Failure::successor`] is this save's own checkpoint, which is half done.
    pub after: Option<After>,
}

/// Which checkpoint of a job to restore or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The newest one that can be restored.
    Newest,
    /// This one and no other.
    Version(Version),
}

/// Where to restore to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreTarget {
    /// The name under which it was saved, in the current directory. A stream goes to standard output, unless
    /// that is a terminal.
    Default,
    /// This path, for the file or the directory of the image.
    Path(PathBuf),
    /// Standard output; only for an image of one file or a stream.
    Stdout,
}

/// What to restore, and where to.
#[derive(Clone, Debug)]
pub struct RestoreRequest {
    /// Name of the job whose checkpoint is restored.
    pub job: JobId,
    /// The checkpoint that is restored.
    pub which: Which,
    /// Conditions that the checkpoint has to meet.
    pub sought: Sought,
    /// Where the files go.
    pub target: RestoreTarget,
    /// Succeed when the job has no checkpoint.
    pub if_exists: bool,
    /// Fewest data shards with which the job is saved, if the caller knows that.
    pub least_data: Option<u8>,
    /// Replace a file that is at the target.
    pub force: bool,
    /// Restore setuid and setgid bits.
    pub set_id_bits: bool,
    /// Which files to restore; all if there are no patterns.
    pub globs: Vec<Glob>,
    /// Only report what would be done.
    pub dry_run: bool,
}

/// How much of this machine the client may use.
#[derive(Clone, Copy, Debug)]
pub struct Resources {
    /// Bytes of memory for all data in flight.
    pub memory_bytes: u64,
    /// Number of threads for compression and coding.
    pub cpus: usize,
    /// Most bytes per second to all hosts together, and from all hosts together.
    pub bytes_per_second: Option<u64>,
}

impl Resources {
    /// How much longer than usual a row may take because of the limit on the rate, milliseconds.
    fn patience_ms(&self, redundancy: Redundancy) -> u64 {
        let row = codec::encode::row_bytes_max(redundancy) as u64;
        self.bytes_per_second
            .map_or(0, |rate| ROWS_WAITED * row * 1000 / rate.max(1))
    }
}

/// Most rows in flight ahead of the row that is waited for.
const ROWS_WAITED: u64 = 8;

/// Which checkpoints of a job to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgetWhich {
    /// All checkpoints of the job.
    All,
    /// The checkpoint with this version.
    Version(Version),
    /// All but this many of the newest.
    Keep(u32),
    /// All but the newest one that can be restored, and those saved within this time before that one.
    KeepWithin(Duration),
}

impl ForgetWhich {
    /// What to call missing when no checkpoint is selected.
    const fn wanted(self) -> Which {
        match self {
            Self::Version(version) => Which::Version(version),
            Self::All | Self::Keep(_) | Self::KeepWithin(_) => Which::Newest,
        }
    }
}

/// Whether this program was built with etcd as a registry.
pub const KNOWS_ETCD: bool = cfg!(feature = "etcd");

/// All hosts of `grid`: those of the grid file, and those that a registry lists now, or listed when one last
/// answered. If a registry has a newer list of the grid, that list applies at once and is kept in `files`.
pub async fn discover(
    grid: &mut Grid,
    files: &ListFiles,
    identity: &Identity,
    notebook: &Notebook,
) -> Roster {
    let registries = Registries::new(identity, grid);
    let mut registries = registries.without_announcements().with_lists();
    let known = notebook.read(unix_seconds());
    if !grid.hosts.is_empty() || !known.roster().is_empty() {
        registries = registries.in_a_hurry();
    }
    let mut answers = registries.ask(grid, Vec::new()).await;
    let newer = answers.iter_mut().filter_map(|answer| answer.list.take());
    if let Some((list, contents)) = newer.max_by_key(|(list, _)| list.number()) {
        lists::keep(files, grid, &list);
        grid.follow(list, contents);
    }
    let mut roster = roster::merge(&grid.hosts, &answers, known.roster(), &grid.revoked);
    if !answers.is_empty() {
        // The hosts of the grid file come first; the others were found through registries.
        let found = roster.hosts.iter().skip(grid.hosts.len()).cloned();
        let listed = grid.hosts.iter().map(|host| host.id).collect();
        notebook.note(Observation::Roster(found.collect(), listed));
    }
    // Registries name only hosts that are there. The others may have what is asked for.
    let now = unix_seconds();
    let known = notebook.read(now);
    roster.remember(known.missed(now), |id| grid.revoked.contains(id));
    roster
}

/// A client of one grid with one identity.
#[derive(Clone, Debug)]
pub struct Agent {
    keys: Keys,
    hosts: Hosts,
    resources: Resources,
    notebook: Notebook,
    learning: Learning,
    lists: Option<lists::Lists>,
}

impl Agent {
    /// A client that connects to the hosts of `roster` in `grid` as `identity`, and records in `notebook`
    /// what it observes of them.
    ///
    /// # Errors
    /// When the identity is not a submitter's, or no socket can be opened.
    pub fn new(
        grid: &Grid,
        roster: Roster,
        identity: &Identity,
        resources: Resources,
        notebook: Notebook,
    ) -> Result<Self, Failure> {
        let denied = |cause: &dyn std::fmt::Display| {
            Failure::new(ExitStatus::Denied, format!("identity: {cause}"))
        };
        let peer = identity.peer().map_err(|cause| denied(&cause))?;
        if !peer.has(Role::Submitter) {
            return Err(denied(&format!(
                "{:?} is not certified as a submitter",
                peer.name
            )));
        }
        let window = (resources.memory_bytes / 32).clamp(256 << 10, 8 << 20) as u32;
        let grid = Grid {
            hosts: roster.hosts,
            ..grid.clone()
        };
        let hosts = Hosts::attentive(&grid, roster.absent, roster.reported, identity, window);
        let hosts = hosts.map_err(|cause| {
            Failure::new(ExitStatus::Failed, format!("network: {}", chain(&cause)))
        })?;
        if let Some(rate) = resources.bytes_per_second {
            hosts.limit(rate as f64);
        }
        Ok(Self {
            keys: identity.keys(),
            hosts,
            resources,
            learning: notebook.learning(unix_seconds()),
            notebook,
            lists: None,
        })
    }

    /// This client, which also passes on the list of `grid` to hosts, and keeps a newer one in `files`.
    #[must_use]
    pub fn with_lists(mut self, grid: &Grid, files: ListFiles) -> Self {
        self.lists = Some(lists::Lists::new(grid, files));
        self
    }

    /// Whether a clone of this agent exists, which may be at work.
    pub fn is_shared(&self) -> bool {
        self.hosts.are_shared()
    }

    /// Closes the connections to all hosts, unless a clone of this agent exists. The agent stays usable.
    pub fn hang_up_unless_shared(&self) {
        self.hosts.hang_up_unless_shared();
    }

    /// Refits the model if that is due, closes the connections to all hosts, and writes the observations to the notebook.
    pub async fn close(&self) {
        self.pass_lists_on().await;
        self.learn_models().await;
        let notebook = self.notebook.clone();
        let writing = tokio::task::spawn_blocking(move || notebook.write(unix_seconds()));
        self.hosts.close().await;
        // The write takes bounded time: see the notebook.
        let _ = writing.await;
    }

    /// The name under which hosts know a job.
    fn job_tag(&self, job: &JobId) -> Result<JobTag, Failure> {
        let Some((tag, path)) = self.keys.tag_and_path(job) else {
            let message = format!("the key is not for job {job}");
            return Err(Failure::new(ExitStatus::Denied, message));
        };
        let grant = self.keys.grant().map(Grant::terms);
        if matches!(grant.map(|terms| terms.scope), Some(GrantScope::Below(_))) {
            self.hosts.introduce(path.blinded());
        }
        Ok(tag)
    }

    /// Fails unless the key has these rights.
    fn needs(&self, rights: Rights, doing: &str) -> Result<(), Failure> {
        if self.keys.may(rights) {
            return Ok(());
        }
        let message = format!("{doing}: the job key has no right to {rights}");
        Err(Failure::new(ExitStatus::Denied, message)
            .next("the owner's key, or a job key with more --rights"))
    }

    /// Whether this client has the owner's own key, not a job key.
    pub fn is_owner(&self) -> bool {
        self.keys.grant().is_none()
    }

    /// Fails if this client has a job key.
    fn needs_owner(&self, doing: &str) -> Result<(), Failure> {
        match self.keys.grant() {
            None => Ok(()),
            Some(_) => {
                let message = format!("{doing}: only the owner's key can");
                Err(Failure::new(ExitStatus::Denied, message))
            }
        }
    }

    fn note(&self, host: HostIndex, what: impl std::fmt::Display) -> HostNote {
        HostNote {
            host: self.hosts.name(host).to_owned(),
            what: what.to_string(),
        }
    }

    fn notes(&self, faults: &[(HostIndex, Fault)]) -> Vec<HostNote> {
        faults
            .iter()
            .map(|(host, fault)| self.note(*host, fault))
            .collect()
    }

    /// The host of each shard of a checkpoint; no host for a shard that was not found.
    fn holders(&self, redundancy: Redundancy, held: &[(ShardIndex, HostIndex)]) -> Vec<Holder> {
        redundancy
            .shards()
            .map(|shard| Holder {
                shard: shard.number(),
                host: held
                    .iter()
                    .find(|(of, _)| *of == shard)
                    .map(|(_, host)| self.hosts.name(*host).to_owned()),
            })
            .collect()
    }
}

fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_| Failure::new(ExitStatus::Failed, "the system returned no random numbers"))?;
    Ok(bytes)
}
