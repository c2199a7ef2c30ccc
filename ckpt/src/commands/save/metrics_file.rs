//! `ckpt save --metrics-file`: how saves went, for node_exporter's textfile collector.
//!
//! The file has no field that stays good when nothing is saved any more: it says when the last save
//! succeeded, and its reader computes the age.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use protocol::identity::replace_public;

use ckpt_agent::report::SaveReport;
use ckpt_agent::unix_time::unix_seconds;

/// No such file is longer, bytes.
const FILE_BYTES_MAX: u64 = 1 << 16;

/// Name, type and meaning of each number, in the order of the file.
const NUMBERS: [(&str, &str, &str); 12] = [
    (
        LAST_SUCCESS,
        "gauge",
        "End of the last successful save, Unix time",
    ),
    (
        INTERVAL,
        "gauge",
        "Time between the last two successful saves",
    ),
    (
        LAST_ATTEMPT,
        "gauge",
        "End of the last save, successful or not, Unix time",
    ),
    (SUCCESSES, "counter", "Saves that succeeded"),
    (FAILURES, "counter", "Saves that failed"),
    (
        "ckpt_save_duration_seconds",
        "gauge",
        "Time of the last successful save, from start to commit",
    ),
    (
        "ckpt_save_held_seconds",
        "gauge",
        "Time until its image had been read",
    ),
    (
        "ckpt_save_image_bytes",
        "gauge",
        "Sum of the sizes of its files",
    ),
    (
        "ckpt_save_stored_bytes",
        "gauge",
        "Bytes that it stored, after compression and before coding",
    ),
    (
        "ckpt_save_shard_bytes",
        "gauge",
        "Bytes of all its shards together",
    ),
    (
        "ckpt_save_can_lose",
        "gauge",
        "Shards that can be lost without losing the image, as it was saved",
    ),
    (
        "ckpt_save_missing_shards",
        "gauge",
        "Shards of it that no host stores",
    ),
];

const LAST_SUCCESS: &str = "ckpt_save_last_success_timestamp_seconds";
const INTERVAL: &str = "ckpt_save_interval_seconds";
const LAST_ATTEMPT: &str = "ckpt_save_last_attempt_timestamp_seconds";
const SUCCESSES: &str = "ckpt_save_successes_total";
const FAILURES: &str = "ckpt_save_failures_total";

/// The numbers of a file, by name.
#[derive(Clone, Debug, Default, PartialEq)]
struct Numbers(BTreeMap<String, f64>);

impl Numbers {
    /// The numbers in such a file. What is not understood is left out.
    fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let numbers = lines.filter_map(|line| {
            let (name, _) = line.split_once('{')?;
            let (_, value) = line.rsplit_once(' ')?;
            let is_known = NUMBERS.iter().any(|(known, ..)| *known == name);
            let value: f64 = value.parse().ok()?;
            (is_known && value.is_finite()).then(|| (name.to_owned(), value))
        });
        Self(numbers.collect())
    }

    fn set(&mut self, name: &str, value: f64) {
        self.0.insert(name.to_owned(), value);
    }

    fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(0.0)
    }

    /// Enters a save that ended at `now`, Unix seconds.
    fn enter(&mut self, saved: Option<&SaveReport>, now: u64) {
        let now = now as f64;
        self.set(LAST_ATTEMPT, now);
        let (count, other) = match saved {
            Some(_) => (SUCCESSES, FAILURES),
            None => (FAILURES, SUCCESSES),
        };
        self.set(count, self.get(count) + 1.0);
        self.set(other, self.get(other));
        let Some(report) = saved else { return };
        // A clock that was set back makes no interval.
        if let Some(before) = self.0.get(LAST_SUCCESS).filter(|before| **before < now) {
            self.set(INTERVAL, now - before);
        }
        self.set(LAST_SUCCESS, now);
        self.set("ckpt_save_duration_seconds", report.seconds);
        self.set("ckpt_save_held_seconds", report.held_seconds);
        self.set("ckpt_save_image_bytes", report.image_bytes as f64);
        self.set("ckpt_save_stored_bytes", report.stored_bytes as f64);
        self.set("ckpt_save_shard_bytes", report.shard_bytes as f64);
        self.set("ckpt_save_can_lose", report.can_lose as f64);
        let missing = report.holders.iter().filter(|one| one.host.is_none());
        self.set("ckpt_save_missing_shards", missing.count() as f64);
    }

    /// The file; `label` is its name, which distinguishes the files of several jobs.
    fn text(&self, label: &str) -> String {
        let label: String = label
            .chars()
            .map(|c| {
                if c.is_alphanumeric() || "._-".contains(c) {
                    c
                } else {
                    '_'
                }
            })
            .collect();
        let mut text = String::new();
        for (name, kind, help) in NUMBERS {
            if let Some(value) = self.0.get(name) {
                text.push_str(&format!(
                    "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{{file=\"{label}\"}} {value}\n"
                ));
            }
        }
        text
    }
}

