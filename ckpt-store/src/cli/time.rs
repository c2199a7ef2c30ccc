//! Times as they are typed.

use std::time::Duration;

/// Reads times such as `90s`, `15min`, `2h`, `1d`.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| format!("{text:?} is no time; try 15min"))?;
    let factor = match unit {
        "ms" => return Ok(Duration::from_millis(number)),
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        other => return Err(format!("unit {other:?}; use ms, s, min, h, d")),
    };
    let seconds = number
        .checked_mul(factor)
        .ok_or_else(|| format!("{text} is too long"))?;
    Ok(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(parse("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("15min"), Ok(Duration::from_secs(900)));
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
        assert!(parse("soon").is_err() && parse("3w").is_err());
    }
}
