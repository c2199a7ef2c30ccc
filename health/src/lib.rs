//! The state of jobs, keys, hosts and registries: what `ckpt health` reports, and what of it needs attention.
//! The feature `view` renders it as text and as a page.
//!
//! Plain data that the caller has gathered; nothing here does I/O. Every number states how it came to be
//! known: see [`Basis`].

pub mod history;
mod judge;
#[cfg(feature = "view")]
pub mod map;
#[cfg(feature = "view")]
pub mod page;
#[cfg(feature = "view")]
mod plot;
#[cfg(feature = "view")]
pub mod text;

use std::time::Duration;

use codec::{JobId, Redundancy, Version};
use serde::{Serialize, Serializer};

pub use judge::{Limits, judged};

/// How a number came to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Checked here: by a signature, or by a part of a shard that its host was asked for.
    Proved,
    /// Stated by a host or a registry, and not checked.
    Announced,
    /// Observed by this machine itself.
    Seen,
}

/// A number, and how it came to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Known<T> {
    /// The number.
    pub value: T,
    /// How it came to be known.
    pub basis: Basis,
}

impl<T> Known<T> {
    /// A number that was checked here.
    pub const fn proved(value: T) -> Self {
        let basis = Basis::Proved;
        Self { value, basis }
    }

    /// A number that others stated.
    pub const fn announced(value: T) -> Self {
        let basis = Basis::Announced;
        Self { value, basis }
    }

    /// A number that this machine observed.
    pub const fn seen(value: T) -> Self {
        let basis = Basis::Seen;
        Self { value, basis }
    }
}

/// Answer of `ckpt health`. Fields that can come from several sources name the source: see [`Known`].
#[derive(Clone, Debug, Default, Serialize)]
pub struct Health {
    /// Time of the report, Unix seconds by this machine's clock.
    pub at: u64,
    /// What needs attention, the worst first; empty when all is well.
    pub attention: Vec<Attention>,
    /// The submitter's jobs, by name.
    pub jobs: Vec<JobHealth>,
    /// Jobs of which no host that answers shows the newest version that this machine has seen.
    pub unfound: Vec<UnfoundJob>,
    /// Keys and certificates that expire, the first to expire first.
    pub keys: Vec<KeyHealth>,
    /// The hosts.
    pub hosts: HostsHealth,
    /// How many of `hosts` are silent members: no registry hears them, and the list of the grid does not name them.
    pub absent: usize,
    /// The registries, in the order of the grid file.
    pub registries: Vec<RegistryHealth>,
    /// What hosts count of all their checkpoints, for an admin; `None` for others.
    pub grid: Option<GridHealth>,
    /// The work of jobs under `ckpt run` on this machine, by its own notes; `None` if there were none.
    pub work: Option<WorkHealth>,
}

/// The work of jobs under `ckpt run` on this machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WorkHealth {
    /// How many jobs run now.
    pub running: usize,
    /// Seconds of their work that no version holds.
    pub at_risk_seconds: f64,
    /// How often a job lost its machine.
    pub evictions: u64,
    /// How often of these it could go on from a saved state.
    pub survived: u64,
    /// Seconds of work that did not have to be repeated.
    pub rescued_seconds: f64,
    /// Seconds of work that had to be repeated.
    pub lost_seconds: f64,
    /// The job that lost its machine last with a save that had failed, and why it had; `None` if there was none.
    pub why: Option<String>,
}

impl Health {
    /// The jobs, those first that can lose least. Jobs that lack nothing stand in the order of their names.
    #[must_use]
    pub fn jobs_worst_first(&self) -> Vec<&JobHealth> {
        let mut jobs: Vec<&JobHealth> = self.jobs.iter().collect();
        // `None`, a job that can't be restored now, comes before all others.
        jobs.sort_by_key(|job| (!job.is_below_redundancy(), job.lacking_rank()));
        jobs
    }

    /// How many hosts may come back with what is lacking.
    #[must_use]
    pub const fn away(&self) -> usize {
        self.hosts.known.saturating_sub(self.hosts.up.value)
    }
}

/// Something that needs attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attention {
    /// The kind, for programs.
    pub kind: Kind,
    /// The job, host, registry or key that needs attention.
    pub about: String,
    /// What is wrong, in a sentence.
    pub what: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

