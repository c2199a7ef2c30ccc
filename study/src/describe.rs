//! Describes a pool: sums over the hosts' timelines ([`Pool`]), and what follows from them
//! ([`Pool::describe`]).

use std::collections::BTreeMap;
use std::ops::Range;

use placement::history::DAY_SECONDS;
use placement::state::{AvailabilityState, ModelState};

use crate::description::{
    CauseLine, FitLine, FitTable, FittedQuantity, GroupLine, PatternLine, PoolDescription,
    PoolLevel, SiteShare,
};
use crate::distribution::{Distribution, Family, fit_rounded_weibull};
use crate::groups::{Failure, Group, groups};
use crate::past::{Counts, HostPast};
use crate::sample::Sample;
use crate::spread::Spread;

const HOUR: u64 = 3600;
const WEEK_HOURS: usize = 168;
/// Times allowed between two failures of a group, seconds: those of the study and some between.
const WITHIN: [u64; 8] = [1, 10, 30, 60, 300, 600, 1800, 3600];
/// Fewest values to which distributions are fitted.
const FITTED_MIN: u64 = 20;
/// A pool that was observed for longer is divided into days instead of hours.
const HOURLY_MAX: u64 = 14 * DAY_SECONDS;
/// Most steps at which the share of hosts that are up is taken.
const STEPS_MAX: u64 = 20_000;
/// Causes with their names.
const CAUSES: [(AvailabilityState, &str); 3] = [
    (AvailabilityState::CpuTaken, "S3"),
    (AvailabilityState::Thrashing, "S4"),
    (AvailabilityState::Gone, "S5"),
];

/// How a pool is described.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the trace.
    pub name: String,
    /// What was observed.
    pub about: String,
    /// Resolution of the times, seconds.
    pub resolution_seconds: u64,
    /// Which states count as unavailable.
    pub counts: Counts,
    /// Longest time from one failure of a group to the next, for fits, seconds.
    pub group_within: u64,
    /// Offset from UTC, in hours, of the days and hours of the patterns.
    pub utc_offset: i32,
}

/// Sums over a host's timeline.
#[derive(Clone, Debug, Default)]
struct HostSums {
    site: Option<u32>,
    up_seconds: u64,
    known_seconds: u64,
    /// Seconds in each state.
    state_seconds: [u64; 5],
    /// Number of failures by the state that the host entered.
    causes: [u64; 5],
    /// Times of the failures, Unix seconds.
    failures: Vec<u64>,
}

/// In steps of equal length, the seconds that all hosts together are up (0), and that their state is known
/// (1).
#[derive(Clone, Debug)]
struct Steps {
    /// Length of a step, seconds.
    step: u64,
    /// For each step, the seconds of hosts that are up (or known) for only a part of it.
    parts: Vec<[u64; 2]>,
    /// Change, from the step before, of the number of hosts that are up (or known) throughout the step.
    changes: Vec<[i64; 2]>,
}

impl Steps {
    fn new(step: u64, seconds: u64) -> Self {
        let count = (seconds / step + 2) as usize;
        Self {
            step,
            parts: vec![[0; 2]; count],
            changes: vec![[0; 2]; count],
        }
    }

    /// Adds a time of a host, in seconds since the first step, in which its state is known. Takes constant
    /// time, however long the span is.
    fn add(&mut self, span: Range<u64>, is_up: bool) {
        let kinds = usize::from(!is_up)..2;
        let first = span.start / self.step;
        let last = span.end / self.step;
        let mut part = |at: u64, seconds: u64| {
            if let Some(kinds) = self
                .parts
                .get_mut(at as usize)
                .and_then(|one| one.get_mut(kinds.clone()))
            {
                kinds.iter_mut().for_each(|sum| *sum += seconds);
            }
        };
        if first == last {
            part(first, span.end - span.start);
            return;
        }
        part(first, (first + 1) * self.step - span.start);
        part(last, span.end - last * self.step);
        for (at, change) in [(first + 1, 1), (last, -1)] {
            if let Some(kinds) = self
                .changes
                .get_mut(at as usize)
                .and_then(|one| one.get_mut(kinds.clone()))
            {
                kinds.iter_mut().for_each(|sum| *sum += change);
            }
        }
    }

