//! Requests and responses. A message that is defined here never changes. New variants are added at the
//! end, and a peer that does not know a variant refuses it as malformed.

use std::net::SocketAddr;

use codec::hash::ShardRoot;
use codec::holding::Tag;
use codec::proof::{ShardProof, Spot};
use codec::proposal::Ballot;
use codec::scope::Blinded;
use codec::{CheckpointId, JobTag, OwnerId, Redundancy, Version};
use serde::{Deserialize, Deserializer, Serialize};
use serde_bytes::ByteBuf;

use super::announcement::{Announcement, ExtendedAnnouncement};
pub use super::frame::Message;
use super::limits::{CARD_DAYS_MAX, ROWS_PER_READ_MAX};
use super::parts::Parts;
use super::{Code, Retired};

/// What a client asks a server to do; the first frame of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Send your status: what you lend, and how much of it is used.
    Status,
    /// Reserve a version of a job for a checkpoint.
    Claim(Claim),
    /// Take a shard; its blocks follow.
    PutShard(PutShard),
    /// Make a checkpoint visible of which you hold a shard.
    Commit {
        /// The signed manifest.
        #[serde(with = "serde_bytes")]
        manifest: Vec<u8>,
    },
    /// Send the manifests of my checkpoints of which you hold shards.
    Find {
        /// Only checkpoints of this job.
        job_tag: Option<JobTag>,
        /// Only checkpoints with a larger id, in ascending order (to continue an earlier answer).
        after: Option<CheckpointId>,
    },
    /// Send the outline of a shard.
    Outline(ShardName),
    /// Send a page of a shard's table.
    Page {
        /// The shard.
        shard: ShardName,
        /// Number of the page, from 0.
        page: u64,
    },
    /// Send blocks of a shard.
    Rows {
        /// The shard.
        shard: ShardName,
        /// First row.
        first: u64,
        /// Number of rows, at most [`super::limits::ROWS_PER_READ_MAX`].
        count: u32,
    },
    /// Remove all that you hold of a checkpoint.
    Forget {
        /// The checkpoint.
        checkpoint: CheckpointId,
    },
    /// Send your announcement: what you expect of your own availability.
    Announcement,
    /// Answer when all of the bytes that follow have arrived. Measures the rate of the network path.
    Probe {
        /// Number of bytes, at most [`super::limits::PROBE_BYTES_MAX`].
        bytes: u32,
    },
    /// Note what my check of a shard found that you keep for me.
    Audited(Audit),
    /// No longer in use.
    Retired12(Retired),
    /// I am alive, and my last announcement and list of shards hold. Sent to a registry by a donor.
    Heartbeat {
        /// Number of my last announcement.
        epoch: u64,
        /// Number of my last list of shards.
        holdings: u64,
    },
    /// Note these shards, which I hold. Sent to a registry by a donor.
    Holds(HoldsPage),
    /// Send the list of donors. Sent to a registry.
    Members {
        /// Only donors with a larger key, in ascending order (to continue an earlier answer).
        after: Option<OwnerId>,
    },
    /// Name the donors that hold shards of this checkpoint. Sent to a registry.
    Holders {
        /// The checkpoint.
        checkpoint: CheckpointId,
    },
    /// Certify me. Sent to a registry by a machine that is no member of the grid yet.
    Join(JoinRequest),
    /// No longer in use.
    Retired18(Retired),
    /// Take a shard that was rebuilt, and commit it; its blocks follow as after `PutShard`. Sent by a
    /// donor.
    PutRebuilt(Box<PutRebuilt>),
    /// Keep this notice about a job. Sent by the job's owner, or by a donor that passes it on.
    Notice {
        /// The signed notice ([`codec::notice::Notice`]).
        #[serde(with = "serde_bytes")]
        notice: Vec<u8>,
    },
    /// Send the last notices about these jobs. A submitter asks about its own jobs, a donor about jobs
    /// of which it holds shards.
    Notices {
        /// At most [`super::limits::NOTICES_ASKED_MAX`].
        jobs: Vec<(OwnerId, JobTag)>,
    },
    /// List me as a donor, with this description. Sent to a registry.
    Announce(Box<Presence>),
    /// Answer which of these checkpoints you hold shards of. Sent by a donor. No checkpoint is named: a
    /// tag is a hash that only a host that knows the checkpoint's id recognises ([`codec::holding`]).
    PeerHolds {
        /// Random bytes that the tags depend on.
        salt: [u8; 32],
        /// At most [`super::limits::PEER_HOLDS_ASKED_MAX`].
        tags: Vec<Tag>,
    },
    /// Prove that you have a part of a shard ([`codec::proof`]). Sent by its owner or by a donor.
    Prove {
        /// Owner of the checkpoint.
        owner: OwnerId,
        /// The shard.
        shard: ShardName,
        /// Which part.
        spot: Spot,
    },
    /// Open this connection for a job whose name begins with the prefix that my job key is for: later
    /// requests may be about it.
    Within {
        /// The job's name as hosts see it, a hash for each of its components, at most 16.
        path: Vec<Blinded>,
    },
    /// Keep this list of job keys that their owner declared void.
    Void {
        /// The signed list ([`codec::grant::VoidList`]).
        #[serde(with = "serde_bytes")]
        list: Vec<u8>,
    },
    /// Send the lists of void job keys of these owners.
    Voids {
        /// At most [`super::limits::VOIDS_ASKED_MAX`].
        owners: Vec<OwnerId>,
    },
    /// Send your list of the grid if it is newer than mine. Sent to donors and registries.
    List {
        /// Number of my list; 0 for none.
        number: u64,
    },
    /// Take a list of the grid, whose bytes follow. Sent to donors and registries.
    PutList {
        /// Number of the list.
        number: u64,
        /// Bytes of the list, at most [`super::limits::LIST_BYTES_MAX`].
        bytes: u32,
    },
    /// Send your counts. Sent by an admin or a registry; a registry is sent no owners.
    Census,
    /// Promise to accept no successor of a checkpoint with a lower ballot. Sent to its witnesses
    /// (`codec::proposal`).
    Prepare {
        /// The job.
        job_tag: JobTag,
        /// The checkpoint whose successor is to be chosen.
        after: CheckpointId,
        /// The ballot of this attempt.
        ballot: Ballot,
    },
    /// Accept this successor of a checkpoint. Sent to its witnesses.
    Propose {
        /// The signed proposal (`codec::proposal::Proposal`).
        #[serde(with = "serde_bytes")]
        proposal: Vec<u8>,
    },
    /// No longer in use.
    Retired33(Retired),
    /// Show this checkpoint, of which you need not hold a shard, to those who ask for its job.
    KeepManifest {
        /// The signed manifest.
        #[serde(with = "serde_bytes")]
        manifest: Vec<u8>,
    },
    /// Send the days of the cards that you have, unless I have the same. Sent to a registry by a donor.
    CompareCards {
        /// Hash of the keys and days that I have ([`crate::identity::digest_of_days`]).
        digest: [u8; 32],
        /// Only donors with a larger key, in ascending order (to continue an earlier answer).
        after: Option<OwnerId>,
    },
    /// Send the cards of these donors. Sent to a registry by a donor.
    Cards {
        /// At most [`super::limits::CARDS_MAX`].
        ids: Vec<OwnerId>,
    },
    /// Keep these cards, which you lack. Sent to a registry by a donor.
    PutCards {
        /// At most [`super::limits::CARDS_MAX`].
        cards: Vec<CardRecord>,
    },
    /// Send who joined with a token that you redeemed. Sent to a registry by an admin.
    Joiners {
        /// Only members with a larger key, in ascending order (to continue an earlier answer).
        after: Option<OwnerId>,
    },
    /// Say whether you reach me at the address that I announced. Sent to a registry by a donor.
    Reached,
    /// Name the shards of a checkpoint that you have the first rows of, or all. Transfers of them that have not
    /// ended end now: their client is gone.
    RowsHeld(Claim),
    /// End a shard whose transfer broke off, after its first rows.
    EndEarly {
        /// The shard, as its transfer began.
        put: PutShard,
        /// How many rows it is to have.
        rows: u64,
        /// The root that the client computed of these.
        root: ShardRoot,
    },
    /// Send blocks of a shard that do not follow each other.
    RowRuns {
        /// The shard.
        shard: ShardName,
        /// Runs of at least one row, ascending; together at most [`super::limits::ROWS_PER_READ_MAX`] rows.
        #[serde(deserialize_with = "few_runs")]
        runs: Vec<RowRun>,
    },
}

