//! Which model makes this machine's forecasts of hosts.
//!
//! Once a day this machine fetches the sums of all hosts and refits the shipped model
//! ([`placement::hazard::refit`]). The refit is not used yet: a day later both models are held against what
//! became of the hosts in between ([`placement::hazard::Trial`]). The refit is used until the next day if refits
//! were better in the trials of the last week together. All that is fetched is a claim of hosts; the bounds on what a host can do with it are those of
//! `placement`.

mod file;
pub mod report;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use placement::AvailabilityBitmap;
use placement::SurvivalCurve;
use placement::hazard::refit::{Contribution, refit};
use placement::hazard::{Covariates, HazardModel, TRIALS_TOGETHER, Trial};
use protocol::identity::HostId;
use protocol::wire::announcement::Announced;
use protocol::wire::learning::{Learnt, model_number};
use serde::{Deserialize, Serialize};

pub use file::LearningError;

/// Least time between two collections: a command that runs daily at about the same time collects each time.
const PERIOD_SECONDS: u64 = 22 * 3600;

/// Most hosts whose sums are kept.
pub const HOSTS_MAX: usize = 1000;

/// Most hosts on which models are tried.
const TRIED_MAX: usize = 200;

/// A host that was not heard of for this long is forgotten: its sums have faded to half.
const FORGOTTEN_AFTER_SECONDS: u64 = 28 * 86_400;

/// A refit that was not tried for this long is not used any more, and trials as old as this decide nothing.
const USED_AT_MOST_SECONDS: u64 = 8 * 86_400;

/// Most trials that are kept.
const TRIALS_MAX: usize = 28;

/// The two things that a model forecasts of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Forecast {
    /// Whether a host stays reachable.
    Presence,
    /// Whether a guest job on the host stays alive.
    Guest,
}

impl Forecast {
    /// Both kinds of forecast.
    pub const ALL: [Self; 2] = [Self::Presence, Self::Guest];
}

/// What a host sent in one collection.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The sums; `None` if the host has none.
    pub sums: Option<Learnt>,
    /// The announcement, for its bitmaps.
    pub announced: Option<Announced>,
}

/// A trial, and when it was.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// When the trial was, Unix seconds.
    pub at: u64,
    /// The log losses of both models.
    #[serde(flatten, with = "file::TrialText")]
    pub trial: Trial,
}

/// A refitted model, and what it rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// When it was refitted, Unix seconds.
    pub at: u64,
    /// Number of hosts whose sums it was refitted from.
    pub hosts: usize,
    /// Number of landmarks in these sums, faded.
    pub landmarks: f64,
    /// The model with the refitted parameters.
    #[serde(rename = "parameters", with = "file::parameters")]
    pub model: HazardModel,
}

/// The model of one kind of forecast.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelState {
    /// The refit that is used; `None`: the shipped model is.
    pub used: Option<Candidate>,
    /// Since when a refit, or the shipped model, has been used without a break; Unix seconds, 0 for ever.
    pub since: u64,
    /// The refit that is to be tried next.
    pub candidate: Option<Candidate>,
    /// Trials, the last one at the end.
    pub trials: Vec<Tried>,
}

impl ModelState {
    /// Takes note of a trial: the candidate is used if refits were better than the shipped model in the last
    /// trials together. If they were not, or if no landmark could be judged now, no refit is used.
    fn decide(&mut self, trial: Trial, now: u64) {
        let Some(candidate) = self.candidate.take() else {
            return;
        };
        if trial.landmarks > 0 {
            self.trials.push(Tried { at: now, trial });
            let surplus = self.trials.len().saturating_sub(TRIALS_MAX);
            self.trials.drain(..surplus);
        }
        let is_used = trial.landmarks > 0 && self.together(now).is_won();
        if is_used != self.used.is_some() {
            self.since = now;
        }
        self.used = is_used.then_some(candidate);
    }

