//! Lines of versions. A job that is begun anew while its versions may be away has two lines once they are back,
//! and neither follows from the other. Each version of a later line names the first of its line.

use codec::Version;
use codec::labels::{Labels, RESERVED};

use crate::agent::Agent;
use crate::inventory::KnownCheckpoint;

/// Key of the label with the number of the first version of the line.
const LINE: &str = "ckpt.line";

const _: () = assert!(LINE.len() > RESERVED.len());

/// The first version of a line; `None` in the first line of a job.
pub(super) type Line = Option<Version>;

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
    pub(super) fn line_of(
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
