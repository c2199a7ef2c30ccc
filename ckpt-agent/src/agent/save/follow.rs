//! Prepares `save --after`: which checkpoint the save is to follow, whether it can, and the failures when it
//! cannot.

use codec::grant::VoidList;
use codec::manifest::Summary;
use codec::{CheckpointId, Version};
use tokio::time::Instant;

use crate::agent::ask::gather::Gathered;
use crate::agent::save::fencing::{Fencing, Predecessor};
use crate::agent::{After, AfterWhich, Agent, SaveRequest};
use crate::core::fence::Quorum;
use crate::core::gather::silence::{Remembered, Unshown};
use crate::inventory::KnownCheckpoint;
use crate::report::{ExitStatus, Failure, FenceReport, HostNote, SuccessorNote};

/// What follows from `--after` before a save begins.
#[derive(Debug, Default)]
pub(crate) struct Following {
    /// The task that asks the witnesses; `None` for a save that is not fenced.
    pub(crate) fencing: Option<Fencing>,
    /// Part of the report of a save that follows a version without asking its witnesses (`--unfenced`).
    pub(crate) unfenced: Option<FenceReport>,
    /// Notes for the user.
    pub(crate) notes: Vec<String>,
}

impl Agent {
    /// Prepares the save of `checkpoint` to follow the checkpoint that the request names.
    ///
    /// # Errors
    /// When it can't: there is no such version, another checkpoint follows it already, or it has no
    /// witnesses.
    pub(crate) fn following(
        &self,
        gathered: &Gathered,
        request: &SaveRequest,
        checkpoint: CheckpointId,
        started: Instant,
        doing: &str,
    ) -> Result<Following, Failure> {
        let newest = gathered.inventory.newest_first().first().copied();
        let Some(after) = request.options.after else {
            return Ok(Following {
                notes: newest
                    .and_then(|newest| self.overtakes(newest))
                    .into_iter()
                    .collect(),
                ..Following::default()
            });
        };
        let doing = format!("{doing} after {}", named(after.which));
        let known = match after.which {
            AfterWhich::Nothing => return self.first(gathered, request, newest, &doing),
            AfterWhich::Version(version) => self.only_one(gathered, version, &doing)?,
            AfterWhich::Checkpoint(id) => {
                let all = gathered.inventory.newest_first();
                all.into_iter().find(|known| known.stamp().checkpoint == id)
            }
        };
        let Some(known) = known else {
            let unfound = self.unfound(self.job_tag(&request.job)?, gathered);
            let mut failure = self.not_there(gathered, after.which, newest, &doing);
            if let Some(seen) = unfound.filter(|_| failure.status == ExitStatus::NotFound) {
                failure.status = ExitStatus::TooFewHosts;
                failure.state = Some(self.unfound_note(&seen, gathered));
                failure = failure.next("again when more hosts are up: ckpt hosts");
            }
            return Err(failure);
        };
        // Where a save died in its commit, the witnesses know it, and it is finished by asking them.
        let newer = gathered.inventory.newest_first().into_iter();
        let mut newer = newer.take_while(|one| one.stamp() != known.stamp());
        if let Some(other) = newer.find(|one| !self.may_be_half_committed(one, known)) {
            let newest = newest.unwrap_or(other);
            return Err(another(&doing, known.version(), committed(newest)));
        }
        self.fence(
            (known, gathered.void.as_ref()),
            request,
            after,
            checkpoint,
            started,
            &doing,
        )
    }