/// Reads runs of rows. A frame has room for 36,000, which would wait for a place to read with eight times its memory.
fn few_runs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<RowRun>, D::Error> {
    let runs: Vec<RowRun> = Vec::deserialize(deserializer)?;
    if runs.len() > ROWS_PER_READ_MAX as usize {
        return Err(serde::de::Error::custom("too many runs of rows"));
    }
    Ok(runs)
}

/// Rows that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowRun {
    /// First row.
    pub first: u64,
    /// Number of rows.
    pub count: u32,
}

impl RowRun {
    /// The row after the last one. `None` if no number is so large.
    pub fn end(&self) -> Option<u64> {
        self.first.checked_add(u64::from(self.count))
    }
}

/// The reservation of a version of a job for a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The job.
    pub job_tag: JobTag,
    /// The version.
    pub version: Version,
    /// The checkpoint that will have this version.
    pub checkpoint: CheckpointId,
}

/// The head of a shard's transfer, before its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutShard {
    /// The checkpoint, its job and its version.
    pub claim: Claim,
    /// The checkpoint's redundancy.
    pub redundancy: Redundancy,
    /// Number of the shard.
    pub shard: u8,
    /// Upper bound of the bytes of the shard, or 0 if it is not known. The host refuses at once a shard
    /// that it has no room for.
    pub expected_bytes: u64,
}

