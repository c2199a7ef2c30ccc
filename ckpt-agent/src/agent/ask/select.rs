//! Selects checkpoints by the conditions of a command.

use crate::agent::ask::gather::Gathered;
use crate::agent::{Agent, ForgetWhich};
use crate::core::sought::Sought;
use crate::inventory::KnownCheckpoint;

impl Agent {
    /// Whether a checkpoint meets the conditions; `now` in Unix seconds. A checkpoint that can't be opened
    /// meets them only if there are none.
    pub(crate) fn is_sought(&self, sought: &Sought, known: &KnownCheckpoint, now: u64) -> bool {
        if sought.is_all() {
            return true;
        }
        let created = known.manifest.public().created;
        let opened = known.manifest.brief();
        opened.is_ok_and(|brief| sought.means(&brief.labels, created, now))
    }

    /// Divides the checkpoints of a job into those that stay and those to forget. A checkpoint that does not
    /// meet the conditions stays, and is not counted. `now` in Unix seconds, by the clocks that decide how old
    /// something is.
    pub(crate) fn divided<'a>(
        &self,
        gathered: &Gathered,
        newest_first: &[&'a KnownCheckpoint],
        which: ForgetWhich,
        sought: &Sought,
        now: u64,
    ) -> (Vec<&'a KnownCheckpoint>, Vec<&'a KnownCheckpoint>) {
        let (meant, mut stay): (Vec<&KnownCheckpoint>, Vec<_>) = newest_first
            .iter()
            .partition(|known| self.is_sought(sought, known, now));
        let inventory = &gathered.inventory;
        let (kept, others) = match which {
            ForgetWhich::All => (Vec::new(), meant),
            ForgetWhich::Version(version) => meant
                .into_iter()
                .partition(|known| known.version() != version),
            ForgetWhich::Keep(keep) => inventory.split_kept(meant, keep as usize, None),
            ForgetWhich::KeepWithin(time) => inventory.split_within(meant, time.as_secs(), now),
        };
        stay.extend(kept);
        (stay, others)
    }
}
