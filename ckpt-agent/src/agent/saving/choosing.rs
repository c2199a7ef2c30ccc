//! A save session whose checkpoint has to be chosen before it is committed.

use codec::Version;

use super::{Lost, SaveEvent, SaveFailure, Shell};
use crate::agent::after;
use crate::agent::fencing::Fenced;
use crate::core::fence::Quorum;
use crate::report::{Failure, SuccessorNote};

impl Shell<'_> {
    pub(super) fn end_fencing(&mut self, fenced: Fenced) {
        match fenced {
            Ok(report) => {
                self.fence = Some(report);
                self.tell(SaveEvent::Decided);
            }
            Err(lost) => {
                let why = match &lost {
                    Lost::TooFew { .. } => SaveFailure::TooFewWitnesses,
                    Lost::Unsigned(_) => SaveFailure::InputFailed,
                    Lost::Another(_) => SaveFailure::AnotherSuccessor,
                    Lost::Outbid => SaveFailure::Outbid,
                };
                self.lost = Some(lost);
                self.tell(SaveEvent::Undecided(why));
            }
        }
    }

    /// Has the save chosen as what follows a checkpoint.
    pub(super) fn decide(&mut self) {
        let manifest = self.manifest();
        match (manifest, &self.signed, &mut self.fencing) {
            (Ok(_), Some(signed), Some(fencing)) => fencing.propose(signed.clone()),
            (Err(cause), ..) => self.end_fencing(Err(Lost::Unsigned(cause))),
            (Ok(_), ..) => {}
        }
    }

    /// Names the save's own checkpoint in its failure, when the next save may find it chosen.
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

    /// The failure of a save that is not what follows the version that it was to follow.
    pub(super) fn not_followed(&self, doing: &str) -> Failure {
        let predecessor = self
            .predecessor
            .unwrap_or((Version::FIRST, Quorum::majority(1)));
        match &self.lost {
            Some(Lost::TooFew { answer, why }) => {
                after::too_few(doing, predecessor, *answer, why.clone())
            }
            Some(Lost::Another(other)) => after::another(doing, predecessor.0, *other),
            _ => after::outbid(doing, predecessor.0),
        }
    }
}
