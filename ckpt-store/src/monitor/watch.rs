//! Turns readings into runs of states, and decides which runs have to be written to the disk.

use placement::state::{
    DiskClassifier, DiskReading, HostClassifier, HostReading, TRANSIENT_SECONDS, silence,
};

use super::history::{Run, States};
use super::outlook::{Outlook, Predictor};
use super::preferences::MonitorSettings;

/// Seconds between two updates of the last run on the disk.
const HEARTBEAT_SECONDS: u64 = TRANSIENT_SECONDS;

/// After a longer silence the daemon counts as having been away: three heartbeats.
const SILENCE_SECONDS: u64 = 3 * HEARTBEAT_SECONDS;

/// If the clock is set back further, the end of the history lies in the future and is forgotten.
const CLOCK_BACK_SECONDS: u64 = 3600;

/// A disk with less free space counts as full, bytes.
const FULL_BELOW_BYTES: u64 = 64 << 20;

/// A change of the history file.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// A new run follows the last one.
    Append(Run),
    /// The last run has become longer.
    Update(Run),
}

/// What was seen of this host up to now.
#[derive(Debug)]
pub struct MachineWatch {
    host: HostClassifier,
    disk: DiskClassifier,
    outlook: Outlook,
    /// The run that goes on.
    current: Option<Current>,
}

#[derive(Clone, Debug)]
struct Current {
    run: Run,
    /// The end of the run as it is on the disk.
    written_until: u64,
}

impl MachineWatch {
    /// Continues the runs in `history` at `now`, in Unix seconds. The daemon counts as having been away
    /// since the last run, unless that time is too short.
    pub fn resume(
        history: impl IntoIterator<Item = Run>,
        now: u64,
        settings: &MonitorSettings,
        predictor: Predictor,
    ) -> (Self, Vec<Write>) {
        let mut history = history.into_iter().peekable();
        let start = history.peek().map_or(now, |run| run.span.start);
        let mut watch = Self {
            host: HostClassifier::new(settings.cpu, settings.guest_memory_bytes),
            disk: DiskClassifier::new(settings.disk, FULL_BELOW_BYTES),
            outlook: Outlook::new(start, predictor),
            current: None,
        };
        for run in history {
            watch.outlook.observe(&run);
            watch.current = Some(Current {
                written_until: run.span.end,
                run,
            });
        }
        // The daemon is there now, whatever the load turns out to be.
        let just_now = now.saturating_sub(1);
        let mut writes = watch.gone_until(just_now);
        if watch.states().is_none_or(|states| states == States::GONE) {
            // Where the clock was set back a little, no time has passed since the last run.
            let from = watch.end().unwrap_or(just_now);
            let run = Run {
                span: from..now.max(from),
                states: Some(States::CALM),
                cpu: 0.0,
                disk: 0.0,
            };
            watch.outlook.observe(&run);
            writes.extend(watch.note(run));
        }
        (watch, writes)
    }

    /// Takes new thresholds. The classifiers begin anew.
    pub fn apply(&mut self, settings: &MonitorSettings) {
        self.host = HostClassifier::new(settings.cpu, settings.guest_memory_bytes);
        self.disk = DiskClassifier::new(settings.disk, FULL_BELOW_BYTES);
    }

    /// Whether `now` is so far before the last run that the clock must have been set back.
    #[must_use]
    pub fn clock_went_back(&self, now: u64) -> bool {
        is_of_the_future(self.end(), now)
    }

    /// Takes a reading of machine and disk. Returns what has to be written.
    pub fn observe(&mut self, host: &HostReading, disk: &DiskReading) -> Vec<Write> {
        let mut writes = self.gone_until(host.interval.end);
        let states = States {
            guest: self.host.observe(host),
            storage: self.disk.observe(disk),
        };
        // A gap that is too short for an absence is counted to the run after it.
        let span = self.end().unwrap_or(host.interval.start)..host.interval.end;
        if span.end <= span.start {
            return writes;
        }
        let run = Run {
            span,
            states: Some(states),
            cpu: host.owner_cpu,
            disk: disk.owner_busy,
        };
        self.outlook.observe(&run);
        writes.extend(self.note(run));
        writes
    }

