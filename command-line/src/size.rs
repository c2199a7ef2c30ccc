//! Sizes as people type and read them.

/// Reads sizes such as `64MiB`, `10GB`, `1048576`, in bytes.
///
/// # Errors
/// A description of the mistake, for the user.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| format!("{text:?} is not a size such as 64MiB"))?;
    let factor: u64 = match unit.trim() {
        "" | "B" => 1,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "TiB" | "T" => 1 << 40,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        other => {
            return Err(format!(
                "unknown unit {other:?}; use B, KiB, MiB, GiB, TiB, kB, MB, GB, TB"
            ));
        }
    };
    number
        .checked_mul(factor)
        .ok_or_else(|| format!("{text} is too large"))
}

/// Writes a size with one digit after the point: `1.9 GiB`.
pub fn format(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut larger = UNITS.iter();
    let mut unit = larger.next();
    // 1023.95 and more would be printed as 1024.0.
    while value >= 1023.95
        && let Some(next) = larger.next()
    {
        value /= 1024.0;
        unit = Some(next);
    }
    format!("{value:.1} {}", unit.copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse("64MiB"), Ok(64 << 20));
        assert_eq!(parse("10 GB"), Ok(10_000_000_000));
        assert_eq!(parse("7"), Ok(7));
        assert_eq!(parse("2TB"), Ok(2_000_000_000_000));
        for wrong in ["x", "many", "", "1XB", "99999999999TiB", "-1", "1.5GiB"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_written_so_that_people_can_read_them() {
        assert_eq!(format(0), "0 B");
        assert_eq!(format(1023), "1023 B");
        assert_eq!(format(1024), "1.0 KiB");
        assert_eq!(format(1536), "1.5 KiB");
        assert_eq!(format((1 << 20) - 1), "1.0 MiB");
        assert_eq!(format(2_040_109_466), "1.9 GiB");
        assert_eq!(format(u64::MAX), "16.0 EiB");
    }
}
