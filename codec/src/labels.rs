//! Labels: keys and values that users give a checkpoint, to find it again.

use serde::{Deserialize, Serialize};

/// Most bytes of a key.
pub const LABEL_KEY_BYTES_MAX: usize = 64;

/// Most bytes that all keys and values of a checkpoint have together.
pub const LABELS_BYTES_MAX: usize = 4096;

/// Keys that begin with this are reserved for the program.
pub const RESERVED: &str = "ckpt.";

/// Pairs of key and value, in the order of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(String, String)>", into = "Vec<(String, String)>")]
pub struct Labels(Vec<(String, String)>);

/// Why labels are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// A key is empty or too long.
    #[error("label key {0:?} does not have 1 to {LABEL_KEY_BYTES_MAX} characters")]
    Length(String),
    /// A key has a character that is not allowed.
    #[error("label key {0:?} has other characters than a-z 0-9 . _ -")]
    Character(String),
    /// A key is reserved for the program.
    #[error("label key {0:?} begins with {RESERVED}, which is reserved")]
    Reserved(String),
    /// A value has a control character, which could do harm on a terminal.
    #[error("the value of label {0:?} has a control character")]
    Value(String),
    /// A key is there twice, or keys are out of order.
    #[error("label key {0:?} occurs twice, or is not in order")]
    Order(String),
    /// All labels together are longer than [`LABELS_BYTES_MAX`].
    #[error("labels of {0} bytes, at most {LABELS_BYTES_MAX} are allowed")]
    TooLong(usize),
}

impl Labels {
    /// Checks pairs in any order.
    ///
    /// # Errors
    /// When a key or value is not allowed, two have the same key, or together they are too long.
    pub fn new(mut pairs: Vec<(String, String)>) -> Result<Self, LabelError> {
        pairs.sort();
        Self::try_from(pairs)
    }

    /// Checks labels that a user gives, which may have no reserved keys.
    ///
    /// # Errors
    /// As [`Self::new`], and for reserved keys.
    pub fn of_user(pairs: Vec<(String, String)>) -> Result<Self, LabelError> {
        let mut keys = pairs.iter().map(|(key, _)| key);
        if let Some(key) = keys.find(|key| key.starts_with(RESERVED)) {
            return Err(LabelError::Reserved(key.clone()));
        }
        Self::new(pairs)
    }

    /// Pairs of key and value, in the order of keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter()
            .find(|(have, _)| *have == key)
            .map(|(_, value)| value)
    }

    /// Whether there are no labels.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl TryFrom<Vec<(String, String)>> for Labels {
    type Error = LabelError;

    fn try_from(pairs: Vec<(String, String)>) -> Result<Self, LabelError> {
        let bytes = pairs
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        if bytes > LABELS_BYTES_MAX {
            return Err(LabelError::TooLong(bytes));
        }
        for (key, value) in &pairs {
            if key.is_empty() || key.len() > LABEL_KEY_BYTES_MAX {
                return Err(LabelError::Length(key.clone()));
            }
            let allowed =
                |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
            if !key.bytes().all(allowed) {
                return Err(LabelError::Character(key.clone()));
            }
            if value.chars().any(char::is_control) {
                return Err(LabelError::Value(key.clone()));
            }
        }
        let wrong = pairs.windows(2).find(|two| two[0].0 >= two[1].0);
        match wrong {
            Some(two) => Err(LabelError::Order(two[1].0.clone())),
            None => Ok(Self(pairs)),
        }
    }
}

impl From<Labels> for Vec<(String, String)> {
    fn from(labels: Labels) -> Self {
        labels.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Result<Labels, LabelError> {
        let pairs = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Labels::of_user(pairs.collect())
    }

    #[test]
    fn labels_are_sorted_and_unique() {
        let good = labels(&[("step", "9"), ("a.b_c-1", ""), ("loss", "0,1 µ")]).unwrap();
        let keys: Vec<&str> = good.iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["a.b_c-1", "loss", "step"]);
        assert_eq!((good.get("step"), good.get("x")), (Some("9"), None));
        assert_eq!(
            labels(&[("a", "1"), ("a", "2")]),
            Err(LabelError::Order("a".into()))
        );
        let disorder = vec![
            ("b".to_owned(), String::new()),
            ("a".to_owned(), String::new()),
        ];
        assert!(Labels::try_from(disorder).is_err());
    }

    #[test]
    fn text_that_is_no_label_is_refused() {
        let long = "k".repeat(65);
        assert_eq!(labels(&[("", "1")]), Err(LabelError::Length(String::new())));
        assert_eq!(
            labels(&[(&long, "1")]),
            Err(LabelError::Length(long.clone()))
        );
        for key in ["A", "a b", "a/b", "ä"] {
            assert_eq!(
                labels(&[(key, "1")]),
                Err(LabelError::Character(key.into()))
            );
        }
        assert_eq!(
            labels(&[("ckpt.x", "1")]),
            Err(LabelError::Reserved("ckpt.x".into()))
        );
        assert!(Labels::new(vec![("ckpt.x".into(), "1".into())]).is_ok());
        assert_eq!(
            labels(&[("a", "\u{1b}[2J")]),
            Err(LabelError::Value("a".into()))
        );
        let most = "v".repeat(LABELS_BYTES_MAX - 1);
        assert!(labels(&[("a", &most)]).is_ok());
        assert_eq!(
            labels(&[("aa", &most)]),
            Err(LabelError::TooLong(LABELS_BYTES_MAX + 1))
        );
    }
}
