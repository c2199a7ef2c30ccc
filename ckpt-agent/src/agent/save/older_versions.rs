//! What a save removes: the older versions that `--keep` does not keep.

use std::collections::BTreeSet;

use codec::{CheckpointId, Version};
use protocol::wire::Code;

use crate::agent::ask::gather::Gathered;
use crate::agent::keep::job_keys::Forgotten;
use crate::agent::keep::notices::{self, LeaseChange};
use crate::agent::save::base::ChosenBase;
use crate::agent::{Agent, SaveRequest};
use crate::core::gather::Wait;
use crate::core::gather::silence::Line;
use crate::core::retention::{Checkpoint, Plan, Reach, plan};
use crate::core::{Fault, HostIndex};
use crate::inventory::{KnownCheckpoint, Saved};
use crate::report::SaveReport;
use crate::unix_time::unix_seconds;

/// The versions that hosts show, divided; each newest first.
struct Division<'a> {
    /// Those that stay.
    stay: Vec<&'a KnownCheckpoint>,
    /// Those of other lines, which stay.
    other_lines: Vec<&'a KnownCheckpoint>,
    /// Those that no policy keeps.
    superseded: Vec<&'a KnownCheckpoint>,
}

/// What a save found when it looked again, and what it has to know to remove older versions.
pub(super) struct Older<'a> {
    /// The answers before the save.
    pub(super) before: &'a Gathered,
    /// The answers after its commit.
    pub(super) again: &'a Gathered,
    /// The new version.
    pub(super) new: Checkpoint,
    /// What it holds.
    pub(super) saved: Saved,
    /// The line of the new version.
    pub(super) line: Line,
}

impl Older<'_> {
    /// The lease stays as it was when hosts were asked last.
    const fn same_lease(&self) -> LeaseChange {
        let asked = match self.again.said {
            Some(_) => self.again,
            None => self.before,
        };
        LeaseChange::Same {
            asked_at: asked.asked_at,
        }
    }
}

impl Agent {
    /// Has a job key remove what hosts do not keep as a guard.
    async fn forget_unguarded(
        &self,
        hosts: &BTreeSet<HostIndex>,
        plan: &Plan,
        wait: Wait,
    ) -> Forgotten {
        let gone: Vec<CheckpointId> = plan.gone.iter().map(|one| one.checkpoint).collect();
        let mut done = self.forget_each(hosts, &gone, wait).await;
        done.failed
            .retain(|(_, fault)| !fault.is_refused_as(Code::Guarded));
        done
    }