    /// For each step in which anything is known, its beginning in seconds and the share of the known time for
    /// which hosts are up.
    fn shares(&self) -> Vec<(f64, f64)> {
        let mut through = [0i64; 2];
        let mut shares = Vec::new();
        for (i, (parts, changes)) in self.parts.iter().zip(&self.changes).enumerate() {
            let mut seconds = [0.0; 2];
            for (kind, sum) in through.iter_mut().enumerate() {
                *sum += changes[kind];
                seconds[kind] = parts[kind] as f64 + *sum as f64 * self.step as f64;
            }
            if seconds[1] > 0.0 {
                shares.push(((i as u64 * self.step) as f64, seconds[0] / seconds[1]));
            }
        }
        shares
    }
}

/// What is described, fitted and drawn of a pool: sums, failures, and lengths of times up and down.
#[derive(Clone, Debug)]
pub struct Pool {
    options: Options,
    sites: Vec<String>,
    hosts: Vec<HostSums>,
    /// All failures in order of time.
    failures: Vec<Failure>,
    /// Lengths of the times up that were observed from beginning to end, seconds.
    ups: Vec<u64>,
    /// Number of other times up.
    ups_cut: u64,
    /// Site of the host and length in seconds of the times down that were observed from beginning to end.
    downs: Vec<(Option<u32>, u64)>,
    /// Number of other times down.
    downs_cut: u64,
    /// For each hour of a week from Monday: failures, recoveries, seconds up of all hosts.
    week: [[u64; 3]; WEEK_HOURS],
    steps: Steps,
    from: u64,
    to: u64,
}

