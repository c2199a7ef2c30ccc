//! `ckpt-store status --classad`: what a batch job may expect of this machine, as attributes of HTCondor.
//!
//! Only the recorded history is read, which every user of the machine may read: HTCondor's daemons run as
//! a user of their own.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use placement::bitmap::SLOT_SECONDS;
use placement::history::DAY_SECONDS;
use placement::rank::{LOAD_HOURS, mean_seconds};

use super::refusal::Refusal;
use super::running::running;
use crate::monitor::history::{self, Run};
use crate::monitor::outlook::{Outlook, Predictor};
use crate::shards::layout;

/// For each of these numbers of hours, the probability is printed that a job can stay. The survival curve
/// ends after ten hours.
const RELIABILITY_HOURS: [u32; 4] = [1, 2, 4, 8];

/// Longest mean time that is printed, seconds. It stands for a machine without a failure in sight.
const LONGEST_SECONDS: f64 = 365.0 * 86_400.0;

/// The value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Real(f64),
    Whole(u64),
    Truth(bool),
}

/// Prints the attributes of the machine with this data directory.
pub(super) fn status(data: &Path) -> Result<ExitCode> {
    if !data.join(layout::SHARDS).is_dir() {
        let message = format!(
            "{} is not the data directory of a daemon: it has no {}",
            data.display(),
            layout::SHARDS
        );
        bail!(Refusal::new(message, "--data DIR"));
    }
    let mut attributes = vec![
        (
            "CkptRuns".to_owned(),
            Value::Truth(running(data)?.is_some()),
        ),
        (
            "CkptSpeed".to_owned(),
            Value::Real(machine::speed::measure()),
        ),
    ];
    attributes.extend(seen(history::runs(data)?));
    let mut out = std::io::stdout().lock();
    out.write_all(text(&attributes).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The attributes that follow from the history. None if the history is empty.
fn seen(runs: impl Iterator<Item = Run>) -> Vec<(String, Value)> {
    let mut outlook: Option<Outlook> = None;
    let mut until = 0;
    for run in runs {
        let outlook =
            outlook.get_or_insert_with(|| Outlook::new(run.span.start, Predictor::Hazard));
        outlook.observe(&run);
        until = run.span.end;
    }
    let Some(outlook) = outlook else {
        return Vec::new();
    };
    let (guest, _) = outlook.curves();
    let known = f64::from(outlook.bitmaps().0.known().count());
    let stays = mean_seconds(&guest).min(LONGEST_SECONDS);
    let mut attributes = vec![
        ("CkptSeenUntil".to_owned(), Value::Whole(until)),
        (
            "CkptKnownDays".to_owned(),
            Value::Real(known * SLOT_SECONDS as f64 / DAY_SECONDS as f64),
        ),
        (
            "CkptMttfSeconds".to_owned(),
            Value::Whole(stays.round() as u64),
        ),
    ];
    attributes.extend(RELIABILITY_HOURS.map(|hours| {
        let stays = guest.at(f64::from(hours) * 3600.0).value();
        (format!("CkptTr{hours}h"), Value::Real(stays))
    }));
    if let Some(load) = outlook.load() {
        attributes.extend(LOAD_HOURS.map(|hours| {
            let mean = load.over(f64::from(hours) * 3600.0);
            (format!("CkptLoad{hours}h"), Value::Real(mean))
        }));
    }
    attributes
}

/// The format that HTCondor reads from a STARTD_CRON job: an attribute on each line, and a dash on the
/// last.
fn text(attributes: &[(String, Value)]) -> String {
    let mut text = String::new();
    for (name, value) in attributes {
        let value = match value {
            Value::Real(value) => format!("{value:.4}"),
            Value::Whole(value) => value.to_string(),
            Value::Truth(value) => value.to_string(),
        };
        text.push_str(&format!("{name} = {value}\n"));
    }
    text.push_str("-\n");
    text
}

#[cfg(test)]
mod tests {
    use placement::state::{AvailabilityState, StorageState};

    use super::*;
    use crate::monitor::history::States;

    #[test]
    fn a_history_becomes_attributes_and_none_becomes_none() {
        let start = 1_790_000_100;
        let run = |from: u64, hours: u64, is_up: bool| Run {
            span: start + from * 3600..start + (from + hours) * 3600,
            states: Some(if is_up {
                States {
                    guest: AvailabilityState::Idle,
                    storage: StorageState::FullRate,
                }
            } else {
                States::GONE
            }),
            cpu: 0.25,
            disk: 0.0,
        };
        let steady = seen([run(0, 400, true)].into_iter());
        let flaky =
            (0..40).flat_map(|hour| [run(10 * hour, 3, true), run(10 * hour + 3, 7, false)]);
        let flaky = seen(flaky.chain([run(400, 1, true)]));
        let of = |ad: &[(String, Value)], name: &str| {
            let found = ad.iter().find(|(one, _)| one == name);
            match found.map(|(_, value)| *value) {
                Some(Value::Real(value)) => value,
                Some(Value::Whole(value)) => value as f64,
                _ => panic!("no {name}"),
            }
        };
        assert!(of(&steady, "CkptMttfSeconds") > 2.0 * of(&flaky, "CkptMttfSeconds"));
        assert!(of(&steady, "CkptTr8h") > of(&flaky, "CkptTr8h"));
        assert!((of(&steady, "CkptLoad4h") - 0.25).abs() < 1e-6);
        assert_eq!(of(&steady, "CkptSeenUntil"), (start + 400 * 3600) as f64);
        assert!(seen(std::iter::empty()).is_empty());
        let attributes = [
            ("A".to_owned(), Value::Real(0.5)),
            ("B".to_owned(), Value::Truth(true)),
        ];
        assert_eq!(text(&attributes), "A = 0.5000\nB = true\n-\n");
    }
}
