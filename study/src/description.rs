//! The description of a pool: the output of `ckpt trace describe`.

use serde::Serialize;

use crate::distribution::Family;
use crate::spread::Spread;

/// Answer of `ckpt trace describe`: a pool of machines over the time in which it was observed. Lengths are in
/// seconds.
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
    /// Sites of these hosts; hosts without a site are not counted.
    pub sites: u64,
    /// Resolution of the times, seconds.
    pub resolution_seconds: u64,
    /// What counts as unavailable: `guest` (S3, S4, S5) or `gone` (S5).
    pub counts: &'static str,
    /// Share of the time, from the pool's first moment to its last, in which a host's state is not known:
    /// mean over the hosts.
    pub unknown: f64,
    /// Number of failures: times at which a host that was up became unavailable.
    pub failures: u64,
    /// Availability, failures and time between failures of the pool, of its sites, and of its hosts.
    pub levels: Vec<PoolLevel>,
    /// Share of the hosts that are up in each step of `up_share_step` seconds.
    pub up_share: Option<Spread>,
    /// Length of these steps: hours, days or, for a very long trace, several days.
    pub up_share_step: u64,
    /// Lengths of the times up that were observed from beginning to end.
    pub up: Option<Spread>,
    /// Number of times up whose beginning or end was not observed; they tend to be the longer ones.
    pub up_cut: u64,
    /// Lengths of the times down that were observed from beginning to end.
    pub down: Option<Spread>,
    /// Number of times down whose beginning or end was not observed.
    pub down_cut: u64,
    /// Failures by their cause.
    pub causes: Vec<CauseLine>,
    /// Offset from UTC, in hours, of the hours and days of the patterns.
    pub utc_offset: i32,
    /// Failures and recoveries by hour of the day, from midnight.
    pub by_hour: Vec<PatternLine>,
    /// Failures and recoveries by day of the week, from Monday.
    pub by_weekday: Vec<PatternLine>,
    /// Groups of failures, for several times allowed between two failures of a group.
    pub groups: Vec<GroupLine>,
    /// The time allowed between two failures of a group in `fits`.
    pub group_within: u64,
    /// Failures of each site, the site with most failures first.
    pub site_failures: Vec<SiteShare>,
    /// Fitted distributions: of the pool first, then of each site.
    pub fits: Vec<FittedQuantity>,
}

/// Availability and failures of a pool, or of its sites or hosts.
#[derive(Clone, Debug, Serialize)]
pub struct PoolLevel {
    /// `pool`, `site` or `host`.
    pub level: &'static str,
    /// Share of the known time for which hosts are up: a number for each site or host.
    pub availability: Option<Spread>,
    /// Number of failures: one for each site or host.
    pub failures: Option<Spread>,
    /// Mean time between failures (MTBF): a number for each site or host with at least two failures. For
    /// the pool: each time between two of its failures.
    pub between_failures: Option<Spread>,
}

/// Failures of one cause.
#[derive(Clone, Debug, Serialize)]
pub struct CauseLine {
    /// `S3` (the owner takes the processor), `S4` (no memory for a guest) or `S5` (gone).
    pub state: &'static str,
    /// Number of failures of this cause.
    pub failures: u64,
    /// Share of all failures.
    pub share: f64,
    /// Fewest and most failures of this cause of a host.
    pub per_host: [u64; 2],
    /// Least and largest share of a host's failures that have this cause; `None` if no host fails.
    pub share_per_host: Option<[f64; 2]>,
    /// Share of the known time that hosts spend in this state.
    pub time_share: f64,
}

/// Failures and recoveries at an hour of the day, or on a day of the week.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PatternLine {
    /// How often hosts became unavailable.
    pub failures: u64,
    /// How often hosts became available.
    pub recoveries: u64,
    /// Failures per hour of a host that is up, divided by the mean of this over all hours; `None` if no host
    /// is up, or none ever fails.
    pub rate: Option<f64>,
}

/// Groups of failures that follow one another closely.
#[derive(Clone, Debug, Serialize)]
pub struct GroupLine {
    /// Longest time from one failure of a group to the next.
    pub within: u64,
    /// Number of groups; a single failure counts as a group.
    pub groups: u64,
    /// Number of groups of at least two failures: correlated failures.
    pub correlated: u64,
    /// Share of all failures that are in groups of at least two.
    pub share: f64,
    /// Sizes of the groups of at least two, in failures.
    pub size: Option<Spread>,
    /// Mean number of sites in a group of at least two.
    pub sites_mean: Option<f64>,
    /// Largest number of sites in a group of at least two.
    pub sites_max: u64,
}

/// Failures of a site.
#[derive(Clone, Debug, Serialize)]
pub struct SiteShare {
    /// Name of the site.
    pub site: String,
    /// Number of its hosts.
    pub hosts: u64,
    /// Number of its failures.
    pub failures: u64,
    /// Share of all failures (f_s).
    pub share: f64,
}

/// Distributions fitted to one quantity.
#[derive(Clone, Debug, Serialize)]
pub struct FittedQuantity {
    /// `group_gap` (from the beginning of a group of failures to that of the next), `failure_gap` (from a
    /// failure to the next), `up`, `down` (all seconds) or `group_size` (failures).
    pub quantity: &'static str,
    /// The site; `None` for the whole pool.
    pub site: Option<String>,
    /// Statistics of the values.
    pub values: Option<Spread>,
    /// Fits to the values that are above zero.
    pub raw: FitTable,
    /// Fits to the logarithms to base 2 of the values that are above one.
    pub log2: FitTable,
    /// Time at which the hazard of the Weibull fit to the logarithms is largest: it rises until this time and
    /// falls after it, however large the shape is. `None` for sizes.
    pub hazard_peak_seconds: Option<f64>,
    /// For sizes: the Weibull distribution of log2 x that makes the sizes, taken as rounded x, most likely.
    /// Unlike `log2` it uses the sizes of 1.
    pub rounded: Option<FitLine>,
}

/// Fits of the five distributions.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FitTable {
    /// Number of values that were used.
    pub count: u64,
    /// Number of values that can't be used.
    pub left_out: u64,
    /// Critical value of D at 5%: a sample of this size has a larger D in 5% of cases if its distribution is
    /// known beforehand. With fitted parameters D tends to be smaller, so a larger D refutes the fit all
    /// the more.
    pub critical: f64,
    /// The fits, the closest first; empty if there are too few values.
    pub fits: Vec<FitLine>,
}

/// A fitted distribution.
#[derive(Clone, Debug, Serialize)]
pub struct FitLine {
    /// The family of distributions.
    pub family: Family,
    /// Mean and standard deviation (of the natural logarithm for `lognormal`); mean (`exponential`); or shape
    /// and scale.
    pub parameters: Vec<f64>,
    /// Standard errors of the parameters.
    pub errors: Vec<f64>,
    /// Kolmogorov's and Smirnov's D, 0 to 1; `None` for rounded numbers.
    pub distance: Option<f64>,
}