    /// The last trials together: at most seven, of the last eight days.
    #[must_use]
    pub fn together(&self, now: u64) -> Trial {
        let recent = self.trials.iter().rev().take(TRIALS_TOGETHER);
        let recent = recent.filter(|tried| now.saturating_sub(tried.at) < USED_AT_MOST_SECONDS);
        Trial::of_all(recent.map(|tried| tried.trial))
    }
}

/// Which models are used, and how good they have been.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Models {
    /// Unix seconds of the last collection; 0 if there was none.
    pub collected: u64,
    /// The model of presence.
    pub presence: ModelState,
    /// The model of guests.
    pub guest: ModelState,
}

impl Models {
    /// The state of one kind.
    #[must_use]
    pub const fn of(&self, forecast: Forecast) -> &ModelState {
        match forecast {
            Forecast::Presence => &self.presence,
            Forecast::Guest => &self.guest,
        }
    }

    const fn of_mut(&mut self, forecast: Forecast) -> &mut ModelState {
        match forecast {
            Forecast::Presence => &mut self.presence,
            Forecast::Guest => &mut self.guest,
        }
    }

    /// Whether a collection is due. A clock that was set back makes one due, too.
    #[must_use]
    pub const fn is_due(&self, now: u64) -> bool {
        now < self.collected || now - self.collected >= PERIOD_SECONDS
    }

    /// The announcement with curves of the models in use. A host that does not send what its curves are made
    /// from keeps its own.
    #[must_use]
    pub fn applied_to(&self, mut announced: Announced) -> Announced {
        // The usual case: there is no curve to make.
        if Forecast::ALL.iter().all(|of| self.of(*of).used.is_none()) {
            return announced;
        }
        let Some(basis) = announced.basis.take() else {
            return announced;
        };
        if basis.model == model_number(&HazardModel::pretrained()) {
            announced.presence =
                self.curve(Forecast::Presence, &basis.presence, announced.presence);
            announced.guest = self.curve(Forecast::Guest, &basis.guest, announced.guest);
        }
        announced.basis = Some(basis);
        announced
    }

    fn curve(&self, of: Forecast, basis: &Covariates, claimed: SurvivalCurve) -> SurvivalCurve {
        match &self.of(of).used {
            None => claimed,
            Some(used) => used
                .model
                .curve(basis, claimed.step_seconds(), claimed.steps()),
        }
    }
}

/// What this machine has fetched of one host.
#[derive(Clone, Debug, PartialEq)]
struct Source {
    /// When this machine first heard of the host, Unix seconds. Later sums count for the days since then.
    first_heard: u64,
    /// When it last did.
    last_heard: u64,
    /// The sums that it sent last.
    sums: Option<Learnt>,
    /// The bitmaps of presence and guest that it sent last.
    bitmaps: Option<[AvailabilityBitmap; 2]>,
}

/// What this machine has fetched of all hosts.
#[derive(Clone, Debug, Default, PartialEq)]
struct Sources(BTreeMap<HostId, Source>);

impl Sources {
    /// Takes note of what hosts sent, after the candidates were tried on it, and makes new candidates.
    fn learn(&mut self, models: &mut Models, fetched: BTreeMap<HostId, Fetched>, now: u64) {
        for forecast in Forecast::ALL {
            let trial = self.trial(models.of(forecast), forecast, &fetched);
            models.of_mut(forecast).decide(trial, now);
        }
        for (host, fetched) in fetched {
            self.note(host, fetched, now);
        }
        self.0
            .retain(|_, source| now.saturating_sub(source.last_heard) < FORGOTTEN_AFTER_SECONDS);
        for forecast in Forecast::ALL {
            models.of_mut(forecast).candidate = self.refitted(forecast, now);
        }
        models.collected = now;
    }

