//! Numbers and times as they are typed, and what they may be.

use std::time::Duration;

use placement::Probability;

/// Least memory with which rows can be encoded while others are sent.
const MEMORY_MIN: u64 = 16 << 20;

/// Least rate: with less, hosts can't be told from hosts that are gone.
const BANDWIDTH_MIN: u64 = 64 << 10;

/// Longest time: a hundred years.
const TIME_MAX: Duration = Duration::from_secs(36_500 * 86_400);

/// Reads `--memory`.
pub(super) fn parse_memory(text: &str) -> Result<u64, String> {
    at_least(text, MEMORY_MIN, "16MiB")
}

/// Reads `--bandwidth`.
pub(super) fn parse_bandwidth(text: &str) -> Result<u64, String> {
    at_least(text, BANDWIDTH_MIN, "64KiB")
}

fn at_least(text: &str, least: u64, named: &str) -> Result<u64, String> {
    let size = parse_size(text)?;
    if size < least {
        return Err(format!("too little: at least {named}"));
    }
    Ok(size)
}

/// Reads `--target`.
pub(super) fn parse_target(text: &str) -> Result<Probability, String> {
    let number: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    if !(number > 0.0 && number < 1.0) {
        return Err("a probability above 0 and below 1: no number of hosts gives certainty".into());
    }
    Probability::new(number).map_err(|cause| cause.to_string())
}

/// Reads times such as `240s`, `4m`, `1h`, `500ms`.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| format!("{text:?} is no time; try 240s"))?;
    let factor_ms: u64 = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        other => return Err(format!("unit {other:?}; use ms, s, m, h, d")),
    };
    let time = number.checked_mul(factor_ms).map(Duration::from_millis);
    let time = time.filter(|time| !time.is_zero() && *time <= TIME_MAX);
    time.ok_or_else(|| "a time is at least 1ms and at most 36500d".to_owned())
}

/// Reads sizes such as `64MiB`, `10GB`, `1048576`.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim() {
        "" | "B" => 1,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "TiB" | "T" => 1 << 40,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        other => {
            return Err(format!(
                "unit {other:?}; use B, KiB, MiB, GiB, TiB, kB, MB, GB"
            ));
        }
    };
    let number: u64 = number.parse().map_err(|_| format!("{text:?} is no size"))?;
    number
        .checked_mul(factor)
        .ok_or_else(|| format!("{text} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_read() {
        assert_eq!(parse_duration("240s"), Ok(Duration::from_secs(240)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert!(parse_duration("soon").is_err());
        assert_eq!(parse_size("256MiB"), Ok(256 << 20));
        assert!(parse_size("many").is_err());
    }

    #[test]
    fn what_is_refused_is_told_what_would_do() {
        for (refused, limit) in [
            (parse_duration("0s").err(), "1ms"),
            (parse_duration("36501d").err(), "36500d"),
            (parse_memory("1").err(), "16MiB"),
            (parse_bandwidth("0").err(), "64KiB"),
            (parse_target("1").err(), "below 1"),
            (parse_target("NaN").err(), "above 0"),
        ] {
            assert!(
                refused.as_ref().is_some_and(|why| why.contains(limit)),
                "{refused:?}"
            );
        }
        assert_eq!(parse_memory("16MiB"), Ok(16 << 20));
        assert_eq!(parse_bandwidth("64KiB"), Ok(64 << 10));
    }
}
