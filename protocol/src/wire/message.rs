//! Requests and responses. What is here never changes; new variants are added at the end, and a peer
//! that does not know one refuses it as malformed.
//!
//! What carries [`Parts`] travels in another variant in `ckpt/2` than in `ckpt/1`. Programs see one of
//! them only: [`Request::for_wire`] and [`Response::for_wire`] make the other before it is sent,
//! [`Request::from_wire`] and [`Response::from_wire`] take it apart.

use std::borrow::Cow;
use std::net::SocketAddr;

use codec::hash::ShardRoot;
use codec::holding::Tag;
use codec::proof::{ShardProof, Spot};
use codec::proposal::Ballot;
use codec::scope::Blinded;
use codec::{CheckpointId, JobTag, OwnerId, Redundancy, ShardIndex, Version};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::announcement::Announcement;
pub use super::frame::Message;
use super::limits::TEXT_BYTES_MAX;
use super::parts::{Extended, Extensible, Parts};
use super::{Code, WireVersion};

/// What a client asks; the first frame of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// How are you?
    Status,
    /// Reserve a version of a job for a checkpoint.
    Claim(Claim),
    /// Take a shard; its blocks follow.
    PutShard(PutShard),
    /// Make a checkpoint visible whose shard you hold.
    Commit {
        /// The signed manifest.
        #[serde(with = "serde_bytes")]
        manifest: Vec<u8>,
    },
    /// Which checkpoints of mine do you hold?
    Find {
        /// Only those of this job.
        job_tag: Option<JobTag>,
        /// Only those with a larger id, in ascending order (to continue an earlier answer).
        after: Option<CheckpointId>,
    },
    /// Send the outline of a shard.
    Outline(ShardName),
    /// Send a page of a shard's table.
    Page {
        /// The shard.
        shard: ShardName,
        /// The page.
        page: u64,
    },
    /// Send blocks of a shard.
    Rows {
        /// The shard.
        shard: ShardName,
        /// First row.
        first: u64,
        /// How many, at most [`super::limits::ROWS_PER_READ_MAX`].
        count: u32,
    },
    /// Remove all that you have of a checkpoint.
    Forget {
        /// The checkpoint.
        checkpoint: CheckpointId,
    },
    /// What do you say of your own availability?
    Announcement,
    /// Say when you have received as many bytes as follow, to measure the way to you.
    Probe {
        /// How many, at most [`super::limits::PROBE_BYTES_MAX`].
        bytes: u32,
    },
    /// This is what I found when I checked a shard of mine that you should have.
    Audited(Audit),
    /// I am a donor, and this is how I am; asked of a registry.
    Announce(Box<Presence>),
    /// I am still as I said; asked of a registry.
    Heartbeat {
        /// Number of the announcement that I made last.
        epoch: u64,
        /// Number of the list of shards that I sent last.
        holdings: u64,
    },
    /// These are shards that I hold; asked of a registry.
    Holds(HoldsPage),
    /// Which donors are there? Asked of a registry.
    Members {
        /// Only those with a larger key, in ascending order (to continue an earlier answer).
        after: Option<OwnerId>,
    },
    /// Who holds shards of this checkpoint? Asked of a registry.
    Holders {
        /// The checkpoint.
        checkpoint: CheckpointId,
    },
    /// Certify me; asked of a registry by a machine that is no member yet.
    Join(JoinRequest),
    /// Which shards of these checkpoints do you hold? Asked by a donor, who can know their names only
    /// if it holds shards of them.
    PeerHeld {
        /// At most [`super::limits::PEER_ASKED_MAX`].
        checkpoints: Vec<CheckpointId>,
    },
    /// Take a shard that was rebuilt, and commit it; its blocks follow as those of `PutShard` do. Asked
    /// by a donor.
    PutRebuilt(Box<PutRebuilt>),
    /// This is what I say of a job; or, from a donor, what its owner said.
    Notice {
        /// The signed notice ([`codec::notice::Notice`]).
        #[serde(with = "serde_bytes")]
        notice: Vec<u8>,
    },
    /// What was said last of these jobs? A submitter asks of its own, a donor of those of which it
    /// holds shards.
    Notices {
        /// At most [`super::limits::NOTICES_ASKED_MAX`].
        jobs: Vec<(OwnerId, JobTag)>,
    },
    /// `Announce` in `ckpt/2`.
    ExtendedAnnounce(Box<Extended<Presence>>),
    /// Which of these checkpoints do you hold shards of? Asked by a donor. Names none: a tag is a hash
    /// that only who knows the checkpoint recognises ([`codec::holding`]).
    PeerHolds {
        /// Random bytes that the tags depend on.
        salt: [u8; 32],
        /// At most [`super::limits::PEER_HOLDS_ASKED_MAX`].
        tags: Vec<Tag>,
    },
    /// Show that you have a part of a shard ([`codec::proof`]). Asked by its owner or by a donor.
    Prove {
        /// Whose the shard is.
        owner: OwnerId,
        /// The shard.
        shard: ShardName,
        /// Which part.
        spot: Spot,
    },
    /// There is a job here, below the prefix that my job key is for. From then on the connection may ask
    /// about that job.
    Within {
        /// Where the job lies: what hosts see of all components of its name, at most 16.
        path: Vec<Blinded>,
    },
    /// These job keys are void: their owner says so.
    Void {
        /// The signed list ([`codec::grant::VoidList`]).
        #[serde(with = "serde_bytes")]
        list: Vec<u8>,
    },
    /// Which job keys of these owners are void?
    Voids {
        /// At most [`super::limits::VOIDS_ASKED_MAX`].
        owners: Vec<OwnerId>,
    },
    /// Is there a newer list of the grid than the one that I have? Asked of donors and registries.
    List {
        /// Number of the one that I have; 0 for none.
        number: u64,
    },
    /// Take a list of the grid, whose bytes follow. Said to donors and registries.
    PutList {
        /// Its number.
        number: u64,
        /// Its length, at most [`super::limits::LIST_BYTES_MAX`].
        bytes: u32,
    },
    /// What do you count? Asked by an admin.
    Census,
    /// Promise to accept no successor of a checkpoint with a lower ballot. Asked of its witnesses
    /// (`codec::proposal`).
    Prepare {
        /// The job.
        job_tag: JobTag,
        /// The checkpoint that is followed.
        after: CheckpointId,
        /// The ballot.
        ballot: Ballot,
    },
    /// Accept the successor of a checkpoint. Asked of its witnesses.
    Propose {
        /// The signed proposal (`codec::proposal::Proposal`).
        #[serde(with = "serde_bytes")]
        proposal: Vec<u8>,
    },
}

