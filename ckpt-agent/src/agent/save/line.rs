//! The label with which each version of a later line names the first of its line.

use codec::Version;
use codec::labels::Labels;

use crate::agent::Agent;
use crate::core::gather::silence::Line;
use crate::inventory::KnownCheckpoint;

/// Key of the label with the number of the first version of the line.
const LINE: &str = "ckpt.line";

/// These labels, and that of the line. If there is no room for it, they stay as they are.
pub(super) fn with_line(labels: &Labels, line: Line) -> Labels {
    let Some(first) = line else {
        return labels.clone();
    };
    let pairs = Vec::from(labels.clone()).into_iter();
    let of_line = (LINE.to_owned(), first.to_string());
    Labels::new(pairs.chain([of_line]).collect()).unwrap_or_else(|_| labels.clone())
}

impl Agent {
    /// The line of a version. Fails if its summary can't be opened with this key.
    pub(crate) fn line_of(
        &self,
        known: &KnownCheckpoint,
    ) -> Result<Line, codec::manifest::ManifestError> {
        let summary = known.manifest.open(&self.keys)?;
        let first = summary.tail.labels.get(LINE);
        Ok(first
            .and_then(|first| first.parse().ok())
            .and_then(Version::new))
    }
}

#[cfg(test)]
mod tests {
    use codec::labels::LABELS_BYTES_MAX;

    use super::*;

    fn labels(value: String) -> Labels {
        Labels::of_user(vec![("step".to_owned(), value)]).unwrap()
    }

    #[test]
    fn a_line_is_a_label_that_users_can_not_give() {
        let user = labels("9".to_owned());
        assert_eq!(with_line(&user, None), user);
        let labelled = with_line(&user, Version::new(1_800_000_000));
        assert_eq!(labelled.get(LINE), Some("1800000000"));
        assert_eq!(labelled.get("step"), Some("9"));
        assert!(Labels::of_user(Vec::from(labelled)).is_err());
        let full = labels("x".repeat(LABELS_BYTES_MAX - 4));
        assert_eq!(with_line(&full, Version::new(7)), full);
    }
}
