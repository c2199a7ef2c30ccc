//! What the machine's owner allows. The preferences have the names that BOINC's volunteers know.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use placement::state::{Thresholds, ThresholdsError};
use serde::{Deserialize, Serialize};

use crate::core::traffic::TransferLimit;
use crate::json_file::set_aside;
use protocol::errors::chain;

/// Bytes of a GB and of an MB, as BOINC counts them.
const GB: f64 = (1_u64 << 30) as f64;
const MB: f64 = (1_u64 << 20) as f64;

/// The longest period of a limit on transfers, days.
const TRANSFER_DAYS_MAX: u32 = 366;

/// Largest number of a preference. In bytes, kilobytes or megabytes it still fits into 64 bits.
const NUMBER_MAX: f64 = 1e12;

/// Largest number of gigabytes, an exabyte.
const GIGABYTES_MAX: f64 = 1e9;

/// The owner's preferences: `preferences.toml` in the data directory.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preferences {
    /// Use at most this much disk space, GB.
    pub disk_max_used_gb: Option<f64>,
    /// Use at most this share of the disk, percent.
    pub disk_max_used_pct: Option<f64>,
    /// Leave at least this much of the disk free, GB.
    pub disk_min_free_gb: Option<f64>,
    /// Receive at most this many bytes per second.
    pub max_bytes_sec_down: Option<f64>,
    /// Send at most this many bytes per second.
    pub max_bytes_sec_up: Option<f64>,
    /// Take shards only from this hour of the day, local time, ...
    pub start_hour: Option<f64>,
    /// ... to this one, local time. The next day's hour is meant if it is the earlier one.
    pub end_hour: Option<f64>,
    /// Use the network at all only from this hour of the day ...
    pub net_start_hour: Option<f64>,
    /// ... to this one.
    pub net_end_hour: Option<f64>,
    /// Take shards while the machine runs on its battery, too.
    #[serde(default)]
    pub run_on_batteries: bool,
    /// Names of commands during which the owner wants the machine alone. While one of them runs, no new
    /// shards are taken.
    #[serde(default)]
    pub exclusive_app: Vec<String>,
    /// Move at most this many MB, both directions together, ...
    pub daily_xfer_limit_mb: Option<f64>,
    /// ... in this many days, today included.
    pub daily_xfer_period_days: Option<u32>,
    /// How the machine is watched.
    #[serde(default)]
    pub monitor: MonitorPreferences,
}

/// How the machine is watched. A threshold that is not set has the value that `ckpt-store calibrate`
/// measured, or else that of the papers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MonitorPreferences {
    /// The thresholds Th1 and Th2 of the CPU, as shares of all CPUs.
    pub cpu_thresholds: Option<[f64; 2]>,
    /// The thresholds Th1 and Th2 of the disk, as shares of the time.
    pub disk_thresholds: Option<[f64; 2]>,
    /// Memory that a guest job needs, MB.
    pub guest_memory_mb: Option<f64>,
    /// Names of commands that count as guests, such as `boinc`.
    #[serde(default)]
    pub guest_commands: Vec<String>,
    /// Rate of reads while the host stands back, bytes per second.
    pub slow_bytes_sec: Option<f64>,
}

/// The thresholds that were measured on this machine: `calibration.toml` in the data directory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The thresholds Th1 and Th2 of the CPU.
    pub cpu_thresholds: Option<[f64; 2]>,
    /// The thresholds Th1 and Th2 of the disk.
    pub disk_thresholds: Option<[f64; 2]>,
}

/// The checked content of both files.
#[derive(Clone, Debug, PartialEq)]
pub struct MonitorSettings {
    /// The thresholds of the CPU.
    pub cpu: Thresholds,
    /// The thresholds of the disk.
    pub disk: Thresholds,
    /// Memory that a guest job needs, bytes.
    pub guest_memory_bytes: u64,
    /// Names of commands that count as guests.
    pub guest_commands: Vec<String>,
    /// Rate of reads while the host stands back, bytes per second.
    pub slow_rate: f64,
    /// Most bytes per second that are received; `None` is no limit.
    pub receive_rate: Option<f64>,
    /// Most bytes per second that are sent; `None` is no limit.
    pub send_rate: Option<f64>,
    /// The hours in which new shards are taken.
    pub hours: Hours,
    /// The hours in which the network may be used.
    pub net_hours: Hours,
    /// Whether new shards are taken while the machine runs on its battery.
    pub run_on_batteries: bool,
    /// Names of commands during which the owner wants the machine alone.
    pub exclusive_apps: Vec<String>,
    /// The limit on the bytes that are moved in some days.
    pub transfers: Option<TransferLimit>,
    /// How much of the disk may be used.
    pub disk_use: DiskUse,
}

