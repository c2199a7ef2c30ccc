//! The record of a job over all its incarnations: what it has used, what was forecast, when it should
//! end.
//!
//! The record is a sealed label of each checkpoint of the job, so it describes the state in that
//! checkpoint. When the job ends with exit status 0, its record becomes a line of the history.
//!
//! The label is a text such as `v1 cpu=812.500 work=1630.000 quiet=4.000 starts=2 began=1790000000000`, with
//! `forecast=` and other words behind it if there was a forecast.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use supervision::hang::{Progress, remaining};
use supervision::moving::CpuShare;
use supervision::{Millis, Settings};

use super::away::words::RemainingWork;
use super::history::{CpuForecast, History, HistoryError, Outlook, PastLine};
use super::journal::JournalEvent;
use super::kind::{Kind, Parameter};
use ckpt_agent::unix_time::{unix_millis, unix_seconds};

/// Label of a checkpoint; its value is the record of the job.
pub(super) const RECORD: &str = "ckpt.record";

/// First word of that label: the version of its format.
const VERSION: &str = "v1";

/// Time from one estimate of the job's end in the journal to the next, milliseconds.
const EXPECTED_PERIOD_MS: u64 = 60_000;

/// Time for which a job has to be observed before its end is estimated, milliseconds.
const WATCHED_MS: u64 = 5_000;

/// What an estimate is based on, in the journal.
const CPU: &str = "cpu";
const AGE: &str = "age";

/// What the user asks of records.
#[derive(Clone, Debug, Default)]
pub struct RecordOrders {
    /// File of the history; `None` if nothing is to be recorded.
    pub history: Option<PathBuf>,
    /// Parameters that replace the command line in comparisons of runs.
    pub parameters: Vec<Parameter>,
    /// Time from the job's first start in which it should end.
    pub finish_within: Option<Duration>,
}

/// What the earlier incarnations of a job have used, as read from its label.
#[derive(Clone, Debug, PartialEq)]
struct Carried {
    /// Processor time at reference speed, seconds.
    cpu_s: f64,
    /// Time in which the job could run, converted to seconds of a machine of reference speed.
    work_s: f64,
    /// Longest time without a sign of life, seconds.
    quiet_s: f64,
    starts: u32,
    /// First start, Unix milliseconds.
    began_ms: u64,
    forecast: Option<CpuForecast>,
}

impl Carried {
    fn new(now_ms: u64) -> Self {
        Self {
            cpu_s: 0.0,
            work_s: 0.0,
            quiet_s: 0.0,
            starts: 0,
            began_ms: now_ms,
            forecast: None,
        }
    }

    /// Reads a label; `None` if it has another format.
    fn parse(label: &str, now_ms: u64) -> Option<Self> {
        let mut words = label.split(' ');
        if words.next() != Some(VERSION) {
            return None;
        }
        let fields: BTreeMap<&str, &str> = words.filter_map(|word| word.split_once('=')).collect();
        let number = |key: &str| -> Option<f64> {
            let number: f64 = fields.get(key)?.parse().ok()?;
            (number.is_finite() && number >= 0.0).then_some(number)
        };
        let forecast = number("forecast").zip(number("nearest"));
        Some(Self {
            cpu_s: number("cpu")?,
            work_s: number("work")?,
            quiet_s: number("quiet")?,
            starts: fields.get("starts")?.parse().ok()?,
            // The clock of another machine may have been ahead.
            began_ms: fields.get("began")?.parse::<u64>().ok()?.min(now_ms),
            forecast: forecast.map(|(cpu_s, nearest_s)| CpuForecast {
                cpu_s,
                low_s: number("low"),
                high_s: number("high"),
                share: number("share"),
                nearest_s,
                runs: number("runs").unwrap_or_default() as usize,
            }),
        })
    }