impl Pool {
    /// Sums up the pasts of a pool's hosts.
    #[must_use]
    pub fn new(hosts: &[HostPast<'_>], options: Options) -> Self {
        let known: Vec<&HostPast<'_>> = hosts
            .iter()
            .filter(|host| {
                host.timeline
                    .runs(0..u64::MAX)
                    .any(|run| run.state.is_some())
            })
            .collect();
        let from = known.iter().map(|host| host.timeline.start()).min();
        let to = known.iter().map(|host| host.timeline.end()).max();
        let from = from.unwrap_or(0);
        let to = to.unwrap_or(0);
        let usual = if to - from > HOURLY_MAX {
            DAY_SECONDS
        } else {
            HOUR
        };
        let step = usual.max((to - from).div_ceil(STEPS_MAX).next_multiple_of(usual));
        let names: BTreeMap<&str, u32> = known.iter().map(|host| (host.site, 0)).collect();
        let names = names.into_keys().filter(|site| !site.is_empty());
        let sites: Vec<String> = names.map(str::to_owned).collect();
        let mut pool = Self {
            steps: Steps::new(step, to - from),
            options,
            hosts: Vec::with_capacity(known.len()),
            failures: Vec::new(),
            ups: Vec::new(),
            ups_cut: 0,
            downs: Vec::new(),
            downs_cut: 0,
            week: [[0; 3]; WEEK_HOURS],
            from,
            to,
            sites,
        };
        for host in known {
            pool.add(host);
        }
        pool.failures.sort_unstable();
        pool
    }

    fn add(&mut self, host: &HostPast<'_>) {
        let number = self.hosts.len() as u32;
        let site = self
            .sites
            .binary_search_by(|site| site.as_str().cmp(host.site));
        let mut sums = HostSums {
            site: site.ok().map(|site| site as u32),
            ..HostSums::default()
        };
        for run in host.timeline.runs(0..u64::MAX) {
            if let Some(seconds) = run
                .state
                .and_then(|s| sums.state_seconds.get_mut(s.index()))
            {
                *seconds += run.span.end - run.span.start;
            }
        }
        for stay in self.options.counts.stays(host.timeline) {
            sums.known_seconds += stay.seconds();
            let span = stay.start - self.from..stay.end - self.from;
            self.steps.add(span, stay.is_up);
            if stay.is_up {
                sums.up_seconds += stay.seconds();
                self.add_to_week(stay.start, stay.end);
            }
            match (stay.is_up, stay.begins && stay.ends) {
                (true, true) => self.ups.push(stay.seconds()),
                (true, false) => self.ups_cut += 1,
                (false, true) => self.downs.push((sums.site, stay.seconds())),
                (false, false) => self.downs_cut += 1,
            }
            if !stay.begins {
                continue;
            }
            let hour = self.hour_of_week(stay.start);
            if let Some(counts) = self.week.get_mut(hour) {
                counts[usize::from(stay.is_up)] += 1;
            }
            if !stay.is_up {
                sums.failures.push(stay.start);
                if let Some(count) = sums.causes.get_mut(stay.cause.index()) {
                    *count += 1;
                }
                self.failures.push(Failure {
                    at: stay.start,
                    site: sums.site.unwrap_or(self.sites.len() as u32 + number),
                    host: number,
                });
            }
        }
        self.hosts.push(sums);
    }

    /// Unix seconds shifted to local time.
    fn local(&self, time: u64) -> u64 {
        time.saturating_add_signed(i64::from(self.options.utc_offset) * HOUR as i64)
    }

    /// Hour of the week from Monday, 0:00.
    fn hour_of_week(&self, time: u64) -> usize {
        // 1 January 1970 was a Thursday.
        ((self.local(time) / HOUR + 3 * 24) % WEEK_HOURS as u64) as usize
    }

    /// Adds a time in which a host was up to the hours of the week.
    fn add_to_week(&mut self, start: u64, end: u64) {
        let week = WEEK_HOURS as u64 * HOUR;
        let whole = (end - start) / week;
        for hour in &mut self.week {
            hour[2] += whole * HOUR;
        }
        let mut at = start + whole * week;
        while at < end {
            // Offsets from UTC are whole hours, so local hours end when hours of UTC end.
            let next = (at / HOUR + 1) * HOUR;
            let hour = self.hour_of_week(at);
            if let Some(counts) = self.week.get_mut(hour) {
                counts[2] += next.min(end) - at;
            }
            at = next;
        }
    }

    /// The description.
    #[must_use]
    pub fn describe(&self) -> PoolDescription {
        let known: u64 = self.hosts.iter().map(|host| host.known_seconds).sum();
        let whole = (self.to - self.from) * self.hosts.len() as u64;
        let Options { name, about, .. } = &self.options;
        PoolDescription {
            name: name.clone(),
            about: about.clone(),
            from: self.from,
            to: self.to,
            hosts: self.hosts.len() as u64,
            sites: self.sites.len() as u64,
            resolution_seconds: self.options.resolution_seconds,
            counts: match self.options.counts {
                Counts::Guest => "guest",
                Counts::Gone => "gone",
            },
            unknown: 1.0 - known as f64 / whole.max(1) as f64,
            failures: self.failures.len() as u64,
            levels: vec![self.pool_level(), self.site_level(), self.host_level()],
            up_share: Sample::new(self.up_share().iter().map(|point| point.1).collect()).spread(),
            up_share_step: self.steps.step,
            up: Sample::of_seconds(self.ups.clone()).spread(),
            up_cut: self.ups_cut,
            down: self.downs_of(None).spread(),
            down_cut: self.downs_cut,
            causes: self.causes(known),
            utc_offset: self.options.utc_offset,
            by_hour: self.pattern(24, |hour| hour % 24),
            by_weekday: self.pattern(7, |hour| hour / 24),
            groups: WITHIN
                .iter()
                .map(|within| self.group_line(*within))
                .collect(),
            group_within: self.options.group_within,
            site_failures: self.site_failures(),
            fits: self.fits(),
        }
    }

    /// For each step, its beginning in seconds since the pool's first moment, and the share of the known
    /// time for which hosts are up.
    pub(crate) fn up_share(&self) -> Vec<(f64, f64)> {
        self.steps.shares()
    }

    fn pool_level(&self) -> PoolLevel {
        let all = |of: fn(&HostSums) -> u64| self.hosts.iter().map(of).sum::<u64>() as f64;
        let share = all(|host| host.up_seconds) / all(|host| host.known_seconds);
        PoolLevel {
            level: "pool",
            availability: Sample::new(vec![share]).spread(),
            failures: Sample::new(vec![self.failures.len() as f64]).spread(),
            between_failures: self.failure_gaps().spread(),
        }
    }

    fn site_level(&self) -> PoolLevel {
        let mut sums = vec![(0, 0, Vec::new()); self.sites.len()];
        for host in &self.hosts {
            if let Some(sum) = host.site.and_then(|site| sums.get_mut(site as usize)) {
                sum.0 += host.up_seconds;
                sum.1 += host.known_seconds;
                sum.2.extend_from_slice(&host.failures);
            }
        }
        level("site", sums.into_iter())
    }

    fn host_level(&self) -> PoolLevel {
        let hosts = self.hosts.iter();
        let sums = hosts.map(|host| (host.up_seconds, host.known_seconds, host.failures.clone()));
        level("host", sums)
    }

    fn causes(&self, known: u64) -> Vec<CauseLine> {
        let counted = CAUSES.iter().filter(|(state, _)| {
            self.options.counts == Counts::Guest || *state == AvailabilityState::Gone
        });
        let total = self.failures.len().max(1) as f64;
        let lines = counted.map(|(state, name)| {
            let of = |host: &HostSums| host.causes.get(state.index()).copied().unwrap_or(0);
            let counts: Vec<u64> = self.hosts.iter().map(of).collect();
            let failing = self.hosts.iter().filter(|host| !host.failures.is_empty());
            let shares = failing.map(|host| of(host) as f64 / host.failures.len() as f64);
            let shares = Sample::new(shares.collect()).spread();
            let seconds = self
                .hosts
                .iter()
                .filter_map(|host| host.state_seconds.get(state.index()));
            CauseLine {
                state: name,
                failures: counts.iter().sum(),
                share: counts.iter().sum::<u64>() as f64 / total,
                per_host: [
                    counts.iter().min().copied().unwrap_or(0),
                    counts.iter().max().copied().unwrap_or(0),
                ],
                share_per_host: shares.map(|spread| [spread.min, spread.max]),
                time_share: seconds.sum::<u64>() as f64 / known.max(1) as f64,
            }
        });
        lines.collect()
    }

    fn pattern(&self, count: usize, of_hour: impl Fn(usize) -> usize) -> Vec<PatternLine> {
        let mut sums = vec![[0u64; 3]; count];
        for (hour, counts) in self.week.iter().enumerate() {
            if let Some(sum) = sums.get_mut(of_hour(hour)) {
                for (sum, count) in sum.iter_mut().zip(counts) {
                    *sum += count;
                }
            }
        }
        let all = |i: usize| sums.iter().filter_map(|sum| sum.get(i)).sum::<u64>() as f64;
        let mean = all(0) / all(2);
        let lines = sums.iter().map(|[failures, recoveries, up]| PatternLine {
            failures: *failures,
            recoveries: *recoveries,
            rate: (*up > 0 && mean > 0.0).then(|| *failures as f64 / *up as f64 / mean),
        });
        lines.collect()
    }

    fn group_line(&self, within: u64) -> GroupLine {
        let all = groups(&self.failures, within);
        let correlated: Vec<&Group> = all.iter().filter(|group| group.size > 1).collect();
        let sizes = Sample::of_seconds(correlated.iter().map(|group| group.size).collect());
        let sites = Sample::of_seconds(correlated.iter().map(|group| group.sites).collect());
        let sites = sites.spread();
        let inside: u64 = correlated.iter().map(|group| group.size).sum();
        GroupLine {
            within,
            groups: all.len() as u64,
            correlated: correlated.len() as u64,
            share: inside as f64 / self.failures.len().max(1) as f64,
            size: sizes.spread(),
            sites_mean: sites.map(|spread| spread.mean),
            sites_max: sites.map_or(0, |spread| spread.max as u64),
        }
    }

    fn site_failures(&self) -> Vec<SiteShare> {
        let mut shares: Vec<SiteShare> = self
            .sites
            .iter()
            .map(|site| SiteShare {
                site: site.clone(),
                hosts: 0,
                failures: 0,
                share: 0.0,
            })
            .collect();
        for host in &self.hosts {
            if let Some(share) = host.site.and_then(|site| shares.get_mut(site as usize)) {
                share.hosts += 1;
                share.failures += host.failures.len() as u64;
            }
        }
        for share in &mut shares {
            share.share = share.failures as f64 / self.failures.len().max(1) as f64;
        }
        shares.sort_by_key(|share| std::cmp::Reverse(share.failures));
        shares
    }

    /// Lengths of the times down, of one site or (`None`) of all hosts.
    pub(crate) fn downs_of(&self, site: Option<u32>) -> Sample {
        let wanted = self
            .downs
            .iter()
            .filter(|down| site.is_none() || down.0 == site);
        Sample::of_seconds(wanted.map(|down| down.1).collect())
    }

    /// Times from each failure of the pool to the next, whatever the host.
    pub(crate) fn failure_gaps(&self) -> Sample {
        let times: Vec<u64> = self.failures.iter().map(|failure| failure.at).collect();
        Sample::of_seconds(gaps(&times))
    }

    /// Times from the beginning of each group of failures to that of the next.
    pub(crate) fn group_gaps(&self) -> Sample {
        let begins: Vec<u64> = self.groups().iter().map(|group| group.begins).collect();
        Sample::of_seconds(gaps(&begins))
    }

    /// Groups of failures, with the time between failures of the options.
    pub(crate) fn groups(&self) -> Vec<Group> {
        groups(&self.failures, self.options.group_within)
    }

    /// Number of failures of each host.
    pub(crate) fn failures_of_hosts(&self) -> Sample {
        Sample::of_seconds(
            self.hosts
                .iter()
                .map(|host| host.failures.len() as u64)
                .collect(),
        )
    }

    /// Lengths of the times up of all hosts.
    pub(crate) fn up_times(&self) -> Sample {
        Sample::of_seconds(self.ups.clone())
    }

    /// Whether the pool has no host of which anything is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Failures, recoveries and seconds up by hour of the week.
    pub(crate) const fn week(&self) -> &[[u64; 3]] {
        &self.week
    }

    fn fits(&self) -> Vec<FittedQuantity> {
        let mut fits = Vec::new();
        fits.extend(fitted("failure_gap", None, &self.failure_gaps()));
        fits.extend(fitted("up", None, &self.up_times()));
        fits.extend(self.fits_of(None, &self.failures));
        let mut by_site: BTreeMap<u32, Vec<Failure>> = BTreeMap::new();
        for failure in &self.failures {
            by_site.entry(failure.site).or_default().push(*failure);
        }
        for (site, failures) in &by_site {
            if self.sites.get(*site as usize).is_some() {
                fits.extend(self.fits_of(Some(*site), failures));
            }
        }
        fits
    }

    /// Fits to the three quantities of the study's model (times between groups, times down, sizes of groups),
    /// of the pool or of a site.
    fn fits_of(&self, site: Option<u32>, failures: &[Failure]) -> Vec<FittedQuantity> {
        let groups = groups(failures, self.options.group_within);
        let begins: Vec<u64> = groups.iter().map(|group| group.begins).collect();
        let sizes = groups.iter().map(|group| group.size).collect();
        let name = site.and_then(|site| self.sites.get(site as usize));
        let quantities = [
            ("group_gap", Sample::of_seconds(gaps(&begins))),
            ("down", self.downs_of(site)),
            ("group_size", Sample::of_seconds(sizes)),
        ];
        let fits = quantities
            .iter()
            .filter_map(|(what, sample)| fitted(what, name, sample));
        fits.collect()
    }
}

/// Times from each of `times` to the next.
fn gaps(times: &[u64]) -> Vec<u64> {
    let pairs = times.iter().zip(times.iter().skip(1));
    pairs.map(|(before, after)| after - before).collect()
}

/// The line for all sites or all hosts. `parts` are the seconds up, the seconds known and the times of the
/// failures of each.
fn level(name: &'static str, parts: impl Iterator<Item = (u64, u64, Vec<u64>)>) -> PoolLevel {
    let mut shares = Vec::new();
    let mut counts = Vec::new();
    let mut between = Vec::new();
    for (up, known, mut failures) in parts {
        failures.sort_unstable();
        if known > 0 {
            shares.push(up as f64 / known as f64);
            counts.push(failures.len() as f64);
        }
        if let [first, .., last] = failures.as_slice() {
            between.push((last - first) as f64 / (failures.len() - 1) as f64);
        }
    }
    let spread = |values| -> Option<Spread> { Sample::new(values).spread() };
    PoolLevel {
        level: name,
        availability: spread(shares),
        failures: spread(counts),
        between_failures: spread(between),
    }
}

/// The fits to one quantity; `None` if the sample is too small.
fn fitted(
    quantity: &'static str,
    site: Option<&String>,
    sample: &Sample,
) -> Option<FittedQuantity> {
    if sample.count() < FITTED_MIN {
        return None;
    }
    let is_size = quantity == "group_size";
    let log2 = table(sample, &sample.above(1.0, f64::log2));
    let shape = log2.fits.iter().find(|fit| fit.family == Family::Weibull);
    let shape = shape.and_then(|fit| fit.parameters.first().copied());
    let rounded = is_size.then(|| fit_rounded_weibull(sample)).flatten();
    Some(FittedQuantity {
        quantity,
        site: site.cloned(),
        values: sample.spread(),
        raw: table(sample, &sample.above(0.0, |x| x)),
        log2,
        // With log2 x Weibull of shape k the hazard of x is largest where ln x = k - 1.
        hazard_peak_seconds: shape.filter(|_| !is_size).map(|shape| (shape - 1.0).exp()),
        rounded: rounded.map(|(distribution, errors)| FitLine {
            family: distribution.family,
            parameters: vec![distribution.a, distribution.b],
            errors: errors.to_vec(),
            distance: None,
        }),
    })
}

/// Fits of the five distributions to `used`, the values of `all` that can be used.
fn table(all: &Sample, used: &Sample) -> FitTable {
    let count = used.count();
    let enough = count >= FITTED_MIN;
    let mut fits: Vec<FitLine> = Vec::new();
    for family in Family::ALL.into_iter().filter(|_| enough) {
        let Some(fitted) = Distribution::fit(family, used) else {
            continue;
        };
        let names = family.parameters().len();
        fits.push(FitLine {
            family,
            parameters: [fitted.a, fitted.b].into_iter().take(names).collect(),
            errors: fitted
                .standard_errors(count)
                .into_iter()
                .take(names)
                .collect(),
            distance: Some(fitted.distance(used)),
        });
    }
    let distance = |fit: &FitLine| fit.distance.unwrap_or(f64::INFINITY);
    fits.sort_by(|a, b| distance(a).total_cmp(&distance(b)));
    FitTable {
        count,
        left_out: all.count() - count,
        // 95% quantile of Kolmogorov's distribution, for large samples.
        critical: 1.358 / (count.max(1) as f64).sqrt(),
        fits,
    }
}

#[cfg(test)]
mod tests {
    use placement::history::Timeline;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use AvailabilityState::{Busy, CpuTaken, Gone, Idle};

