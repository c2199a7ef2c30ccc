//! Measures how fast each host sends, also when requests overlap.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::core::HostIndex;
use transfer::put::MeasuredRate;

/// Fewest bytes from a host that show its rate.
const RATE_BYTES_MIN: u64 = 4 << 20;

/// If a host sends at less than this share of the fastest host's rate, the host itself is the limit. A faster
/// one may be limited by the link that they share.
const SLOW_SHARE: f64 = 0.5;

/// Bytes that came from each host, and how long requests to it were open.
#[derive(Clone, Debug, Default)]
pub(crate) struct SourceMeter {
    sources: BTreeMap<HostIndex, Source>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Source {
    bytes: u64,
    /// How many requests are open, and since when there has been at least one.
    open: usize,
    since: Duration,
    /// Time in which at least one request was open, without the present one.
    busy: Duration,
}

impl SourceMeter {
    /// Notes that a request to `host` begins. Times count from any fixed moment.
    pub(crate) fn begin(&mut self, host: HostIndex, now: Duration) {
        let source = self.sources.entry(host).or_default();
        if source.open == 0 {
            source.since = now;
        }
        source.open += 1;
    }

    /// Notes that a request to `host` ends.
    pub(crate) fn end(&mut self, host: HostIndex, now: Duration) {
        let source = self.sources.entry(host).or_default();
        source.open = source.open.saturating_sub(1);
        if source.open == 0 {
            source.busy += now.saturating_sub(source.since);
        }
    }

    /// Notes that bytes came from `host`.
    pub(crate) fn got(&mut self, host: HostIndex, bytes: u64) {
        self.sources.entry(host).or_default().bytes += bytes;
    }

    /// How many bytes each host sent, without hosts that sent nothing.
    pub(crate) fn bytes(&self) -> impl Iterator<Item = (HostIndex, u64)> {
        let all = self.sources.iter();
        all.filter_map(|(host, source)| (source.bytes > 0).then_some((*host, source.bytes)))
    }

    /// The rates of the hosts that sent enough bytes, in bytes per second.
    pub(crate) fn rates(&self) -> Vec<(HostIndex, MeasuredRate)> {
        let measured = self
            .sources
            .iter()
            .filter(|(_, source)| source.bytes >= RATE_BYTES_MIN && !source.busy.is_zero());
        let rates: Vec<(HostIndex, f64)> = measured
            .map(|(host, source)| (*host, source.bytes as f64 / source.busy.as_secs_f64()))
            .collect();
        let fastest = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
        let kind = |(host, rate)| {
            let rate = if rate < fastest * SLOW_SHARE {
                MeasuredRate::Exactly(rate)
            } else {
                MeasuredRate::AtLeast(rate)
            };
            (host, rate)
        };
        rates.into_iter().map(kind).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn only_the_time_in_which_a_host_was_asked_counts() {
        let mut meter = SourceMeter::default();
        let host = HostIndex(3);
        meter.begin(host, at(0));
        meter.begin(host, at(1));
        meter.end(host, at(2));
        meter.end(host, at(4));
        meter.begin(host, at(100));
        meter.end(host, at(104));
        meter.got(host, 16 * MIB);
        let expected = MeasuredRate::AtLeast(2.0 * MIB as f64);
        assert_eq!(meter.rates(), [(host, expected)]);
        assert_eq!(meter.bytes().collect::<Vec<_>>(), [(host, 16 * MIB)]);
    }

    #[test]
    fn a_host_that_lags_behind_is_the_limit_itself() {
        let mut meter = SourceMeter::default();
        for (host, mib) in [(0, 40), (1, 30), (2, 5), (3, 1)] {
            meter.begin(HostIndex(host), at(0));
            meter.got(HostIndex(host), mib * MIB);
            meter.end(HostIndex(host), at(1));
        }
        let rates = meter.rates();
        assert_eq!(rates.len(), 3, "{rates:?}");
        assert!(matches!(rates[1].1, MeasuredRate::AtLeast(_)));
        assert_eq!(rates[2].1, MeasuredRate::Exactly(5.0 * MIB as f64));
    }
}
