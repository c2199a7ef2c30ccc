//! What a session gets, and what comes of it.

use std::sync::Arc;

use codec::base::Base;
use codec::encode::CheckpointPlan;
use codec::pieces::BaseRef;
use codec::segment::Cleaning;

use crate::agent::save::base::remembered;
use crate::agent::save::fencing::Fencing;
use crate::agent::save::journal::SaveJournal;
use crate::agent::save::pending::Pending;
use crate::agent::{Agent, SaveRequest};
use crate::image::Source;
use crate::pipeline::encode::EncodeSettings;
use crate::report::SaveReport;

/// The image, the base to compare it with, and the fencing task of a save that follows a checkpoint.
pub(in crate::agent::save) struct Input {
    pub(in crate::agent::save) source: Source,
    pub(in crate::agent::save) base: Option<Arc<Base>>,
    /// What is stored again although the base has it.
    pub(in crate::agent::save) cleaning: Cleaning,
    pub(in crate::agent::save) fencing: Option<Fencing>,
    /// Where the segments are noted.
    pub(in crate::agent::save) journal: Option<SaveJournal>,
    /// Remnants that have to be committed before a version that uses them.
    pub(in crate::agent::save) pending: Vec<Pending>,
    /// How many of the origins are remnants.
    pub(in crate::agent::save) remnants: usize,
}

/// What a session committed.
pub(in crate::agent::save) struct CommittedSave {
    pub(in crate::agent::save) report: SaveReport,
    /// The checkpoints of which the version uses rows.
    pub(in crate::agent::save) needs: Vec<BaseRef>,
}

impl Input {
    /// How the image is encoded.
    pub(super) fn settings(
        &mut self,
        agent: &Agent,
        request: &SaveRequest,
        plan: &CheckpointPlan,
    ) -> EncodeSettings {
        EncodeSettings {
            plan: plan.clone(),
            base: self.base.clone(),
            cleaning: self.cleaning.clone(),
            remembered: match self.source.may_repeat() {
                true => remembered(agent.resources.memory_bytes),
                false => 0,
            },
            effort: request.options.effort,
            cpus: agent.resources.cpus.max(1),
            journal: self.journal.as_mut().and_then(SaveJournal::take_notes),
            remnants: u8::try_from(self.remnants).unwrap_or(u8::MAX),
            hashes_dir: agent.notebook.dir(),
        }
    }
}