    fn fence(
        &self,
        (known, void): (&KnownCheckpoint, Option<&VoidList>),
        request: &SaveRequest,
        after: After,
        checkpoint: CheckpointId,
        started: Instant,
        doing: &str,
    ) -> Result<Following, Failure> {
        let summary = known.manifest.open(&self.keys);
        let summary = summary
            .map_err(|cause| Failure::new(ExitStatus::Denied, format!("{doing}: {cause}")))?;
        let version = known.version();
        let witnesses = summary.tail.witnesses;
        if after.is_unfenced {
            tracing::warn!(%version, "saved without the agreement of the witnesses: --unfenced");
            return Ok(Following {
                fencing: None,
                unfenced: Some(FenceReport {
                    after: version,
                    after_checkpoint: known.stamp().checkpoint,
                    fenced: false,
                    witnesses: witnesses.len(),
                    needed: 0,
                    agreed: 0,
                }),
                notes: vec![format!(
                    "not fenced (--unfenced): another save after version {version} can commit as well"
                )],
            });
        }
        if witnesses.is_empty() {
            let what =
                format!("{doing}: version {version} has no witnesses: its manifest names none");
            let failure = Failure::new(ExitStatus::Failed, what);
            return Err(failure.next("--unfenced, to save this time without witnesses"));
        }
        // Ends before the session's deadline does, so that the failure can name the cause.
        let until = request
            .options
            .deadline
            .map(|limit| started + limit / 8 * 7);
        let predecessor = Predecessor {
            public: known.manifest.public(),
            witnesses: &witnesses,
            strength: after.strength,
            void,
        };
        let fencing = Fencing::new(self, &request.job, predecessor, checkpoint, until);
        Ok(Following {
            fencing: Some(fencing),
            ..Following::default()
        })
    }

    /// The one checkpoint with this version; `None` when there is none.
    fn only_one<'a>(
        &self,
        gathered: &'a Gathered,
        version: Version,
        doing: &str,
    ) -> Result<Option<&'a KnownCheckpoint>, Failure> {
        let mut all = gathered.inventory.newest_first();
        all.retain(|known| known.version() == version);
        if let [_, _, ..] = all.as_slice() {
            let ids = all.iter().map(|known| known.stamp().checkpoint.hex());
            let ids: Vec<String> = ids.collect();
            let what = format!(
                "{doing}: {} checkpoints have this number: {}",
                ids.len(),
                ids.join(", ")
            );
            let failure = Failure::new(ExitStatus::Usage, what);
            return Err(failure
                .next("--after ID, with the id of the checkpoint that the job continued from"));
        }
        Ok(all.first().copied())
    }

    /// Prepares a save that is to be the first of its job. There are no witnesses to ask.
    fn first(
        &self,
        gathered: &Gathered,
        request: &SaveRequest,
        newest: Option<&KnownCheckpoint>,
        doing: &str,
    ) -> Result<Following, Failure> {
        if let Some(newest) = newest {
            let other = committed(newest);
            let what = format!("{doing}: there is version {}", other.version);
            let mut failure = Failure::new(ExitStatus::AnotherSuccessor, what).next(format!(
                "ckpt restore --job {}, then --after {}",
                request.job, other.version
            ));
            failure.successor = Some(Box::new(other));
            return Err(failure);
        }
        let said = request
            .options
            .redundancy
            .and_then(|code| u8::try_from(code.data()).ok());
        if let Some(seen) = self.unfound(self.job_tag(&request.job)?, gathered) {
            let what = format!("{doing}: {}", self.unfound_note(&seen, gathered));
            let failure = Failure::new(ExitStatus::TooFewHosts, what);
            return Err(failure.next(format!(
                "again when more hosts are up; to begin anew without it: ckpt forget --job {} --all",
                request.job
            )));
        }
        let silence = gathered.silence();
        if silence.of_unshown(Remembered::Nothing, said, false) == Unshown::MayBeAway {
            let silent = silence.silent;
            let what = format!("{doing}: {silent} members are silent, and may hold a version");
            let failure = Failure::new(ExitStatus::TooFewHosts, what);
            return Err(failure.next("again when more of them are up: ckpt hosts"));
        }
        Ok(Following {
            notes: vec![
                "the first version has no witnesses: another first save can commit beside it, and \
                 `ckpt list` shows both"
                    .into(),
            ],
            ..Following::default()
        })
    }

    /// The failure when no host shows the checkpoint. It may have been followed and then removed, may lie on
    /// silent hosts, or may never have existed.
    fn not_there(
        &self,
        gathered: &Gathered,
        which: AfterWhich,
        newest: Option<&KnownCheckpoint>,
        doing: &str,
    ) -> Failure {
        let is_later = |newest: &&KnownCheckpoint| match which {
            AfterWhich::Version(version) => newest.version() > version,
            AfterWhich::Checkpoint(_) => true,
            AfterWhich::Nothing => false,
        };
        if let Some(newest) = newest.filter(is_later) {
            let other = committed(newest);
            let what = format!(
                "{doing}: it no longer exists, but version {} does",
                other.version
            );
            let mut failure = Failure::new(ExitStatus::AnotherSuccessor, what);
            failure.successor = Some(Box::new(other));
            return failure;
        }
        let what = format!("{doing}: no host that answers shows it");
        let mut failure = Failure::new(ExitStatus::NotFound, what).next("ckpt list");
        if !gathered.silent.is_empty() {
            failure.status = ExitStatus::TooFewHosts;
            failure = failure.next("again when more hosts are up: ckpt hosts");
        }
        failure.hosts = self.silent_notes(gathered);
        failure
    }

    /// Whether too few hosts show this checkpoint for a restore, and it was saved as the successor of `known`.
    fn may_be_half_committed(&self, one: &KnownCheckpoint, known: &KnownCheckpoint) -> bool {
        let follows = |summary: &Summary| summary.tail.after == Some(known.stamp().checkpoint);
        one.can_lose().is_none() && one.manifest.open(&self.keys).is_ok_and(|it| follows(&it))
    }

    /// A note on a save that is not fenced although the one before it is.
    fn overtakes(&self, newest: &KnownCheckpoint) -> Option<String> {
        let opened = newest.manifest.open(&self.keys);
        let is_fenced = |summary: &Summary| summary.tail.after.is_some();
        let version = newest.version();
        opened.ok().filter(is_fenced).map(|_| {
            format!(
                "version {version} was saved with --after, and this save is not: a save with --after \
                 {version} fails because of it, or commits beside it"
            )
        })
    }
}