/// The name of a shard: its checkpoint, and its number in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ShardName {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Number of the shard.
    pub shard: u8,
}

/// What a server answers; the first frame that it sends on the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// The request is refused, with the reason.
    Refused(Refusal),
    /// No longer in use.
    Retired1(Retired),
    /// The version is reserved.
    Claimed,
    /// Another checkpoint has the version; `next` was free when the host answered.
    Taken {
        /// One more than the highest version of the job that this host knows.
        next: Version,
    },
    /// Blocks may follow.
    Accepted,
    /// The shard is whole and synced.
    Stored(StoredShard),
    /// The manifest is synced and the checkpoint visible.
    Committed,
    /// Records of checkpoints follow.
    Found {
        /// Number of records, at most [`super::limits::RECORDS_MAX`].
        count: u32,
        /// Whether there are more records after the last of these.
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
        /// Bytes of the page.
        bytes: u32,
    },
    /// Blocks follow.
    Rows {
        /// Bytes of all these blocks together.
        bytes: u64,
    },
    /// The host holds nothing of the checkpoint any more.
    Forgotten {
        /// Whether it held something before.
        existed: bool,
    },
    /// No longer in use.
    Retired12(Retired),
    /// All bytes of a probe have arrived.
    Probed,
    /// The host has taken note of what was sent.
    Noted,
    /// The registry has taken note of what was sent, and asks for what it lacks.
    Heard {
        /// Whether the donor should send its announcement.
        announce: bool,
        /// Whether the donor should send its list of shards.
        holdings: bool,
    },
    /// [`MemberRecord`]s follow.
    Members {
        /// Number of records, at most [`super::limits::MEMBERS_MAX`].
        count: u32,
        /// Whether there are more records after the last of these.
        more: bool,
    },
    /// Donors that claim to hold shards of the checkpoint.
    Holders {
        /// Donors with the numbers of their shards, at most [`super::limits::HOLDERS_MAX`].
        holders: Vec<(OwnerId, u8)>,
    },
    /// The machine is a member of the grid now.
    Joined(Box<Joined>),
    /// No longer in use.
    Retired19(Retired),
    /// [`NoticeRecord`]s follow.
    Notices {
        /// The host's clock, Unix seconds.
        clock: u64,
        /// Number of records, at most `NOTICES_PER_JOB_MAX` for each job that was asked about.
        count: u32,
    },
    /// The host's status.
    Status(Box<HostStatus>),
    /// What the host expects of its own availability.
    Announcement(Box<ExtendedAnnouncement>),
    /// The checkpoints of the question of which the host holds shards.
    PeerHolds {
        /// Their tags, in any order.
        held: Vec<HeldTag>,
    },
    /// A part of a shard, with the hashes that lead from it to the shard's root.
    Proof(ShardProof),
    /// The lists of void job keys of those owners that have one.
    Voids {
        /// Signed lists ([`codec::grant::VoidList`]).
        lists: Vec<ByteBuf>,
    },
    /// The server's list of the grid. Its bytes follow if it is newer than the list of the asker. Also
    /// the answer to `PutList` if the list that was sent is not newer than the server's.
    List {
        /// Number of the server's list; 0 for none.
        number: u64,
        /// Number of bytes that follow, at most [`super::limits::LIST_BYTES_MAX`]; 0 for none.
        bytes: u32,
    },
    /// The host's counts.
    Census(Box<HostCensus>),
    /// No successor with a lower ballot will be accepted.
    Promised {
        /// The signed proposal that the witness accepted last, if any.
        accepted: Option<ByteBuf>,
    },
    /// The successor is accepted, and the acceptance is synced.
    Agreed,
    /// The witness has promised a higher ballot, or one whose round is too far below the one that was asked
    /// for.
    Outbid {
        /// The promised ballot.
        ballot: Ballot,
    },
    /// No longer in use.
    Retired31(Retired),
    /// The days of the cards that the registry has.
    CardDays {
        /// Whether the asker has the same. Then there are no `days`.
        same: bool,
        /// In ascending order of keys, at most [`super::limits::CARD_DAYS_MAX`].
        days: Vec<CardDay>,
        /// Whether there are more after the last of these.
        more: bool,
    },
    /// Cards that were asked for; none of donors that the registry has no card of.
    Cards {
        /// At most [`super::limits::CARDS_MAX`].
        cards: Vec<CardRecord>,
    },
    /// Who joined with a token that the registry redeemed.
    Joiners {
        /// Whether the registry redeems tokens for donors now.
        donors: bool,
        /// Whether it redeems tokens for submitters now.
        submitters: bool,
        /// In ascending order of keys, at most [`super::limits::JOINERS_MAX`].
        joiners: Vec<JoinerRecord>,
        /// Whether there are more after the last of these.
        more: bool,
    },
    /// Whether the registry reaches the donor that asks.
    Reached {
        /// Whether something answered at the address that it announced; none if that is not known yet.
        answered: Option<bool>,
    },
    /// The shards of a checkpoint that is not committed, as far as they are here.
    RowsHeld {
        /// At most [`super::limits::SHARDS_MAX`].
        shards: Vec<ShardRows>,
    },
}

