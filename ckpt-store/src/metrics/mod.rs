//! Metrics of the daemon and of the registry, listed in `docs/run-a-grid/metrics.md`.
//!
//! A scrape reads numbers that are counted as things happen, or that a task of its own looks up every few
//! seconds. So it waits for no lock of the data path, and takes as long with ten thousand shards as with one.
//! No label has the name of a job, an owner or a host, and each label has few values.

pub mod daemon;
pub mod registry;

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use web::header::{ACCEPT, HeaderMap};
use web::{Answer, Pages, of_kind};

pub use daemon::DaemonMetrics;
pub use registry::RegistryMetrics;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A request that can't be read has no name.
pub const UNREADABLE: &str = "unreadable";

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With the answer that was asked for.
    Answered,
    /// With a refusal as the answer.
    Refused,
    /// Without an end: the client went, or was too slow.
    Lost,
}

impl Ended {
    const ALL: [Self; 3] = [Self::Answered, Self::Refused, Self::Lost];

    const fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Lost => "lost",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    request: &'static str,
    result: &'static str,
}

/// Whether something went well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VersionLabel {
    version: &'static str,
}

/// Counts requests by name and end.
#[derive(Clone, Debug, Default)]
pub struct Requests(Family<RequestLabels, Counter>);

impl Requests {
    fn register(&self, registry: &mut Registry) {
        for ended in Ended::ALL {
            let request = UNREADABLE;
            let result = ended.name();
            drop(self.0.get_or_create(&RequestLabels { request, result }));
        }
        registry.register(
            "requests",
            "Requests of members, by name and end",
            self.0.clone(),
        );
    }

    /// Counts a request that ended. `request` is the name of its rule.
    pub fn count(&self, request: &'static str, ended: Ended) {
        let result = ended.name();
        let labels = RequestLabels { request, result };
        self.0.get_or_create(&labels).inc();
    }
}

/// Values of `can_lose`: with too few shards, and with 0, 1, 2, 3 and more shards that can be lost.
const LOSE: [&str; 6] = ["too_few", "0", "1", "2", "3", "4+"];

/// Checkpoints by the value of `can_lose`. At position *n* of `can_lose` are those that can lose *n*.
fn by_lose(too_few: u64, can_lose: &[u64]) -> impl Iterator<Item = (&'static str, u64)> {
    let at = |spare: usize| can_lose.get(spare).copied().unwrap_or(0);
    let more = can_lose
        .iter()
        .skip(4)
        .fold(0_u64, |sum, one| sum.saturating_add(*one));
    LOSE.into_iter()
        .zip([too_few, at(0), at(1), at(2), at(3), more])
}

/// A counter by result, with all results that there are.
fn by_result(results: &[&'static str]) -> Family<ResultLabel, Counter> {
    let family = Family::default();
    for result in results {
        drop(family.get_or_create(&ResultLabel { result }));
    }
    family
}

fn register_build(registry: &mut Registry) {
    let build: Family<VersionLabel, Gauge> = Family::default();
    let version = env!("CARGO_PKG_VERSION");
    build.get_or_create(&VersionLabel { version }).set(1);
    registry.register("build_info", "Version of the program; always 1", build);
}

/// A number of bytes or things as a gauge has it.
fn gauged(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// What is exported, in the form of OpenMetrics 1.0.
pub fn open_metrics(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut text, registry);
    text
}

/// The same in the text format before OpenMetrics, in which the samples of a counter have the name of
/// their family.
pub fn classic(open_metrics: &str) -> String {
    let counters: Vec<&str> = open_metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut text = String::with_capacity(open_metrics.len() + 256);
    for line in open_metrics.lines() {
        if line == "# EOF" || line.starts_with("# UNIT ") {
            continue;
        }
        match family_of(line).filter(|(_, name, _)| counters.contains(name)) {
            Some((what, name, rest)) => text.push_str(&format!("{what}{name}_total {rest}\n")),
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

/// Head, name and rest of a line that describes a family.
fn family_of(line: &str) -> Option<(&'static str, &str, &str)> {
    ["# HELP ", "# TYPE "].into_iter().find_map(|what| {
        let (name, rest) = line.strip_prefix(what)?.split_once(' ')?;
        Some((what, name, rest))
    })
}

/// The page `/metrics`, in the form that the client asks for.
pub fn pages(registry: Arc<Registry>) -> Pages {
    Pages::default().with("/metrics", move |headers| {
        let registry = Arc::clone(&registry);
        async move { exported_as(&registry, &headers) }
    })
}

fn exported_as(registry: &Registry, headers: &HeaderMap) -> Answer {
    let text = open_metrics(registry);
    let accepted = headers.get_all(ACCEPT).iter();
    let mut accepted = accepted.filter_map(|accepted| accepted.to_str().ok());
    match accepted.any(|accepted| accepted.contains("application/openmetrics-text")) {
        true => of_kind(OPEN_METRICS, text),
        false => of_kind(CLASSIC, classic(&text)),
    }
}

#[cfg(test)]
mod tests;
