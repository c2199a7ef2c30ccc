//! Availability of spot instances in cloud zones: at each tick, whether an instance could be had.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::archive::for_each_file;
use super::bitbrains::push_joined;
use super::time::days_since_epoch;
use super::{RawHost, RawTrace};

/// The longest set, of 45 days; the others cover hours to weeks.
const SET: &str = "availability/1-node/aws-02-15-2023/";
/// The first day of that set, whose files have no times.
const FIRST_DAY: (u64, u64, u64) = (2023, 2, 15);

pub(super) fn import(source: &Path) -> Result<RawTrace> {
    let (year, month, day) = FIRST_DAY;
    let start = days_since_epoch(year, month, day).context("impossible date")? * 86_400;
    let mut trace = RawTrace {
        name: "spot".into(),
        description: "whether a spot instance could be had, nine zones, 45 days".into(),
        ..RawTrace::default()
    };
    for_each_file(&source.join("spot_traces.tar.zst"), |path, text| {
        if !path.to_string_lossy().contains(SET) || path.extension().is_none_or(|e| e != "json") {
            return Ok(());
        }
        let json: serde_json::Value = serde_json::from_str(text)?;
        let gap = json["metadata"]["gap_seconds"]
            .as_u64()
            .context("no gap_seconds")?;
        let ticks = json["data"].as_array().context("no data")?;
        ensure!((1..=3600).contains(&gap), "gap of {gap} s");
        let name = path
            .file_stem()
            .context("file without a name")?
            .to_string_lossy();
        // us-east-2a_v100_1: the region is the site.
        let zone = name.split('_').next().unwrap_or(&name);
        let site = zone
            .trim_end_matches(|c: char| c.is_ascii_lowercase())
            .to_owned();
        let mut host = RawHost {
            site,
            owner: "aws".into(),
            ..RawHost::default()
        };
        for (i, tick) in ticks.iter().enumerate() {
            let from = start + i as u64 * gap;
            let up = tick.as_u64().context("tick that is not a number")? > 0;
            push_joined(
                if up { &mut host.up } else { &mut host.down },
                from..from + gap,
            );
        }
        trace.sample_seconds = u32::try_from(gap)?;
        trace.hosts.insert(name.into_owned(), host);
        Ok(())
    })?;
    ensure!(!trace.hosts.is_empty(), "no series of {SET} in the archive");
    Ok(trace)
}
