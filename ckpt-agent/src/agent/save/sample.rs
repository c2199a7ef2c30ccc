//! Reads a sample of a version before another one builds on it: a job key signs what its holder states, and a thief may
//! have stated hashes of pieces that its rows do not have. Whoever builds on these takes other bytes for unchanged ones.

use std::collections::BTreeMap;

use codec::base::Base;

use crate::agent::Agent;
use crate::agent::ask::gather::Gathered;
use crate::agent::handle::random;
use crate::agent::read::choose::FoundImage;
use crate::agent::read::fetch::Unreadable;
use crate::core::pick::WantedRows;
use crate::core::read::{Layout, Materials, RawRows};
use crate::inventory::KnownCheckpoint;

/// How many segments are read.
const SEGMENTS: usize = 2;

/// One in this many bytes of the memory is for the rows that are read.
const MEMORY_SHARE: u64 = 8;

impl Agent {
    /// Fails if some segments of a version, chosen at random, are not what `base`, its hashes of pieces, states.
    pub(super) async fn try_sample(
        &self,
        known: &KnownCheckpoint,
        gathered: &Gathered,
        base: &Base,
    ) -> Result<(), Unreadable> {
        let FoundImage {
            index,
            composer,
            sources,
            ..
        } = self.find_image(known, gathered).await?;
        let layout = Layout::new(index);
        let stored = (0..layout.segments())
            .filter(|number| !layout.is_zero(*number) && !layout.is_shared(*number));
        let mut stored: Vec<usize> = stored.collect();
        for _ in 0..SEGMENTS.min(stored.len()) {
            let at = u64::from_le_bytes(random().map_err(Unreadable::Fatal)?) as usize;
            let number = stored.swap_remove(at % stored.len());
            let needs = layout.needs([number], |_| false);
            let mut rows = RawRows::new();
            for (at, source) in sources.iter().enumerate() {
                let of_source = needs.rows.iter().filter(|((of, _), _)| *of == at);
                let wanted = of_source.map(|((_, row), format)| (*row, *format));
                let wanted: WantedRows = wanted.collect();
                let window = self.window(MEMORY_SHARE);
                let (read, _) = self
                    .read_from_known(&source.known, &source.keys, &source.reader, &wanted, window)
                    .await;
                rows.extend(read?.into_iter().map(|(row, raw)| ((at, row), raw)));
            }
            let mut materials = Materials {
                composer: &composer,
                rows,
                made: BTreeMap::new(),
            };
            let made = layout.make(&needs, &mut materials);
            made.map_err(|cause| Unreadable::because(cause.to_string()))?;
            let raw = materials.made.get(&number);
            let begin = layout.bytes_of(number).start;
            if !raw.is_some_and(|raw| base.has_at(begin, raw)) {
                return Err(Unreadable::because("its hashes are not those of its bytes"));
            }
        }
        Ok(())
    }
}