    fn label(&self) -> String {
        let mut label = format!(
            "{VERSION} cpu={:.3} work={:.3} quiet={:.3} starts={} began={}",
            self.cpu_s, self.work_s, self.quiet_s, self.starts, self.began_ms
        );
        if let Some(forecast) = &self.forecast {
            let CpuForecast {
                cpu_s,
                nearest_s,
                runs,
                ..
            } = forecast;
            label.push_str(&format!(
                " forecast={cpu_s:.3} nearest={nearest_s:.3} runs={runs}"
            ));
            let ends = [
                ("low", forecast.low_s),
                ("high", forecast.high_s),
                ("share", forecast.share),
            ];
            for (key, value) in ends {
                if let Some(value) = value {
                    label.push_str(&format!(" {key}={value:.3}"));
                }
            }
        }
        label
    }
}

/// An estimate of the end of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Expected {
    /// Seconds from now until its end.
    pub remaining_s: f64,
    /// What the estimate is based on: `progress` that the job reports, `cpu`, its processor time, or `age`: nothing
    /// is known of the job, or it has used more than was forecast.
    pub by: &'static str,
}

/// Keeps the record of a running job.
#[derive(Debug)]
pub(super) struct Recorder {
    job: String,
    orders: RecordOrders,
    kind: Kind,
    carried: Carried,
    outlook: Option<Outlook>,
    speed: f64,
    /// The name of this machine in the grid, if it is a host.
    host: Option<String>,
    /// When the job was started on this machine, by the supervisor's clock.
    started: Millis,
    /// Processor time of this incarnation, seconds on this machine.
    cpu_s: f64,
    work_ms: u64,
    quiet_ms: u64,
    share: CpuShare,
    progress: Progress,
    expected_at: Option<Millis>,
    is_late: bool,
}

impl Recorder {
    /// For a job that is about to be started, from a checkpoint with this label if there is one. Also
    /// returns the forecast from the history, or the reason why the history can't be read.
    pub(super) fn new(
        job: String,
        orders: &RecordOrders,
        kind: Kind,
        label: Option<&str>,
        now: Millis,
    ) -> (Self, Result<Option<JournalEvent>, HistoryError>) {
        let unix_ms = unix_millis();
        let carried = label.and_then(|label| Carried::parse(label, unix_ms));
        let mut carried = carried.unwrap_or_else(|| Carried::new(unix_ms));
        carried.starts = carried.starts.saturating_add(1);
        let (outlook, failed) = match orders.history.as_deref().map(History::read) {
            Some(Ok(history)) => (history.outlook(&kind), None),
            Some(Err(cause)) => (None, Some(cause)),
            None => (None, None),
        };
        // Keeps the first forecast, which is compared with the truth at the end.
        carried.forecast = carried
            .forecast
            .or_else(|| outlook.as_ref().map(|outlook| outlook.cpu));
        let speed = if orders.history.is_some() {
            machine::speed::measure()
        } else {
            1.0
        };
        let entry = outlook.as_ref().map(|outlook| JournalEvent::Forecast {
            cpu_s: outlook.cpu.cpu_s,
            low_s: outlook.cpu.low_s,
            high_s: outlook.cpu.high_s,
            share: outlook.cpu.share,
            runs: outlook.cpu.runs,
            used_s: carried.cpu_s,
            speed,
        });
        let recorder = Self {
            job,
            orders: orders.clone(),
            kind,
            carried,
            outlook,
            speed,
            host: None,
            started: now,
            cpu_s: 0.0,
            work_ms: 0,
            quiet_ms: 0,
            share: CpuShare::default(),
            progress: Progress::default(),
            expected_at: None,
            is_late: false,
        };
        (recorder, failed.map_or(Ok(entry), Err))
    }

    /// Sets the host of the grid that this machine is.
    pub(super) fn runs_on(&mut self, host: Option<String>) {
        self.host = host;
    }

    /// Puts into the settings of the supervisor what earlier runs and incarnations showed: how long the
    /// job may be quiet, and how long it will run.
    pub(super) fn advise(&self, settings: &mut Settings) {
        let quiet = self.outlook.as_ref().map_or(0.0, |outlook| outlook.quiet_s);
        settings.longest_quiet_ms = milliseconds(quiet.max(self.carried.quiet_s));
        if let Some(outlook) = &self.outlook {
            // A job is overdue when all its incarnations together have run for three times the forecast.
            let own = outlook.work_s - self.carried.work_s / 3.0;
            settings.predicted_ms = Some(milliseconds(own / self.speed).max(1));
        }
    }