impl Request {
    /// The first version of the protocol that knows this.
    pub const fn since(&self) -> WireVersion {
        match self {
            Self::Status
            | Self::Claim(_)
            | Self::PutShard(_)
            | Self::Commit { .. }
            | Self::Find { .. }
            | Self::Outline(_)
            | Self::Page { .. }
            | Self::Rows { .. }
            | Self::Forget { .. }
            | Self::Announcement
            | Self::Probe { .. }
            | Self::Audited(_)
            | Self::Announce(_)
            | Self::Heartbeat { .. }
            | Self::Holds(_)
            | Self::Members { .. }
            | Self::Holders { .. }
            | Self::Join(_)
            | Self::PeerHeld { .. }
            | Self::PutRebuilt(_)
            | Self::Notice { .. }
            | Self::Notices { .. } => WireVersion::One,
            Self::ExtendedAnnounce(_)
            | Self::PeerHolds { .. }
            | Self::Prove { .. }
            | Self::Within { .. }
            | Self::Void { .. }
            | Self::Voids { .. }
            | Self::List { .. }
            | Self::PutList { .. }
            | Self::Census
            | Self::Prepare { .. }
            | Self::Propose { .. } => WireVersion::Two,
        }
    }

    /// The form in which this travels between peers that agreed on `version`.
    pub fn for_wire(&self, version: WireVersion) -> Cow<'_, Self> {
        match self {
            Self::Announce(said) if version >= WireVersion::Two => {
                let said = Extended::close((**said).clone());
                Cow::Owned(Self::ExtendedAnnounce(Box::new(said)))
            }
            other => Cow::Borrowed(other),
        }
    }

    /// What [`Self::for_wire`] was made of.
    #[must_use]
    pub fn from_wire(self) -> Self {
        match self {
            Self::ExtendedAnnounce(said) => Self::Announce(Box::new(said.open())),
            other => other,
        }
    }
}

/// Reservation of a version number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The job.
    pub job_tag: JobTag,
    /// The version.
    pub version: Version,
    /// The checkpoint that will have it.
    pub checkpoint: CheckpointId,
}

/// Head of a shard transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutShard {
    /// Which checkpoint it is of, and of which job and version.
    pub claim: Claim,
    /// The checkpoint's redundancy.
    pub redundancy: Redundancy,
    /// Number of the shard.
    pub shard: u8,
    /// Bytes to expect, as far as known: an upper bound, or 0 when it is not known at all. The
    /// host refuses at once what it has no room for.
    pub expected_bytes: u64,
}

