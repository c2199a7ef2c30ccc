//! Fetches the sums of all hosts once a day, and makes forecasts with the model that was learnt from them.

use std::collections::BTreeMap;
use std::time::Duration;

use placement::hazard::{HazardModel, Trial};
use placement::judge::{self, Judged};
use protocol::identity::HostId;
use protocol::wire::announcement::Announced;
use tokio::task::JoinSet;

use crate::agent::Agent;
use crate::core::{Fault, HostIndex};
use crate::learning::report::{
    JudgedReport, ModelReport, ModelsReport, TogetherReport, TrialReport,
};
use crate::learning::{Fetched, Forecast, HOSTS_MAX, ModelState};
use crate::unix_time::unix_seconds;

/// How long hosts are waited for at the end of a command. Those that take longer are asked a day later.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

impl Agent {
    /// The announcement of a host, with curves of the model in use. `None` if the host announces nothing.
    ///
    /// # Errors
    /// When the host does not answer, or its announcement is not valid.
    pub(crate) async fn announcement(&self, host: HostIndex) -> Result<Option<Announced>, Fault> {
        let announced = self.hosts.announcement(host).await?;
        Ok(announced.map(|announced| self.learning.models().applied_to(announced)))
    }

    /// If that is due, fetches the sums of all hosts and refits the model with them. A command that reached
    /// nobody does not look for hosts here.
    pub(crate) async fn learn_models(&self) {
        let now = unix_seconds();
        let is_connected = self.hosts.all().any(|host| self.hosts.is_connected(host));
        if !is_connected || !self.learning.is_due(now) {
            return;
        }
        let fetched = self.fetch().await;
        let learning = self.learning.clone();
        let learnt = tokio::task::spawn_blocking(move || learning.learn(fetched, now)).await;
        if let Ok(Err(cause)) = learnt {
            tracing::warn!(%cause, "can't write what was learned of hosts");
        }
    }

    async fn fetch(&self) -> BTreeMap<HostId, Fetched> {
        let mut asking = JoinSet::new();
        for host in self.hosts.all().take(HOSTS_MAX) {
            let Some(id) = self.hosts.entry(host).map(|entry| entry.id) else {
                continue;
            };
            let hosts = self.hosts.clone();
            asking.spawn(async move {
                let (sums, announced) = tokio::join!(hosts.sums(host), hosts.announcement(host));
                (id, sums, announced)
            });
        }
        let mut fetched = BTreeMap::new();
        let collect = async {
            while let Some(answer) = asking.join_next().await {
                let Ok((id, sums, announced)) = answer else {
                    continue;
                };
                if let Err(fault @ Fault::Lied(_)) = &sums {
                    tracing::warn!(host = id.hex(), %fault, "sums refused");
                }
                let sums = sums.ok().flatten();
                let announced = announced.ok().flatten();
                if sums.is_some() || announced.is_some() {
                    fetched.insert(id, Fetched { sums, announced });
                }
            }
        };
        let _ = tokio::time::timeout(FETCH_TIMEOUT, collect).await;
        fetched
    }

    /// Which models make the forecasts of hosts, since when, and how good they have been.
    pub async fn models(&self) -> ModelsReport {
        let answers = self.announcements().await.into_iter();
        let announced = answers.filter_map(|host| host.said.ok()?);
        let announced: Vec<Announced> = announced.take(JUDGED_MAX).collect();
        let hosts_asked = announced.len();
        let others = announced.iter().filter(|said| said.basis.is_none());
        let hosts_of_other_models = others.count();
        let judging = tokio::task::spawn_blocking(move || judged(&announced));
        let judged = judging.await.unwrap_or_default();
        let models = self.learning.models();
        let report = |forecast: Forecast| model_report(models.of(forecast));
        ModelsReport {
            collected: Some(models.collected).filter(|at| *at > 0),
            presence: report(Forecast::Presence),
            guest: report(Forecast::Guest),
            hosts_asked,
            hosts_of_other_models,
            judged,
        }
    }
}

/// Most hosts on whose past models are judged.
const JUDGED_MAX: usize = 200;

fn judged(announced: &[Announced]) -> Vec<JudgedReport> {
    let model = HazardModel::pretrained();
    let mut judged = Default::default();
    for said in announced {
        judge::add(&mut judged, &model, &said.presence_bitmap);
    }
    let report = |(judged, hours): (Judged, u64)| {
        let brier = |sum: f64| (judged.forecasts > 0).then(|| sum / judged.forecasts as f64);
        JudgedReport {
            hours,
            forecasts: judged.forecasts,
            hazard_brier: brier(judged.hazard),
            smp_brier: brier(judged.semi_markov),
        }
    };
    judged
        .into_iter()
        .zip(judge::HORIZON_HOURS)
        .map(report)
        .collect()
}

/// The mean log loss of a trial whose landmarks have this sum of log losses.
fn mean(sum: f64, trial: &Trial) -> f64 {
    sum / trial.landmarks.max(1) as f64
}

fn model_report(state: &ModelState) -> ModelReport {
    let used = state.used.as_ref();
    let last = state.trials.last().map_or(0, |tried| tried.at);
    let together = Some(state.together(last)).filter(|trials| trials.landmarks > 0);
    let together = together.map(|trials| TogetherReport {
        landmarks: trials.landmarks,
        shipped_log_loss: mean(trials.shipped, &trials),
        refitted_log_loss: mean(trials.refitted, &trials),
    });
    let trials = state.trials.iter().map(|tried| TrialReport {
        at: tried.at,
        landmarks: tried.trial.landmarks,
        shipped_log_loss: mean(tried.trial.shipped, &tried.trial),
        refitted_log_loss: mean(tried.trial.refitted, &tried.trial),
        won: tried.trial.is_won(),
    });
    ModelReport {
        refitted: used.is_some(),
        since: Some(state.since).filter(|at| *at > 0),
        refitted_at: used.map(|used| used.at),
        hosts: used.map(|used| used.hosts),
        landmarks: used.map(|used| used.landmarks.round() as u64),
        to_be_tried: state.candidate.is_some(),
        together,
        trials: trials.collect(),
    }
}