    fn options(counts: Counts) -> Options {
        Options {
            name: "pool".into(),
            about: String::new(),
            resolution_seconds: 1,
            counts,
            group_within: 60,
            utc_offset: 0,
        }
    }

    fn timeline(runs: &[(u64, u64, AvailabilityState)]) -> Timeline<AvailabilityState> {
        let mut timeline = Timeline::new(runs[0].0);
        for (start, end, state) in runs {
            timeline.push(*start..*end, Some(*state));
        }
        timeline
    }

    fn described(pasts: &[(&str, Timeline<AvailabilityState>)], counts: Counts) -> PoolDescription {
        let hosts: Vec<HostPast<'_>> = pasts
            .iter()
            .map(|(site, timeline)| HostPast {
                name: "h",
                site,
                timeline,
            })
            .collect();
        Pool::new(&hosts, options(counts)).describe()
    }

    #[test]
    fn a_small_pool_is_described_as_by_hand() {
        let pasts = [
            (
                "a",
                timeline(&[
                    (0, 100, Idle),
                    (100, 140, CpuTaken),
                    (140, 300, Busy),
                    (300, 400, Gone),
                ]),
            ),
            (
                "a",
                timeline(&[(0, 110, Idle), (110, 200, Gone), (200, 400, Idle)]),
            ),
            ("b", timeline(&[(0, 400, Idle)])),
            ("", timeline(&[(0, 50, Gone), (100, 400, Idle)])),
        ];
        let pool = described(&pasts, Counts::Guest);
        assert_eq!((pool.hosts, pool.sites, pool.failures), (4, 2, 3));
        let [whole, sites, hosts] = &pool.levels[..] else {
            panic!()
        };
        let up = (100 + 160 + 110 + 200 + 400 + 300) as f64;
        assert_eq!(whole.availability.unwrap().mean, up / 1550.0);
        // Failures at 100, 110 and 300.
        assert_eq!(whole.between_failures.unwrap().mean, 100.0);
        assert_eq!(sites.availability.unwrap().max, 1.0);
        assert_eq!(sites.between_failures.unwrap().mean, 100.0);
        assert_eq!(
            (hosts.failures.unwrap().max, hosts.failures.unwrap().mean),
            (2.0, 0.75)
        );
        assert_eq!(hosts.between_failures.unwrap().mean, 200.0);
        assert_eq!((pool.up.unwrap().mean, pool.up_cut), (160.0, 5));
        assert_eq!((pool.down.unwrap().mean, pool.down_cut), (65.0, 2));
        let causes: Vec<u64> = pool.causes.iter().map(|cause| cause.failures).collect();
        assert_eq!(causes, [1, 0, 2]);
        assert_eq!(pool.causes[0].per_host, [0, 1]);
        assert!((pool.unknown - 50.0 / 1600.0).abs() < 1e-12);
        let close = &pool.groups[1];
        assert_eq!((close.within, close.groups, close.correlated), (10, 2, 1));
        assert_eq!((close.share, close.sites_max), (2.0 / 3.0, 1));
        assert_eq!(pool.site_failures[0].failures, 3);
        assert!((pool.up_share.unwrap().mean - up / 1550.0).abs() < 1e-12);
        let gone = described(&pasts, Counts::Gone);
        assert_eq!((gone.failures, gone.causes.len()), (2, 1));
    }