/// A shard by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ShardName {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Number of the shard.
    pub shard: u8,
}

/// What a host answers; the first frame that it sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// No, and why.
    Refused(Refusal),
    /// How the host is.
    Status(HostStatus),
    /// The version is reserved.
    Claimed,
    /// The version is another checkpoint's; `next` was free when this was said.
    Taken {
        /// The lowest version above all that this host knows of the job.
        next: Version,
    },
    /// Blocks may follow.
    Accepted,
    /// The shard is whole and synced.
    Stored(StoredShard),
    /// The manifest is synced and the checkpoint visible.
    Committed,
    /// So many records follow.
    Found {
        /// How many, at most [`super::limits::RECORDS_MAX`].
        count: u32,
        /// Whether there are more after the last of these.
        more: bool,
    },
    /// Page hashes follow.
    Outline {
        /// Rows of the shard.
        rows: u64,
        /// Sum of its block lengths.
        block_bytes: u64,
        /// Number of pages.
        pages: u64,
    },
    /// A page follows.
    Page {
        /// Its length.
        bytes: u32,
    },
    /// Blocks follow.
    Rows {
        /// Their length together.
        bytes: u64,
    },
    /// Nothing of the checkpoint is here any more.
    Forgotten {
        /// Whether there was something.
        existed: bool,
    },
    /// What the host says of its own availability.
    Announcement(Announcement),
    /// The bytes of a probe have arrived.
    Probed,
    /// The host has heard it.
    Noted,
    /// The registry has heard it, and says what it still wants to hear.
    Heard {
        /// An announcement.
        announce: bool,
        /// The list of shards.
        holdings: bool,
    },
    /// So many [`MemberRecord`]s follow, in `ckpt/2` as [`Extended`].
    Members {
        /// How many, at most [`super::limits::MEMBERS_MAX`].
        count: u32,
        /// Whether there are more after the last of these.
        more: bool,
    },
    /// Donors that said that they hold shards of the checkpoint, and which.
    Holders {
        /// At most [`super::limits::HOLDERS_MAX`].
        holders: Vec<(OwnerId, u8)>,
    },
    /// Welcome.
    Joined(Box<Joined>),
    /// Those are here.
    PeerHeld {
        /// Shards of committed checkpoints.
        shards: Vec<ShardName>,
    },
    /// So many [`NoticeRecord`]s follow.
    Notices {
        /// The host's clock, Unix seconds.
        clock: u64,
        /// How many, at most `NOTICES_PER_JOB_MAX` for each job that was asked for.
        count: u32,
    },
    /// `Status` in `ckpt/2`.
    ExtendedStatus(Box<Extended<HostStatus>>),
    /// `Announcement` in `ckpt/2`.
    ExtendedAnnouncement(Box<Extended<Announcement>>),
    /// Of those the host holds shards.
    PeerHolds {
        /// Checkpoints that the host knows and holds, in any order.
        held: Vec<HeldTag>,
    },
    /// A part of a shard with the way to its root.
    Proof(ShardProof),
    /// What owners said of their job keys, of those owners who said something.
    Voids {
        /// Signed lists ([`codec::grant::VoidList`]).
        lists: Vec<ByteBuf>,
    },
    /// The list of the grid that is known here. Its bytes follow if it is newer than the one that was
    /// asked about; to `PutList` this is the answer when the list is not newer.
    List {
        /// Its number; 0 for none.
        number: u64,
        /// How many bytes follow, at most [`super::limits::LIST_BYTES_MAX`]; 0 for none.
        bytes: u32,
    },
    /// What the host counts.
    Census(Box<HostCensus>),
    /// No successor with a lower ballot will be accepted.
    Promised {
        /// The signed proposal that was accepted last, if one was.
        accepted: Option<ByteBuf>,
    },
    /// The successor is accepted, and that is synced.
    Agreed,
    /// A higher ballot was promised.
    Outbid {
        /// That one.
        ballot: Ballot,
    },
}

impl Response {
    /// The form in which this travels between peers that agreed on `version`.
    pub fn for_wire(&self, version: WireVersion) -> Cow<'_, Self> {
        Cow::Owned(match self {
            Self::Status(said) if version >= WireVersion::Two => {
                Self::ExtendedStatus(Box::new(Extended::close(said.clone())))
            }
            Self::Announcement(said) if version >= WireVersion::Two => {
                Self::ExtendedAnnouncement(Box::new(Extended::close(said.clone())))
            }
            other => return Cow::Borrowed(other),
        })
    }

    /// What [`Self::for_wire`] was made of.
    #[must_use]
    pub fn from_wire(self) -> Self {
        match self {
            Self::ExtendedStatus(said) => Self::Status(said.open()),
            Self::ExtendedAnnouncement(said) => Self::Announcement(said.open()),
            other => other,
        }
    }
}

