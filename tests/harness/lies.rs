//! The lies of a host that can lie.

/// Ways to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// It does as it should.
    None,
    /// One bit of every answer with blocks is flipped.
    FlipsBits,
    /// Blocks come in another order.
    SwapsBlocks,
    /// Answers with blocks end too early.
    Truncates,
    /// Blocks of another shard, or of another checkpoint.
    ServesAnotherShard,
    /// Only the oldest checkpoint of a job is shown.
    HidesNewVersions,
    /// It says that it has nothing.
    HidesEverything,
    /// It shows a manifest with a changed byte.
    ForgesManifests,
    /// It shows manifests of other jobs as those of the job that was asked for.
    MixesJobsUp,
    /// It claims to hold shards that it never got.
    ClaimsShards,
    /// It acknowledges what it throws away.
    StoresNothing,
    /// It acknowledges another root than that of what it got.
    AcknowledgesAnotherRoot,
    /// Blocks come a byte at a time.
    Drips,
    /// It announces and sends far more than was asked for.
    AnswersTooMuch,
    /// It sends frames that say to be as long as can be.
    SendsHugeFrames,
    /// It sends noise.
    SendsNoise,
    /// It says that the version is taken, and the next free one is the last there is.
    TakesAllVersions,
    /// It has no room, and tells other donors that it holds every shard they ask for.
    ClaimsToHoldAll,
    /// It acknowledges what it should store, and keeps other bytes.
    StoresOther,
    /// It never answers.
    IsSilent,
    /// It ends the connection when it gets a request of this kind.
    HangsUpAt(Kind),
    /// It shows records of zeros, as long as can be, without end.
    FloodsFind,
    /// It shows the first of its records again and again.
    RepeatsFind,
    /// It stores and shows everything, and does not listen when something is to be removed.
    IsDeaf,
    /// It says that it removes what is to be removed, and keeps it, shows it, and brings it back to
    /// other donors ([`crate::liar::Liar::bring_back`]).
    ReplaysDeleted,
    /// It has no room, and its clock is years ahead.
    ClockAhead,
    /// It says that it does not know notices, as an earlier program does, and that it removes what it
    /// then keeps.
    RefusesNotices,
    /// It promises and accepts every successor of a checkpoint, and shows the first that it heard of, or
    /// none.
    ForgetsPromises,
}

/// Kinds of requests.
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
    /// All of them.
    pub const ALL: [Self; 35] = [
        Self::FlipsBits,
        Self::SwapsBlocks,
        Self::Truncates,
        Self::ServesAnotherShard,
        Self::HidesNewVersions,
        Self::HidesEverything,
        Self::ForgesManifests,
        Self::MixesJobsUp,
        Self::ClaimsShards,
        Self::StoresNothing,
        Self::AcknowledgesAnotherRoot,
        Self::Drips,
        Self::AnswersTooMuch,
        Self::SendsHugeFrames,
        Self::SendsNoise,
        Self::TakesAllVersions,
        Self::ClaimsToHoldAll,
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
        Self::RepeatsFind,
        Self::IsDeaf,
        Self::ReplaysDeleted,
        Self::ClockAhead,
        Self::RefusesNotices,
        Self::ForgetsPromises,
    ];
}
