//! What is said of a pool: the answer of `ckpt trace describe`.

use serde::Serialize;

use crate::distribution::Family;

/// A pool of machines over the time in which it was observed. Lengths are in seconds.
#[derive(Clone, Debug, Serialize)]
pub struct PoolDescription {
    /// Name of the trace.
    pub name: String,
    /// What was observed.
    pub about: String,
    /// First moment of which anything is known, Unix seconds.
    pub from: u64,
    /// The moment after the last one, Unix seconds.
    pub to: u64,
    /// Hosts of which anything is known.
    pub hosts: u64,
    /// Sites that they are of; hosts without a site are of none.
    pub sites: u64,
    /// How exact times are.
    pub resolution_seconds: u64,
    /// What counts as unavailable: `guest` (S3, S4, S5) or `gone` (S5).
    pub counts: &'static str,
    /// Share of the time for which it is not known how a host was, between the pool's first and last
    /// moment.
    pub unknown: f64,
    /// Failures: a host that was up is not any more.
    pub failures: u64,
    /// Availability, failures and time between failures of the pool, of its sites, and of its hosts.
    pub levels: Vec<PoolLevel>,
    /// Share of the hosts that are up, hour by hour or day by day.
    pub up_share: Option<Spread>,
    /// Length of these hours or days.
    pub up_share_step: u64,
    /// Times up that were seen from beginning to end.
    pub up: Option<Spread>,
    /// Times up whose beginning or end was not seen; they tend to be the longer ones.
    pub up_cut: u64,
    /// Times down that were seen from beginning to end.
    pub down: Option<Spread>,
    /// Times down whose beginning or end was not seen.
    pub down_cut: u64,
    /// Failures by their cause.
    pub causes: Vec<CauseLine>,
    /// Hours from UTC of the hours and days of the patterns.
    pub utc_offset: i32,
    /// Failures and recoveries by hour of the day, from midnight.
    pub by_hour: Vec<PatternLine>,
    /// Failures and recoveries by day of the week, from Monday.
    pub by_weekday: Vec<PatternLine>,
    /// Groups of failures, for several distances within a group.
    pub groups: Vec<GroupLine>,
    /// The distance by which groups are told apart in `fits`.
    pub group_within: u64,
    /// Failures of each site, the most first.
    pub site_failures: Vec<SiteShare>,
    /// Fitted distributions: of the pool first, then of each site.
    pub fits: Vec<FittedQuantity>,
}

/// A spread of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// How many there are.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation.
    pub sd: f64,
    /// The least.
    pub min: f64,
    /// First quartile.
    pub quarter: f64,
    /// Median.
    pub median: f64,
    /// Third quartile.
    pub three_quarters: f64,
    /// The largest.
    pub max: f64,
}

/// Availability and failures of a pool, or of its sites or hosts.
#[derive(Clone, Debug, Serialize)]
pub struct PoolLevel {
    /// `pool`, `site` or `host`.
    pub level: &'static str,
    /// Share of the known time for which hosts are up, over all sites or hosts.
    pub availability: Option<Spread>,
    /// Failures, over all sites or hosts.
    pub failures: Option<Spread>,
    /// Mean time between failures (MTBF), over the sites or hosts with two failures at least. For the
    /// pool: the times between its failures.
    pub between_failures: Option<Spread>,
}

/// Failures of one cause.
#[derive(Clone, Debug, Serialize)]
pub struct CauseLine {
    /// `S3` (the owner takes the processor), `S4` (no memory for a guest) or `S5` (gone).
    pub state: &'static str,
    /// How many.
    pub failures: u64,
    /// Share of all.
    pub share: f64,
    /// Fewest and most of a host.
    pub per_host: [u64; 2],
    /// Least and largest share of a host's failures; none where no host fails.
    pub share_per_host: Option<[f64; 2]>,
    /// Share of the known time that hosts spend in this state.
    pub time_share: f64,
}

/// Failures and recoveries at an hour of the day, or on a day of the week.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PatternLine {
    /// Hosts that became unavailable.
    pub failures: u64,
    /// Hosts that became available.
    pub recoveries: u64,
    /// Failures for each hour that a host is up, over the mean of all hours; none where no host is up.
    pub rate: Option<f64>,
}

/// Groups of failures that follow one another closely.
#[derive(Clone, Debug, Serialize)]
pub struct GroupLine {
    /// Of two successive failures in a group the second comes at most this long after the first.
    pub within: u64,
    /// Groups, those of one failure among them.
    pub groups: u64,
    /// Groups of two failures at least: correlated failures.
    pub correlated: u64,
    /// Share of all failures that are in these.
    pub share: f64,
    /// Their sizes.
    pub size: Option<Spread>,
    /// Number of sites that they are of: mean.
    pub sites_mean: Option<f64>,
    /// Number of sites that they are of: most.
    pub sites_max: u64,
}

/// Failures of a site.
#[derive(Clone, Debug, Serialize)]
pub struct SiteShare {
    /// The site.
    pub site: String,
    /// Its hosts.
    pub hosts: u64,
    /// Its failures.
    pub failures: u64,
    /// Share of all failures (f_s).
    pub share: f64,
}

/// Distributions fitted to one quantity.
#[derive(Clone, Debug, Serialize)]
pub struct FittedQuantity {
    /// `group_gap` (from the beginning of a group of failures to that of the next), `failure_gap` (from a
    /// failure to the next), `up`, `down` or `group_size` (hosts).
    pub quantity: &'static str,
    /// The site; none for the pool.
    pub site: Option<String>,
    /// The values.
    pub values: Option<Spread>,
    /// Fits to the values that are above zero.
    pub raw: FitTable,
    /// Fits to the logarithms to base 2 of the values that are above one.
    pub log2: FitTable,
    /// By the Weibull fit to logarithms the hazard rises until this time and falls after it, however large
    /// the shape is; lengths alone have it.
    pub hazard_peak_seconds: Option<f64>,
    /// For sizes: the Weibull distribution of log2 x whose rounded x are most like the sizes, those of one
    /// among them.
    pub rounded: Option<FitLine>,
}

/// Fits of the five distributions.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FitTable {
    /// Values that were used.
    pub count: u64,
    /// Values that can't be used.
    pub left_out: u64,
    /// D above which a sample of this size from a known distribution lies in 5% of cases. With fitted
    /// parameters D is smaller, so a larger D refutes the fit all the more.
    pub critical: f64,
    /// The fits, the closest first; none where there are too few values.
    pub fits: Vec<FitLine>,
}

/// A fitted distribution.
#[derive(Clone, Debug, Serialize)]
pub struct FitLine {
    /// `normal`, `lognormal`, `exponential`, `weibull` or `gamma`.
    pub family: Family,
    /// Mean and standard deviation (of the natural logarithm for `lognormal`), mean, or shape and scale.
    pub parameters: Vec<f64>,
    /// Their standard errors.
    pub errors: Vec<f64>,
    /// Kolmogorov's and Smirnov's D; none for rounded numbers.
    pub distance: Option<f64>,
}
