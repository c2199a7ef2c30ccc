//! PlanetLab CoMon CPU load: a file for each slice and day, with 288 lines of per cent.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::archive::for_each_file;
use super::time::days_since_epoch;
use super::{RawHost, RawTrace, Sample};

const STEP_SECONDS: u64 = 300;
const SAMPLES_A_DAY: usize = 288;

pub(super) fn import(source: &Path) -> Result<RawTrace> {
    // By host and day, the load of the host: the sum over its slices.
    let mut loads: BTreeMap<String, BTreeMap<u64, Vec<f32>>> = BTreeMap::new();
    for_each_file(&source.join("planetlab_10days.tar.zst"), |path, text| {
        let Some((day, host)) = day_and_host(path) else {
            return Ok(());
        };
        let sum = loads
            .entry(host)
            .or_default()
            .entry(day)
            .or_insert(vec![0.0; SAMPLES_A_DAY]);
        let mut lines = text.split_whitespace();
        for cell in sum {
            let percent: f32 = lines.next().context("fewer than 288 lines")?.parse()?;
            *cell += percent / 100.0;
        }
        Ok(())
    })?;
    ensure!(!loads.is_empty(), "no file of a slice in the archive");
    let hosts = loads.into_iter().map(|(name, days)| {
        let site = site(&name);
        let samples = days.into_iter().flat_map(|(day, loads)| {
            let start = day * 86_400;
            loads.into_iter().enumerate().map(move |(i, cpu)| Sample {
                unix_seconds: start + i as u64 * STEP_SECONDS,
                cpu,
                memory: None,
            })
        });
        let raw = RawHost {
            site,
            samples: samples.collect(),
            ..RawHost::default()
        };
        (name, raw)
    });
    Ok(RawTrace {
        name: "planetlab".into(),
        description: "CPU load of hosts summed over their slices; ten separate days".into(),
        sample_seconds: STEP_SECONDS as u32,
        interval_seconds: 0,
        hosts: hosts.collect(),
    })
}

/// Last labels of the host names in the archive. A file name is the host's labels and the slice's words,
/// joined by `_`: the host's name ends at the first of these labels, its first label aside.
const LAST_LABELS: [&str; 44] = [
    "ar", "at", "be", "br", "ca", "ch", "cl", "com", "cy", "cz", "de", "edu", "ee", "es", "eu",
    "fi", "fr", "gov", "gr", "hk", "hu", "ie", "il", "info", "it", "jp", "kr", "ma", "net", "nl",
    "no", "nz", "org", "pl", "pt", "ro", "ru", "se", "si", "th", "ua", "uk", "us", "ve",
];

/// `20110303/planetlab1_fit_vutbr_cz_nyu_d` is host `planetlab1.fit.vutbr.cz` on 3 March 2011.
fn day_and_host(path: &Path) -> Option<(u64, String)> {
    let file = path.file_name()?.to_str()?;
    let date = path.parent()?.file_name()?.to_str()?;
    if date.len() != 8 {
        return None;
    }
    let number = |range: std::ops::Range<usize>| date.get(range)?.parse::<u64>().ok();
    let day = days_since_epoch(number(0..4)?, number(4..6)?, number(6..8)?)?;
    let labels: Vec<&str> = file.split('_').map(str::trim).collect();
    let last = labels
        .iter()
        .skip(1)
        .position(|label| LAST_LABELS.contains(label))?
        + 1;
    Some((day, labels.get(..=last)?.join(".")))
}

/// The site of a host: its name without the first label.
fn site(host: &str) -> String {
    host.split_once('.')
        .map_or(host, |(_, site)| site)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_the_day_and_the_host() {
        let (day, host) =
            day_and_host(Path::new("20110303/planetlab1_fit_vutbr_cz_nyu_d")).unwrap();
        assert_eq!((day, host.as_str()), (15_036, "planetlab1.fit.vutbr.cz"));
        assert_eq!(site(&host), "fit.vutbr.cz");
        assert_eq!(day_and_host(Path::new("README.md")), None);
    }
}
