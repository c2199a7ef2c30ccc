//! The owner's preferences, for `ckpt-store status`.

use std::io::Write;
use std::path::Path;

use protocol::errors::chain;
use serde::Serialize;

use crate::monitor::preferences;

/// Above this load, the status explains why a machine counts as idle.
const CALM_LOAD: f64 = 0.2;

/// The owner's preferences as they are now.
#[derive(Debug, Default, Serialize)]
pub(super) struct OwnerSettings {
    /// Why the preferences can't be used, if they can't. The earlier ones stay in force then.
    pub(super) preferences_error: Option<String>,
    /// Load of the owner below which the machine counts as idle, from 0 to 1.
    pub(super) idle_below: Option<f64>,
}

impl OwnerSettings {
    /// Reads the preferences in a data directory.
    pub(super) fn read(data: &Path) -> Self {
        match preferences::load(data) {
            Ok(settings) => Self {
                preferences_error: None,
                idle_below: Some(settings.cpu.first()),
            },
            Err(cause) => Self {
                preferences_error: Some(chain(&cause)),
                idle_below: None,
            },
        }
    }

    /// An explanation of why a machine with this load counts as idle. Empty if none is needed.
    pub(super) fn note_of_idle(&self, machine: &str, load: f64) -> String {
        match self.idle_below {
            Some(below) if machine == "idle" && load > CALM_LOAD => format!(
                " (idle: below {:.0}%, or above it for less than a minute)",
                below * 100.0
            ),
            _ => String::new(),
        }
    }

    /// Prints why the preferences are not in force, if they are not.
    pub(super) fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        match &self.preferences_error {
            // TOML shows the position of the error over several lines.
            Some(cause) => writeln!(
                out,
                "PREFERENCES NOT IN FORCE, the previous ones are used: {cause}"
            ),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn wrong_preferences_are_said() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("preferences.toml");
        let said = || {
            let mut out = Vec::new();
            OwnerSettings::read(dir.path()).print(&mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(said(), "");
        fs::write(&file, "start_hour = 99").unwrap();
        assert!(said().contains("NOT IN FORCE"));
        fs::write(&file, "start_hour = ").unwrap();
        assert!(said().contains("NOT IN FORCE"));
    }

    #[test]
    fn idle_under_load_is_explained() {
        let settings = OwnerSettings {
            idle_below: Some(0.3),
            ..OwnerSettings::default()
        };
        assert!(settings.note_of_idle("idle", 1.0).contains("below 30%"));
        assert_eq!(settings.note_of_idle("idle", 0.1), "");
        assert_eq!(settings.note_of_idle("busy", 1.0), "");
    }
}
