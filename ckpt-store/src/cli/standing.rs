//! What the owner's preferences mean at this moment, for `ckpt-store status`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::monitor::history::States;
use crate::monitor::preferences::{self, Settings};
use crate::monitor::proc::{Sampler, SystemPaths};
use crate::monitor::stance::{Circumstances, Stance, stance};
use crate::monitor::{DisplayChain, hour_of_day};

/// Load of a calm machine, above which "idle" has to be explained.
const CALM_LOAD: f64 = 0.2;

/// How the daemon stands to its owner now.
#[derive(Debug, Default, Serialize)]
pub(super) struct Standing {
    /// Why the preferences can't be used, if they can't: those of before stay in force.
    pub(super) preferences_error: Option<String>,
    /// Why the host takes no new shards, or does nothing at all, if that is so.
    pub(super) stands_back: Option<Back>,
    /// Load of the owner up to which the machine counts as idle, 0 to 1.
    pub(super) idle_below: Option<f64>,
}

/// Why a host stands back.
#[derive(Debug, Serialize)]
pub(super) struct Back {
    pub(super) why: String,
    /// Seconds after which it may be asked again.
    pub(super) for_s: u32,
}

impl Standing {
    /// Of the daemon that runs on this directory as this process, if one does, in the states that it saw
    /// last.
    pub(super) fn read(
        data: &Path,
        daemon: Option<u32>,
        states: Option<States>,
        unix_seconds: u64,
    ) -> Self {
        let settings = match preferences::load(data) {
            Ok(settings) => settings,
            Err(cause) => {
                return Self {
                    preferences_error: Some(DisplayChain(&cause).to_string()),
                    ..Self::default()
                };
            }
        };
        let stands_back = daemon
            .filter(|process| !is_told_not_to(*process))
            .and_then(|_| {
                back(
                    data,
                    states.unwrap_or(States::CALM),
                    unix_seconds,
                    &settings,
                )
            });
        Self {
            preferences_error: None,
            stands_back,
            idle_below: Some(settings.cpu.first()),
        }
    }

    /// What explains why a machine with this load counts as idle.
    pub(super) fn note_of_idle(&self, machine: &str, load: f64) -> String {
        match self.idle_below {
            Some(below) if machine == "idle" && load > CALM_LOAD => format!(
                " (idle: below {:.0}%, or above it for less than a minute)",
                below * 100.0
            ),
            _ => String::new(),
        }
    }

    /// Lines for people.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(cause) = &self.preferences_error {
            // The position that TOML shows needs several lines.
            lines.push(format!(
                "PREFERENCES NOT IN FORCE, those of before stay: {cause}"
            ));
        }
        if let Some(Back { why, for_s }) = &self.stands_back {
            let time = Duration::from_secs(u64::from(*for_s));
            lines.push(format!("stands back: {why}; for {}", spoken(time)));
        }
        lines
    }
}

fn spoken(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

fn back(data: &Path, states: States, unix_seconds: u64, settings: &Settings) -> Option<Back> {
    let circumstances = Circumstances {
        hour: hour_of_day(unix_seconds),
        on_battery: Sampler::new(SystemPaths::default(), data).on_battery(),
    };
    match stance(states, circumstances, settings) {
        Stance::Open => None,
        Stance::StandBack(reason) | Stance::Closed(reason) => Some(Back {
            why: reason.why.to_string(),
            for_s: reason.retry_after_s,
        }),
    }
}

/// Whether the daemon runs with `--no-stand-back`.
fn is_told_not_to(process: u32) -> bool {
    let words = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let mut words = words.split(|&byte| byte == 0);
    words.any(|word| word == b"--no-stand-back")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_preferences_and_hours_are_said() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("preferences.toml");
        let read = || Standing::read(dir.path(), Some(std::process::id()), None, 1_000_000);
        assert!(read().lines().is_empty());
        let hour = hour_of_day(1_000_000).floor();
        let (start, end) = ((hour + 3.0) % 24.0, (hour + 4.0) % 24.0);
        fs::write(&file, format!("start_hour = {start}\nend_hour = {end}")).unwrap();
        let lines = read().lines();
        assert!(lines[0].contains("no new shards at this hour"), "{lines:?}");
        fs::write(&file, "start_hour = 99").unwrap();
        let lines = read().lines();
        assert!(lines[0].contains("NOT IN FORCE"), "{lines:?}");
        fs::write(&file, "start_hour = ").unwrap();
        assert!(read().preferences_error.is_some());
    }

    #[test]
    fn idle_under_load_is_explained() {
        let standing = Standing {
            idle_below: Some(0.3),
            ..Standing::default()
        };
        assert!(standing.note_of_idle("idle", 1.0).contains("below 30%"));
        assert_eq!(standing.note_of_idle("idle", 0.1), "");
        assert_eq!(standing.note_of_idle("busy", 1.0), "");
    }
}
