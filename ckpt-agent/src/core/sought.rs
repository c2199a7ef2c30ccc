//! Which of the checkpoints that there are somebody means: by labels and by age.

use std::fmt;
use std::time::Duration;

use codec::labels::{LabelError, Labels};

/// Label under which a note is kept.
pub const NOTE: &str = "ckpt.note";

/// Labels of a checkpoint that is to be saved: the user's own, and a note.
///
/// # Errors
/// When one of them can't be a label.
pub fn labels_with_note(
    mut pairs: Vec<(String, String)>,
    note: Option<String>,
) -> Result<Labels, LabelError> {
    Labels::of_user(pairs.clone())?;
    pairs.extend(note.map(|note| (NOTE.to_owned(), note)));
    Labels::new(pairs)
}

/// A label that a checkpoint has to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoughtLabel {
    key: String,
    value: SoughtValue,
}

/// What the value of a label has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SoughtValue {
    Any,
    Is(String),
    /// A number that is no larger.
    AtMost(u64),
}

impl SoughtLabel {
    /// Reads `KEY=VALUE`, or `KEY` for any value.
    pub fn parse(text: &str) -> Self {
        match text.split_once('=') {
            Some((key, value)) => Self::is(key, value),
            None => Self {
                key: text.to_owned(),
                value: SoughtValue::Any,
            },
        }
    }

    /// A label with this value.
    pub fn is(key: &str, value: impl Into<String>) -> Self {
        Self {
            key: key.to_owned(),
            value: SoughtValue::Is(value.into()),
        }
    }

    /// A label whose value is a number that is no larger than this.
    pub fn at_most(key: &str, number: u64) -> Self {
        Self {
            key: key.to_owned(),
            value: SoughtValue::AtMost(number),
        }
    }

    fn is_among(&self, labels: &Labels) -> bool {
        let Some(found) = labels.get(&self.key) else {
            return false;
        };
        match &self.value {
            SoughtValue::Any => true,
            SoughtValue::Is(value) => value == found,
            SoughtValue::AtMost(most) => found.parse().is_ok_and(|number: u64| number <= *most),
        }
    }
}

/// What a checkpoint has to be for somebody to mean it; the default means all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sought {
    /// Labels, all of which it has to have.
    pub labels: Vec<SoughtLabel>,
    /// It was saved longer ago than this.
    pub older_than: Option<Duration>,
}

impl Sought {
    /// Whether it means all.
    pub const fn is_all(&self) -> bool {
        self.labels.is_empty() && self.older_than.is_none()
    }

    /// Whether a checkpoint with these labels whose save began at `created` is meant; both times in Unix
    /// seconds.
    pub fn means(&self, labels: &Labels, created: u64, now: u64) -> bool {
        let is_old = |age: Duration| created.saturating_add(age.as_secs()) < now;
        self.labels.iter().all(|label| label.is_among(labels)) && self.older_than.is_none_or(is_old)
    }
}

impl fmt::Display for Sought {
    /// As it fits after "no checkpoint": ` with label kind=test, older than 3600 s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, SoughtLabel { key, value }) in self.labels.iter().enumerate() {
            let before = if number == 0 { " with label " } else { ", " };
            write!(f, "{before}{key}")?;
            match value {
                SoughtValue::Any => {}
                SoughtValue::Is(value) => write!(f, "={value}")?,
                SoughtValue::AtMost(most) => write!(f, " of at most {most}")?,
            }
        }
        if let Some(age) = self.older_than {
            let before = if self.labels.is_empty() { "" } else { "," };
            write!(f, "{before} older than {} s", age.as_secs())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        all.iter().map(owned).collect()
    }

    #[test]
    fn a_note_is_a_label_that_users_can_not_give() {
        let labels = labels_with_note(pairs(&[("step", "9")]), Some("before the fix".into()));
        let labels = labels.unwrap();
        assert_eq!(labels.get(NOTE), Some("before the fix"));
        assert_eq!(labels.get("step"), Some("9"));
        assert!(labels_with_note(pairs(&[(NOTE, "x")]), None).is_err());
        assert!(labels_with_note(Vec::new(), Some("two\nlines".into())).is_err());
    }

    #[test]
    fn all_that_is_asked_for_has_to_be_so() {
        let labels = Labels::new(pairs(&[("kind", "test"), ("step", "9")])).unwrap();
        let means = |asked: &[&str], older_than: Option<u64>| {
            let sought = Sought {
                labels: asked.iter().map(|text| SoughtLabel::parse(text)).collect(),
                older_than: older_than.map(Duration::from_secs),
            };
            sought.means(&labels, 1000, 2000)
        };
        assert!(means(&[], None) && Sought::default().is_all());
        assert!(means(&["kind=test", "step"], None));
        assert!(!means(&["kind=test", "step=8"], None) && !means(&["loss"], None));
        assert!(means(&["step"], Some(999)) && !means(&["step"], Some(1000)));
        assert!(!means(&["kind="], None), "an empty value is a value");
    }

    #[test]
    fn a_number_may_be_at_most_so_large() {
        let means = |value: &str| {
            let labels = Labels::new(pairs(&[("n", value)])).unwrap();
            let sought = Sought {
                labels: vec![SoughtLabel::at_most("n", 10)],
                older_than: None,
            };
            sought.means(&labels, 0, 0)
        };
        assert!(means("0") && means("9") && means("10"));
        assert!(!means("11") && !means("") && !means("-1") && !means("x"));
    }

    #[test]
    fn what_was_sought_is_said() {
        let sought = Sought {
            labels: vec![SoughtLabel::parse("kind=test"), SoughtLabel::parse("step")],
            older_than: Some(Duration::from_secs(60)),
        };
        let said = " with label kind=test, step, older than 60 s";
        assert_eq!(sought.to_string(), said);
        assert_eq!(Sought::default().to_string(), "");
    }
}