/// What the save follows, in words.
fn named(which: AfterWhich) -> String {
    match which {
        AfterWhich::Nothing => "nothing".into(),
        AfterWhich::Version(version) => format!("version {version}"),
        AfterWhich::Checkpoint(id) => format!("checkpoint {id}"),
    }
}

fn committed(known: &KnownCheckpoint) -> SuccessorNote {
    SuccessorNote {
        version: known.version(),
        checkpoint: known.stamp().checkpoint,
        committed: true,
    }
}

/// The failure when another checkpoint follows `after`, or may.
pub(crate) fn another(doing: &str, after: Version, other: SuccessorNote) -> Failure {
    let number = other.version;
    let id = other.checkpoint;
    let (what, next) = if other.committed {
        (
            format!("version {number} (checkpoint {id}) follows version {after}"),
            format!("restore that one, continue from it, and save with --after {number}"),
        )
    } else {
        (
            format!(
                "another save is half done: version {number} (checkpoint {id}) may follow version {after}"
            ),
            format!(
                "again when more hosts are up, which finishes it; if a thief of a job key may have made \
                 it: ckpt key revoke; if it can never be finished: ckpt save --after {after} --unfenced"
            ),
        )
    };
    let failure = Failure::new(ExitStatus::AnotherSuccessor, format!("{doing}: {what}"));
    let mut failure = failure.next(next);
    failure.successor = Some(Box::new(other));
    failure
}

/// The failure when other saves that want to follow `after` bid more every time.
pub(crate) fn outbid(doing: &str, after: Version) -> Failure {
    let what = format!("{doing}: other saves after version {after} are under way");
    Failure::new(ExitStatus::AnotherSuccessor, what).next(format!(
        "again when they have ended; if there are none, a thief of a job key may have made the bids: \
         ckpt key revoke, or ckpt save --after {after} --unfenced"
    ))
}

/// The failure when too few witnesses of `after` answer.
pub(crate) fn too_few(
    doing: &str,
    (after, quorum): (Version, Quorum),
    answer: usize,
    why: Vec<HostNote>,
) -> Failure {
    let all = quorum.witnesses();
    let needed = quorum.needed();
    let what = format!(
        "{doing}: of the {all} hosts that witnessed version {after}, {answer} answer, but {needed} are needed"
    );
    let failure = Failure::new(ExitStatus::TooFewHosts, what);
    let mut failure = failure.next(format!(
        "again when more of them are up; if they are gone for good: --after {after} --unfenced"
    ));
    failure.hosts = why;
    failure
}
