//! Commits the remnants of interrupted saves that a version uses, before the version.

use std::collections::BTreeSet;

use codec::CheckpointId;
use tokio::task::JoinSet;

use super::{Event, SaveEvent, SaveFailure, SaveOutcome, SaveShell};
use crate::agent::Agent;
use crate::agent::save::journal::SaveJournal;
use crate::agent::save::pending::Pending;

/// The remnants that a version may use.
#[derive(Debug, Default)]
pub(super) struct Remnants {
    pending: Vec<Pending>,
    /// Whether they could not be committed.
    pub(super) are_lost: bool,
    /// Has hosts keep them meanwhile. It ends with this.
    _asking: JoinSet<()>,
}

impl Remnants {
    pub(super) fn new(agent: &Agent, pending: Vec<Pending>) -> Self {
        let mut asking = JoinSet::new();
        if !pending.is_empty() {
            asking.spawn(agent.clone().keep_asking_for(pending.clone()));
        }
        Self {
            pending,
            are_lost: false,
            _asking: asking,
        }
    }
}

impl SaveShell<'_> {
    /// Whether hosts have rows of the save, which did not end because of its image, and the next save may use these.
    pub(super) fn leaves_rows(&self) -> bool {
        let is_interrupted = match self.session.outcome() {
            Some(SaveOutcome::Failed(why)) => matches!(
                why,
                SaveFailure::Cancelled | SaveFailure::Deadline | SaveFailure::NotEnoughHosts { .. }
            ),
            Some(SaveOutcome::Committed { .. }) => false,
            // This machine slept.
            None => true,
        };
        // A shard that is whole has rows behind those of the image, and can't be ended after fewer.
        let is_noted = self.journal.as_ref().is_some_and(SaveJournal::is_written);
        is_interrupted && is_noted && self.stored.is_empty()
    }

    /// Commits the remnants that the version uses. The image has ended for the session when that is done: so neither
    /// the version nor its proposal comes before them.
    pub(super) fn commit_remnants(&mut self) {
        let needs = self
            .ended
            .iter()
            .flat_map(|ended| ended.image.draft.summary().needs());
        let needs: BTreeSet<CheckpointId> = needs.map(|need| need.checkpoint).collect();
        let mut pending = std::mem::take(&mut self.remnants.pending);
        pending.retain(|one| needs.contains(&one.checkpoint));
        if pending.is_empty() {
            return self.handle(SaveEvent::InputEnded);
        }
        let agent = self.agent.clone();
        let sender = self.sender.clone();
        self.watching.spawn(async move {
            let mut are_committed = true;
            for one in pending {
                are_committed = are_committed && one.commit(&agent).await;
            }
            let _ = sender.send(Event::Remnants(are_committed));
        });
    }

    pub(super) fn end_remnants(&mut self, are_committed: bool) {
        if are_committed {
            return self.handle(SaveEvent::InputEnded);
        }
        self.remnants.are_lost = true;
        self.unsigned = Some("hosts lost what an interrupted save had left".to_owned());
        self.handle(SaveEvent::InputFailed);
    }
}
