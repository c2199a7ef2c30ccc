//! Which versions a restore may take: one whose state was not known to be whole, only if there is no whole one
//! before it.

/// What is known of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wholeness {
    /// Its image is one state.
    Whole,
    /// It is marked: its image may mix several states.
    Marked,
    /// It can't be opened.
    Unknown,
}

impl Wholeness {
    /// Of a version that can be opened, and has this mark.
    pub fn of<M>(mark: Option<M>) -> Self {
        mark.map_or(Self::Whole, |_| Self::Marked)
    }
}

/// Takes the marked versions out of a list, newest first, that have an older whole one in it, and returns them,
/// newest first.
pub fn take_out_marked<T>(newest_first: &mut Vec<T>, what: impl Fn(&T) -> Wholeness) -> Vec<T> {
    let oldest_whole = newest_first
        .iter()
        .rposition(|one| what(one) == Wholeness::Whole);
    let all = std::mem::take(newest_first).into_iter().enumerate();
    let (out, stay): (Vec<_>, Vec<_>) = all.partition(|(at, one)| {
        what(one) == Wholeness::Marked && oldest_whole.is_some_and(|oldest| *at < oldest)
    });
    let without_place = |all: Vec<(usize, T)>| all.into_iter().map(|(_, one)| one);
    newest_first.extend(without_place(stay));
    without_place(out).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits versions, newest first: `w` is whole, `m` marked, `u` can't be opened.
    fn split(text: &str) -> (String, String) {
        let mut all: Vec<(usize, char)> = text.chars().enumerate().collect();
        let out = take_out_marked(&mut all, |(_, kind)| match kind {
            'w' => Wholeness::Whole,
            'm' => Wholeness::Marked,
            _ => Wholeness::Unknown,
        });
        let text = |all: Vec<(usize, char)>| all.into_iter().map(|(_, kind)| kind).collect();
        (text(all), text(out))
    }

    #[test]
    fn a_marked_version_is_taken_only_without_an_older_whole_one() {
        let expected = |stay: &str, out: &str| (stay.to_owned(), out.to_owned());
        assert_eq!(split("mw"), expected("w", "m"));
        assert_eq!(split("mmwmw"), expected("ww", "mmm"));
        assert_eq!(split("wm"), expected("wm", ""));
        assert_eq!(split("mwm"), expected("wm", "m"));
        assert_eq!(split("mm"), expected("mm", ""));
        assert_eq!(split("um"), expected("um", ""));
        assert_eq!(split("mu"), expected("mu", ""));
        assert_eq!(split(""), expected("", ""));
    }
}
