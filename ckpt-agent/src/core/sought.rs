//! Which checkpoints a command is about, when it selects them by label and by age.

use std::fmt;
use std::time::Duration;

use codec::labels::{LabelError, Labels};

/// Key of the label that keeps the note of `--note`.
pub const NOTE: &str = "ckpt.note";

/// Labels for a new checkpoint: the user's own `pairs`, and the note.
///
/// # Errors
/// When one of the pairs is not a valid label, or the note is not a valid value.
pub fn labels_with_note(
    mut pairs: Vec<(String, String)>,
    note: Option<String>,
) -> Result<Labels, LabelError> {
    Labels::of_user(pairs.clone())?;
    pairs.extend(note.map(|note| (NOTE.to_owned(), note)));
    Labels::new(pairs)
}

/// A condition on one label of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoughtLabel {
    key: String,
    value: SoughtValue,
}

/// A condition on the value of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SoughtValue {
    Any,
    Is(String),
    /// The value is a number, and at most this one.
    AtMost(u64),
}

impl SoughtLabel {
    /// Parses `KEY=VALUE`, or `KEY` for any value.
    pub fn parse(text: &str) -> Self {
        match text.split_once('=') {
            Some((key, value)) => Self::is(key, value),
            None => Self {
                key: text.to_owned(),
                value: SoughtValue::Any,
            },
        }
    }

    /// The label `key` has exactly this value.
    pub fn is(key: &str, value: impl Into<String>) -> Self {
        Self {
            key: key.to_owned(),
            value: SoughtValue::Is(value.into()),
        }
    }

    /// The value of the label `key` is a number, and at most this one.
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

/// The conditions that select checkpoints; the default selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sought {
    /// Conditions on labels; a checkpoint has to meet all of them.
    pub labels: Vec<SoughtLabel>,
    /// The save began longer ago than this.
    pub older_than: Option<Duration>,
}

impl Sought {
    /// Whether there are no conditions.
    pub const fn is_all(&self) -> bool {
        self.labels.is_empty() && self.older_than.is_none()
    }

    /// Whether a checkpoint is selected that has these labels and whose save began at `created`; `created`
    /// and `now` are Unix seconds.
    pub fn means(&self, labels: &Labels, created: u64, now: u64) -> bool {
        let is_old = |age: Duration| created.saturating_add(age.as_secs()) < now;
        self.labels.iter().all(|label| label.is_among(labels)) && self.older_than.is_none_or(is_old)
    }
}

impl fmt::Display for Sought {
    /// The conditions in a form that follows "no checkpoint": ` with label kind=test, older than 3600 s`.
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
    fn the_version_that_was_sought_is_described() {
        let sought = Sought {
            labels: vec![SoughtLabel::parse("kind=test"), SoughtLabel::parse("step")],
            older_than: Some(Duration::from_secs(60)),
        };
        let said = " with label kind=test, step, older than 60 s";
        assert_eq!(sought.to_string(), said);
        assert_eq!(Sought::default().to_string(), "");
    }
}
