//! The man page of the owner's preferences.

use command_line::man::{FilePage, FileTable};

/// The page about `preferences.toml` in a data directory.
pub(super) const PREFERENCES: FilePage = FilePage {
    name: "ckpt-store-preferences",
    about: "what a machine's owner allows ckpt-store to do",
    description: &[
        "preferences.toml in the data directory of a host. The daemon reads it when it starts and whenever it changes, the three keys that begin with disk_ only when it starts. All keys are optional. Names and units are those of BOINC: a GB is 1,073,741,824 bytes, a MB 1,048,576.",
        "If the file can't be read, has a key that is not on this page or an impossible value, the previous preferences stay in force, and a daemon that starts refuses to run. ckpt-store status shows which preferences are in force, and why the host stands back.",
    ],
    tables: &[
        FileTable {
            heading: "",
            about: "Before the first table:",
            keys: &[
                (
                    "disk_max_used_gb",
                    "Number, GB. Space to lend. The smallest of this key, disk_max_used_pct and --capacity counts.",
                ),
                (
                    "disk_max_used_pct",
                    "Number, percent of the disk. Space to lend.",
                ),
                (
                    "disk_min_free_gb",
                    "Number, GB. Space of the disk that stays free. The larger of this key and --reserve counts.",
                ),
                (
                    "max_bytes_sec_down",
                    "Number, bytes per second. Receive at most this, over all transfers.",
                ),
                (
                    "max_bytes_sec_up",
                    "Number, bytes per second. Send at most this, over all transfers.",
                ),
                (
                    "start_hour",
                    "Number, 0 to 24, local time; with end_hour. New shards are taken only from this hour of the day on.",
                ),
                (
                    "end_hour",
                    "Number, 0 to 24. New shards are taken up to this hour; past midnight when it is before start_hour.",
                ),
                (
                    "net_start_hour",
                    "Number, 0 to 24, local time; with net_end_hour. The network is used only from this hour of the day on; outside of these hours, not even reads are answered.",
                ),
                (
                    "net_end_hour",
                    "Number, 0 to 24. The network is used up to this hour; past midnight when it is before net_start_hour.",
                ),
                (
                    "run_on_batteries",
                    "true or false [default: false]. Take new shards even while the machine runs on its battery.",
                ),
                (
                    "exclusive_app",
                    "List of texts. Names of commands for which the owner wants the machine alone: while one of them runs, no new shards are taken.",
                ),
                (
                    "daily_xfer_limit_mb",
                    "Number, MB; with daily_xfer_period_days. Transfer at most this, in both directions together, within that number of days; then not even reads are answered until the oldest of these days is over.",
                ),
                (
                    "daily_xfer_period_days",
                    "Number of days, 1 to 366, over which daily_xfer_limit_mb counts.",
                ),
            ],
        },
        FileTable {
            heading: "[monitor]",
            about: "How the machine is watched. ckpt-store calibrate measures the thresholds; values given here replace them.",
            keys: &[
                (
                    "cpu_thresholds",
                    "List of two numbers, shares of all CPUs. Up to the first one the owner does not notice a guest; above the second one, for a minute, the host stands back.",
                ),
                (
                    "disk_thresholds",
                    "List of two numbers, shares of time in which the owner uses the disk; as above.",
                ),
                (
                    "guest_memory_mb",
                    "Number, MB [default: 256]. The host stands back while less memory than this is free.",
                ),
                (
                    "guest_commands",
                    "List of texts. Names of commands whose load is not the owner's, such as boinc.",
                ),
                (
                    "slow_bytes_sec",
                    "Number, bytes per second [default: 2097152]. Rate of reads while the host stands back.",
                ),
            ],
        },
    ],
    example: "disk_max_used_gb = 100\nstart_hour = 18\nend_hour = 8\nexclusive_app = [\"game\"]\n\n[monitor]\nguest_commands = [\"boinc\"]",
    see_also: &[
        "ckpt-store(1)",
        "ckpt-store-serve(1)",
        "ckpt-store-status(1)",
        "ckpt-store-calibrate(1)",
    ],
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::monitor::preferences::Preferences;

    /// The keys that the parser lists in its error about an unknown key.
    fn taken(text: &str) -> BTreeSet<String> {
        let refused = toml::from_str::<Preferences>(text).unwrap_err();
        let names = refused.message().split("expected one of").nth(1).unwrap();
        names
            .split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn the_page_has_the_keys_that_the_parser_takes_and_no_others() {
        for table in PREFERENCES.tables {
            let mut said: BTreeSet<String> =
                table.keys.iter().map(|(key, _)| (*key).into()).collect();
            if table.heading.is_empty() {
                said.insert("monitor".into());
            }
            assert_eq!(said, taken(&format!("{}\nno-key = 1", table.heading)));
        }
        assert!(toml::from_str::<Preferences>(PREFERENCES.example).is_ok());
    }
}
