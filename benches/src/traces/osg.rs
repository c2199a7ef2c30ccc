//! Declared outages of Open Science Grid resources.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::archive::for_each_file;
use super::time::parse_declared_time;
use super::{RawHost, RawTrace};

/// Longer outages are placeholders ("until 2038").
const OUTAGE_SECONDS_MAX: u64 = 60 * 86_400;

pub(super) fn import(source: &Path) -> Result<RawTrace> {
    let mut hosts: BTreeMap<String, RawHost> = BTreeMap::new();
    for_each_file(&source.join("osg_downtime_yaml.tar.zst"), |path, text| {
        let folders: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
        let [.., facility, site, _] = folders.as_slice() else {
            return Ok(());
        };
        for record in records(text) {
            let Some((resource, span)) = outage(&record) else {
                continue;
            };
            let host = hosts.entry(name(resource)).or_insert_with(|| RawHost {
                site: name(site),
                owner: name(facility),
                ..RawHost::default()
            });
            host.down.push(span);
        }
        Ok(())
    })?;
    ensure!(!hosts.is_empty(), "no record in the archive");
    for host in hosts.values_mut() {
        // No record says that a resource was up, so it counts as up between its first and last record.
        let first = host
            .down
            .iter()
            .map(|span| span.start)
            .min()
            .context("no outage")?;
        let last = host
            .down
            .iter()
            .map(|span| span.end)
            .max()
            .context("no outage")?;
        host.up.push(first..last);
    }
    Ok(RawTrace {
        name: "osg".into(),
        description: "declared outages of grid resources; up between records is an assumption"
            .into(),
        sample_seconds: 3600,
        interval_seconds: 0,
        hosts,
    })
}

/// The records of a list, each as its `key: value` pairs. Nested values are not needed.
fn records(text: &str) -> Vec<BTreeMap<&str, &str>> {
    let mut records: Vec<BTreeMap<&str, &str>> = Vec::new();
    for line in text.lines() {
        let line = match line.strip_prefix("- ") {
            Some(rest) => {
                records.push(BTreeMap::new());
                rest
            }
            None => line.strip_prefix("  ").unwrap_or_default(),
        };
        if let (Some(record), Some((key, value))) = (records.last_mut(), line.split_once(": ")) {
            record.insert(key, value.trim().trim_matches(['\'', '"']));
        }
    }
    records
}

/// Resource and time of a record; `None` if one of them is missing or the record is a placeholder.
fn outage<'a>(record: &BTreeMap<&str, &'a str>) -> Option<(&'a str, std::ops::Range<u64>)> {
    let span = parse_declared_time(record.get("StartTime")?)?
        ..parse_declared_time(record.get("EndTime")?)?;
    let believable = span.start < span.end && span.end - span.start <= OUTAGE_SECONDS_MAX;
    believable.then_some((*record.get("ResourceName")?, span))
}

/// The name without commas, which separate fields in the trace format.
fn name(text: &str) -> String {
    text.replace(',', ";")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_outages_unless_they_never_end() {
        let text = "- Class: SCHEDULED\n  ID: 1\n  StartTime: Aug 2, 2018 06:00 -0400\n  \
                    EndTime: Aug 2, 2018 07:00 -0400\n  ResourceName: Purdue-Brown\n  Services:\n  \
                    - CE\n# ---\n- Class: UNSCHEDULED\n  StartTime: Jan 1, 2018 06:00 +0000\n  \
                    EndTime: Jan 19, 2038 00:00 +0000\n  ResourceName: Gone\n";
        let records = records(text);
        assert_eq!(records.len(), 2);
        assert_eq!(
            outage(&records[0]),
            Some(("Purdue-Brown", 1_533_204_000..1_533_207_600))
        );
        assert_eq!(outage(&records[1]), None);
    }
}
