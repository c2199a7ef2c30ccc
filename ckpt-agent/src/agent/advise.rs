//! Says when to take checkpoints.

use codec::JobId;
use placement::SurvivalCurve;
use placement::interval::{self, Costs};

use super::{Agent, unix_seconds};
use crate::core::place::guest_curve_of_unknown;
use crate::knowledge::Knowledge;
use crate::report::{AdviseReport, Failure};

/// Cost of a checkpoint that is assumed when none was ever saved, seconds.
const FIRST_COST_SECONDS: f64 = 10.0;

/// Time from a failure until the job starts elsewhere, seconds.
const DOWNTIME_SECONDS: f64 = 300.0;

/// Most moments that are listed.
const MOMENTS_MAX: usize = 1_000;

/// What to advise on.
#[derive(Clone, Debug, PartialEq)]
pub struct AdviseRequest {
    /// Work to be done, seconds.
    pub job_seconds: f64,
    /// The job, of which an earlier save tells what a checkpoint costs.
    pub job: Option<JobId>,
    /// Seconds that a checkpoint costs.
    pub cost_seconds: Option<f64>,
    /// Seconds that a restore takes; as many as a checkpoint when not given.
    pub restore_seconds: Option<f64>,
    /// Mean seconds between failures of the machine, in place of its own prediction.
    pub mtbf_seconds: Option<f64>,
    /// The host of the grid on which the job runs; found by its address when not given.
    pub compute_host: Option<String>,
}

/// Where a curve comes from.
struct Hazard {
    curve: SurvivalCurve,
    source: String,
}

/// Advises without a grid.
pub fn advise(request: &AdviseRequest) -> AdviseReport {
    let cost = request.cost_seconds.unwrap_or(FIRST_COST_SECONDS);
    report(request, cost, &given_or_average(request))
}

impl Agent {
    /// Advises from what the machine that the job runs on predicts of itself, and from what the
    /// job's last save took.
    ///
    /// # Errors
    /// When the host that is named is not one of the grid.
    pub async fn advise(&self, request: &AdviseRequest) -> Result<AdviseReport, Failure> {
        let known: Knowledge = self.notebook.read(unix_seconds());
        let last = || {
            let tag = self.keys.job_tag(request.job.as_ref()?)?;
            known.save_seconds(tag)
        };
        let cost = request
            .cost_seconds
            .or_else(last)
            .unwrap_or(FIRST_COST_SECONDS);
        let host = self.compute_host(request.compute_host.as_deref())?;
        let mut hazard = given_or_average(request);
        if let (None, Some(host)) = (request.mtbf_seconds, host) {
            match self.hosts.announcement(host).await {
                Ok(Some(announced)) => {
                    hazard = Hazard {
                        curve: announced.guest,
                        source: format!("prediction of host {}", self.hosts.name(host)),
                    };
                }
                Ok(None) => {}
                Err(cause) => {
                    let host = self.hosts.name(host);
                    tracing::warn!(host, %cause, "the machine's own prediction is not known");
                }
            }
        }
        Ok(report(request, cost, &hazard))
    }
}

fn given_or_average(request: &AdviseRequest) -> Hazard {
    match request.mtbf_seconds {
        Some(mtbf) => Hazard {
            curve: SurvivalCurve::exponential(STEP, 120, 1.0 / mtbf),
            source: "the mean time between failures that was given".to_owned(),
        },
        None => Hazard {
            curve: guest_curve_of_unknown(),
            source: "an average machine: nothing is known of this one".to_owned(),
        },
    }
}

const STEP: std::num::NonZeroU32 = std::num::NonZeroU32::new(300).unwrap();

fn report(request: &AdviseRequest, cost: f64, hazard: &Hazard) -> AdviseReport {
    let curve = &hazard.curve;
    let work = request.job_seconds;
    let mtbf = interval::equivalent_mtbf(curve);
    let costs = Costs {
        checkpoint_seconds: cost,
        restore_seconds: request.restore_seconds.unwrap_or(cost),
        downtime_seconds: DOWNTIME_SECONDS,
    };
    let moments = interval::schedule(curve, cost, work, MOMENTS_MAX);
    let fixed = interval::daly(cost, mtbf);
    let finite = |value: f64| value.is_finite().then_some(value);
    AdviseReport {
        job_seconds: work,
        cost_seconds: cost,
        hazard: hazard.source.clone(),
        survives_job: curve.at(work).value(),
        mtbf_seconds: finite(mtbf),
        first_seconds: moments.first().copied(),
        young_seconds: finite(interval::young(cost, mtbf)),
        daly_seconds: finite(fixed),
        makespan_seconds: finite(interval::expected_makespan(
            work,
            fixed.min(work),
            mtbf,
            &costs,
        )),
        makespan_without_seconds: finite(interval::expected_makespan(
            work,
            work,
            mtbf,
            &Costs {
                checkpoint_seconds: 0.0,
                ..costs
            },
        )),
        checkpoints: moments,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> AdviseRequest {
        AdviseRequest {
            job_seconds: 12.0 * 3600.0,
            job: None,
            cost_seconds: Some(300.0),
            restore_seconds: None,
            mtbf_seconds: Some(6.0 * 3600.0),
            compute_host: None,
        }
    }

    #[test]
    fn a_constant_hazard_gives_the_intervals_of_the_books() {
        let advice = advise(&request());
        assert!((advice.daly_seconds.unwrap() / 60.0 - 56.71).abs() < 0.1);
        assert!((advice.young_seconds.unwrap() / 60.0 - 60.0).abs() < 0.1);
        let first = advice.first_seconds.unwrap();
        assert!(
            (first - advice.daly_seconds.unwrap()).abs() < 5.0,
            "{first}"
        );
        assert!(advice.checkpoints.len() > 10);
        assert!(advice.makespan_seconds.unwrap() > 12.0 * 3600.0);
        assert!(advice.makespan_seconds < advice.makespan_without_seconds);
    }

    #[test]
    fn a_short_job_on_a_good_machine_needs_none() {
        let advice = advise(&AdviseRequest {
            job_seconds: 600.0,
            mtbf_seconds: Some(1e8),
            ..request()
        });
        assert_eq!(advice.first_seconds, None);
        assert!(advice.checkpoints.is_empty());
    }

    #[test]
    fn without_any_knowledge_an_average_machine_is_assumed() {
        let advice = advise(&AdviseRequest {
            mtbf_seconds: None,
            cost_seconds: None,
            ..request()
        });
        assert!(advice.hazard.contains("average"));
        assert!(advice.survives_job < 1.0 && advice.first_seconds.is_some());
    }
}
