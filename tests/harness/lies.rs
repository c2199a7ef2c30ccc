//! The lies of a host that can lie.

use protocol::wire::message::{Request, Response, ShardRows, StoredShard};

/// Ways in which a host departs from the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// The host is honest.
    None,
    /// One bit of every answer with blocks is flipped.
    FlipsBits,
    /// Blocks come in the reverse order; a single block comes with its bytes reversed.
    SwapsBlocks,
    /// Answers with blocks end too early.
    Truncates,
    /// The host sends blocks of another shard, or of another checkpoint.
    ServesAnotherShard,
    /// The host shows only the oldest checkpoint of a job.
    HidesNewVersions,
    /// The host answers that it has no checkpoints.
    HidesEverything,
    /// The host shows manifests with a changed byte.
    ForgesManifests,
    /// The host answers with manifests of all jobs when it is asked for those of one.
    MixesJobsUp,
    /// The host claims to hold shards that it never got, and sends blocks of other shards for them.
    ClaimsShards,
    /// The host claims to have all rows of every shard of a save that was interrupted, and to have ended them.
    ClaimsRows,
    /// The host acknowledges shards and throws them away.
    StoresNothing,
    /// The host acknowledges a shard with a wrong root.
    AcknowledgesAnotherRoot,
    /// Blocks come one byte at a time, ten bytes a second.
    Drips,
    /// The host announces and sends far more than was asked for.
    AnswersTooMuch,
    /// The host sends a frame that states the greatest length there is.
    SendsHugeFrames,
    /// The host sends bytes that mean nothing.
    SendsNoise,
    /// The host answers each claim that the version is taken, and that the next free one is the greatest
    /// number there is.
    TakesAllVersions,
    /// The host refuses shards for lack of room, and answers other donors that it holds all shards of the
    /// checkpoints of which it was offered one.
    ClaimsToHoldAll,
    /// Like [`Self::ClaimsToHoldAll`]; and the host proves each shard that another host can prove to it.
    PassesQuestionsOn,
    /// The host acknowledges shards as they are, and keeps other bytes.
    StoresOther,
    /// The host never answers.
    IsSilent,
    /// The host closes the connection when it gets a request of this kind.
    HangsUpAt(Kind),
    /// The host shows long records of zeros without end.
    FloodsFind,
    /// The host shows records of a later format without end, no faster than it has to.
    ListsForEver,
    /// The host shows the first of its records again and again, without end.
    RepeatsFind,
    /// The host stores and shows everything, and refuses notices and requests to remove a checkpoint.
    IsDeaf,
    /// The host answers that it removes checkpoints, but keeps and shows them, and sends them to other
    /// donors again ([`crate::liar::Liar::bring_back`]).
    ReplaysDeleted,
    /// The host refuses shards for lack of room, and its clock is three years ahead.
    ClockAhead,
    /// The host refuses notices as malformed. It answers that it removes checkpoints, but keeps them.
    RefusesNotices,
    /// The host is always too busy to send its notices.
    KeepsNotices,
    /// The host's program is older than the request for runs of rows, and refuses it as malformed.
    KnowsNoRuns,
    /// The host, as a witness, promises and accepts every successor of a checkpoint, and shows the first
    /// proposal that it got, or none.
    ForgetsPromises,
}

/// The request at which a host closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `Status`.
    Status,
    /// `Claim`.
    Claim,
    /// `PutShard`, after the first block.
    Put,
    /// `PutShard`, instead of the acknowledgement.
    Stored,
    /// `Commit`.
    Commit,
    /// `Find`.
    Find,
    /// `Outline`.
    Outline,
    /// `Page`.
    Page,
    /// `Rows`, in the middle of the answer.
    Rows,
}

impl Lie {
    /// Whether the host takes no shard.
    pub(crate) const fn refuses_shards(self) -> bool {
        matches!(
            self,
            Self::ClaimsToHoldAll | Self::PassesQuestionsOn | Self::ClockAhead
        )
    }

    /// Whether the host refuses this request as malformed.
    pub(crate) const fn refuses_as_malformed(self, request: &Request) -> bool {
        matches!(
            (self, request),
            (Self::KnowsNoRuns, Request::RowRuns { .. })
                | (Self::RefusesNotices, Request::Notice { .. })
        )
    }

    /// Every lie, without [`Self::None`].
    pub const ALL: [Self; 40] = [
        Self::FlipsBits,
        Self::SwapsBlocks,
        Self::Truncates,
        Self::ServesAnotherShard,
        Self::HidesNewVersions,
        Self::HidesEverything,
        Self::ForgesManifests,
        Self::MixesJobsUp,
        Self::ClaimsShards,
        Self::ClaimsRows,
        Self::StoresNothing,
        Self::AcknowledgesAnotherRoot,
        Self::Drips,
        Self::AnswersTooMuch,
        Self::SendsHugeFrames,
        Self::SendsNoise,
        Self::TakesAllVersions,
        Self::ClaimsToHoldAll,
        Self::PassesQuestionsOn,
        Self::StoresOther,
        Self::IsSilent,
        Self::HangsUpAt(Kind::Status),
        Self::HangsUpAt(Kind::Claim),
        Self::HangsUpAt(Kind::Put),
        Self::HangsUpAt(Kind::Stored),
        Self::HangsUpAt(Kind::Commit),
        Self::HangsUpAt(Kind::Find),
        Self::HangsUpAt(Kind::Outline),
        Self::HangsUpAt(Kind::Page),
        Self::HangsUpAt(Kind::Rows),
        Self::FloodsFind,
        Self::ListsForEver,
        Self::RepeatsFind,
        Self::IsDeaf,
        Self::ReplaysDeleted,
        Self::ClockAhead,
        Self::RefusesNotices,
        Self::KeepsNotices,
        Self::KnowsNoRuns,
        Self::ForgetsPromises,
    ];
}

/// What a host answers that claims to have all rows of a save that was interrupted.
pub(crate) fn claimed_rows(asked: &Request) -> Option<Response> {
    let all = |shard| ShardRows {
        shard,
        rows: u64::MAX,
        ended: false,
    };
    match *asked {
        Request::RowsHeld(_) => Some(Response::RowsHeld {
            shards: (0..5).map(all).collect(),
        }),
        Request::EndEarly { rows, root, .. } => Some(Response::Stored(StoredShard { rows, root })),
        _ => None,
    }
}