    /// Takes what the job has worked and computed so far on this machine. Returns an entry for the
    /// journal when one is due.
    pub(super) fn update(
        &mut self,
        now: Millis,
        work_ms: u64,
        cpu_ms: u64,
    ) -> Option<JournalEvent> {
        self.cpu_s = cpu_ms as f64 / 1000.0;
        self.work_ms = work_ms;
        let elapsed_ms = now.since(self.started);
        self.share.update(self.cpu_s, elapsed_ms as f64 / 1000.0);
        let expected = self.expected(now).filter(|_| elapsed_ms >= WATCHED_MS);
        let left_s = self.left_s();
        let was_late = self.is_late;
        // What is expected of a job of which nothing is known is no reason to call it late before its deadline.
        self.is_late = left_s.is_some_and(|left| {
            let known = expected.filter(|expected| expected.by != AGE);
            left < 0.0 || known.is_some_and(|expected| expected.remaining_s > left)
        });
        if let Some(left_s) = left_s
            && self.is_late
            && !was_late
        {
            let known = expected.filter(|expected| expected.by != AGE);
            self.expected_at = Some(now.plus(EXPECTED_PERIOD_MS));
            return Some(JournalEvent::Late {
                remaining_s: known.map(|known| known.remaining_s),
                left_s,
                by: known.map_or(AGE, |known| known.by),
            });
        }
        let is_due = self.expected_at.is_none_or(|at| now >= at);
        let Expected { remaining_s, by } = expected.filter(|one| one.by != AGE && is_due)?;
        self.expected_at = Some(now.plus(EXPECTED_PERIOD_MS));
        Some(JournalEvent::Expected { remaining_s, by })
    }

    /// The job reports that this share of its work is done.
    pub(super) fn reported(&mut self, share: f64, now: Millis) {
        // By elapsed time, so that the rate includes the time that the job stands still for the owner.
        self.progress.report(share, now.since(self.started));
    }

    /// Estimates the end of the job, by the progress that it reports or else by its processor time.
    fn expected(&self, now: Millis) -> Option<Expected> {
        if let Some(remaining_s) = self.progress.remaining_seconds() {
            return Some(Expected {
                remaining_s,
                by: "progress",
            });
        }
        let share = self.share.share().filter(|share| *share > 0.0)?;
        let forecast = self.outlook.as_ref().map(|outlook| outlook.cpu);
        let used = self.used_cpu_s();
        // If the job has used more than the forecast, the upper end of the interval is taken instead. Beyond that it
        // is expected to go on for as long as it is late, and without a forecast for as long as it has run.
        let (whole, by) = match forecast {
            Some(forecast) if used < forecast.cpu_s => (forecast.cpu_s, CPU),
            Some(forecast) => match forecast.high_s.filter(|high| used < *high) {
                Some(high) => (high, CPU),
                None => (2.0 * used - forecast.cpu_s, AGE),
            },
            None => (2.0 * used, AGE),
        };
        let elapsed = now.since(self.started) as f64 / 1000.0;
        let left = remaining(whole, used, elapsed, share * self.speed);
        Some(Expected {
            remaining_s: left.elapsed_seconds,
            by,
        })
    }

    /// What is left of the job, if its end can be estimated.
    pub(super) fn rest(&self, now: Millis) -> Option<RemainingWork> {
        if now.since(self.started) < WATCHED_MS {
            return None;
        }
        let seconds = self.expected(now)?.remaining_s;
        let share = self.share.share()?;
        Some(RemainingWork {
            seconds,
            work_seconds: seconds * share * self.speed,
            left_seconds: self.left_s(),
        })
    }

    /// Seconds until the deadline; negative if it has passed.
    fn left_s(&self) -> Option<f64> {
        let within = self.orders.finish_within?;
        Some(within.as_secs_f64() - self.elapsed_s())
    }