/// Kinds of what needs attention, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Hosts that are away, if something is lacking: the cause of what follows.
    HostsAway,
    /// A checkpoint that can't be restored now.
    NotRestorable,
    /// A checkpoint that this machine has seen and that no host shows.
    NotFound,
    /// Too few hosts answer or take shards.
    TooFewHosts,
    /// A key or certificate ends soon, or has ended.
    Ends,
    /// A checkpoint has fewer shards than it should.
    BelowRedundancy,
    /// A lease ends soon, or is over.
    LeaseEnds,
    /// A job was not saved for longer than it should be.
    NotSaved,
    /// Registries that do not answer.
    RegistrySilent,
    /// Hosts lost or damaged what they took.
    FailedChecks,
    /// A clock differs from most others.
    Clock,
    /// Programs of different versions.
    Versions,
}

/// The newest version of a job.
#[derive(Clone, Debug, Serialize)]
pub struct JobHealth {
    /// The job.
    pub job: JobId,
    /// Its newest version.
    pub version: Version,
    /// How many versions there are.
    pub versions: usize,
    /// When its save began, Unix seconds.
    pub created: Known<u64>,
    /// Seconds since then; `None` if that is in the future by most hosts' clocks.
    pub age_s: Option<u64>,
    /// Usual time between two saves, seconds: the median of the last five; `None` with a single version.
    pub interval_s: Option<u64>,
    /// Its redundancy.
    #[serde(serialize_with = "redundancy")]
    pub redundancy: Redundancy,
    /// Different shards that hosts hold.
    pub shards: Known<usize>,
    /// Which host holds which shard of the newest version.
    pub holders: Vec<HeldShard>,
    /// Number of these shards that can still be lost; `None` when the checkpoint can't be restored now.
    pub can_lose: Known<Option<usize>>,
    /// Until when the job's checkpoints are kept, Unix seconds; `None` for ever.
    pub kept_until: Option<Known<u64>>,
    /// Whether a retired key saved it, an earlier key of the submitter.
    pub retired: bool,
}

/// A shard, and a host that holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeldShard {
    /// Number of the shard.
    pub shard: u8,
    /// Name of the host.
    pub host: String,
}

/// A job of which no host that answers shows the newest version that this machine has seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnfoundJob {
    /// The job.
    pub job: JobId,
    /// The version that was seen.
    pub version: Version,
    /// When its save began, Unix seconds.
    pub created: u64,
}

/// A key or certificate that ends.
#[derive(Clone, Debug, Serialize)]
pub struct KeyHealth {
    /// The key or certificate: `certificate of ada`, `job key`, `certificate of the authority of grid lab`.
    pub what: String,
    /// When it ends, Unix seconds.
    pub ends: Known<u64>,
    /// Seconds until then; 0 when it has ended.
    pub left_s: u64,
}

/// The name of a job key in [`KeyHealth::what`].
pub const JOB_KEY: &str = "job key";

impl KeyHealth {
    /// What a member does about the end of this key or certificate. Only the owner can make a job key, and
    /// only the admin can renew a certificate.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match &*self.what {
            JOB_KEY => "ask the key's owner for a new one: ckpt key for-job",
            _ => "ask the grid's admin to renew it: ckpt grid renew",
        }
    }
}

/// The hosts, summed up and one by one.
#[derive(Clone, Debug, Serialize)]
pub struct HostsHealth {
    /// How many are known, from the grid file and from registries, silent members included.
    pub known: usize,
    /// How many answer.
    pub up: Known<usize>,
    /// How many of these take shards now.
    pub take_shards: Known<usize>,
    /// Bytes that the answering hosts lend.
    pub capacity_bytes: Known<u64>,
    /// Bytes of `capacity_bytes` that are taken.
    pub used_bytes: Known<u64>,
    /// Bytes that the hosts that take shards can still store.
    pub free_bytes: Known<u64>,
    /// Seconds by which this machine's clock is ahead of most hosts' clocks; `None` when no host reported its clock.
    pub clock_ahead_s: Option<Known<i64>>,
    /// Share of the answering hosts that stay for 0, 1, ... 10 hours, the mean of their own forecasts; empty without
    /// any forecast.
    pub stay: Vec<f64>,
    /// The hosts one by one, in the order of the grid file.
    pub each: Vec<HostHealth>,
}

