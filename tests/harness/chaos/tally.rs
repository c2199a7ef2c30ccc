//! What happened in a run of chaos.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::liar::Lie;

/// What a thief of a job key achieved.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spoils {
    /// Saves of the owner of the job beside it that were acknowledged.
    pub saved: u64,
    /// Requests of the thief that hosts accepted.
    pub accepted: u64,
    /// Attacks that ended with an error, as when the host is away.
    pub ended: u64,
}

/// What happened in a run.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Saves that were acknowledged.
    pub saved: u64,
    /// Those of `saved` that made fewer than three data shards, because too few hosts answered.
    pub narrow: u64,
    /// Saves that reported a failure.
    pub not_saved: u64,
    /// The longest time that a save took, whatever it reported.
    pub longest_save: Duration,
    /// Restores of the right bytes.
    pub restored: u64,
    /// Those of `restored` that restored the version before the newest.
    pub restored_older: u64,
    /// Restores while most hosts were away which said so.
    pub away: u64,
    /// Restores on new machines that reached no registry.
    pub without_registry: u64,
    /// How often all checkpoints of a job were forgotten.
    pub forgotten: u64,
    /// Hosts that lied, by kind of lie.
    pub lies: BTreeMap<String, u64>,
    /// Most memory in bytes that any daemon or registry had.
    pub peak_memory: u64,
    /// Saves of the job of two machines that were acknowledged.
    pub shared: u64,
    /// Saves that were killed.
    pub broken: u64,
    /// Saves that used what killed ones had sent.
    pub resumed: u64,
    /// What a thief of a job key achieved.
    pub thief: Spoils,
    /// Seconds from the end of the faults until all shards were there again.
    pub healed_after: f64,
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let faults: Vec<String> = self
            .faults
            .iter()
            .map(|(kind, n)| format!("{kind} {n}"))
            .collect();
        write!(
            f,
            "faults: {}; {} of {} lies; saves: {} acknowledged ({} of fewer data shards), {} failed, {:.0} s at most, {} of a job of two machines, {} killed, {} of the others used what those had sent; thief: {} saves beside it, {} requests accepted, {} attacks ended; jobs forgotten: {}; restores: {} right ({} of older versions), {} away at night, {} without a registry, 0 wrong, 0 lost, 0 back from the dead; peak memory {} MiB; whole again after {:.0} s",
            faults.join(", "),
            self.lies.len(),
            Lie::ALL.len(),
            self.saved,
            self.narrow,
            self.not_saved,
            self.longest_save.as_secs_f64(),
            self.shared,
            self.broken,
            self.resumed,
            self.thief.saved,
            self.thief.accepted,
            self.thief.ended,
            self.forgotten,
            self.restored,
            self.restored_older,
            self.away,
            self.without_registry,
            self.peak_memory >> 20,
            self.healed_after
        )
    }
}