    /// Time since the job's first start, seconds.
    fn elapsed_s(&self) -> f64 {
        unix_millis().saturating_sub(self.carried.began_ms) as f64 / 1000.0
    }

    /// Processor time of all incarnations at reference speed, seconds.
    fn used_cpu_s(&self) -> f64 {
        self.carried.cpu_s + self.cpu_s * self.speed
    }

    /// The record as it is now, with this incarnation.
    fn whole(&self) -> Carried {
        Carried {
            cpu_s: self.used_cpu_s(),
            work_s: self.carried.work_s + self.work_ms as f64 / 1000.0 * self.speed,
            quiet_s: self.carried.quiet_s.max(self.quiet_ms as f64 / 1000.0),
            ..self.carried.clone()
        }
    }

    /// The label of a checkpoint that is saved now.
    pub(super) fn label(&self) -> String {
        self.whole().label()
    }

    /// Takes the final figures of this incarnation.
    pub(super) fn end(&mut self, work_ms: u64, quiet_ms: u64, cpu_ms: u64) {
        self.cpu_s = cpu_ms as f64 / 1000.0;
        self.work_ms = work_ms;
        self.quiet_ms = quiet_ms;
    }

    /// The figures for the report.
    pub(super) fn summary(&self) -> Summary {
        let whole = self.whole();
        Summary {
            cpu_seconds: whole.cpu_s,
            speed: self.speed,
            forecast: whole.forecast,
            starts: whole.starts,
            is_in_time: self.left_s().map(|left| left >= 0.0),
        }
    }

    /// Adds the job, which has ended with exit status 0, to the history.
    pub(super) fn keep(&self) -> Result<(), HistoryError> {
        let Some(history) = &self.orders.history else {
            return Ok(());
        };
        let whole = self.whole();
        let line = PastLine {
            ended_at: unix_seconds(),
            job: self.job.clone(),
            words: self.kind.words.clone(),
            numbers: self.kind.numbers.clone(),
            cpu_s: whole.cpu_s,
            work_s: whole.work_s,
            elapsed_s: self.elapsed_s(),
            quiet_s: whole.quiet_s,
            starts: whole.starts,
            speed: self.speed,
            host: self.host.clone(),
            forecast: whole.forecast,
        };
        line.append(history)
    }
}

/// What a job has used in all its incarnations.
#[derive(Clone, Debug)]
pub(super) struct Summary {
    /// Processor time at reference speed, seconds.
    pub cpu_seconds: f64,
    /// Speed of one processor of this machine, relative to the reference.
    pub speed: f64,
    /// What was forecast at the first start.
    pub forecast: Option<CpuForecast>,
    /// How often it was started.
    pub starts: u32,
    /// Whether the deadline was met; `None` if the job has no deadline.
    pub is_in_time: Option<bool>,
}

fn milliseconds(seconds: f64) -> u64 {
    // The cast saturates.
    (seconds.max(0.0) * 1000.0) as u64
}

#[cfg(test)]
mod tests {
    use super::super::history::tests::run;
    use super::*;

    fn kind(steps: f64) -> Kind {
        Kind {
            words: vec!["sim".into(), "#".into()],
            numbers: vec![steps],
        }
    }

    fn recorder(label: Option<&str>, finish_within: Option<Duration>) -> Recorder {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runs.jsonl");
        for _ in 0..3 {
            run(100.0, 50.0).append(&path).unwrap();
        }
        let orders = RecordOrders {
            history: Some(path),
            parameters: Vec::new(),
            finish_within,
        };
        let (mut recorder, said) =
            Recorder::new("42".into(), &orders, kind(100.0), label, Millis(0));
        assert!(matches!(
            said,
            Ok(Some(JournalEvent::Forecast { runs: 3, .. }))
        ));
        recorder.speed = 2.0;
        recorder
    }

