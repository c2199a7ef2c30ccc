//! `ckpt plan when`: when to take checkpoints.

use codec::JobId;
use placement::SurvivalCurve;
use placement::interval::{self, Costs};
use placement::state::AvailabilityState;

use crate::agent::Agent;
use crate::core::place::presence_of_unknown;
use crate::knowledge::SaveTimes;
use crate::report::{AdviseReport, Failure};
use crate::unix_time::unix_seconds;

/// Cost of a checkpoint that is assumed when none was ever saved, seconds.
const FIRST_COST_SECONDS: f64 = 10.0;

/// Times longer than this, in seconds, are not reported: no prediction reaches that far.
pub const YEAR_SECONDS: f64 = 365.0 * 86_400.0;

/// Assumed time from a failure until the job starts elsewhere, seconds.
const DOWNTIME_SECONDS: f64 = 300.0;

/// Most checkpoint times that are listed.
const MOMENTS_MAX: usize = 1_000;

/// The job to advise on.
#[derive(Clone, Debug, PartialEq)]
pub struct AdviseRequest {
    /// Work to be done, seconds.
    pub job_seconds: f64,
    /// The job, whose last save shows what a checkpoint costs.
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

/// A survival curve of the machine, and its source for the report.
struct Hazard {
    curve: SurvivalCurve,
    source: String,
    notes: Vec<String>,
}

/// What a checkpoint costs, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cost {
    /// Seconds for which a checkpoint holds the job up.
    held: f64,
    /// Seconds until a checkpoint is stored, if known: the next one can't begin earlier.
    whole: Option<f64>,
    source: &'static str,
}

impl Cost {
    /// The cost that the user gives, or else that of the last save.
    fn of(given: Option<f64>, last: Option<SaveTimes>) -> Self {
        let whole = last.map(|last| last.seconds);
        let held = last.and_then(|last| last.held_seconds);
        let (held, source) = match (given, held, whole) {
            (Some(given), ..) => (given, "as given"),
            (None, Some(held), _) => (held, "the time to read the image in the last save"),
            (None, None, Some(whole)) => (whole, "the whole time of the last save"),
            (None, None, None) => (FIRST_COST_SECONDS, "an assumption: nothing was saved yet"),
        };
        Self {
            held,
            whole,
            source,
        }
    }

    /// Least time from one checkpoint to the next, seconds.
    fn least(self) -> f64 {
        self.held.max(self.whole.unwrap_or(0.0))
    }
}

/// Advises without a grid, from the request alone.
pub fn advise(request: &AdviseRequest) -> AdviseReport {
    let cost = Cost::of(request.cost_seconds, None);
    report(request, cost, given_or_average(request))
}

impl Agent {
    /// Advises from the prediction of the machine that the job runs on, and from the duration of the job's
    /// last save.
    ///
    /// # Errors
    /// When the named compute host is not one of the grid.
    pub async fn advise(&self, request: &AdviseRequest) -> Result<AdviseReport, Failure> {
        let known = self.notebook.read(unix_seconds());
        let tag = request.job.as_ref().and_then(|job| self.keys.job_tag(job));
        let last = tag.and_then(|tag| known.save_times(tag));
        let cost = Cost::of(request.cost_seconds, last);
        let compute_host = request.compute_host.as_deref();
        let here = match self.compute_host(compute_host).await? {
            Some(_) => "",
            None => ", which is on this machine",
        };
        let mut hazard = given_or_average(request);
        if request.mtbf_seconds.is_none()
            && let Some((host, said)) = self.machine(compute_host).await?
        {
            hazard = Hazard {
                source: format!("prediction of host {host}{here}"),
                notes: note_of(&host, said.guest_state).into_iter().collect(),
                // An owner who needs the machine ends no job; only the machine's going away does.
                curve: said.presence,
            };
        }
        Ok(report(request, cost, hazard))
    }
}

/// A note on a machine that is in use at the moment.
fn note_of(host: &str, state: AvailabilityState) -> Option<String> {
    let why = match state {
        AvailabilityState::CpuTaken => "its processors are taken",
        AvailabilityState::Thrashing => "its memory is taken",
        AvailabilityState::Idle | AvailabilityState::Busy | AvailabilityState::Gone => return None,
    };
    Some(format!(
        "host {host} reports \"{state}\" at the moment: {why}, by its owner or by the job itself. That ends \
         no job here, and is not counted"
    ))
}

fn given_or_average(request: &AdviseRequest) -> Hazard {
    match request.mtbf_seconds {
        Some(mtbf) => Hazard {
            curve: SurvivalCurve::exponential(STEP, 120, 1.0 / mtbf),
            source: "the given mean time between failures".to_owned(),
            notes: Vec::new(),
        },
        None => Hazard {
            curve: presence_of_unknown(),
            source: "an average machine: nothing is known of this one".to_owned(),
            notes: Vec::new(),
        },
    }
}