    #[test]
    fn patterns_follow_the_clock_where_the_pool_is() {
        // Down from 9:00 to 10:00 on each of 14 days from Monday, 5 January 1970.
        let monday = 4 * DAY_SECONDS;
        let days = (0..14).flat_map(|day| {
            let at = |hour: u64| monday + day * DAY_SECONDS + hour * HOUR;
            [
                (at(0), at(9), Idle),
                (at(9), at(10), Gone),
                (at(10), at(24), Idle),
            ]
        });
        let runs: Vec<_> = days.collect();
        let past = timeline(&runs);
        let host = [HostPast {
            name: "h",
            site: "",
            timeline: &past,
        }];
        let at_offset = |utc_offset| {
            let options = Options {
                utc_offset,
                ..options(Counts::Guest)
            };
            Pool::new(&host, options).describe()
        };
        let pool = at_offset(0);
        assert_eq!(
            (pool.by_hour[9].failures, pool.by_hour[10].recoveries),
            (14, 14)
        );
        assert_eq!(pool.by_hour[9].rate, None);
        assert_eq!(pool.by_weekday.map_sum(), [2; 7]);
        assert_eq!(at_offset(2).by_hour[11].failures, 14);
        assert_eq!(at_offset(-10).by_hour[23].failures, 14);
        assert!(pool.fits.is_empty(), "14 failures are too few to fit");
    }

