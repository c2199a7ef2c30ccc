//! What a job key may ask: only about its own jobs, and only what its rights allow. About other jobs of
//! its owner it learns nothing, not even whether they exist.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use codec::grant::{Grant, GrantError, GrantScope, Rights, Terms, VoidList};
use codec::manifest::Manifest;
use codec::proposal::Proposal;
use codec::scope::{Blinded, tag_of};
use codec::{CheckpointId, JobTag, OwnerId};
use protocol::identity::Role;
use protocol::wire::Code;
use protocol::wire::limits::VOIDS_ASKED_MAX;
use protocol::wire::message::{Refusal, Request, Response};

use serde_bytes::ByteBuf;

use super::{Answer, Exchange, blocking};
use crate::core::Denied;
use crate::core::catalog::Moment;
use crate::shards::{Store, StoreError};

/// Most jobs below a prefix that one connection can be about.
const PROVED_MAX: usize = 4096;

/// The jobs of a job key that its connection has proved to be in the key's scope.
#[derive(Debug)]
pub(super) struct Scope {
    grant: Arc<Grant>,
    /// Tags of jobs below the prefix, if the key is for all jobs below a prefix.
    proved: Mutex<BTreeSet<JobTag>>,
}

/// How a request is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permit {
    /// The request is answered.
    Given,
    /// The request is answered as if this host had nothing of what it is about.
    NotThere(Nothing),
}

/// The answer of a host that has nothing of what was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nothing {
    /// An empty list of records.
    NoRecords,
    /// The answer to `Forget` that nothing was held.
    NotRemoved,
    /// The message was received.
    Noted,
    /// A refusal with `NotFound`.
    NotFound,
}

impl Scope {
    /// The scope of a connection that has proved nothing yet.
    pub(super) fn new(grant: Arc<Grant>) -> Self {
        Self {
            grant,
            proved: Mutex::default(),
        }
    }

    pub(super) fn terms(&self) -> &Terms {
        self.grant.terms()
    }

    /// Whether the key is for the job with this tag, as far as the connection has proved.
    pub(super) fn has(&self, tag: JobTag) -> bool {
        match self.terms().scope {
            GrantScope::Job(only) => only == tag,
            GrantScope::Below(_) => {
                let proved = self.proved.lock().unwrap_or_else(PoisonError::into_inner);
                proved.contains(&tag)
            }
        }
    }

    /// Whether the key is for the job of this manifest.
    pub(super) fn has_manifest(&self, manifest: &Manifest) -> bool {
        let tag = manifest.public().job_tag;
        self.has(tag) || self.terms().covers(tag, &manifest.path().blinded())
    }

    /// The job that the key is for, if the key is for a single job.
    pub(super) fn only_job(&self) -> Option<JobTag> {
        match self.terms().scope {
            GrantScope::Job(only) => Some(only),
            GrantScope::Below(_) => None,
        }
    }

    /// Checks the proof that a job is below the key's prefix, and remembers the job's tag.
    pub(super) fn prove(&self, path: &[Blinded]) -> Result<(), Refusal> {
        let tag = tag_of(self.terms().owner, path);
        if !self.terms().covers(tag, path) {
            return Err(not_for_this());
        }
        if self.only_job().is_none() {
            let mut proved = self.proved.lock().unwrap_or_else(PoisonError::into_inner);
            if proved.len() >= PROVED_MAX {
                proved.clear();
            }
            proved.insert(tag);
        }
        Ok(())
    }

    fn needs(&self, rights: Rights) -> Result<(), Refusal> {
        if self.terms().rights.has(rights) {
            return Ok(());
        }
        let why = format!("the job key has no right to {rights}");
        Err(Refusal::new(Code::Forbidden, why))
    }

    /// Whether the key may store something of a job. The answer does not depend on what this host holds.
    fn stores(&self, tag: JobTag) -> Result<Permit, Refusal> {
        self.needs(Rights::SAVE)?;
        if self.has(tag) {
            return Ok(Permit::Given);
        }
        Err(not_for_this())
    }

