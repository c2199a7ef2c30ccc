//! Warnings and notes of a save's report.

use super::SaveShell;
use crate::image::Warning;
use crate::pipeline::encode::EncodedImage;

impl SaveShell<'_> {
    pub(super) fn warnings(&self, image: &EncodedImage<Warning>) -> Vec<String> {
        image.warnings.iter().map(|w| w.0.clone()).collect()
    }

    /// Notes of a save that committed an image of this many bytes.
    pub(super) fn notes(&self, image_bytes: u64) -> Vec<String> {
        let mut notes = Vec::new();
        if image_bytes == 0 && !self.request.options.allow_empty {
            notes.push("the image has no bytes, only names of files or directories".into());
        }
        notes.extend(self.knowers_note());
        notes
    }
}
