//! Availability traces: reads and writes the plain format of `docs/research/traces.md`, and derives the states of
//! hosts from it.

pub mod format;

use std::collections::BTreeMap;
use std::ops::Range;

use placement::history::Timeline;
use placement::state::{AvailabilityState, HostClassifier, HostReading, Thresholds};

/// Share of a host's memory that a guest is assumed to need; if less is free, the state is S4.
const GUEST_MEMORY_SHARE: f64 = 0.1;
/// Bytes that every host is assumed to have: traces record shares of the memory, but the classifier takes
/// bytes.
const MEMORY_PARTS: f64 = 1e6;

/// A set of hosts observed over some time.
#[derive(Debug)]
pub struct Trace {
    /// Short name, for tables.
    pub name: String,
    /// What was observed, for documents.
    pub description: String,
    /// Length of the interval that a load sample is the mean of, seconds; without samples, the resolution
    /// of the intervals.
    pub sample_seconds: u32,
    /// Resolution of the times at which states change, seconds.
    pub resolution_seconds: u32,
    /// The hosts in order of their names.
    pub hosts: Vec<TracedHost>,
}

/// One host of a trace.
#[derive(Debug)]
pub struct TracedHost {
    /// Name of the host; no other host of the trace has it.
    pub name: String,
    /// Failure domain by place; may be empty.
    pub site: String,
    /// Failure domain by ownership; may be empty.
    pub owner: String,
    /// Its states.
    pub timeline: Timeline<AvailabilityState>,
    /// Beginning of each sampling interval (Unix seconds) and the mean load in it (0 to 1), in order of time;
    /// empty if the load was not observed.
    pub loads: Vec<(u64, f32)>,
}

/// A trace as it stands in the files, before states are derived from it.
#[derive(Debug, Default)]
pub struct RawTrace {
    /// See [`Trace::name`].
    pub name: String,
    /// See [`Trace::description`].
    pub description: String,
    /// See [`Trace::sample_seconds`].
    pub sample_seconds: u32,
    /// Resolution of the intervals, seconds; 0 if it is [`sample_seconds`](Self::sample_seconds).
    pub interval_seconds: u32,
    /// Hosts by name.
    pub hosts: BTreeMap<String, RawHost>,
}

/// One host as it stands in the files.
#[derive(Debug, Default)]
pub struct RawHost {
    /// See [`TracedHost::site`].
    pub site: String,
    /// See [`TracedHost::owner`].
    pub owner: String,
    /// Load samples in any order.
    pub samples: Vec<Sample>,
    /// Times in which the host was up, in any order, Unix seconds. Used only for a host without samples and
    /// without `states`.
    pub up: Vec<Range<u64>>,
    /// Times in which the host was down, in any order. They take precedence over everything else.
    pub down: Vec<Range<u64>>,
    /// Times in the states S1 to S4, in any order, as a monitor saw them. They take precedence over samples
    /// and `up`.
    pub states: Vec<(Range<u64>, AvailabilityState)>,
}

/// A load sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Beginning of the interval that the sample is the mean of.
    pub unix_seconds: u64,
    /// CPU load by the owner, as a share of the host.
    pub cpu: f32,
    /// Share of the memory in use, if known.
    pub memory: Option<f32>,
}

impl RawTrace {
    /// Adds the hosts of another trace, as if both were one pool. The lower resolution of the two holds for
    /// all.
    ///
    /// # Errors
    /// If a host is in both traces; the error is its name.
    pub fn join(&mut self, other: Self) -> Result<(), String> {
        if let Some(twice) = other
            .hosts
            .keys()
            .find(|name| self.hosts.contains_key(*name))
        {
            return Err(twice.clone());
        }
        self.hosts.extend(other.hosts);
        self.interval_seconds = match [self.interval_seconds, other.interval_seconds] {
            // A trace that does not state the resolution of its intervals has that of its samples.
            [mine, theirs] if (mine == 0) != (theirs == 0) => {
                let known = |exact: u32, sample| if exact == 0 { sample } else { exact };
                known(mine, self.sample_seconds).max(known(theirs, other.sample_seconds))
            }
            [mine, theirs] => mine.max(theirs),
        };
        self.sample_seconds = self.sample_seconds.max(other.sample_seconds);
        for (mine, theirs) in [
            (&mut self.name, other.name),
            (&mut self.description, other.description),
        ] {
            // The machines of a pool, exported one by one, have the same texts: keep one of them.
            if *mine != theirs {
                *mine = format!("{mine}, {theirs}");
            }
        }
        Ok(())
    }
}

