//! Warnings and notes of a save's report.

use std::collections::BTreeSet;

use codec::manifest::Format;

use super::SaveShell;
use crate::image::Warning;
use crate::pipeline::encode::EncodedImage;

impl SaveShell<'_> {
    pub(super) fn warnings(&self, image: &EncodedImage<Warning>) -> Vec<String> {
        let mut warnings: Vec<String> = image.warnings.iter().map(|w| w.0.clone()).collect();
        if self.is_in_first_format() && !self.request.options.labels.is_empty() {
            warnings
                .push("saved without --note and --label: see the note on older programs".into());
        }
        warnings
    }

    /// Notes of a save that committed an image of this many bytes.
    pub(super) fn notes(&self, image_bytes: u64) -> Vec<String> {
        let mut notes = self.format_notes();
        if image_bytes == 0 && !self.request.options.allow_empty {
            notes.push("the image has no bytes, only names of files or directories".into());
        }
        notes.extend(self.knowers_note());
        notes
    }

    pub(super) fn is_in_first_format(&self) -> bool {
        let signed = self.signed.as_ref();
        signed.is_some_and(|it| it.format() == Format::One)
    }

    /// A note on what the save lacks because of hosts with old programs.
    fn format_notes(&self) -> Vec<String> {
        if !self.is_in_first_format() {
            return Vec::new();
        }
        let all: BTreeSet<&str> = self
            .old
            .iter()
            .map(|host| self.agent.hosts.name(*host))
            .collect();
        let names: Vec<&str> = all.into_iter().collect();
        vec![format!(
            "saved in the first format, without labels and witnesses: older programs on {}",
            names.join(", ")
        )]
    }
}