    #[test]
    fn a_record_travels_as_a_label_and_goes_on() {
        let mut first = recorder(None, None);
        first.cpu_s = 10.0;
        first.work_ms = 20_000;
        first.quiet_ms = 3_000;
        let label = first.label();
        let second = recorder(Some(&label), None);
        let whole = second.whole();
        assert_eq!(
            (whole.cpu_s, whole.work_s, whole.quiet_s),
            (20.0, 40.0, 3.0)
        );
        assert_eq!(
            (whole.starts, whole.forecast.map(|one| one.runs)),
            (2, Some(3))
        );
        assert_eq!(whole.began_ms, first.carried.began_ms);
        for odd in [
            "",
            "v2 cpu=1",
            "v1 cpu=1",
            "v1 cpu=-1 work=0 quiet=0 starts=1 began=0",
        ] {
            assert_eq!(Carried::parse(odd, 1), None, "{odd}");
        }
    }

    #[test]
    fn the_end_is_expected_by_processor_time_and_by_progress_once_it_is_reported() {
        let mut job = recorder(None, None);
        // A quarter of a processor of speed 2: 10 of 50 s are done after 20 s.
        job.cpu_s = 5.0;
        job.share.update(0.0, 0.0);
        job.share.update(5.0, 20.0);
        let expected = job.expected(Millis(20_000)).unwrap();
        assert_eq!(expected.by, "cpu");
        assert!((expected.remaining_s - 80.0).abs() < 1e-6, "{expected:?}");
        // Past the forecast it goes on for as long as it is late: 2 s at speed 2.
        job.cpu_s = 26.0;
        let expected = job.expected(Millis(20_000)).unwrap();
        assert_eq!(expected.by, "age");
        assert!((expected.remaining_s - 4.0).abs() < 1e-6, "{expected:?}");
        job.reported(0.1, Millis(10_000));
        job.reported(0.2, Millis(20_000));
        let expected = job.expected(Millis(20_000)).unwrap();
        assert_eq!(expected.by, "progress");
        assert!((expected.remaining_s - 80.0).abs() < 1e-6);
    }

    #[test]
    fn a_job_that_will_be_late_is_reported_once() {
        let mut job = recorder(None, Some(Duration::from_secs(60)));
        job.reported(0.1, Millis(0));
        job.reported(0.2, Millis(10_000));
        let late = job.update(Millis(10_000), 10_000, 0);
        assert!(matches!(late, Some(JournalEvent::Late { .. })), "{late:?}");
        assert_eq!(job.update(Millis(11_000), 11_000, 0), None);
        let again = job.update(Millis(70_001), 70_000, 0);
        assert!(
            matches!(again, Some(JournalEvent::Expected { .. })),
            "{again:?}"
        );
        assert_eq!(job.summary().is_in_time, Some(true));
    }

    #[test]
    fn a_job_past_its_deadline_is_late_with_and_without_a_forecast() {
        for has_forecast in [true, false] {
            let mut job = recorder(None, Some(Duration::from_secs(8)));
            job.outlook = job.outlook.take().filter(|_| has_forecast);
            // It has used twice what was forecast.
            job.carried.cpu_s = 100.0;
            assert_eq!(job.update(Millis(5_000), 5_000, 5_000), None);
            assert_eq!(job.update(Millis(6_000), 6_000, 6_000), None);
            assert!(
                job.rest(Millis(6_000))
                    .is_some_and(|rest| rest.seconds > 0.0)
            );
            job.carried.began_ms -= 9_000;
            let late = job.update(Millis(7_000), 7_000, 7_000);
            let Some(JournalEvent::Late {
                remaining_s: None,
                left_s,
                ..
            }) = late
            else {
                panic!("{late:?}");
            };
            assert!(left_s < 0.0);
            assert_eq!(job.update(Millis(8_000), 8_000, 8_000), None);
        }
    }

    #[test]
    fn overdue_is_three_times_the_forecast_of_all_incarnations_together() {
        let label = recorder(None, None).label();
        let label = label.replace("work=0.000", "work=30.000");
        let mut settings = Settings::default();
        recorder(Some(&label), None).advise(&mut settings);
        // The forecast is 100 s, so the limit is 300 s. 30 s are used and 270 s left: 135 s on this
        // machine of speed 2, which is three times 45 s.
        assert_eq!(settings.predicted_ms, Some(45_000));
        assert_eq!(settings.longest_quiet_ms, 100_000);
    }
}
