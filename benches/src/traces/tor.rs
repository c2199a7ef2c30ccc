//! Presence of Tor relays in snapshots about an hour apart.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;

use super::bitbrains::push_joined;
use super::format::for_each_line;
use super::{RawHost, RawTrace};

/// Numbers of relays in a good snapshot; one with fewer or more is faulty.
const PLAUSIBLE_LISTED: Range<u32> = 9300..11_501;
/// A longer gap between snapshots is unknown time.
const LONGEST_GAP_SECONDS: u64 = 3 * 3600;
const LEAST_SPAN_SECONDS: u64 = 30 * 86_400;
const LEAST_PRESENCE: f64 = 0.5;
/// Number of hosts that are drawn from the ten thousand that qualify, with a fixed seed.
const HOSTS: usize = 1000;
const SEED: u64 = 20_251_211;

struct Snapshot {
    time: u64,
    plausible: bool,
}

pub(super) fn import(source: &Path) -> Result<RawTrace> {
    let snapshots = read_snapshots(source)?;
    let sites = read_sites(source)?;
    let mut presence: BTreeMap<u32, BTreeSet<usize>> = BTreeMap::new();
    for_each_line(
        &source.join("presence.csv.zst"),
        "host,first_snap,last_snap",
        |line| {
            let [host, first, last] = numbers(line)?;
            ensure!(
                first <= last && (last as usize) < snapshots.len(),
                "snapshots out of range"
            );
            if sites.contains_key(&host) {
                presence
                    .entry(host)
                    .or_default()
                    .extend(first as usize..=last as usize);
            }
            Ok(())
        },
    )?;
    let qualified = presence
        .iter()
        .filter(|(_, present)| qualifies(present, &snapshots));
    let mut random = StdRng::seed_from_u64(SEED);
    let chosen = qualified.choose_multiple(&mut random, HOSTS);
    let hosts = chosen.into_iter().map(|(host, present)| {
        let (site, owner) = sites.get(host).cloned().unwrap_or_default();
        let mut raw = intervals(present, &snapshots);
        (raw.site, raw.owner) = (site, owner);
        (format!("relay{host:05}"), raw)
    });
    Ok(RawTrace {
        name: "tor".into(),
        description: "presence of Tor relays (IPv4) in hourly lists, 240 days".into(),
        sample_seconds: 3600,
        interval_seconds: 0,
        hosts: hosts.collect(),
    })
}

fn read_snapshots(source: &Path) -> Result<Vec<Snapshot>> {
    let mut snapshots = Vec::new();
    for_each_line(
        &source.join("snapshots.csv.zst"),
        "snap,unixtime,n_listed,commit",
        |line| {
            let mut fields = line.split(',').skip(1);
            let mut next = || fields.next().context("too few fields");
            let time = next()?.parse().context("unixtime")?;
            let listed: u32 = next()?.parse().context("n_listed")?;
            snapshots.push(Snapshot {
                time,
                plausible: PLAUSIBLE_LISTED.contains(&listed),
            });
            Ok(())
        },
    )?;
    Ok(snapshots)
}

/// For each IPv4 relay, its subnet /24 as the site and its subnet /16 as the owner.
fn read_sites(source: &Path) -> Result<BTreeMap<u32, (String, String)>> {
    let mut sites = BTreeMap::new();
    let header = "host,ipver,site24,site16,country,lat,lon";
    for_each_line(&source.join("hosts.csv.zst"), header, |line| {
        let fields: Vec<&str> = line.split(',').collect();
        if let [host, "4", near, far, ..] = fields.as_slice() {
            sites.insert(
                host.parse()?,
                (format!("net24-{near}"), format!("net16-{far}")),
            );
        }
        Ok(())
    })?;
    Ok(sites)
}

fn numbers(line: &str) -> Result<[u32; 3]> {
    let numbers: Vec<u32> = line.split(',').map(str::parse).collect::<Result<_, _>>()?;
    numbers
        .try_into()
        .map_err(|_| anyhow::anyhow!("expected three numbers"))
}

fn qualifies(present: &BTreeSet<usize>, snapshots: &[Snapshot]) -> bool {
    let (Some(&first), Some(&last)) = (present.first(), present.last()) else {
        return false;
    };
    let span = snapshots[last].time.saturating_sub(snapshots[first].time);
    span >= LEAST_SPAN_SECONDS && present.len() as f64 >= LEAST_PRESENCE * (last - first + 1) as f64
}

/// When a relay was up and down, from the first to the last snapshot that lists it. A snapshot counts for
/// the time until the next plausible one, unless that is more than [`LONGEST_GAP_SECONDS`] later.
fn intervals(present: &BTreeSet<usize>, snapshots: &[Snapshot]) -> RawHost {
    let mut host = RawHost::default();
    let (Some(&first), Some(&last)) = (present.first(), present.last()) else {
        return host;
    };
    let plausible: Vec<usize> = (first..=last).filter(|&i| snapshots[i].plausible).collect();
    for pair in plausible.windows(2) {
        let &[this, next] = pair else { continue };
        let span = snapshots[this].time..snapshots[next].time;
        if span.start < span.end && span.end - span.start <= LONGEST_GAP_SECONDS {
            let up = present.contains(&this);
            push_joined(if up { &mut host.up } else { &mut host.down }, span);
        }
    }
    host
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_between_two_sightings_is_down_and_silence_is_unknown() {
        let snapshots: Vec<Snapshot> = [0, 3600, 7200, 10_800, 100_000, 103_600]
            .map(|time| Snapshot {
                time,
                plausible: true,
            })
            .into();
        let present = [0, 1, 3, 4, 5].into();
        let host = intervals(&present, &snapshots);
        assert_eq!(host.down.first(), Some(&(7200..10_800)));
        assert_eq!(host.down.len(), 1);
        assert_eq!(host.up, [0..7200, 100_000..103_600]);
    }
}
