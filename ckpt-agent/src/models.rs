//! Which models make the forecasts of hosts, and how good they have been: the report of `ckpt hosts --model`.

use placement::hazard::HazardModel;
use placement::judge;
use protocol::wire::announcement::Announced;
use protocol::wire::forecast::ForecastBy;
use serde::Serialize;

/// Answer of `ckpt hosts --model`: which models make the forecasts of hosts.
#[derive(Clone, Debug, Serialize)]
pub struct ModelsReport {
    /// Number of hosts that answered.
    pub hosts_asked: usize,
    /// Number of these whose forecasts are the mean of the hazard regression and the model of the pool.
    pub hosts_of_blend: usize,
    /// Number of these whose forecasts are of the hazard regression alone.
    pub hosts_of_hazard: usize,
    /// Number of these whose forecasts are of the papers' semi-Markov process.
    pub hosts_of_smp: usize,
    /// Number of these that name no model: daemons of earlier versions.
    pub hosts_unnamed: usize,
    /// How good these models would have been in the last seven days of these hosts, by horizon.
    pub judged: Vec<JudgedReport>,
}

/// Forecasts of presence on the past of the hosts that answered; all models made the same number of them.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct JudgedReport {
    /// How far ahead, hours.
    pub hours: u64,
    /// Number of forecasts.
    pub forecasts: u64,
    /// Mean squared error (Brier score) of the mean of the hazard regression and the model of the pool; `None`
    /// without forecasts.
    pub blend_brier: Option<f64>,
    /// Mean squared error of the hazard regression with the level of the host.
    pub hazard_brier: Option<f64>,
    /// Mean squared error of the papers' semi-Markov process.
    pub smp_brier: Option<f64>,
}

impl ModelsReport {
    /// The report on hosts that announce this.
    #[must_use]
    pub fn of(announced: &[Announced]) -> Self {
        let by = |model| {
            let named = announced.iter().filter_map(|said| said.forecast_by);
            named.filter(|by| *by == model).count()
        };
        let unnamed = announced.iter().filter(|said| said.forecast_by.is_none());
        let pasts: Vec<_> = announced.iter().map(|said| &said.presence_bitmap).collect();
        let sums = judge::judged(&HazardModel::pretrained(), &pasts);
        let judged = sums.iter().zip(judge::HORIZON_HOURS);
        Self {
            hosts_asked: announced.len(),
            hosts_of_blend: by(ForecastBy::Blend),
            hosts_of_hazard: by(ForecastBy::Hazard),
            hosts_of_smp: by(ForecastBy::SemiMarkov),
            hosts_unnamed: unnamed.count(),
            judged: judged.map(JudgedReport::of).collect(),
        }
    }
}

impl JudgedReport {
    fn of((judged, hours): (&judge::Judged, u64)) -> Self {
        let mean = |sum: f64| (judged.forecasts > 0).then(|| sum / judged.forecasts as f64);
        Self {
            hours,
            forecasts: judged.forecasts,
            blend_brier: mean(judged.blend),
            hazard_brier: mean(judged.hazard),
            smp_brier: mean(judged.semi_markov),
        }
    }
}
