//! The part of a save session whose checkpoint has to be chosen before it is committed.

use codec::manifest::Manifest;
use codec::{CheckpointId, Version};
use tokio::sync::mpsc;

use super::{Event, SaveEvent, SaveFailure, SaveShell};
use crate::agent::save::fencing::{Fenced, Fencing, FencingTask, Lost};
use crate::agent::save::follow;
use crate::core::fence::Quorum;
use crate::core::save::SaveSession;
use crate::report::{Failure, FenceReport, SuccessorNote};

/// The checkpoint that a save is to follow, and whether the save was chosen for that.
#[derive(Debug, Default)]
pub(super) struct Choosing {
    followed: Option<Chosen>,
    /// How the witnesses chose this save.
    report: Option<FenceReport>,
    /// Why the witnesses did not choose it.
    lost: Option<Lost>,
}

#[derive(Debug)]
struct Chosen {
    after: CheckpointId,
    version: Version,
    quorum: Quorum,
    task: FencingTask,
}

impl Choosing {
    /// Begins to ask witnesses, if the save follows a checkpoint. The outcome is sent to `sender`.
    pub(super) fn start(fencing: Option<Fencing>, sender: &mpsc::UnboundedSender<Event>) -> Self {
        let followed = fencing.map(|fencing| Chosen {
            after: fencing.after(),
            version: fencing.version(),
            quorum: fencing.quorum(),
            task: FencingTask::start(fencing, sender.clone(), Event::Fenced),
        });
        Self {
            followed,
            ..Self::default()
        }
    }

    /// The session, set to wait for the choice if there is one.
    pub(super) const fn session(&self, session: SaveSession) -> SaveSession {
        match self.followed {
            Some(_) => session.to_be_chosen(),
            None => session,
        }
    }

    /// The checkpoint that the save follows.
    pub(super) fn after(&self) -> Option<CheckpointId> {
        self.followed.as_ref().map(|followed| followed.after)
    }

    pub(super) const fn report(&self) -> Option<FenceReport> {
        self.report
    }

    pub(super) const fn lost(&self) -> Option<&Lost> {
        self.lost.as_ref()
    }

    fn propose(&mut self, manifest: Manifest) {
        if let Some(followed) = &mut self.followed {
            followed.task.propose(manifest);
        }
    }
}

impl SaveShell<'_> {
    pub(super) fn end_fencing(&mut self, fenced: Fenced) {
        match fenced {
            Ok(report) => {
                self.choosing.report = Some(report);
                self.handle(SaveEvent::Decided);
            }
            Err(lost) => {
                let why = match &lost {
                    Lost::TooFew { .. } => SaveFailure::TooFewWitnesses,
                    Lost::Unsigned(_) => SaveFailure::InputFailed,
                    Lost::Another(_) => SaveFailure::AnotherSuccessor,
                    Lost::Outbid => SaveFailure::Outbid,
                };
                self.choosing.lost = Some(lost);
                self.handle(SaveEvent::Undecided(why));
            }
        }
    }

    /// Proposes the save to the witnesses as the successor of the checkpoint.
    pub(super) fn decide(&mut self) {
        match (self.manifest(), self.signed.clone()) {
            (Ok(_), Some(signed)) => self.choosing.propose(signed),
            (Err(cause), _) => self.end_fencing(Err(Lost::Unsigned(cause))),
            (Ok(_), None) => {}
        }
    }

    /// Adds the save's own checkpoint to its failure, if the next save may find it chosen.
    pub(super) fn half_done(&self, mut failure: Failure) -> Failure {
        if self.session.is_half_done() {
            failure.successor = Some(Box::new(SuccessorNote {
                version: self.plan.version,
                checkpoint: self.plan.checkpoint,
                committed: false,
            }));
        }
        failure
    }

    /// The failure of a save that was not chosen as the successor.
    pub(super) fn not_followed(&self, doing: &str) -> Failure {
        let followed = self.choosing.followed.as_ref();
        let (version, quorum) = followed.map_or((Version::FIRST, Quorum::majority(1)), |it| {
            (it.version, it.quorum)
        });
        match &self.choosing.lost {
            Some(Lost::TooFew { answer, why }) => {
                follow::too_few(doing, (version, quorum), *answer, why.clone())
            }
            Some(Lost::Another(other)) => follow::another(doing, version, *other),
            _ => follow::outbid(doing, version),
        }
    }
}
