//! Parsers for numbers on the command line, with their limits.

use command_line::size;
use placement::Probability;

use ckpt_agent::agent::ByteRange;

/// Least memory with which some rows can be encoded while others are sent, bytes.
const MEMORY_MIN: u64 = 16 << 20;

/// Lowest rate, bytes per second. Below it, a slow host looks the same as one that is gone.
const BANDWIDTH_MIN: u64 = 64 << 10;

/// Reads `--memory`.
pub(super) fn parse_memory(text: &str) -> Result<u64, String> {
    at_least(text, MEMORY_MIN, "16MiB")
}

/// Reads `--bandwidth`.
pub(super) fn parse_bandwidth(text: &str) -> Result<u64, String> {
    at_least(text, BANDWIDTH_MIN, "64KiB")
}

fn at_least(text: &str, least: u64, named: &str) -> Result<u64, String> {
    let size = size::parse(text)?;
    if size < least {
        return Err(format!("too little: at least {named}"));
    }
    Ok(size)
}

/// Reads `--target`.
pub(super) fn parse_target(text: &str) -> Result<Probability, String> {
    let number: f64 = text
        .parse()
        .map_err(|_| format!("{text:?} is not a number"))?;
    if !(number > 0.0 && number < 1.0) {
        return Err("a probability above 0 and below 1: no number of hosts gives certainty".into());
    }
    Probability::new(number).map_err(|cause| cause.to_string())
}

/// Reads parts of files such as `1GiB:4KiB`, `4096:` and `:512`.
pub(super) fn parse_range(text: &str) -> Result<ByteRange, String> {
    let wrong = "not a part such as 1GiB:4KiB (OFFSET:LENGTH) or 1GiB: (to the end)";
    let (offset, len) = text.split_once(':').ok_or(wrong)?;
    let number = |text: &str| match text {
        "" => Ok(None),
        text => size::parse(text).map(Some),
    };
    let offset = number(offset)?;
    let len = number(len)?;
    if offset.is_none() && len.is_none() {
        return Err(wrong.into());
    }
    let offset = offset.unwrap_or(0);
    Ok(ByteRange { offset, len })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        let range = |offset, len| Ok(ByteRange { offset, len });
        assert_eq!(parse_range("4KiB:1MiB"), range(4096, Some(1 << 20)));
        assert_eq!(parse_range("7:"), range(7, None));
        assert_eq!(parse_range(":512"), range(0, Some(512)));
        assert_eq!(parse_range("7:0"), range(7, Some(0)));
        for wrong in ["", ":", "7", "-1:2", "1:2:3", "a:b", "1-2"] {
            assert!(parse_range(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_refusal_names_what_would_be_accepted() {
        for (refused, limit) in [
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
