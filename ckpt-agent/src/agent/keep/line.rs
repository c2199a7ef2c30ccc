//! The label with which each version of a later line names the first of its line.

use std::sync::Arc;

use codec::Version;
use codec::labels::Labels;
use codec::manifest::ManifestError;

use crate::agent::Agent;
use crate::core::gather::silence::Line;
use crate::core::retention::{Checkpoint, Contents};
use crate::inventory::{Brief, Inventory, KnownCheckpoint};

/// Key of the label with the number of the first version of the line.
const LINE: &str = "ckpt.line";

/// These labels, and that of the line. If there is no room for it, they stay as they are.
pub(crate) fn with_line(labels: &Labels, line: Line) -> Labels {
    let Some(first) = line else {
        return labels.clone();
    };
    let pairs = Vec::from(labels.clone()).into_iter();
    let of_line = (LINE.to_owned(), first.to_string());
    Labels::new(pairs.chain([of_line]).collect()).unwrap_or_else(|_| labels.clone())
}

fn line_in(brief: &Brief) -> Line {
    let first = brief.labels.get(LINE);
    first
        .and_then(|first| first.parse().ok())
        .and_then(Version::new)
}

impl Agent {
    /// The line of a version. Fails if its summary can't be opened with this key.
    pub(crate) fn line_of(&self, known: &KnownCheckpoint) -> Result<Line, ManifestError> {
        let brief = known.manifest.brief();
        brief.map(|brief| line_in(brief)).map_err(Clone::clone)
    }

    /// The versions of a line, the newest first. Those are left out whose summary can't be opened with this key.
    pub(crate) fn newest_of_line<'a>(
        &self,
        inventory: &'a Inventory,
        line: Line,
    ) -> impl Iterator<Item = &'a KnownCheckpoint> {
        let all = inventory.newest_first().into_iter();
        all.filter(move |known| self.line_of(known).is_ok_and(|of| of == line))
    }

    /// What the rule of deletion has to know of a checkpoint.
    pub(crate) fn judged(&self, known: &KnownCheckpoint) -> Checkpoint {
        let brief = known.manifest.brief().ok();
        Checkpoint {
            stamp: known.stamp(),
            contents: brief.map(|brief| Contents {
                needs: Arc::clone(&brief.needs),
                line: line_in(brief),
            }),
        }
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
