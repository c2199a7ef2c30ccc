//! Sizes in words that people use.

use crate::core::ledger::Quota;

/// Reads sizes such as `64MiB`, `10GB`, `1048576`.
pub(super) fn parse(text: &str) -> Result<u64, String> {
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
        "KB" | "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        other => {
            return Err(format!(
                "unit {other:?}; use B, KiB, MiB, GiB, TiB, kB, MB, GB, TB"
            ));
        }
    };
    let number: u64 = number.parse().map_err(|_| format!("{text:?} is no size"))?;
    number
        .checked_mul(factor)
        .ok_or_else(|| format!("{text} is too large"))
}

/// Reads a size, or a part of what is lent such as `50%`.
pub(super) fn parse_quota(text: &str) -> Result<Quota, String> {
    let Some(number) = text.strip_suffix('%') else {
        return parse(text).map(Quota::Bytes);
    };
    let percent: Option<u8> = number.trim().parse().ok();
    percent
        .filter(|percent| (1..=100).contains(percent))
        .map(Quota::Percent)
        .ok_or_else(|| format!("{text:?}: a part is 1% to 100%"))
}

/// Writes a size with one digit after the point.
pub(super) fn format(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0);
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse("64MiB"), Ok(64 << 20));
        assert_eq!(parse("10 GB"), Ok(10_000_000_000));
        assert_eq!(parse("7"), Ok(7));
        assert!(parse("x").is_err());
        assert!(parse("1XB").is_err());
        assert!(parse("99999999999TiB").is_err());
    }

    #[test]
    fn quotas_are_sizes_or_parts() {
        assert_eq!(parse_quota("64MiB"), Ok(Quota::Bytes(64 << 20)));
        assert_eq!(parse_quota("50%"), Ok(Quota::Percent(50)));
        assert_eq!(parse_quota("100 %"), Ok(Quota::Percent(100)));
        for wrong in ["0%", "101%", "-1%", "x%", "%", "x"] {
            assert!(parse_quota(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_written() {
        assert_eq!(format(0), "0 B");
        assert_eq!(format(1023), "1023 B");
        assert_eq!(format(1536), "1.5 KiB");
        assert_eq!(format(u64::MAX), "16777216.0 TiB");
    }
}