    /// What has to be written before the daemon ends, so that nothing is lost.
    pub fn close(&mut self) -> Option<Write> {
        let current = self.current.as_mut()?;
        if current.written_until == current.run.span.end {
            return None;
        }
        current.written_until = current.run.span.end;
        Some(Write::Update(current.run.clone()))
    }

    /// The present states; `None` before the first reading.
    #[must_use]
    pub fn states(&self) -> Option<States> {
        self.current.as_ref().and_then(|current| current.run.states)
    }

    /// What the states so far say of the time ahead.
    #[must_use]
    pub const fn outlook(&self) -> &Outlook {
        &self.outlook
    }

    fn end(&self) -> Option<u64> {
        self.current.as_ref().map(|current| current.run.span.end)
    }

    fn gone_until(&mut self, now: u64) -> Vec<Write> {
        let Some(gone) = self
            .end()
            .and_then(|end| silence(end, now, SILENCE_SECONDS))
        else {
            return Vec::new();
        };
        let run = Run {
            span: gone,
            states: Some(States::GONE),
            cpu: 0.0,
            disk: 0.0,
        };
        self.outlook.observe(&run);
        self.note(run)
    }

    /// Adds a run to the current one, or ends the current one and begins another.
    fn note(&mut self, run: Run) -> Vec<Write> {
        match &mut self.current {
            Some(current) if current.run.states == run.states => {
                current.run = joined(&current.run, &run);
                if current.run.span.end - current.written_until < HEARTBEAT_SECONDS {
                    return Vec::new();
                }
                self.close().into_iter().collect()
            }
            _ => {
                let ended = self.close();
                self.current = Some(Current {
                    written_until: run.span.end,
                    run: run.clone(),
                });
                ended.into_iter().chain([Write::Append(run)]).collect()
            }
        }
    }
}

/// Whether a history that ends at `end` reaches into the future at `now`.
pub(super) fn is_of_the_future(end: Option<u64>, now: u64) -> bool {
    end.is_some_and(|end| end > now.saturating_add(CLOCK_BACK_SECONDS))
}

