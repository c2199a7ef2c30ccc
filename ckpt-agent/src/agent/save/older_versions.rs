//! What a save removes: the older versions that `--keep` does not keep.

use std::collections::BTreeSet;

use codec::notice::Stamp;
use codec::{CheckpointId, Version};

use crate::agent::ask::gather::Gathered;
use crate::agent::keep::notices;
use crate::agent::keep::notices::Removal;
use crate::agent::{Agent, SaveRequest};
use crate::core::gather::Wait;
use crate::core::gather::silence::Line;
use crate::core::{Fault, HostIndex};
use crate::inventory::{Inventory, KnownCheckpoint};
use crate::report::SaveReport;
use crate::unix_time::unix_seconds;

/// The versions that hosts show, divided.
struct Division {
    /// The numbers of those that are removed, and their stamps.
    removed: Vec<Version>,
    gone: Vec<Stamp>,
    /// Those that stay.
    stay: Vec<Stamp>,
}

impl Agent {
    /// Removes what `--keep` does not keep, and renews the lease. A host that can't be reached now hears of
    /// that from another host, or at the next save. `base` is the new version's base, and `line` its line.
    pub(crate) async fn remove_old(
        &self,
        gathered: &Gathered,
        report: &mut SaveReport,
        request: &SaveRequest,
        line: Line,
        base: Option<CheckpointId>,
        new: Stamp,
    ) {
        let Ok(named) = self.named_job(&request.job) else {
            return;
        };
        let inventory = &gathered.inventory;
        let Division {
            removed,
            gone,
            stay,
        } = self.divide(inventory, request, report, line, base);
        let stay: Vec<Stamp> = stay.into_iter().chain([new]).collect();
        // Where a version that was seen is not shown, what turns up later may be needed yet.
        let removal = match self.unfound(named.tag, gathered) {
            Some(_) => Removal::of(&gone),
            None => Removal::all_but(&stay, &gone),
        };
        let last = gathered.said.as_ref();
        let lease = notices::renewed(last, request.options.tenure);
        let had_lease = last.is_some_and(|last| last.lease.is_some());
        if removal.is_empty() && lease.is_none() && !had_lease {
            return;
        }
        let names = report.holders.iter().filter_map(|one| one.host.as_ref());
        let holders: Vec<HostIndex> = names
            .filter_map(|name| self.hosts.all().find(|host| self.hosts.name(*host) == name))
            .collect();
        let hosts: BTreeSet<HostIndex> = gathered.hosts().chain(holders.iter().copied()).collect();
        let asked = hosts.len();
        // The job does not wait for silent hosts: other hosts inform them.
        let hurried = Wait::NotForSilent;
        let announcing = self.announce_to(hosts, &named, last, lease, &removal, hurried);
        let failed = announcing.await;
        let about: Vec<&KnownCheckpoint> = gone
            .iter()
            .filter_map(|one| inventory.get(one.checkpoint))
            .collect();
        if failed.len() == asked {
            report
                .notes
                .push(self.not_removed(&removed, failed.first()));
            return;
        }
        let has_lease = |host: &HostIndex| (lease.is_some() || had_lease) && holders.contains(host);
        self.note_silent(gathered, &failed, &about, has_lease, report);
        report.removed = removed;
        report.kept_until = lease.map(|lease| lease.until);
    }

