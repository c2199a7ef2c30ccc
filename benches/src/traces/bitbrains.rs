//! Bitbrains GWA-T-12 "Rnd": five-minute samples of virtual machines.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result};

use super::archive::for_each_file;
use super::{RawHost, RawTrace, Sample};

const STEP_SECONDS: u64 = 300;
/// If a smaller share of the machines in use reports in a slot, the monitoring was out then.
const REPORTING_SHARE_MIN: f64 = 0.6;

#[derive(Clone, Copy)]
struct Reading {
    cpu: f32,
    memory: f32,
    off: bool,
}

pub(super) fn import(source: &Path) -> Result<RawTrace> {
    let mut machines: BTreeMap<String, BTreeMap<u64, Reading>> = BTreeMap::new();
    for_each_file(&source.join("rnd_orig_125vm.tar.zst"), |path, text| {
        let name = path
            .file_stem()
            .context("file without a name")?
            .to_string_lossy();
        let readings = machines.entry(format!("vm{name}")).or_default();
        for (number, line) in text
            .lines()
            .enumerate()
            .skip(1)
            .filter(|(_, l)| !l.is_empty())
        {
            let (slot, reading) = parse(line).with_context(|| format!("line {}", number + 1))?;
            // A machine that is off has several rows of zeros in a slot, sometimes beside a real row.
            let known = readings.entry(slot).or_insert(reading);
            if known.off {
                *known = reading;
            }
        }
        Ok(())
    })?;
    let reporting = slots_with_monitoring(&machines);
    let hosts = machines
        .into_iter()
        .map(|(name, readings)| (name, host(&readings, &reporting)));
    Ok(RawTrace {
        name: "bitbrains".into(),
        description: "load and off times of 125 virtual machines; biased to busy ones".into(),
        sample_seconds: STEP_SECONDS as u32,
        interval_seconds: 0,
        hosts: hosts.collect(),
    })
}

/// The slot number and the reading of a row. Times are in seconds, although the header says ms.
fn parse(line: &str) -> Result<(u64, Reading)> {
    let fields: Vec<f64> = line
        .split(';')
        .map(|field| field.trim().parse())
        .collect::<Result<_, _>>()?;
    let field = |index: usize| fields.get(index).copied().context("too few fields");
    let provisioned = field(5)?;
    let used = field(6)?;
    let slot = (field(0)? / STEP_SECONDS as f64).round() as u64;
    let off = fields.iter().skip(1).all(|&value| value == 0.0);
    let memory = if provisioned > 0.0 {
        (used / provisioned) as f32
    } else {
        0.0
    };
    Ok((
        slot,
        Reading {
            cpu: (field(4)? / 100.0) as f32,
            memory,
            off,
        },
    ))
}

fn slots_with_monitoring(
    machines: &BTreeMap<String, BTreeMap<u64, Reading>>,
) -> BTreeMap<u64, bool> {
    let mut reports: BTreeMap<u64, u32> = BTreeMap::new();
    let mut in_use: BTreeMap<u64, i64> = BTreeMap::new();
    for readings in machines.values() {
        for &slot in readings.keys() {
            *reports.entry(slot).or_default() += 1;
        }
        if let (Some((&first, _)), Some((&last, _))) =
            (readings.first_key_value(), readings.last_key_value())
        {
            *in_use.entry(first).or_default() += 1;
            *in_use.entry(last + 1).or_default() -= 1;
        }
    }
    let mut changes = in_use.into_iter().peekable();
    let mut expected = 0;
    let judge = |(slot, count): (u64, u32)| {
        while let Some((_, change)) = changes.next_if(|&(at, _)| at <= slot) {
            expected += change;
        }
        (
            slot,
            f64::from(count) >= REPORTING_SHARE_MIN * expected as f64,
        )
    };
    reports.into_iter().map(judge).collect()
}

fn host(readings: &BTreeMap<u64, Reading>, monitored: &BTreeMap<u64, bool>) -> RawHost {
    let mut host = RawHost::default();
    let known = readings
        .iter()
        .filter(|(slot, _)| monitored.get(slot).is_some_and(|known| *known));
    for (&slot, reading) in known {
        let start = slot * STEP_SECONDS;
        if reading.off {
            push_joined(&mut host.down, start..start + STEP_SECONDS);
        } else {
            let memory = Some(reading.memory.min(1.0));
            host.samples.push(Sample {
                unix_seconds: start,
                cpu: reading.cpu,
                memory,
            });
        }
    }
    host
}

/// Appends a span, or lengthens the last one if it ends where this one begins.
pub(super) fn push_joined(spans: &mut Vec<Range<u64>>, span: Range<u64>) {
    match spans.last_mut() {
        Some(last) if last.end >= span.start => last.end = last.end.max(span.end),
        _ => spans.push(span),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_slot_with_shares() {
        let row = "1372629804;\t2;\t5851.9989;\t87.7;\t1.5;\t8218624.0;\t4109312.0;\t160.8;\t21.7;\t0.2;\t1.4";
        let (slot, reading) = parse(row).unwrap();
        assert_eq!(slot, 4_575_433);
        assert!((reading.cpu - 0.015).abs() < 1e-6 && (reading.memory - 0.5).abs() < 1e-6);
        assert!(!reading.off);
        assert!(parse("1372629804;0;0;0;0;0;0;0;0;0;0").unwrap().1.off);
        assert!(parse("1372629804;0;0").is_err());
    }

    #[test]
    fn a_slot_in_which_most_machines_are_silent_is_unknown() {
        let reading = Reading {
            cpu: 0.1,
            memory: 0.1,
            off: true,
        };
        let machine = |slots: &[u64]| slots.iter().map(|&slot| (slot, reading)).collect();
        let machines: BTreeMap<String, BTreeMap<u64, Reading>> = [
            ("a".to_owned(), machine(&[1, 2, 3])),
            ("b".to_owned(), machine(&[1, 3])),
            ("c".to_owned(), machine(&[1, 3])),
        ]
        .into();
        let monitored = slots_with_monitoring(&machines);
        assert_eq!(monitored, [(1, true), (2, false), (3, true)].into());
        assert_eq!(host(&machines["a"], &monitored).down, [300..600, 900..1200]);
    }
}