/// How much of the disk may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DiskUse {
    most_bytes: Option<u64>,
    most_share: Option<f64>,
    /// Bytes of the disk that have to stay free.
    pub least_free_bytes: Option<u64>,
}

impl DiskUse {
    /// Most bytes that may be used of a disk of this size; `None` if the owner has set no limit.
    #[must_use]
    pub fn most(&self, disk_bytes: u64) -> Option<u64> {
        let share = self
            .most_share
            .map(|share| (disk_bytes as f64 * share) as u64);
        self.most_bytes.into_iter().chain(share).min()
    }
}

/// A daily stretch of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Hours {
    /// The whole day, from midnight to midnight.
    Always,
    /// From one hour of the day to another one, past midnight if the second is earlier.
    Between(f64, f64),
}

impl Hours {
    /// `None` if the hours are not valid. Equal hours are no restriction, as in BOINC.
    fn new(start: Option<f64>, end: Option<f64>) -> Option<Self> {
        match (start, end) {
            (None, None) => Some(Self::Always),
            (Some(start), Some(end)) => {
                let valid = |hour| (0.0..=24.0).contains(&hour);
                (valid(start) && valid(end)).then_some(if start == end {
                    Self::Always
                } else {
                    Self::Between(start, end)
                })
            }
            _ => None,
        }
    }

    /// Seconds from this hour of the day until the stretch begins; 0 within it.
    #[must_use]
    pub fn seconds_until(self, hour: f64) -> u32 {
        let Self::Between(start, end) = self else {
            return 0;
        };
        let within = if start < end {
            (start..end).contains(&hour)
        } else {
            hour >= start || hour < end
        };
        if within {
            0
        } else {
            ((start - hour).rem_euclid(24.0) * 3600.0).ceil() as u32
        }
    }
}

/// Why preferences can't be used.
#[derive(Debug, thiserror::Error)]
pub enum PreferencesError {
    /// A file can't be read.
    #[error("{path}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        cause: io::Error,
    },
    /// A file is not valid TOML, or has an unknown name.
    #[error("{path}: {cause}")]
    Syntax {
        /// Path of the file.
        path: PathBuf,
        /// The error, over several lines.
        cause: Box<toml::de::Error>,
    },
    /// A pair of thresholds is not valid.
    #[error("{0}: {1}")]
    Thresholds(&'static str, ThresholdsError),
    /// A number is not valid.
    #[error("{0}: {1}")]
    Value(&'static str, &'static str),
}

/// The path of the owner's preferences.
#[must_use]
pub fn preferences_path(data_dir: &Path) -> PathBuf {
    data_dir.join("preferences.toml")
}

/// The path of the measured thresholds.
#[must_use]
pub fn calibration_path(data_dir: &Path) -> PathBuf {
    data_dir.join("calibration.toml")
}

/// Reads the preferences and the calibration in a data directory. A file that does not exist counts as
/// empty.
///
/// # Errors
/// When the preferences can't be read, or have an unknown name or an impossible value.
pub fn load(data_dir: &Path) -> Result<MonitorSettings, PreferencesError> {
    let preferences = parsed(&preferences_path(data_dir))?;
    settings(&preferences, &calibration(data_dir))
}

/// The measured thresholds. The program writes them itself, so a damaged file is set aside: the usual ones count.
fn calibration(data_dir: &Path) -> Calibration {
    let path = calibration_path(data_dir);
    let usable =
        |calibration: &Calibration| settings(&Preferences::default(), calibration).map(|_| ());
    let read = parsed(&path).and_then(|calibration| {
        usable(&calibration)?;
        Ok(calibration)
    });
    read.unwrap_or_else(|cause| {
        let aside = set_aside(&path);
        tracing::warn!(cause = %chain(&cause), ?aside, "the calibration is damaged: ckpt-store calibrate");
        Calibration::default()
    })
}

