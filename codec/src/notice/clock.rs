//! What time it is when not every clock can be believed.

/// The lower median of the own clock and those of others; `None` when there is no other.
fn lower_median(own: u64, mut others: Vec<u64>) -> Option<u64> {
    if others.is_empty() {
        return None;
    }
    others.push(own);
    others.sort_unstable();
    others.get((others.len() - 1) / 2).copied()
}

/// The time of day by which something may be deleted, Unix seconds: not later than the own clock, and
/// not later than most others'. So others can only delay, and a clock of one's own that is fast deletes
/// nothing. `None` when there is no other: then nothing is to be deleted for its age.
pub fn agreed_clock(own: u64, others: Vec<u64>) -> Option<u64> {
    lower_median(own, others).map(|median| median.min(own))
}

/// The time of day by which the number of a notice is too far ahead, Unix seconds: not earlier than the
/// own clock, and not earlier than the lower median. So a host whose own clock is slow takes notices all
/// the same.
pub fn latest_clock(own: u64, others: Vec<u64>) -> u64 {
    lower_median(own, others).map_or(own, |median| median.max(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_deleted_before_the_own_clock_or_most_others_say_so() {
        assert_eq!(agreed_clock(100, vec![]), None);
        assert_eq!(agreed_clock(9_999, vec![100]), Some(100));
        assert_eq!(agreed_clock(9_999, vec![100, 101]), Some(101));
        assert_eq!(agreed_clock(100, vec![101, 9_999]), Some(100));
        // As many liars as one likes.
        assert_eq!(agreed_clock(100, vec![9_999; 50]), Some(100));
    }

    #[test]
    fn a_slow_clock_refuses_nothing_that_others_take() {
        assert_eq!(latest_clock(100, vec![]), 100);
        assert_eq!(latest_clock(5, vec![100, 101, 102]), 100);
        assert_eq!(latest_clock(100, vec![5, 5, 5]), 100);
    }
}
