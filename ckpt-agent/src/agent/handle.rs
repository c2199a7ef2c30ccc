//! The client of one grid, which each operation is a method of.

use codec::grant::{Grant, GrantScope, Rights};
use codec::keys::Keys;
use codec::{JobId, JobTag, Redundancy, ShardIndex};
use protocol::errors::chain;
use protocol::grid::Grid;
use protocol::identity::{Identity, Role};
use protocol::list::ListFiles;
use transfer::Hosts;
use transfer::roster::Roster;

use crate::agent::Resources;
use crate::agent::ask::recent::Recent;
use crate::agent::list_files::Lists;
use crate::blocks_ahead::BlocksAhead;
use crate::core::{Fault, HostIndex};
use crate::knowledge::Notebook;
use crate::report::{ExitStatus, Failure, Holder, HostNote};
use crate::unix_time::unix_seconds;

/// A client of one grid with one identity.
#[derive(Clone, Debug)]
pub struct Agent {
    pub(in crate::agent) keys: Keys,
    pub(in crate::agent) hosts: Hosts,
    pub(in crate::agent) resources: Resources,
    pub(in crate::agent) notebook: Notebook,
    pub(in crate::agent) lists: Option<Lists>,
    pub(in crate::agent) recent: Recent,
    /// Blocks that were fetched ahead.
    pub(in crate::agent) blocks_ahead: Option<BlocksAhead>,
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
        let another = "ckpt grid sign --role submitter, by the grid's authority";
        let peer = identity
            .peer()
            .map_err(|cause| denied(&cause).next(another))?;
        if !peer.has(Role::Submitter) {
            let what = format!("{:?} is not certified as a submitter", peer.name);
            return Err(denied(&what).next(another));
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
            notebook,
            lists: None,
            recent: Recent::default(),
            blocks_ahead: None,
        })
    }

    /// This client, which also passes on the list of `grid` to hosts, and keeps a newer one in `files`.
    #[must_use]
    pub fn with_lists(mut self, grid: &Grid, files: ListFiles) -> Self {
        self.lists = Some(Lists::new(grid, files));
        self
    }

    /// Takes over what `before` knows of the hosts, and the limits of its rates.
    pub fn take_over(&mut self, before: &Self) {
        self.hosts.take_over(&before.hosts);
    }

    /// Uses the connections that `before` has. If either closes one, it is closed for both.
    pub fn share_connections(&mut self, before: &Self) {
        self.hosts.share_connections(&before.hosts);
    }

    /// Connects to all hosts, so that the next call does not wait for that.
    pub async fn connect_to_all(&self) {
        self.hosts.connect_to_all().await;
    }

    /// Whether a host could not be reached a moment ago.
    pub fn has_unreached_hosts(&self) -> bool {
        let mut all = self.hosts.all();
        all.any(|host| self.hosts.lately_unreached(host).is_some())
    }

    /// Whether a clone of this agent exists, which may be at work.
    pub fn is_shared(&self) -> bool {
        self.hosts.are_shared()
    }

    /// Closes the connections to all hosts, unless a clone of this agent exists. The agent stays usable.
    pub fn hang_up_unless_shared(&self) {
        self.hosts.hang_up_unless_shared();
    }

    /// Closes the connections to all hosts, and writes the observations to the notebook.
    pub async fn close(&self) {
        self.pass_lists_on().await;
        tokio::join!(self.note_down(), self.hosts.close());
    }

    /// Writes the observations to the notebook.
    pub async fn note_down(&self) {
        let notebook = self.notebook.clone();
        let writing = tokio::task::spawn_blocking(move || notebook.write(unix_seconds()));
        // The write takes bounded time: see the notebook.
        let _ = writing.await;
    }

    /// The name under which hosts know a job.
    pub(in crate::agent) fn job_tag(&self, job: &JobId) -> Result<JobTag, Failure> {
        let Some((tag, path)) = self.keys.tag_and_path(job) else {
            let message = format!("the key is not for job {job}");
            return Err(Failure::new(ExitStatus::Denied, message).next(format!(
                "the owner's key; a key for this job: ckpt key for-job --job {job} -o FILE"
            )));
        };
        let grant = self.keys.grant().map(Grant::terms);
        if matches!(grant.map(|terms| terms.scope), Some(GrantScope::Below(_))) {
            self.hosts.introduce(path.blinded());
        }
        Ok(tag)
    }

    /// Fails unless the key has these rights.
    pub(in crate::agent) fn needs(&self, rights: Rights, doing: &str) -> Result<(), Failure> {
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
    pub(in crate::agent) fn needs_owner(&self, doing: &str) -> Result<(), Failure> {
        match self.keys.grant() {
            None => Ok(()),
            Some(_) => {
                let message = format!("{doing}: only the owner's key can");
                Err(Failure::new(ExitStatus::Denied, message)
                    .next("--key-file FILE, with the owner's key"))
            }
        }
    }

    pub(in crate::agent) fn note(&self, host: HostIndex, what: impl std::fmt::Display) -> HostNote {
        HostNote {
            host: self.hosts.name(host).to_owned(),
            what: what.to_string(),
        }
    }

    pub(in crate::agent) fn notes(&self, faults: &[(HostIndex, Fault)]) -> Vec<HostNote> {
        faults
            .iter()
            .map(|(host, fault)| self.note(*host, fault))
            .collect()
    }

    /// The host of each shard of a checkpoint; no host for a shard that was not found.
    pub(in crate::agent) fn holders(
        &self,
        redundancy: Redundancy,
        held: &[(ShardIndex, HostIndex)],
    ) -> Vec<Holder> {
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

/// Random bytes from the system.
pub(in crate::agent) fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_| Failure::new(ExitStatus::Failed, "the system returned no random numbers"))?;
    Ok(bytes)
}