fn parsed<T: Default + for<'a> Deserialize<'a>>(path: &Path) -> Result<T, PreferencesError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(T::default()),
        Err(cause) => {
            let path = path.to_owned();
            return Err(PreferencesError::Io { path, cause });
        }
    };
    toml::from_str(&text).map_err(|cause| PreferencesError::Syntax {
        path: path.to_owned(),
        cause: Box::new(cause),
    })
}

/// Default rate of reads while the host stands back: fast enough for a restore to go on, and slow enough
/// that the owner does not notice.
const SLOW_RATE: f64 = 2.0 * MB;

/// Default memory that a guest job needs.
const GUEST_MEMORY_BYTES: u64 = 256 << 20;

/// Checks both files and combines them.
///
/// # Errors
/// When a value is impossible.
pub fn settings(
    preferences: &Preferences,
    calibration: &Calibration,
) -> Result<MonitorSettings, PreferencesError> {
    use PreferencesError::Value;
    let monitor = &preferences.monitor;
    let hours = Hours::new(preferences.start_hour, preferences.end_hour)
        .ok_or(Value("start_hour, end_hour", "two hours from 0 to 24"))?;
    let net_hours = Hours::new(preferences.net_start_hour, preferences.net_end_hour).ok_or(
        Value("net_start_hour, net_end_hour", "two hours from 0 to 24"),
    )?;
    let share = positive("disk_max_used_pct", preferences.disk_max_used_pct)?;
    Ok(MonitorSettings {
        cpu: thresholds(
            "cpu_thresholds",
            monitor.cpu_thresholds.or(calibration.cpu_thresholds),
        )?,
        disk: thresholds(
            "disk_thresholds",
            monitor.disk_thresholds.or(calibration.disk_thresholds),
        )?,
        guest_memory_bytes: positive("guest_memory_mb", monitor.guest_memory_mb)?
            .map_or(GUEST_MEMORY_BYTES, |mb| (mb * MB) as u64),
        guest_commands: monitor.guest_commands.clone(),
        slow_rate: positive("slow_bytes_sec", monitor.slow_bytes_sec)?.unwrap_or(SLOW_RATE),
        receive_rate: positive("max_bytes_sec_down", preferences.max_bytes_sec_down)?,
        send_rate: positive("max_bytes_sec_up", preferences.max_bytes_sec_up)?,
        hours,
        net_hours,
        run_on_batteries: preferences.run_on_batteries,
        exclusive_apps: preferences.exclusive_app.clone(),
        transfers: transfer_limit(preferences)?,
        disk_use: DiskUse {
            most_bytes: gigabytes("disk_max_used_gb", preferences.disk_max_used_gb)?,
            most_share: share.map(|percent| (percent / 100.0).min(1.0)),
            least_free_bytes: gigabytes("disk_min_free_gb", preferences.disk_min_free_gb)?,
        },
    })
}

fn thresholds(name: &'static str, pair: Option<[f64; 2]>) -> Result<Thresholds, PreferencesError> {
    pair.map_or(Ok(Thresholds::LINUX), |[first, second]| {
        Thresholds::new(first, second).map_err(|cause| PreferencesError::Thresholds(name, cause))
    })
}

/// In BOINC 0 means "no limit", and the limit needs both numbers.
fn transfer_limit(preferences: &Preferences) -> Result<Option<TransferLimit>, PreferencesError> {
    let name = "daily_xfer_limit_mb";
    let limit = positive(name, preferences.daily_xfer_limit_mb)?;
    let days = preferences.daily_xfer_period_days.filter(|days| *days > 0);
    match (limit, days) {
        (None, _) => Ok(None),
        (Some(mb), Some(days)) if days <= TRANSFER_DAYS_MAX => Ok(Some(TransferLimit {
            bytes: (mb * MB) as u64,
            days,
        })),
        (Some(_), _) => Err(PreferencesError::Value(
            "daily_xfer_period_days",
            "1 to 366 days, with daily_xfer_limit_mb",
        )),
    }
}

/// In BOINC 0 means "no limit".
fn positive(name: &'static str, value: Option<f64>) -> Result<Option<f64>, PreferencesError> {
    match value {
        Some(value) if !(0.0..=NUMBER_MAX).contains(&value) => {
            Err(PreferencesError::Value(name, "a number from 0 to 1e12"))
        }
        value => Ok(value.filter(|value| *value > 0.0)),
    }
}

