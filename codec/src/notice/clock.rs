//! The time of day, when a host's own clock or those of others may be wrong.

/// The lower median of the host's own clock and those of others; `None` if there are no others.
fn lower_median(own: u64, mut others: Vec<u64>) -> Option<u64> {
    if others.is_empty() {
        return None;
    }
    others.push(own);
    others.sort_unstable();
    others.get((others.len() - 1) / 2).copied()
}

/// The time of day by which a host may delete what is too old, Unix seconds. It is not later than the
/// host's own clock, so other hosts can only delay a deletion; and not later than the lower median of all
/// clocks, so a fast clock of the host's own deletes nothing. `None` if there are no other clocks: then the
/// host must not delete anything for its age.
pub fn agreed_clock(own: u64, others: Vec<u64>) -> Option<u64> {
    lower_median(own, others).map(|median| median.min(own))
}

/// The time of day by which a host decides that the number of a notice is too far ahead, Unix seconds. It
/// is not earlier than the host's own clock and not earlier than the lower median of all clocks, so a host
/// whose own clock is slow still accepts notices.
pub fn latest_clock(own: u64, others: Vec<u64>) -> u64 {
    lower_median(own, others).map_or(own, |median| median.max(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agreed_clock_is_ahead_of_neither_the_own_one_nor_most_others() {
        assert_eq!(agreed_clock(100, vec![]), None);
        assert_eq!(agreed_clock(9_999, vec![100]), Some(100));
        assert_eq!(agreed_clock(9_999, vec![100, 101]), Some(101));
        assert_eq!(agreed_clock(100, vec![101, 9_999]), Some(100));
        // Any number of hosts may report false times.
        assert_eq!(agreed_clock(100, vec![9_999; 50]), Some(100));
    }

    #[test]
    fn a_slow_clock_refuses_nothing_that_others_take() {
        assert_eq!(latest_clock(100, vec![]), 100);
        assert_eq!(latest_clock(5, vec![100, 101, 102]), 100);
        assert_eq!(latest_clock(100, vec![5, 5, 5]), 100);
    }
}