impl Trace {
    /// Derives the states of the hosts, with the thresholds of the papers.
    #[must_use]
    pub fn new(raw: RawTrace) -> Self {
        let seconds = raw.sample_seconds.max(1);
        let hosts = raw
            .hosts
            .into_iter()
            .map(|(name, host)| TracedHost::new(name, host, seconds));
        Self {
            name: raw.name,
            description: raw.description,
            sample_seconds: seconds,
            resolution_seconds: match raw.interval_seconds {
                0 => seconds,
                exact => exact,
            },
            hosts: hosts.collect(),
        }
    }
}

impl TracedHost {
    fn new(name: String, mut raw: RawHost, sample_seconds: u32) -> Self {
        raw.samples.sort_by_key(|sample| sample.unix_seconds);
        raw.samples.dedup_by_key(|sample| sample.unix_seconds);
        let mut spans: Vec<(Range<u64>, AvailabilityState)> = Vec::new();
        let mut classifier = HostClassifier::new(
            Thresholds::LINUX,
            (GUEST_MEMORY_SHARE * MEMORY_PARTS) as u64,
        );
        for sample in &raw.samples {
            let interval = sample.unix_seconds..sample.unix_seconds + u64::from(sample_seconds);
            let used = f64::from(sample.memory.unwrap_or(0.0)).clamp(0.0, 1.0);
            let state = classifier.observe(&HostReading {
                interval: interval.clone(),
                owner_cpu: f64::from(sample.cpu),
                free_memory_bytes: ((1.0 - used) * MEMORY_PARTS) as u64,
                swapping: false,
            });
            spans.push((interval, state));
        }
        if !raw.states.is_empty() {
            spans = std::mem::take(&mut raw.states);
        } else if raw.samples.is_empty() {
            spans.extend(
                raw.up
                    .into_iter()
                    .map(|span| (span, AvailabilityState::Idle)),
            );
        }
        Self {
            name,
            site: raw.site,
            owner: raw.owner,
            timeline: overlay(spans, raw.down),
            loads: raw
                .samples
                .iter()
                .map(|s| (s.unix_seconds, s.cpu.clamp(0.0, 1.0)))
                .collect(),
        }
    }
}

/// A timeline of the spans, except that the host is gone throughout every time in `down`. Both may come in
/// any order.
#[must_use]
pub fn overlay(
    mut spans: Vec<(Range<u64>, AvailabilityState)>,
    mut down: Vec<Range<u64>>,
) -> Timeline<AvailabilityState> {
    spans.sort_by_key(|(span, _)| span.start);
    down.sort_by_key(|span| span.start);
    let begin = spans.first().map(|(span, _)| span.start).into_iter();
    let begin = begin
        .chain(down.first().map(|span| span.start))
        .min()
        .unwrap_or(0);
    let mut timeline = Timeline::new(begin);
    let mut down = down.into_iter().peekable();
    for (span, state) in spans {
        let mut start = span.start;
        while let Some(gone) = down.next_if(|gone| gone.start < span.end) {
            if gone.start > start {
                timeline.push(start..gone.start, Some(state));
            }
            start = start.max(gone.end);
            timeline.push(gone, Some(AvailabilityState::Gone));
        }
        timeline.push(start..span.end, Some(state));
    }
    for gone in down {
        timeline.push(gone, Some(AvailabilityState::Gone));
    }
    timeline
}