/// How many rows of a shard a host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRows {
    /// Number of the shard.
    pub shard: u8,
    /// Its rows from the first one on.
    pub rows: u64,
    /// Whether the shard was ended: it has no other number of rows any more.
    pub ended: bool,
}

/// A checkpoint of which a host holds shards, in the answer to `PeerHolds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldTag {
    /// Index of the checkpoint's tag in the question.
    pub place: u16,
    /// The shards that the host holds, bit 0 for shard 0.
    pub shards: u64,
    /// Hash that only a host that knows the checkpoint's id can make.
    pub tag: Tag,
}

/// A notice, as it follows `Notices`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoticeRecord {
    /// The signed notice.
    #[serde(with = "serde_bytes")]
    pub notice: Vec<u8>,
}

/// What a submitter's check of a shard found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Number of the shard.
    pub shard: u8,
    /// Blocks that were read and had the right hash.
    pub blocks: u32,
    /// What was wrong, if anything.
    pub fault: Option<AuditFault>,
}

/// What a check of a shard found wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuditFault {
    /// The host does not have a shard that it acknowledged.
    Missing,
    /// A block that the host sent is not the one that was stored.
    Damaged,
    /// The host broke off its answer, or took too long.
    BrokenOff,
}

impl AuditFault {
    /// All faults, in the order of this definition.
    pub const ALL: [Self; 3] = [Self::Missing, Self::Damaged, Self::BrokenOff];