fn gigabytes(name: &'static str, value: Option<f64>) -> Result<Option<u64>, PreferencesError> {
    match positive(name, value)? {
        Some(gb) if gb > GIGABYTES_MAX => {
            Err(PreferencesError::Value(name, "at most 1e9, an exabyte"))
        }
        gb => Ok(gb.map(|gb| (gb * GB) as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(preferences: &str, calibration: &str) -> Result<MonitorSettings, PreferencesError> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(preferences_path(dir.path()), preferences).unwrap();
        fs::write(calibration_path(dir.path()), calibration).unwrap();
        load(dir.path())
    }

    #[test]
    fn without_files_all_is_as_in_the_papers() {
        let settings = load(Path::new("/nowhere")).unwrap();
        assert_eq!(settings.cpu, Thresholds::LINUX);
        assert_eq!(settings.hours.seconds_until(3.0), 0);
        assert!(!settings.run_on_batteries);
        assert_eq!(settings.disk_use.most(1 << 40), None);
    }

    #[test]
    fn the_owner_outranks_the_calibration() {
        let calibration = "cpu_thresholds = [0.3, 0.7]\ndisk_thresholds = [0.1, 0.4]\n";
        let settings = loaded("[monitor]\ncpu_thresholds = [0.25, 0.5]\n", calibration).unwrap();
        assert_eq!(settings.cpu, Thresholds::new(0.25, 0.5).unwrap());
        assert_eq!(settings.disk, Thresholds::new(0.1, 0.4).unwrap());
    }

    #[test]
    fn the_smaller_bound_of_the_disk_holds() {
        let settings = loaded("disk_max_used_gb = 100\ndisk_max_used_pct = 50\n", "").unwrap();
        assert_eq!(settings.disk_use.most(400 << 30), Some(100 << 30));
        assert_eq!(settings.disk_use.most(100 << 30), Some(50 << 30));
    }

    #[test]
    fn hours_may_pass_midnight() {
        let settings = loaded("start_hour = 18\nend_hour = 8.5\n", "").unwrap();
        let until = |hour| settings.hours.seconds_until(hour);
        assert_eq!([until(18.0), until(23.9), until(0.0), until(8.4)], [0; 4]);
        assert_eq!(until(8.5), 34_200);
        assert_eq!(until(17.0), 3600);
        let day = loaded("net_start_hour = 8\nnet_end_hour = 18\n", "").unwrap();
        assert_eq!(day.net_hours.seconds_until(19.0), 13 * 3600);
        assert_eq!(day.net_hours.seconds_until(8.0), 0);
        let equal = loaded("start_hour = 5\nend_hour = 5\n", "").unwrap();
        assert_eq!(equal.hours, Hours::Always);
    }

    #[test]
    fn transfers_are_limited_by_two_numbers() {
        let limited = "daily_xfer_limit_mb = 10\ndaily_xfer_period_days = 30\n";
        let settings = loaded(limited, "").unwrap();
        let expected = TransferLimit {
            bytes: 10 << 20,
            days: 30,
        };
        assert_eq!(settings.transfers, Some(expected));
        let none = loaded("daily_xfer_period_days = 30\n", "").unwrap();
        assert_eq!(none.transfers, None);
        let apps = loaded("exclusive_app = [\"game\"]\n", "").unwrap();
        assert_eq!(apps.exclusive_apps, ["game"]);
    }

    #[test]
    fn invalid_preferences_are_refused_by_name() {
        for (text, name) in [
            ("daily_xfer_limit_mb = 5\n", "daily_xfer_period_days"),
            ("disk_max_use_gb = 1\n", "disk_max_use_gb"),
            ("max_bytes_sec_up = -1\n", "max_bytes_sec_up"),
            ("max_bytes_sec_down = nan\n", "max_bytes_sec_down"),
            ("max_bytes_sec_up = 1e300\n", "max_bytes_sec_up"),
            ("disk_max_used_gb = 44444444444444441\n", "disk_max_used_gb"),
            ("start_hour = 5\n", "start_hour"),
            ("start_hour = 5\nend_hour = 25\n", "end_hour"),
            (
                "[monitor]\ndisk_thresholds = [0.9, 0.1]\n",
                "disk_thresholds",
            ),
        ] {
            let refused = loaded(text, "").unwrap_err().to_string();
            assert!(refused.contains(name), "{refused}");
        }
    }
}