/// Writes to the file how a save went that ended just now; `None` if it failed.
pub(super) fn enter(path: &Path, saved: Option<&SaveReport>) {
    if let Err(cause) = note(path, saved, unix_seconds()) {
        // The checkpoint counts more. That the file is not renewed is seen by its age.
        let _ = writeln!(
            io::stderr(),
            "ckpt: warning: metrics file {}: {cause}",
            path.display()
        );
    }
}

fn note(path: &Path, saved: Option<&SaveReport>, now: u64) -> io::Result<()> {
    let before = match fs::metadata(path) {
        Ok(data) if data.len() <= FILE_BYTES_MAX => fs::read_to_string(path).unwrap_or_default(),
        _ => String::new(),
    };
    let mut numbers = Numbers::parse(&before);
    numbers.enter(saved, now);
    let label = path.file_stem().unwrap_or_default().to_string_lossy();
    replace_public(path, numbers.text(&label).as_bytes())
}

#[cfg(test)]
mod tests {
    use codec::{CheckpointId, Redundancy, Version};

    use super::*;

    fn report() -> SaveReport {
        SaveReport {
            job: "secret-name".parse().unwrap(),
            version: Version::new(3).unwrap(),
            checkpoint: CheckpointId([1; 16]),
            redundancy: Redundancy::DEFAULT,
            can_lose: 2,
            image_bytes: 1000,
            read_bytes: 1000,
            zero_bytes: 0,
            base: None,
            stored_bytes: 500,
            new_bytes: None,
            resumed_bytes: None,
            shard_bytes: 900,
            compressed: Vec::new(),
            stored_times: 1.8,
            files: 1,
            seconds: 1.5,
            held_seconds: 0.5,
            holders: Vec::new(),
            replaced: Vec::new(),
            removed: Vec::new(),
            marked: None,
            kept_until: None,
            fence: None,
            notes: Vec::new(),
            placement: None,
            warnings: Vec::new(),
        }
    }

    #[test]
    fn the_page_lists_each_number_and_no_other() {
        let page = include_str!("../../../../docs/run-a-grid/metrics.md");
        let rows = page
            .lines()
            .filter(|line| line.starts_with("| `ckpt_save_"));
        let listed: Vec<(&str, &str)> = rows
            .map(|row| {
                let cells: Vec<&str> = row.split('|').map(str::trim).collect();
                (cells[1].trim_matches('`'), cells[2])
            })
            .collect();
        let written: Vec<(&str, &str)> = NUMBERS
            .iter()
            .map(|(name, kind, _)| (*name, *kind))
            .collect();
        assert_eq!(listed, written);
    }

    #[test]
    fn failures_are_counted_and_the_last_success_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("train 1.prom");
        note(&path, None, 50).unwrap();
        assert!(
            !fs::read_to_string(&path).unwrap().contains(LAST_SUCCESS),
            "none yet"
        );
        note(&path, Some(&report()), 100).unwrap();
        note(&path, Some(&report()), 160).unwrap();
        note(&path, None, 220).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        for line in [
            "ckpt_save_last_success_timestamp_seconds{file=\"train_1\"} 160",
            "ckpt_save_interval_seconds{file=\"train_1\"} 60",
            "ckpt_save_last_attempt_timestamp_seconds{file=\"train_1\"} 220",
            "ckpt_save_successes_total{file=\"train_1\"} 2",
            "ckpt_save_failures_total{file=\"train_1\"} 2",
            "ckpt_save_can_lose{file=\"train_1\"} 2",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
        assert!(!text.contains("secret"), "{text}");
    }

    #[test]
    fn a_file_of_something_else_counts_as_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.prom");
        fs::write(
            &path,
            "x{} NaN\nckpt_save_failures_total{file=\"f\"} inf\n\u{0}",
        )
        .unwrap();
        note(&path, None, 5).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.contains("ckpt_save_failures_total{file=\"f\"} 1"),
            "{text}"
        );
        let clock_back = Numbers::parse("ckpt_save_last_success_timestamp_seconds{file=\"f\"} 900");
        let mut numbers = clock_back;
        numbers.enter(Some(&report()), 100);
        assert_eq!(
            (numbers.get(INTERVAL), numbers.get(LAST_SUCCESS)),
            (0.0, 100.0)
        );
    }
}