    /// The fault's name in files and reports.
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

/// The head of the transfer of a shard that was rebuilt from others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutRebuilt {
    /// The shard.
    pub put: PutShard,
    /// The manifest that the owner signed; it has the root that the shard must have.
    #[serde(with = "serde_bytes")]
    pub manifest: Vec<u8>,
}

/// Number of the part that a registry adds to the presence of a donor that it hears and does not reach. The part
/// is empty.
pub const UNREACHED_PART: u16 = 5;

/// What a donor announces to registries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// Name of the donor; like all texts, at most [`super::limits::TEXT_BYTES_MAX`] bytes.
    pub name: String,
    /// Address at which it listens.
    pub addr: SocketAddr,
    /// Site; machines of one site tend to fail together.
    pub site: Option<String>,
    /// Owner of the machine.
    pub owner: Option<String>,
    /// Bytes that it lends.
    pub capacity_bytes: u64,
    /// Bytes that can still be stored.
    pub free_bytes: u64,
    /// Number of this announcement; grows whenever the content changes.
    pub epoch: u64,
    /// What it expects of its availability. Sent without its parts.
    pub announcement: Announcement,
    /// Fields that were added later.
    pub parts: Parts,
}

/// One message of the list of shards that a donor holds, which may take several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldsPage {
    /// Number of the list, larger than that of any earlier list.
    pub epoch: u64,
    /// Whether the list begins with this message.
    pub first: bool,
    /// Whether the list ends with this message; it then replaces the list before.
    pub last: bool,
    /// Shards of this message, at most [`super::limits::HOLDS_MAX`].
    pub shards: Vec<ShardName>,
}

/// A donor, as a registry lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// Public key of the donor.
    pub id: OwnerId,
    /// Milliseconds since its last message.
    pub silent_ms: u64,
    /// Whether its last message is as recent as the rhythm of its messages lets expect.
    pub alive: bool,
    /// Its last announcement.
    pub presence: Presence,
}

/// Of which day the card of a donor is that a registry has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardDay {
    /// Public key of the donor.
    pub id: OwnerId,
    /// Day on which the donor signed the card, counted from 1970.
    pub day: u32,
}

impl CardDay {
    /// Whether these days are a page as it is sent after the key `after`: not too long, in ascending order of keys,
    /// and none of them before. So whoever sends pages can't keep the other side asking for ever.
    pub fn is_page(days: &[Self], after: Option<OwnerId>) -> bool {
        let first = days.first().map(|day| day.id);
        days.len() <= CARD_DAYS_MAX
            && days.is_sorted_by(|one, next| one.id < next.id)
            && first.is_none_or(|first| Some(first) > after)
    }
}

/// The card of a donor, and where the donor was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardRecord {
    /// The card ([`crate::identity::MemberCard`]).
    #[serde(with = "serde_bytes")]
    pub card: Vec<u8>,
    /// Address of the donor: the one on the card, or the one from which the donor connected to a registry
    /// if the card has an unspecified one.
    pub addr: SocketAddr,
}

/// A machine or person that wants to become a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// Text of the join token.
    pub token: String,
    /// Name that the machine would like to have.
    pub name: String,
    /// Public key of the machine.
    pub key: OwnerId,
    /// Signature of [`JoinRequest::signed`] with that key, which proves that the machine has it.
    #[serde(with = "serde_bytes")]
    pub signature: Vec<u8>,
    /// Whether the registry may add a number to the name if the name is another member's.
    pub numbered: bool,
}