    /// Tries the candidate on what became of the hosts since the last collection.
    fn trial(
        &self,
        state: &ModelState,
        forecast: Forecast,
        fetched: &BTreeMap<HostId, Fetched>,
    ) -> Trial {
        let mut trial = Trial::default();
        let Some(candidate) = &state.candidate else {
            return trial;
        };
        let shipped = HazardModel::pretrained();
        let both = fetched.iter().filter_map(|(host, fetched)| {
            let [presence, guest] = self.0.get(host)?.bitmaps.as_ref()?;
            let announced = fetched.announced.as_ref()?;
            Some(match forecast {
                Forecast::Presence => (presence, &announced.presence_bitmap),
                Forecast::Guest => (guest, &announced.guest_bitmap),
            })
        });
        for (before, after) in both.take(TRIED_MAX) {
            trial.add(&shipped, &candidate.model, before, after);
        }
        trial
    }

    fn note(&mut self, host: HostId, fetched: Fetched, now: u64) {
        if self.0.len() >= HOSTS_MAX && !self.0.contains_key(&host) {
            return;
        }
        let source = self.0.entry(host).or_insert(Source {
            first_heard: now,
            last_heard: now,
            sums: None,
            bitmaps: None,
        });
        source.first_heard = source.first_heard.min(now);
        source.last_heard = now;
        let shipped = model_number(&HazardModel::pretrained());
        let sums = fetched.sums.filter(|sums| sums.model == shipped);
        source.sums = sums.or(source.sums.take());
        let bitmaps = fetched
            .announced
            .map(|said| [said.presence_bitmap, said.guest_bitmap]);
        source.bitmaps = bitmaps.or(source.bitmaps.take());
    }

    fn refitted(&self, forecast: Forecast, now: u64) -> Option<Candidate> {
        let contribution = |source: &Source| {
            let sums = source.sums.as_ref()?;
            Some((
                match forecast {
                    Forecast::Presence => sums.presence.clone(),
                    Forecast::Guest => sums.guest.clone(),
                },
                now.saturating_sub(source.first_heard) as f64 / 86_400.0,
            ))
        };
        let known: Vec<_> = self.0.values().filter_map(contribution).collect();
        let contributions: Vec<Contribution<'_>> = known
            .iter()
            .map(|(sums, days_known)| Contribution {
                sums,
                days_known: *days_known,
            })
            .collect();
        let refit = refit(&HazardModel::pretrained(), &contributions)?;
        Some(Candidate {
            at: now,
            hosts: refit.hosts,
            landmarks: refit.landmarks,
            model: refit.model,
        })
    }
}

/// The models of one grid, and the files that they are kept in. Without files, the shipped model is used.
#[derive(Clone, Debug, Default)]
pub struct Learning {
    /// The file of the models, and that of what they are made from.
    files: Option<(PathBuf, PathBuf)>,
    models: Arc<Models>,
}

impl Learning {
    /// The models in the files beside the notebook `path`. Files that can't be read count as empty, with a line
    /// in the log: then the shipped model is used.
    pub fn beside(path: &Path, now: u64) -> Self {
        let models = path.with_extension("model.json");
        let sources = path.with_extension("sums.json");
        let mut read = file::read_models(&models).unwrap_or_else(|cause| {
            tracing::warn!(%cause, "using the forecasts of the shipped model");
            Models::default()
        });
        if now.saturating_sub(read.collected) > USED_AT_MOST_SECONDS {
            (read.presence.used, read.guest.used) = (None, None);
        }
        Self {
            files: Some((models, sources)),
            models: Arc::new(read),
        }
    }

    /// The models in use.
    #[must_use]
    pub fn models(&self) -> &Models {
        &self.models
    }

    /// Whether hosts should be asked for their sums.
    #[must_use]
    pub fn is_due(&self, now: u64) -> bool {
        self.files.is_some() && self.models.is_due(now)
    }

    /// Tries the candidates on what hosts sent, refits, and writes the files. Another process that did so in
    /// the meantime has the say.
    ///
    /// # Errors
    /// When the files can't be written.
    pub fn learn(&self, fetched: BTreeMap<HostId, Fetched>, now: u64) -> Result<(), LearningError> {
        let Some((models, sources)) = &self.files else {
            return Ok(());
        };
        file::update(models, sources, |models, sources| {
            if models.is_due(now) {
                sources.learn(models, fetched, now);
            }
        })
    }
}

#[cfg(test)]
mod tests;