/// A checkpoint of a question that a host holds shards of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldTag {
    /// Place of its tag in the question.
    pub place: u16,
    /// Which shards, bit 0 for shard 0.
    pub shards: u64,
    /// Shows that the host knows the checkpoint's id.
    pub tag: Tag,
}

/// A notice, as a host tells of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoticeRecord {
    /// The signed notice.
    #[serde(with = "serde_bytes")]
    pub notice: Vec<u8>,
}

/// What a check of a shard found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Number of the shard.
    pub shard: u8,
    /// Blocks that were read and right.
    pub blocks: u32,
    /// What was wrong, if anything.
    pub fault: Option<AuditFault>,
}

/// What a check of a shard found wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuditFault {
    /// The host does not have what it acknowledged.
    Missing,
    /// What it sent is not what was stored.
    Damaged,
    /// It broke off, or took too long.
    BrokenOff,
}

impl AuditFault {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Missing, Self::Damaged, Self::BrokenOff];

    /// Its name in files and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Damaged => "damaged",
            Self::BrokenOff => "broken_off",
        }
    }

    /// The fault with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }
}

/// Head of the transfer of a shard that was rebuilt from others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutRebuilt {
    /// The shard.
    pub put: PutShard,
    /// The manifest that the owner signed: what the shard has to be.
    #[serde(with = "serde_bytes")]
    pub manifest: Vec<u8>,
}

/// How a donor is, as it tells registries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// Its name, at most [`TEXT_BYTES_MAX`] bytes as all texts.
    pub name: String,
    /// Where it listens.
    pub addr: SocketAddr,
    /// What fails together with it.
    pub site: Option<String>,
    /// Whose machine it is.
    pub owner: Option<String>,
    /// Bytes that it lends.
    pub capacity_bytes: u64,
    /// Bytes that can still be stored.
    pub free_bytes: u64,
    /// Larger with each announcement that says something new.
    pub epoch: u64,
    /// What it says of its availability. Its parts are not sent: there are those of the presence.
    pub announcement: Announcement,
    /// What later programs say; only in `ckpt/2`.
    #[serde(skip)]
    pub parts: Parts,
}

impl Extensible for Presence {
    fn parts_mut(&mut self) -> &mut Parts {
        &mut self.parts
    }
}

/// A part of the list of shards that a donor holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldsPage {
    /// Number of the list: larger than that of any earlier one.
    pub epoch: u64,
    /// Whether it is the first part; the list before is dropped when the last one is there.
    pub first: bool,
    /// Whether it is the last part.
    pub last: bool,
    /// At most [`super::limits::HOLDS_MAX`].
    pub shards: Vec<ShardName>,
}

/// A donor, as a registry tells of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// Its public key.
    pub id: OwnerId,
    /// Milliseconds since it was heard of.
    pub silent_ms: u64,
    /// Whether it was heard of as lately as its rhythm lets expect.
    pub alive: bool,
    /// What it said of itself.
    pub presence: Presence,
}

impl Extensible for MemberRecord {
    fn parts_mut(&mut self) -> &mut Parts {
        &mut self.presence.parts
    }
}

/// A machine that wants to become a donor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// Text of the token.
    pub token: String,
    /// Name that it would like to have.
    pub name: String,
    /// Its public key.
    pub key: OwnerId,
    /// Its signature of [`JoinRequest::signed`]: it has the key.
    #[serde(with = "serde_bytes")]
    pub signature: Vec<u8>,
}

impl JoinRequest {
    /// What is signed.
    pub fn signed(token: &str, name: &str) -> Vec<u8> {
        format!("ckpt v1 join\0{token}\0{name}").into_bytes()
    }
}

/// What a new donor needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Its certificate, DER.
    #[serde(with = "serde_bytes")]
    pub certificate: Vec<u8>,
    /// That of the registry, which signed it, DER.
    #[serde(with = "serde_bytes")]
    pub issuer: Vec<u8>,
    /// Text of the grid file.
    pub grid: String,
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Why.
    pub code: Code,
    /// For logs, at most [`TEXT_BYTES_MAX`] bytes.
    pub detail: String,
    /// When it may be worth asking again; 0 when it is not.
    pub retry_after_ms: u32,
}