/// A member that joined with a token, as the registry that redeemed the token recorded it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinerRecord {
    /// Public key of the member.
    pub id: OwnerId,
    /// Name in its certificate.
    pub name: String,
    /// Whether it is a submitter; otherwise it is a donor.
    pub submitter: bool,
    /// Number of the token, which is in its text. Nobody can redeem a token by its number.
    pub token: [u8; 16],
    /// When it joined, Unix seconds.
    pub at: u64,
    /// When its certificate ends, Unix seconds.
    pub until: u64,
    /// When the registry heard it last, Unix seconds.
    pub seen_at: u64,
}

impl JoinRequest {
    /// The bytes that a machine signs to join.
    pub fn signed(token: &str, name: &str) -> Vec<u8> {
        format!("ckpt v1 join\0{token}\0{name}").into_bytes()
    }
}

/// What a machine gets that joined as a donor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Certificate of the machine, DER.
    #[serde(with = "serde_bytes")]
    pub certificate: Vec<u8>,
    /// Certificate of the registry, which signed the machine's, DER.
    #[serde(with = "serde_bytes")]
    pub issuer: Vec<u8>,
    /// Text of the grid file.
    pub grid: String,
}

/// Why a server refuses a request. Programs decide by the code, never by the text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The reason.
    pub code: Code,
    /// Text for logs, at most [`super::limits::TEXT_BYTES_MAX`] bytes.
    pub detail: String,
    /// Milliseconds after which the same request may succeed; 0 if it will not.
    pub retry_after_ms: u32,
}

/// The status of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStatus {
    /// Name of the host in the grid.
    pub name: String,
    /// Version of its software.
    pub software: String,
    /// Bytes that it lends.
    pub capacity_bytes: u64,
    /// Bytes that are taken or promised.
    pub used_bytes: u64,
    /// Bytes that can still be stored: capacity and the disk's free space considered.
    pub free_bytes: u64,
    /// Whole shards that it holds.
    pub shards: u64,
    /// Committed checkpoints of which it holds shards.
    pub checkpoints: u64,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// Fields that were added later.
    pub parts: Parts,
}

/// The counts of a host, for an admin. They name no checkpoint and no job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCensus {
    /// The host's clock, Unix seconds.
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
    /// Reason of a stance above 0, numbered as part 1 of an announcement; 0 when it gives none.
    pub withheld: u8,
    /// Seconds after which new shards may be welcome again; 0 when they are now.
    pub refuses_for_s: u32,
    /// When its last round through all that it holds ended, Unix seconds; 0 before the first since its
    /// start.
    pub counted_at: u64,
    /// Of the checkpoints that it counts, those that can lose 0, 1, 2, ... of the shards that were
    /// proved; at most 33 numbers.
    pub can_lose: Vec<u64>,
    /// Checkpoints of which fewer shards were proved than a restore needs.
    pub too_few: u64,
    /// Checkpoints of which fewer shards were proved than they were saved with.
    pub below: u64,
    /// Checkpoints among those `below` of which further shards are claimed and not proved yet.
    pub unchecked: u64,
    /// Checks by submitters that failed on this host in the last seven days, at most 50.
    pub failed_checks: u64,
    /// Proofs that this host asked of other hosts and that failed.
    pub failed_proofs: u64,
    /// The submitters that use most, at most [`super::limits::CENSUS_OWNERS_MAX`].
    pub owners: Vec<OwnerUse>,
}

/// What one submitter uses on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerUse {
    /// First 8 hexadecimal digits of the submitter's public key.
    pub key: String,
    /// Name in the submitter's certificate; empty when the host has not seen the certificate.
    pub name: String,
    /// Bytes that are taken or promised.
    pub used_bytes: u64,
}

/// The acknowledgement of a shard that a host has stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredShard {
    /// Rows of the shard.
    pub rows: u64,
    /// Root that the host computed over what it synced.
    pub root: ShardRoot,
}

/// A committed checkpoint, and the shards of it that a host holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The signed manifest.
    #[serde(with = "serde_bytes")]
    pub manifest: Vec<u8>,
    /// Numbers of the shards that the host holds.
    pub shards: Vec<u8>,
}

/// The end of a shard's transfer. It follows a block length of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutEnd {
    /// Rows that were sent.
    pub rows: u64,
    /// Root that the client computed.
    pub root: ShardRoot,
}
