//! Parses how much one submitter may use, as it is typed.

use command_line::size;

use crate::core::ledger::Quota;

/// Parses a size, or a part of what is lent such as `50%`.
pub(super) fn parse(text: &str) -> Result<Quota, String> {
    let Some(number) = text.strip_suffix('%') else {
        return size::parse(text).map(Quota::Bytes);
    };
    let percent: Option<u8> = number.trim().parse().ok();
    percent
        .filter(|percent| (1..=100).contains(percent))
        .map(Quota::Percent)
        .ok_or_else(|| format!("{text:?}: a percentage is 1% to 100%"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_sizes_or_parts() {
        assert_eq!(parse("64MiB"), Ok(Quota::Bytes(64 << 20)));
        assert_eq!(parse("50%"), Ok(Quota::Percent(50)));
        assert_eq!(parse("100 %"), Ok(Quota::Percent(100)));
        for wrong in ["0%", "101%", "-1%", "x%", "%", "x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