/// The state of one host. This machine has seen whether the host answers, its clock and its rate; the host's
/// certificate is proved; all other fields are announced.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HostHealth {
    /// Its name.
    pub name: String,
    /// Whether it can be used.
    pub state: HostState,
    /// When it was seen last, Unix seconds, if no registry hears it and somebody has seen it.
    pub silent_since: Option<u64>,
    /// Why it is down or stands back.
    pub why: Option<String>,
    /// Seconds for which it takes no new shards.
    pub refuses_for_s: Option<u32>,
    /// Bytes that the host lends; for a host that is down, the last value that a registry received (`health
    /// --admin`).
    pub capacity_bytes: Option<u64>,
    /// Bytes that are taken.
    pub used_bytes: Option<u64>,
    /// Bytes that can still be stored.
    pub free_bytes: Option<u64>,
    /// Seconds by which its clock is ahead of most hosts' clocks.
    pub clock_ahead_s: Option<i64>,
    /// Version of its program.
    pub software: Option<String>,
    /// Version of the protocol that it speaks with this program.
    pub protocol: Option<String>,
    /// When its certificate ends, Unix seconds.
    pub certificate_ends: Option<u64>,
    /// Rate of transfers that this machine has seen, bytes per second.
    pub bytes_per_second: Option<f64>,
    /// Probability that it stays for ten hours, by its own forecast.
    pub stays_10h: Option<f64>,
}

/// The state of one registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RegistryHealth {
    /// Its name; `etcd` for etcd.
    pub name: String,
    /// Number of hosts from which the registry received a message lately; `None` when the registry does not answer.
    pub hosts_heard: Option<Known<usize>>,
    /// Why it does not answer.
    pub why: Option<String>,
}

/// Whether a host can be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HostState {
    /// It answers and takes shards.
    Up,
    /// It answers, and takes no new shards for now.
    StandsBack,
    /// It answers, and has no room.
    Full,
    /// It does not answer.
    #[default]
    Down,
    /// It is a member of the grid that no registry hears, and that was not asked.
    Silent,
}

impl HostState {
    /// Whether the host answers.
    #[must_use]
    pub const fn is_up(self) -> bool {
        !matches!(self, Self::Down | Self::Silent)
    }
}

/// What hosts count of the checkpoints that they hold, summed over the grid. One of the hosts that hold shards of a
/// checkpoint counts it. All these numbers are announced to this program; "proved" means that the holders proved
/// shards to each other.
#[derive(Clone, Debug, Default, Serialize)]
pub struct GridHealth {
    /// Hosts that counted.
    pub counted_by: usize,
    /// Hosts that did not count, and why.
    pub silent: Vec<Silence>,
    /// Checkpoints that can lose 0, 1, 2, ... of the shards that their holders proved to each other.
    pub can_lose: Vec<u64>,
    /// Checkpoints of which fewer shards were proved than a restore needs.
    pub too_few: u64,
    /// Checkpoints of which fewer shards were proved than they were saved with.
    pub below: u64,
    /// Checkpoints of `below` of which hosts claim further shards without a recent proof.
    pub unchecked: u64,
    /// Checks by submitters that failed in the last seven days, at most 50 of each host.
    pub failed_checks: u64,
    /// Proofs that hosts asked of each other and that failed, since each host first counted them.
    pub failed_proofs: u64,
    /// Bytes that each submitter uses, the most first.
    pub owners: Vec<OwnerHealth>,
}

/// A host that did not count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Silence {
    /// Its name.
    pub host: String,
    /// Why it did not count.
    pub why: String,
}

/// What one submitter uses over the grid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OwnerHealth {
    /// First digits of the public key.
    pub key: String,
    /// Name, as in the certificate, where a host has seen it.
    pub name: Option<String>,
    /// Bytes that are taken on all hosts together.
    pub used_bytes: u64,
    /// Number of hosts on which the submitter uses bytes.
    pub hosts: usize,
}

impl Default for HostsHealth {
    fn default() -> Self {
        Self::of(Vec::new(), None)
    }
}

impl HostsHealth {
    /// The hosts summed up. `clock_ahead_s`: by how much this machine's clock is ahead of most hosts'.
    pub fn of(each: Vec<HostHealth>, clock_ahead_s: Option<i64>) -> Self {
        let is_up = |host: &&HostHealth| host.state.is_up();
        let takes = |host: &&HostHealth| host.state == HostState::Up;
        let up = || each.iter().filter(is_up);
        let sum = |bytes: fn(&HostHealth) -> Option<u64>| up().filter_map(bytes).sum();
        Self {
            known: each.len(),
            up: Known::seen(up().count()),
            take_shards: Known::announced(each.iter().filter(takes).count()),
            capacity_bytes: Known::announced(sum(|host| host.capacity_bytes)),
            used_bytes: Known::announced(sum(|host| host.used_bytes)),
            free_bytes: Known::announced(
                each.iter()
                    .filter(takes)
                    .filter_map(|host| host.free_bytes)
                    .sum(),
            ),
            clock_ahead_s: clock_ahead_s.map(Known::seen),
            stay: Vec::new(),
            each,
        }
    }
}

