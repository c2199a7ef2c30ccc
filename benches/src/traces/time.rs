//! Dates without a time library: the traces name days as `20110303` and `Mar 19, 2025 11:00 +0000`.

/// Days from 1 January 1970 to a date of the Gregorian calendar from 1970 on. `None` if there is no
/// such date.
#[must_use]
pub fn days_since_epoch(year: u64, month: u64, day: u64) -> Option<u64> {
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let february = if leap(year) { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let length = *lengths.get(usize::try_from(month.checked_sub(1)?).ok()?)?;
    if !(1970..3000).contains(&year) || !(1..=length).contains(&day) {
        return None;
    }
    let years: u64 = (1970..year).map(|y| if leap(y) { 366 } else { 365 }).sum();
    let months: u64 = lengths.iter().take(month as usize - 1).sum();
    Some(years + months + day - 1)
}

/// Unix time of a moment such as `Mar 19, 2025 11:00 -0600`.
#[must_use]
pub fn parse_declared_time(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let mut words = text.split_whitespace();
    let month = words.next()?;
    let month = 1 + MONTHS.iter().position(|name| month.starts_with(name))? as u64;
    let day = words.next()?.trim_end_matches(',').parse().ok()?;
    let year = words.next()?.parse().ok()?;
    let (hour, minute) = words.next()?.split_once(':')?;
    let (hour, minute): (u64, u64) = (hour.parse().ok()?, minute.parse().ok()?);
    let zone: i64 = match words.next() {
        None | Some("UTC") => 0,
        Some(offset) => offset.parse().ok()?,
    };
    if hour > 24 || minute > 59 {
        return None;
    }
    let local = days_since_epoch(year, month, day)? * 86_400 + hour * 3600 + minute * 60;
    local.checked_add_signed(-(zone / 100 * 3600 + zone % 100 * 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_days_since_the_epoch() {
        assert_eq!(days_since_epoch(1970, 1, 1), Some(0));
        assert_eq!(days_since_epoch(2000, 3, 1), Some(11_017));
        assert_eq!(days_since_epoch(2011, 3, 3), Some(15_036));
        assert_eq!(days_since_epoch(2023, 2, 29), None);
        assert_eq!(days_since_epoch(2023, 13, 1), None);
        assert_eq!(days_since_epoch(2023, 0, 1), None);
    }

    #[test]
    fn declared_times_carry_their_zone() {
        assert_eq!(parse_declared_time("Jan 1, 1970 00:00 +0000"), Some(0));
        assert_eq!(
            parse_declared_time("Aug 2, 2018 06:00 -0400"),
            Some(1_533_204_000)
        );
        assert_eq!(parse_declared_time("Jan 2, 1970 00:30 +0530"), Some(68_400));
        assert_eq!(parse_declared_time("soon"), None);
    }
}