    fn finds(&self, store: &Store, checkpoint: CheckpointId) -> Option<Found> {
        let owner = self.terms().owner;
        let (tag, is_committed) = store.job_of(owner, checkpoint)?;
        // The connection may not have proved the job yet. The manifest of a committed checkpoint has the
        // proof.
        let may_be_below = || is_committed && self.only_job().is_none();
        if !self.has(tag) && may_be_below() {
            let manifest = store.manifest_of(owner, checkpoint).ok()?;
            self.prove(&manifest.path().blinded()).ok()?;
        }
        self.has(tag).then_some(Found { is_committed })
    }

    /// Whether blocks of a checkpoint may be read. A save may read its own uncommitted checkpoint, to
    /// rebuild a shard.
    fn reads(&self, store: &Store, checkpoint: CheckpointId) -> Result<Permit, Refusal> {
        match self.finds(store, checkpoint) {
            None => return Ok(Permit::NotThere(Nothing::NotFound)),
            Some(found) if found.is_committed => self.needs(Rights::RESTORE)?,
            Some(_) => {}
        }
        Ok(Permit::Given)
    }

    /// Whether a checkpoint may be removed. An uncommitted checkpoint is left by a save that failed, so
    /// the right to save is enough.
    fn removes(
        &self,
        store: &Store,
        now: Moment,
        checkpoint: CheckpointId,
    ) -> Result<Permit, Refusal> {
        match self.finds(store, checkpoint) {
            None => return Ok(Permit::NotThere(Nothing::NotRemoved)),
            Some(found) if found.is_committed => {
                self.needs(Rights::REMOVE)?;
                if store.is_kept_from_job_keys(now, self.terms().owner, checkpoint) {
                    let why =
                        "a job key can't remove the newest two versions, nor some of those before";
                    return Err(Refusal::new(Code::Guarded, why));
                }
            }
            Some(_) => self.needs(Rights::SAVE)?,
        }
        Ok(Permit::Given)
    }

    /// How `request` is treated.
    ///
    /// # Errors
    /// The refusal to send. It does not depend on whether this host has what was asked about.
    pub(super) fn permit(
        &self,
        store: &Store,
        now: Moment,
        request: &Request,
    ) -> Result<Permit, Answer> {
        let permit = match request {
            Request::Status
            | Request::Announcement
            | Request::Probe { .. }
            | Request::Within { .. }
            | Request::Voids { .. }
            | Request::List { .. }
            | Request::PutList { .. }
            | Request::CompareCards { .. }
            | Request::Cards { .. }
            | Request::Notices { .. } => Ok(Permit::Given),
            Request::Claim(claim) | Request::RowsHeld(claim) => self.stores(claim.job_tag),
            Request::PutShard(put) | Request::EndEarly { put, .. } => {
                self.stores(put.claim.job_tag)
            }
            Request::Commit { manifest } | Request::KeepManifest { manifest } => {
                let manifest = Manifest::parse(manifest.clone()).map_err(StoreError::from)?;
                self.stores(manifest.public().job_tag)
            }
            Request::Prepare { job_tag, .. } => self.stores(*job_tag),
            Request::Propose { proposal } => {
                let proposal = Proposal::parse(proposal.clone()).map_err(StoreError::from)?;
                self.stores(proposal.proposed().job_tag)
            }
            Request::Find { job_tag, .. } => match job_tag {
                Some(tag) if !self.has(*tag) => Ok(Permit::NotThere(Nothing::NoRecords)),
                _ => Ok(Permit::Given),
            },
            Request::Outline(shard)
            | Request::Page { shard, .. }
            | Request::Rows { shard, .. }
            | Request::RowRuns { shard, .. } => self.reads(store, shard.checkpoint),
            Request::Prove { owner, shard, .. } => {
                if *owner == self.terms().owner {
                    self.reads(store, shard.checkpoint)
                } else {
                    Ok(Permit::NotThere(Nothing::NotFound))
                }
            }
            Request::Forget { checkpoint } => self.removes(store, now, *checkpoint),
            Request::Audited(audit) => Ok(match self.finds(store, audit.checkpoint) {
                Some(_) => Permit::Given,
                None => Permit::NotThere(Nothing::Noted),
            }),
            Request::Notice { .. }
            | Request::Void { .. }
            | Request::PeerHolds { .. }
            | Request::PutRebuilt(_)
            | Request::Announce(_)
            | Request::Heartbeat { .. }
            | Request::Holds(_)
            | Request::Members { .. }
            | Request::Holders { .. }
            | Request::Census
            | Request::PutCards { .. }
            | Request::Joiners { .. }
            | Request::Reached
            | Request::Join(_) => Err(not_for_this()),
            Request::Retired12(never) | Request::Retired18(never) | Request::Retired33(never) => {
                match *never {}
            }
        };
        permit.map_err(Answer::Refused)
    }
}