/// How a host is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStatus {
    /// Its name in the grid.
    pub name: String,
    /// Version of its software.
    pub software: String,
    /// Bytes that it lends.
    pub capacity_bytes: u64,
    /// Bytes that are taken or promised.
    pub used_bytes: u64,
    /// Bytes that can still be stored: capacity and the disk's free space considered.
    pub free_bytes: u64,
    /// Whole shards.
    pub shards: u64,
    /// Committed checkpoints.
    pub checkpoints: u64,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// What later programs say; only in `ckpt/2`.
    #[serde(skip)]
    pub parts: Parts,
}

impl Extensible for HostStatus {
    fn parts_mut(&mut self) -> &mut Parts {
        &mut self.parts
    }
}

/// What a host counts, for an admin: no ids of checkpoints, no jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCensus {
    /// Its clock, Unix seconds.
    pub clock: u64,
    /// Version of its software.
    pub software: String,
    /// Bytes that it lends.
    pub capacity_bytes: u64,
    /// Bytes that are taken or promised.
    pub used_bytes: u64,
    /// Bytes that can still be stored.
    pub free_bytes: u64,
    /// What it does for others: 0 all that it is asked, 1 no new shards and slow reads, 2 nothing.
    pub stance: u8,
    /// Why not all: a number as in part 1 of an announcement; 0 when it gives no reason.
    pub withheld: u8,
    /// Seconds after which new shards may be welcome again; 0 when they are now.
    pub refuses_for_s: u32,
    /// When it had last gone through all that it holds, Unix seconds; 0 when not since its start.
    pub counted_at: u64,
    /// Of the checkpoints that it counts, those that can lose 0, 1, 2, ... of the shards that were
    /// proved; at most 33 numbers.
    pub can_lose: Vec<u64>,
    /// Those of which fewer shards were proved than it takes to restore them.
    pub too_few: u64,
    /// Those of which fewer shards were proved than they were saved with.
    pub below: u64,
    /// Of these, those of which further shards are claimed that nobody was asked to prove yet.
    pub unchecked: u64,
    /// Checks by submitters that failed here in the last seven days, at most 50.
    pub failed_checks: u64,
    /// Proofs that other hosts could not give to it.
    pub failed_proofs: u64,
    /// Who uses how much here: at most [`super::limits::CENSUS_OWNERS_MAX`], the largest.
    pub owners: Vec<OwnerUse>,
}

/// What one submitter uses on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerUse {
    /// First 8 hexadecimal digits of the public key.
    pub key: String,
    /// Name, as in the certificate; empty when the host has not seen it.
    pub name: String,
    /// Bytes that are taken or promised.
    pub used_bytes: u64,
}

/// Acknowledgement of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredShard {
    /// Its rows.
    pub rows: u64,
    /// The root over what was synced.
    pub root: ShardRoot,
}

/// A committed checkpoint and what a host holds of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The signed manifest.
    #[serde(with = "serde_bytes")]
    pub manifest: Vec<u8>,
    /// Shards that this host holds, by number.
    pub shards: Vec<u8>,
}

/// The end of a shard transfer, after the block length 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutEnd {
    /// Rows that were sent.
    pub rows: u64,
    /// Root that the client computed.
    pub root: ShardRoot,
}

impl PutEnd {
    /// Bytes of an end.
    pub const BYTES: usize = 40;

    /// The end's bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.rows.to_le_bytes());
        bytes[8..].copy_from_slice(&self.root.0);
        bytes
    }

    /// Reads an end.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        let (rows, root) = bytes.split_at(8);
        let mut end = Self {
            rows: 0,
            root: ShardRoot([0; 32]),
        };
        end.root.0.copy_from_slice(root);
        let mut le = [0; 8];
        le.copy_from_slice(rows);
        end.rows = u64::from_le_bytes(le);
        end
    }
}

impl PutShard {
    /// The shard, checked against the redundancy.
    pub fn shard(&self) -> Option<ShardIndex> {
        self.redundancy.shard(self.shard)
    }
}

impl Refusal {
    /// A refusal that is not worth asking again; `detail` is cut to the allowed length.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let mut detail = detail.into();
        let end = (0..=TEXT_BYTES_MAX.min(detail.len()))
            .rev()
            .find(|&end| detail.is_char_boundary(end))
            .unwrap_or(0);
        detail.truncate(end);
        Self {
            code,
            detail,
            retry_after_ms: 0,
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.code)?;
        if !self.detail.is_empty() {
            write!(f, " ({})", self.detail.escape_debug())?;
        }
        Ok(())
    }
}