#[cfg(test)]
mod tests {
    use super::*;
    use AvailabilityState::{Busy, CpuTaken, Gone, Idle, Thrashing};

    fn host(raw: RawHost) -> TracedHost {
        TracedHost::new("h".into(), raw, 300)
    }

    #[test]
    fn samples_become_states_and_gaps_stay_unknown() {
        let sample = |unix_seconds, cpu, memory| Sample {
            unix_seconds,
            cpu,
            memory: Some(memory),
        };
        let raw = RawHost {
            samples: vec![
                sample(600, 0.9, 0.1),
                sample(0, 0.1, 0.1),
                sample(300, 0.3, 0.1),
                sample(1200, 0.1, 0.95),
            ],
            ..RawHost::default()
        };
        let host = host(raw);
        let at = |t| host.timeline.state_at(t);
        let seen = [at(0), at(300), at(600), at(900), at(1200)];
        assert_eq!(
            seen,
            [
                Some(Idle),
                Some(Busy),
                Some(CpuTaken),
                None,
                Some(Thrashing)
            ]
        );
    }

    #[test]
    fn states_that_were_seen_outrank_those_that_samples_would_give() {
        let raw = RawHost {
            samples: vec![Sample {
                unix_seconds: 0,
                cpu: 0.9,
                memory: None,
            }],
            states: vec![(100..200, Thrashing), (0..100, Idle)],
            down: std::iter::once(150..160).collect(),
            ..RawHost::default()
        };
        let host = host(raw);
        let seen = [50, 120, 155, 180, 250].map(|t| host.timeline.state_at(t));
        let expected = [Some(Idle), Some(Thrashing), Some(Gone), Some(Thrashing)];
        assert_eq!(seen[..4], expected);
        assert_eq!((seen[4], host.loads.len()), (None, 1));
    }

    #[test]
    fn of_two_samples_or_intervals_of_one_time_the_first_line_counts() {
        let sample = |unix_seconds, cpu| Sample {
            unix_seconds,
            cpu,
            memory: None,
        };
        let sampled = host(RawHost {
            samples: vec![sample(300, 0.9), sample(0, 0.1), sample(300, 0.1)],
            ..RawHost::default()
        });
        assert_eq!(sampled.loads, [(0, 0.1), (300, 0.9)]);
        assert_eq!(sampled.timeline.state_at(310), Some(CpuTaken));
        let seen = host(RawHost {
            states: vec![
                (60..180, Thrashing),
                (0..120, Busy),
                (0..30, Idle),
                (170..200, Idle),
            ],
            ..RawHost::default()
        });
        let at = |time| seen.timeline.state_at(time);
        assert_eq!([at(10), at(110)], [Some(Busy); 2]);
        assert_eq!([at(130), at(179)], [Some(Thrashing); 2]);
        assert_eq!([at(180), at(200)], [Some(Idle), None]);
    }

    #[test]
    fn traces_are_joined_unless_a_host_is_in_both() {
        let one = |name: &str| RawTrace {
            name: "lab".into(),
            hosts: [(name.to_owned(), RawHost::default())].into(),
            ..RawTrace::default()
        };
        let mut pool = one("a");
        pool.join(one("b")).unwrap();
        assert_eq!((pool.hosts.len(), pool.name.as_str()), (2, "lab"));
        assert_eq!(pool.join(one("a")), Err("a".to_owned()));
    }

    #[test]
    fn down_outranks_up_and_samples() {
        let raw = RawHost {
            up: vec![0..1000, 1500..2000],
            down: vec![200..300, 1900..2500, 250..400],
            ..RawHost::default()
        };
        let host = host(raw);
        let seen: Vec<_> = [100, 220, 350, 500, 1200, 1600, 1950, 2400]
            .map(|t| host.timeline.state_at(t))
            .into();
        let up = Some(Idle);
        let gone = Some(Gone);
        assert_eq!(seen, [up, gone, gone, up, None, up, gone, gone]);
    }
}
