//! Times as people type and read them.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Longest time: 36,500 days, about a hundred years.
const TIME_MAX: Duration = Duration::from_secs(36_500 * 86_400);

/// Reads times such as `240s`, `15min`, `2h`, `500ms`, `1d`; without a unit they are seconds.
///
/// # Errors
/// A description of the mistake, for the user.
pub fn parse(text: &str) -> Result<Duration, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| format!("{text:?} is not a time such as 240s"))?;
    let factor_ms: u64 = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "w" => 7 * 86_400_000,
        other => {
            return Err(format!(
                "unknown unit {other:?}; use ms, s, m, min, h, d, w"
            ));
        }
    };
    let time = number.checked_mul(factor_ms).map(Duration::from_millis);
    let time = time.filter(|time| !time.is_zero() && *time <= TIME_MAX);
    time.ok_or_else(|| "a time is at least 1ms and at most 36500d".to_owned())
}

/// As [`parse`], for times after which something is removed or ends. A number without a unit is refused,
/// because the user may mean days.
///
/// # Errors
/// As [`parse`].
pub fn parse_with_unit(text: &str) -> Result<Duration, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!(
            "{text} has no unit: {text}d are days, {text}h hours, {text}s seconds"
        ));
    }
    parse(text)
}

/// Formats Unix seconds as `2026-11-22 14:02:05Z`.
pub fn utc(at: u64) -> String {
    timestamp(at).map_or_else(
        || beyond_the_calendar(at),
        |time| time.strftime("%Y-%m-%d %H:%M:%SZ").to_string(),
    )
}

/// Formats Unix seconds as `2026-11-22 14:02`, in the machine's time zone.
pub fn local(at: u64) -> String {
    timestamp(at).map_or_else(
        || beyond_the_calendar(at),
        |time| {
            let local = time.to_zoned(TimeZone::system());
            local.strftime("%Y-%m-%d %H:%M").to_string()
        },
    )
}

/// Formats Unix seconds as `22:14`, in the machine's time zone, or as [`local`] if `now` is on another day.
pub fn since(at: u64, now: u64) -> String {
    let at_text = local(at);
    let today = local(now);
    match (at_text.split_once(' '), today.split_once(' ')) {
        (Some((day, time)), Some((today, _))) if day == today => time.to_owned(),
        _ => at_text,
    }
}

/// As [`since`], in UTC: `22:14Z`.
pub fn since_utc(at: u64, now: u64) -> String {
    let at_text = utc(at);
    let today = utc(now);
    match (at_text.split_once(' '), today.split_once(' ')) {
        (Some((day, time)), Some((today, _))) if day == today => short(time),
        (Some((day, time)), Some(_)) => format!("{day} {}", short(time)),
        _ => at_text,
    }
}

/// `22:14Z` of `22:14:05Z`.
fn short(time: &str) -> String {
    time.get(..5)
        .map_or_else(|| time.to_owned(), |minutes| format!("{minutes}Z"))
}

fn timestamp(at: u64) -> Option<Timestamp> {
    Timestamp::from_second(i64::try_from(at).ok()?).ok()
}

fn beyond_the_calendar(at: u64) -> String {
    format!("{at} s after 1970")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(parse("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("240s"), Ok(Duration::from_secs(240)));
        assert_eq!(parse("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse("15min"), Ok(Duration::from_secs(900)));
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
        for (wrong, limit) in [
            ("soon", "240s"),
            ("3y", "min"),
            ("0s", "1ms"),
            ("36501d", "36500d"),
            ("99999999999999999999d", "not a time"),
        ] {
            let why = parse(wrong).unwrap_err();
            assert!(why.contains(limit), "{why}");
        }
    }

    #[test]
    fn the_day_is_left_out_if_it_is_today() {
        let at = 1_795_000_000;
        let text = utc(at);
        let (day, time) = text.split_once(' ').unwrap();
        assert_eq!(since_utc(at, at + 60), format!("{}Z", &time[..5]));
        assert_eq!(
            since_utc(at, at + 172_800),
            format!("{day} {}Z", &time[..5])
        );
        assert_eq!(local(at), format!("{} {}", &local(at)[..10], since(at, at)));
        assert_eq!(since(at, at + 172_800), local(at));
        assert!(since(u64::MAX, at).contains("after 1970"));
    }

    #[test]
    fn a_number_that_may_mean_days_needs_its_unit() {
        assert_eq!(parse_with_unit("1w"), Ok(Duration::from_secs(604_800)));
        assert!(parse_with_unit("7").unwrap_err().contains("7d are days"));
        assert!(parse_with_unit("").is_err());
    }

    #[test]
    fn times_are_written() {
        assert_eq!(utc(0), "1970-01-01 00:00:00Z");
        assert_eq!(utc(951_782_399), "2000-02-28 23:59:59Z");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00Z");
        assert_eq!(utc(1_795_219_199), "2026-11-20 23:59:59Z");
        assert_eq!(utc(u64::MAX), format!("{} s after 1970", u64::MAX));
    }
}