/// A checkpoint of one of the key's jobs.
struct Found {
    is_committed: bool,
}

/// The refusal of a request that no job key may ask. It does not depend on what this host holds.
fn not_for_this() -> Refusal {
    Refusal::new(Code::Forbidden, "the job key does not permit this")
}

impl Exchange<'_> {
    /// How a request is treated. A peer without a job key may ask everything that its role allows.
    ///
    /// # Errors
    /// The refusal to send.
    pub(super) fn permit(&self, request: &Request) -> Result<Permit, Answer> {
        let Some(scope) = &self.connection.scope else {
            return Ok(Permit::Given);
        };
        // The owner is noted even if nothing of it is here, so that this host asks other hosts for its
        // void job keys.
        self.host
            .parts
            .accounts
            .enter(self.peer.account(), &self.peer.name);
        if self.host.parts.store.is_void(scope.terms()) {
            let why = "the job key was revoked by its owner";
            return Err(Answer::Refused(Refusal::new(Code::Forbidden, why)));
        }
        let clock = self.host.parts.clock;
        let now = Moment {
            now: clock.now(),
            unix: clock.unix_seconds(),
        };
        scope.permit(&self.host.parts.store, now, request)
    }

    /// Answers a `Within` request. A peer without a job key need not prove anything.
    pub(super) async fn within(&mut self, path: &[Blinded]) -> Result<(), Answer> {
        if let Some(scope) = &self.connection.scope {
            scope.prove(path).map_err(Answer::Refused)?;
        }
        self.respond(&Response::Noted).await
    }

    /// Answers a `Void` request. The list is signed by its owner, so any donor may bring it; a submitter
    /// may bring only its own.
    pub(super) async fn void(&mut self, list: &[u8]) -> Result<(), Answer> {
        let malformed = |cause: GrantError| Refusal::new(Code::Mismatch, cause.to_string());
        let list = VoidList::parse(list).map_err(|cause| Answer::Refused(malformed(cause)))?;
        if !self.peer.has(Role::Donor) && list.owner() != self.peer.account() {
            return Err(StoreError::Mismatch("owner").into());
        }
        let store = Arc::clone(&self.host.parts.store);
        blocking(move || store.enter_voids(&list)).await?;
        self.respond(&Response::Noted).await
    }

    /// Answers a `Voids` request. A submitter gets its own list only.
    pub(super) async fn voids(&mut self, owners: &[OwnerId]) -> Result<(), Answer> {
        if owners.len() > VOIDS_ASKED_MAX {
            let refusal = Refusal::new(Code::BadRequest, "too many owners");
            return Err(Answer::Refused(refusal));
        }
        let _place = self.place(&self.host.questions, "answers").await?;
        let is_donor = self.peer.has(Role::Donor);
        let may = |owner: &&OwnerId| is_donor || **owner == self.peer.account();
        let owners: Vec<OwnerId> = owners.iter().filter(may).copied().collect();
        let lists = self.host.parts.store.voids_of(&owners);
        let lists = lists
            .iter()
            .map(|list| ByteBuf::from(list.bytes()))
            .collect();
        self.respond(&Response::Voids { lists }).await
    }

    /// Answers as a host that has nothing of what was asked about.
    pub(super) async fn not_there(&mut self, answer: Nothing) -> Result<(), Answer> {
        let response = match answer {
            Nothing::NoRecords => Response::Found {
                count: 0,
                more: false,
            },
            Nothing::NotRemoved => Response::Forgotten { existed: false },
            Nothing::Noted => Response::Noted,
            Nothing::NotFound => return Err(StoreError::from(Denied::NotFound).into()),
        };
        self.respond(&response).await
    }
}