    /// Divides the versions that hosts show into those that a save removes and those that stay: the newest of
    /// the line that it continues, their bases, and those of other lines, which were away when the job was
    /// begun anew. Adds a note on the latter to the report.
    fn divide(
        &self,
        inventory: &Inventory,
        request: &SaveRequest,
        report: &mut SaveReport,
        line: Line,
        base: Option<CheckpointId>,
    ) -> Division {
        let all = inventory.newest_first();
        let is_older = |known: &&&KnownCheckpoint| known.version() < report.version;
        let (older, other_lines): (Vec<&KnownCheckpoint>, Vec<&KnownCheckpoint>) = all
            .iter()
            .filter(is_older)
            .partition(|known| self.line_of(known).is_ok_and(|of_this| of_this == line));
        let keep = usize::try_from(request.options.keep.max(1) - 1).unwrap_or(usize::MAX);
        let (kept, superseded) = inventory.split_kept(&self.keys, older, keep);
        let bases = kept.iter().filter_map(|known| self.base_of(known));
        let bases: BTreeSet<CheckpointId> = bases.chain(base).collect();
        let (needed, superseded): (Vec<&KnownCheckpoint>, Vec<&KnownCheckpoint>) = superseded
            .iter()
            .partition(|known| bases.contains(&known.stamp().checkpoint));
        let superseded = superseded.iter().map(|one| (one.version(), one.stamp()));
        let (removed, gone) = superseded.unzip();
        // Another save of the job may have committed a later version meanwhile.
        let later = all.iter().filter(|known| known.version() >= report.version);
        let stay = kept.iter().chain(&needed).chain(&other_lines).chain(later);
        let stay = stay.map(|known| known.stamp()).collect();
        report.notes.extend(note_of_lines(request, &other_lines));
        Division {
            removed,
            gone,
            stay,
        }
    }

    /// Notes of the hosts that `failed` to hear: what they do not know of removed versions, and, if
    /// `has_lease` says that it concerns them, of the lease.
    fn note_silent(
        &self,
        gathered: &Gathered,
        failed: &[(HostIndex, Fault)],
        about: &[&KnownCheckpoint],
        has_lease: impl Fn(&HostIndex) -> bool,
        report: &mut SaveReport,
    ) {
        for note in self.unheard(gathered, failed, about) {
            let host = note.host;
            let what = note.what;
            let note = format!("{host} was not informed that older versions are removed: {what}");
            report.notes.push(note);
        }
        for (host, fault) in failed.iter().filter(|(host, _)| has_lease(host)) {
            let name = self.hosts.name(*host);
            let note = format!("{name} does not know of the lease yet: {fault}");
            report.notes.push(note);
        }
    }

    /// The note when no host heard that versions are removed, or that the lease is renewed.
    fn not_removed(&self, removed: &[Version], failed: Option<&(HostIndex, Fault)>) -> String {
        let why = failed.map(|(host, fault)| self.note(*host, fault));
        let why = why.map_or_else(String::new, |why| format!(" ({}: {})", why.host, why.what));
        let numbers: Vec<String> = removed.iter().map(ToString::to_string).collect();
        let what = match numbers.as_slice() {
            [] => "the lease was not renewed".to_owned(),
            [one] => format!("version {one} was not removed"),
            all => format!("versions {} were not removed", all.join(" ")),
        };
        format!("{what}: no host accepted the change{why}")
    }
}

/// The creation time of a new save, Unix seconds: later than that of all checkpoints of the job that hosts
/// show, and than all that was deleted. So a slow clock puts no version before an older one, or among the
/// deleted.
pub(crate) fn created_after(gathered: &Gathered) -> u64 {
    let deleted = gathered.said.as_ref().and_then(|said| said.intervals.end());
    let before = gathered
        .inventory
        .latest()
        .max(deleted.map(|end| end.created));
    let after = before.map_or(0, |before| before.saturating_add(1));
    unix_seconds().max(after)
}

/// The note on versions of other lines.
fn note_of_lines(request: &SaveRequest, other_lines: &[&KnownCheckpoint]) -> Option<String> {
    let oldest = other_lines.last()?.version();
    let numbers = other_lines.iter().map(|known| known.version().to_string());
    let numbers: Vec<String> = numbers.collect();
    let stay = match numbers.as_slice() {
        [one] => format!("version {one} stays"),
        all => format!("versions {} stay", all.join(" ")),
    };
    let job = &request.job;
    Some(format!(
        "{stay}: the job was begun anew without it; to remove it: ckpt forget --job {job} \
         --version {oldest}"
    ))
}