/// Joins two consecutive runs. The loads are the means over both.
fn joined(earlier: &Run, later: &Run) -> Run {
    let seconds = |run: &Run| (run.span.end - run.span.start) as f64;
    let a = seconds(earlier);
    let b = seconds(later);
    let mean = |x: f64, y: f64| (x * a + y * b) / (a + b).max(1.0);
    Run {
        span: earlier.span.start..later.span.end,
        states: later.states,
        cpu: mean(earlier.cpu, later.cpu),
        disk: mean(earlier.disk, later.disk),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use placement::state::{AvailabilityState, StorageState};

    use super::*;
    use crate::monitor::preferences;

    fn settings() -> MonitorSettings {
        preferences::load(Path::new("/nowhere")).unwrap()
    }

    /// A watch that begins at 1000, and what is on the disk then.
    fn begun() -> (MachineWatch, Vec<Run>) {
        let (watch, writes) = MachineWatch::resume([], 1000, &settings(), Predictor::Hazard);
        let mut disk = Vec::new();
        write(&mut disk, writes);
        (watch, disk)
    }

    /// Takes readings every six seconds, and keeps what is on the disk after them.
    fn watched(watch: &mut MachineWatch, disk: &mut Vec<Run>, from: u64, loads: &[f64]) {
        for (i, &owner_cpu) in loads.iter().enumerate() {
            let start = from + 6 * i as u64;
            let host = HostReading {
                interval: start..start + 6,
                owner_cpu,
                free_memory_bytes: 1 << 40,
                swapping: false,
            };
            let reading = DiskReading {
                interval: start..start + 6,
                owner_busy: 0.0,
                room_bytes: 1 << 40,
            };
            write(disk, watch.observe(&host, &reading));
        }
    }

    fn write(disk: &mut Vec<Run>, writes: Vec<Write>) {
        for write in writes {
            match write {
                Write::Append(run) => disk.push(run),
                Write::Update(run) => *disk.last_mut().unwrap() = run,
            }
        }
    }

    #[test]
    fn a_run_is_written_once_a_minute_and_at_its_end() {
        let (mut watch, mut disk) = begun();
        watched(&mut watch, &mut disk, 1000, &[0.1; 9]);
        assert_eq!(disk[0].span, 999..1000);
        watched(&mut watch, &mut disk, 1054, &[0.1; 2]);
        assert_eq!(disk[0].span, 999..1060);
        watched(&mut watch, &mut disk, 1066, &[0.1, 0.4]);
        assert_eq!(disk[0].span, 999..1072);
        assert_eq!(disk[1].span, 1072..1078);
        assert_eq!(disk[1].states.unwrap().guest, AvailabilityState::Busy);
    }

    #[test]
    fn a_short_absence_leaves_no_gap_and_a_long_one_is_an_absence() {
        let (mut watch, mut disk) = begun();
        watched(&mut watch, &mut disk, 1000, &[0.1; 20]);
        assert_eq!(disk.last().unwrap().span.end, 1120);
        // The daemon is killed at 1120 and back at 1200.
        let (mut watch, writes) =
            MachineWatch::resume(disk.clone(), 1200, &settings(), Predictor::Hazard);
        write(&mut disk, writes);
        watched(&mut watch, &mut disk, 1200, &[0.1; 11]);
        assert_eq!(disk.len(), 1);
        assert_eq!(disk[0].span, 999..1266);
        // The daemon is killed, and back after four minutes.
        let (_, writes) = MachineWatch::resume(disk.clone(), 1500, &settings(), Predictor::Hazard);
        write(&mut disk, writes);
        assert_eq!(disk[1].span, 1266..1499);
        assert_eq!(disk[1].states, Some(States::GONE));
        assert_eq!(disk[2].span, 1499..1500);
        assert_eq!(disk[2].states, Some(States::CALM));
    }

    #[test]
    fn a_process_that_was_stopped_was_gone() {
        let (mut watch, mut disk) = begun();
        watched(&mut watch, &mut disk, 1000, &[0.1]);
        watched(&mut watch, &mut disk, 4600, &[0.1]);
        let spans: Vec<_> = disk.iter().map(|run| run.span.clone()).collect();
        assert_eq!(spans, [999..1006, 1006..4606]);
        watched(&mut watch, &mut disk, 4606, &[0.1]);
        assert_eq!(disk[2].span, 4606..4612);
        assert_eq!(disk[2].states.unwrap().storage, StorageState::FullRate);
    }

    #[test]
    fn a_daemon_is_there_when_it_starts_with_a_clock_that_went_back_a_little() {
        let gone = Run {
            span: 1000..2000,
            states: Some(States::GONE),
            cpu: 0.0,
            disk: 0.0,
        };
        let (mut watch, writes) =
            MachineWatch::resume([gone.clone()], 1500, &settings(), Predictor::Hazard);
        assert_eq!(watch.states(), Some(States::CALM));
        let mut disk = vec![gone];
        write(&mut disk, writes);
        watched(&mut watch, &mut disk, 1500, &[0.1; 110]);
        let spans: Vec<_> = disk.iter().map(|run| run.span.clone()).collect();
        assert_eq!(spans[0], 1000..2000);
        assert!(spans.iter().all(|span| span.start <= span.end));
        assert!(spans.last().unwrap().end > 2100);
    }

    #[test]
    fn a_clock_that_goes_back_a_little_writes_nothing_twice() {
        let (mut watch, mut disk) = begun();
        watched(&mut watch, &mut disk, 1000, &[0.1; 20]);
        watched(&mut watch, &mut disk, 900, &[0.9; 10]);
        assert_eq!(disk.len(), 1);
        assert!(!watch.clock_went_back(900));
        assert!(is_of_the_future(Some(10_000), 10_000 - 3601));
    }
}