const STEP: std::num::NonZeroU32 = std::num::NonZeroU32::new(300).unwrap();

fn report(request: &AdviseRequest, cost: Cost, hazard: Hazard) -> AdviseReport {
    let Hazard {
        curve,
        source,
        notes,
    } = hazard;
    let work = request.job_seconds;
    let mtbf = interval::equivalent_mtbf(&curve);
    let costs = Costs {
        checkpoint_seconds: cost.held,
        restore_seconds: request.restore_seconds.unwrap_or(cost.least()),
        downtime_seconds: DOWNTIME_SECONDS,
    };
    let moments = interval::schedule(&curve, cost.held, cost.least(), work, MOMENTS_MAX);
    let young = interval::young(cost.held, mtbf).max(cost.least());
    let daly = interval::daly(cost.held, mtbf).max(cost.least());
    let makespan = |interval: f64, costs: &Costs| match mtbf.is_finite() {
        true => interval::expected_makespan(work, interval.min(work), mtbf, costs),
        false => work,
    };
    let without = Costs {
        checkpoint_seconds: 0.0,
        ..costs
    };
    AdviseReport {
        job_seconds: work,
        cost_seconds: cost.held,
        cost_source: cost.source.to_owned(),
        least_seconds: cost.least(),
        hazard: source,
        survives_job: curve.at(work).value(),
        mtbf_seconds: sayable(mtbf),
        first_seconds: moments.first().copied(),
        young_seconds: sayable(young),
        daly_seconds: sayable(daly),
        // A checkpoint that would come at the end of the job is not taken.
        makespan_seconds: sayable(makespan(daly, if daly < work { &costs } else { &without })),
        makespan_without_seconds: sayable(makespan(work, &without)),
        checkpoints: moments,
        notes,
    }
}

/// A time, unless it is longer than [`YEAR_SECONDS`].
fn sayable(seconds: f64) -> Option<f64> {
    (seconds <= YEAR_SECONDS).then_some(seconds)
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

    fn exponential(mtbf: f64) -> Hazard {
        Hazard {
            curve: SurvivalCurve::exponential(STEP, 120, 1.0 / mtbf),
            source: "test".to_owned(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn no_interval_is_shorter_than_a_checkpoint_takes() {
        // The machine will soon be gone; a checkpoint holds the job for 0.1 s and takes 90 s to store.
        let last = SaveTimes {
            seconds: 90.0,
            held_seconds: Some(0.1),
        };
        let cost = Cost::of(None, Some(last));
        assert_eq!((cost.held, cost.least()), (0.1, 90.0));
        let advice = report(&request(), cost, exponential(2.0));
        assert!(advice.first_seconds.is_some_and(|first| first >= 90.0));
        let pairs = advice.checkpoints.windows(2);
        assert!(pairs.into_iter().all(|pair| pair[1] - pair[0] >= 90.0));
        assert!(advice.daly_seconds.is_some_and(|daly| daly >= 90.0));
    }

    #[test]
    fn a_duration_beyond_a_year_has_no_number() {
        let advice = report(&request(), Cost::of(Some(30.0), None), exponential(60.0));
        assert_eq!(advice.makespan_without_seconds, None);
        let advice = report(&request(), Cost::of(Some(30.0), None), exponential(1e12));
        assert_eq!((advice.mtbf_seconds, advice.first_seconds), (None, None));
        assert_eq!(advice.makespan_seconds.map(f64::round), Some(12.0 * 3600.0));
        let never = Hazard {
            curve: SurvivalCurve::exponential(STEP, 120, 0.0),
            ..exponential(1.0)
        };
        let advice = report(&request(), Cost::of(Some(30.0), None), never);
        assert_eq!(advice.makespan_seconds, Some(12.0 * 3600.0));
    }

    #[test]
    fn the_cost_is_the_time_that_the_job_stood_still_where_that_is_known() {
        let whole = SaveTimes {
            seconds: 20.0,
            held_seconds: None,
        };
        assert_eq!(Cost::of(None, None).held, FIRST_COST_SECONDS);
        assert_eq!(Cost::of(None, Some(whole)).held, 20.0);
        let held = SaveTimes {
            held_seconds: Some(3.0),
            ..whole
        };
        assert_eq!(Cost::of(None, Some(held)).held, 3.0);
        assert_eq!(Cost::of(Some(1.0), Some(held)).held, 1.0);
    }

    #[test]
    fn a_machine_that_is_taken_is_named() {
        let note = note_of("h01", AvailabilityState::CpuTaken).unwrap();
        assert!(note.contains("h01") && note.contains("cpu taken"), "{note}");
        assert_eq!(note_of("h01", AvailabilityState::Busy), None);
    }
}