    trait Failures {
        fn map_sum(&self) -> Vec<u64>;
    }

    impl Failures for Vec<PatternLine> {
        fn map_sum(&self) -> Vec<u64> {
            self.iter().map(|line| line.failures).collect()
        }
    }

    /// A pool drawn from the published fits of the whole of Grid'5000 (tables 3 and 4): `count` groups of
    /// failures, each failure on a host of its own.
    fn drawn(count: usize, rng: &mut SmallRng) -> Vec<Timeline<AvailabilityState>> {
        let weibull = |rng: &mut SmallRng, shape: f64, scale: f64| {
            scale * (-(1.0 - rng.random::<f64>()).ln()).powf(1.0 / shape)
        };
        let mut failures = Vec::new();
        let mut now = 1000u64;
        for _ in 0..count {
            now += weibull(rng, 9.66772, 12.23796).exp2().round() as u64;
            let size = weibull(rng, 1.58526, 2.614).exp2().round().max(1.0) as u64;
            for _ in 0..size {
                let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
                let normal = radius * (std::f64::consts::TAU * rng.random::<f64>()).cos();
                let seconds = (2.33916 + 0.26363 * normal).exp().exp2().round();
                failures.push((now, now + seconds.max(2.0) as u64));
            }
        }
        let end = failures.iter().map(|failure| failure.1).max().unwrap() + 1;
        let host = |(from, to)| timeline(&[(0, from, Idle), (from, to, Gone), (to, end, Idle)]);
        failures.into_iter().map(host).collect()
    }

