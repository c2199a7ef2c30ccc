//! Warnings and notes of a save's report.

use super::SaveShell;
use crate::image::{Remark, Weight};
use crate::pipeline::encode::EncodedImage;

impl SaveShell<'_> {
    pub(super) fn warnings(&self, image: &EncodedImage<Remark>) -> Vec<String> {
        let remarks = image.warnings.iter();
        let warnings = remarks.filter(|remark| remark.weight != Weight::Note);
        warnings.map(|remark| remark.text.clone()).collect()
    }

    /// Notes of a save that committed an image of this many bytes.
    pub(super) fn notes(&self, image: &EncodedImage<Remark>, image_bytes: u64) -> Vec<String> {
        let remarks = image.warnings.iter();
        let of_image = remarks.filter(|remark| remark.weight == Weight::Note);
        let mut notes: Vec<String> = of_image.map(|remark| remark.text.clone()).collect();
        if image_bytes == 0 && !self.request.options.allow_empty {
            notes.push("the image has no bytes, only names of files or directories".into());
        }
        notes.extend(self.knowers_note());
        notes
    }
}