    /// Removes what `--keep` does not keep, and renews the lease. A host that can't be reached now hears of
    /// that from another host, or at the next save.
    pub(super) async fn remove_old(
        &self,
        older: &Older<'_>,
        report: &mut SaveReport,
        request: &SaveRequest,
    ) {
        let Ok(named) = self.named_job(&request.job) else {
            return;
        };
        let gathered = older.before;
        let inventory = &older.again.inventory;
        let (keeps, unwanted) = self.divide(older, request, report);
        // Where a version that was seen is not shown, what turns up later may be needed yet.
        let reach = match self.unfound(named.tag, gathered) {
            Some(_) => Reach::Named,
            None => gathered.reach(),
        };
        let last = older.again.said.as_ref().or(gathered.said.as_ref());
        let plan = plan(&keeps, &unwanted, last, reach);
        if plan.stopped_by.is_some() {
            let note = "older versions stay, because one of them can't be opened: perhaps a newer program \
                        saved it";
            report.notes.push(note.to_owned());
        }
        let about: Vec<&KnownCheckpoint> = plan
            .gone
            .iter()
            .filter_map(|one| inventory.get(one.checkpoint))
            .collect();
        let lease = notices::renewed(last, request.options.tenure);
        let had_lease = last.is_some_and(|last| last.lease.is_some());
        if plan.gone.is_empty() && lease.is_none() && !had_lease {
            return;
        }
        let holders = self.holders_in(report);
        let hosts: BTreeSet<HostIndex> = gathered.hosts().chain(holders.iter().copied()).collect();
        let asked = hosts.len();
        // The job does not wait for silent hosts: other hosts inform them.
        let hurried = Wait::NotForSilent;
        let change = match last {
            _ if lease.is_some() || had_lease => LeaseChange::To(lease),
            _ => older.same_lease(),
        };
        let Forgotten { failed, guarded } = match self.keys.grant() {
            Some(_) => self.forget_unguarded(&hosts, &plan, hurried).await,
            None => Forgotten {
                failed: self
                    .announce_to(hosts, &named, last, change, &plan, hurried)
                    .await,
                guarded: BTreeSet::new(),
            },
        };
        let (guards, about): (Vec<_>, Vec<_>) = about
            .into_iter()
            .partition(|known| guarded.contains(&known.manifest.public().checkpoint));
        report.notes.extend(note_of_guards(&guards));
        let removed: Vec<Version> = about.iter().map(|known| known.version()).collect();
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

    /// Divides the versions that hosts show into those that a save keeps and those that it does not want: the
    /// newest of the line that it continues stay, and those of other lines, which were away when the job was
    /// begun anew. Adds a note on the latter to the report.
    fn divide(
        &self,
        older: &Older<'_>,
        request: &SaveRequest,
        report: &mut SaveReport,
    ) -> (Vec<Checkpoint>, Vec<Checkpoint>) {
        let new = (report.version, older.line, older.saved);
        let keeps_before = self.kept_of(older.before, request, new);
        let kept = self.kept_of(older.again, request, new);
        report
            .notes
            .extend(note_of_lines(request, &kept.other_lines));
        let judged = |known: &KnownCheckpoint| self.judged(known);
        let unwanted = kept.superseded.into_iter().map(judged).collect();
        let before = [keeps_before.stay, keeps_before.other_lines];
        let all = [kept.stay, kept.other_lines, before.concat()].concat();
        let keeps = all.into_iter().map(judged).chain([older.new.clone()]);
        (keeps.collect(), unwanted)
    }

    /// Of what hosts show, what is a version yet after a save of an image that is as large as that of its `base`.
    pub(super) fn versions_after(
        &self,
        gathered: &Gathered,
        request: &SaveRequest,
        (version, line): (Version, Line),
        base: &ChosenBase,
    ) -> BTreeSet<CheckpointId> {
        let saved = Saved {
            image_bytes: base.image_bytes,
            is_marked: false,
        };
        let kept = self.kept_of(gathered, request, (version, line, saved));
        let may_remove = self.note_of_kept().is_none();
        let removed = kept.superseded.iter().filter(|_| !may_remove);
        let all = kept.stay.iter().chain(&kept.other_lines).chain(removed);
        all.map(|known| known.manifest.public().checkpoint)
            .collect()
    }

    /// What a save of a version of this number, line and content keeps of what hosts show.
    fn kept_of<'a>(
        &self,
        gathered: &'a Gathered,
        request: &SaveRequest,
        (version, line, saved): (Version, Line, Saved),
    ) -> Division<'a> {
        let all = gathered.inventory.newest_and_remnants().into_iter();
        // Another save of the job may have committed a later version meanwhile.
        let (before, mut stay): (Vec<&KnownCheckpoint>, Vec<&KnownCheckpoint>) =
            all.partition(|known| known.version() < version);
        let (of_line, other_lines) = before
            .into_iter()
            .partition(|known| self.line_of(known).is_ok_and(|of| of == line));
        let keep = usize::try_from(request.options.keep.max(1)).unwrap_or(usize::MAX);
        let inventory = &gathered.inventory;
        let (kept, superseded) = inventory.split_kept(of_line, keep, Some(saved));
        stay.extend(kept);
        Division {
            stay,
            other_lines,
            superseded,
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

/// The note on versions that hosts keep from job keys.
fn note_of_guards(guards: &[&KnownCheckpoint]) -> Option<String> {
    let numbers: Vec<String> = guards
        .iter()
        .map(|known| known.version().to_string())
        .collect();
    (!numbers.is_empty()).then(|| {
        format!(
            "kept as guard for now: {}; hosts keep some versions of a job from its key, in case it is stolen",
            numbers.join(" ")
        )
    })
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