    /// The pool has 7,473 groups, as in the study.
    #[test]
    fn a_pool_drawn_from_the_published_fits_gives_them_back() {
        let mut rng = SmallRng::seed_from_u64(4);
        let pasts = drawn(7473, &mut rng);
        let hosts: Vec<HostPast<'_>> = pasts
            .iter()
            .map(|timeline| HostPast {
                name: "h",
                site: "g5k",
                timeline,
            })
            .collect();
        let pool = Pool::new(&hosts, options(Counts::Gone)).describe();
        let of = |what: &str| pool.fits.iter().find(|fit| fit.quantity == what).unwrap();
        let best = |what: &str| of(what).log2.fits[0].clone();
        let cases = [
            (best("group_gap"), Family::Weibull, [9.66772, 12.23796]),
            (best("down"), Family::Lognormal, [2.33916, 0.26363]),
            (
                of("group_size").rounded.clone().unwrap(),
                Family::Weibull,
                [1.58526, 2.614],
            ),
        ];
        for (fit, family, published) in cases {
            assert_eq!(fit.family, family);
            for ((found, error), expected) in fit.parameters.iter().zip(&fit.errors).zip(published)
            {
                let off = (found - expected) / error;
                println!("{family:?}: published {expected}, found {found:.5} ({error:.5})");
                assert!(off.abs() < 2.0, "{fit:?}: {off} standard errors");
            }
        }
        // The hazard, of whose rise the study warns, falls from 1.6 hours on.
        let peak = of("group_gap").hazard_peak_seconds.unwrap();
        assert!((5000.0..6800.0).contains(&peak), "{peak}");
    }
}