/// Hours for which [`HostsHealth::stay`] is stated, beside 0.
pub const STAY_HOURS: usize = 10;

/// The average of forecasts at 0, 1, ... [`STAY_HOURS`] hours. `at` is a forecast at a time in seconds.
pub fn average_stay<C>(curves: &[C], at: impl Fn(&C, f64) -> f64) -> Vec<f64> {
    if curves.is_empty() {
        return Vec::new();
    }
    let mean = |hour: usize| {
        let sum: f64 = curves
            .iter()
            .map(|curve| at(curve, hour as f64 * 3600.0))
            .sum();
        sum / curves.len() as f64
    };
    (0..=STAY_HOURS).map(mean).collect()
}

/// The usual time between saves that began at these times, Unix seconds in ascending order: the median of
/// the last five gaps.
pub fn usual_interval(created: &[u64]) -> Option<u64> {
    let gaps = created.windows(2).map(|pair| match pair {
        [first, second] => second.saturating_sub(*first),
        _ => 0,
    });
    let mut last: Vec<u64> = gaps.rev().take(GAPS).collect();
    last.sort_unstable();
    last.get(last.len().checked_sub(1)? / 2).copied()
}

/// How many gaps between saves count.
const GAPS: usize = 5;

impl JobHealth {
    /// Seconds until the next save is due, by the usual interval; negative if it is late.
    pub fn due_in_s(&self) -> Option<i64> {
        Some(ahead(self.interval_s?, self.age_s?))
    }

    /// Whether fewer shards are there than the version was saved with.
    pub fn is_below_redundancy(&self) -> bool {
        let parity = self.redundancy.parity();
        self.can_lose.value.is_none_or(|lose| lose < parity)
    }

    /// What it can lose, if that is less than it should be.
    fn lacking_rank(&self) -> Option<usize> {
        let parity = self.redundancy.parity();
        self.can_lose.value.map(|lose| lose.min(parity))
    }
}

impl Health {
    /// Checkpoints whose missing shards hosts have to rebuild: those of the whole grid if the report is of
    /// the grid, else the newest versions of the submitter's jobs. `None` if no host reported.
    pub fn awaiting_repair(&self) -> Option<u64> {
        match &self.grid {
            Some(grid) => (grid.counted_by > 0).then_some(grid.below),
            None => {
                let below = self.jobs.iter().filter(|job| job.is_below_redundancy());
                (self.hosts.up.value > 0).then(|| below.count() as u64)
            }
        }
    }
}

impl HostState {
    /// The state of a host that answers, takes no shards for `refuses_for_s` seconds, and has `free_bytes`
    /// left.
    pub const fn of(refuses_for_s: u32, free_bytes: u64) -> Self {
        match (refuses_for_s, free_bytes) {
            (0, 0..ROOM_LEAST) => Self::Full,
            (0, _) => Self::Up,
            _ => Self::StandsBack,
        }
    }
}

/// A host with less room than this is full.
const ROOM_LEAST: u64 = 64 << 20;

/// Median of the hosts' clocks, as seconds by which they are ahead of this machine's clock. Each pair holds
/// the time of a host and this machine's time at that moment, both in Unix seconds.
pub fn middle_offset(clocks: &[(u64, u64)]) -> Option<i64> {
    let mut offsets: Vec<i64> = clocks
        .iter()
        .map(|(host, own)| ahead(*host, *own))
        .collect();
    offsets.sort_unstable();
    offsets.get(offsets.len().checked_sub(1)? / 2).copied()
}

/// Seconds by which the first clock is ahead of the second.
pub fn ahead(first: u64, second: u64) -> i64 {
    let second = i64::try_from(second).unwrap_or(i64::MAX);
    i64::try_from(first).unwrap_or(i64::MAX) - second
}

/// The end of a lease, key or certificate in `left_s` seconds: `expires in 3 days`, or `has expired` for 0.
pub fn expiry(left_s: u64) -> String {
    match left_s {
        0 => "has expired".to_owned(),
        left => format!("expires in {}", span(left)),
    }
}

/// `3 days`, `2 h`, `5 min`, `40 s`: the largest unit that fits.
pub fn span(seconds: u64) -> String {
    let time = Duration::from_secs(seconds).as_secs();
    match time {
        0..120 => format!("{time} s"),
        120..7_200 => format!("{} min", time / 60),
        7_200..172_800 => format!("{} h", time / 3600),
        _ => format!("{} days", time / 86_400),
    }
}

fn redundancy<S: Serializer>(value: &Redundancy, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

#[cfg(test)]
mod tests;
