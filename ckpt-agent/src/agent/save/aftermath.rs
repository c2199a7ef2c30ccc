//! What a save does after its session: complete the report, learn from it, and remove what the new checkpoint
//! supersedes. If nothing was committed, give the claimed version back and say what is stored.

use codec::{CheckpointId, JobTag};
use health::span;
use tokio::task::JoinSet;

use super::older_versions::Older;
use super::prepare::Prepared;
use super::run::RETRACT_TIMEOUT;
use crate::agent::ask::gather::Gathered;
use crate::agent::{Agent, SaveRequest};
use crate::core::gather::silence::GoesOn;
use crate::core::marks::Wholeness;
use crate::core::place::Placed;
use crate::core::retention::{Checkpoint, Contents};
use crate::inventory::{Saved, is_much_smaller};
use crate::knowledge::{Observation, SaveTimes};
use crate::report::{ExitStatus, Failure, SaveReport};

/// Fewest bytes, on all hosts together, with which a save shows how fast this machine can send.
const UPLINK_BYTES_MIN: u64 = 16 << 20;

impl Agent {
    /// Completes the report of a save that was committed, and removes what it supersedes.
    pub(super) async fn finish(
        &self,
        mut report: SaveReport,
        mut prepared: Prepared,
        request: &SaveRequest,
        again: &Gathered,
    ) -> SaveReport {
        self.clear_left(&mut prepared).await;
        let gathered = &prepared.gathered;
        let unfound = self.note_of_unfound(&prepared);
        self.report_base(&prepared, request, &mut report);
        report
            .notes
            .extend(prepared.following.notes.iter().cloned());
        report.fence = report.fence.or(prepared.following.unfenced);
        self.learn(prepared.job_tag, &report);
        report.notes.extend(unfound);
        if prepared.begins_line {
            let why = match gathered.silence().silent {
                0 => "the job began anew, without the versions that are there now".to_owned(),
                silent => format!("{silent} members are silent and may hold older versions"),
            };
            report
                .notes
                .push(format!("the version's number is the time: {why}"));
        }
        if let Some(placed) = &prepared.placed {
            self.add_placement(&mut report, placed, request, gathered);
        }
        report
            .warnings
            .extend(self.warning_of_size(&report, &prepared));
        note_future(&prepared, &mut report);
        let kept = self.note_of_kept();
        let new = prepared.stamp();
        if kept.is_none() {
            let older = Older {
                before: gathered,
                again,
                new: Checkpoint {
                    stamp: new,
                    contents: Some(Contents {
                        needs: prepared
                            .needs
                            .iter()
                            .copied()
                            .map(std::sync::Arc::new)
                            .collect(),
                        line: prepared.line,
                    }),
                },
                saved: Saved {
                    image_bytes: report.image_bytes,
                    is_marked: report.marked.is_some(),
                },
                line: prepared.line,
            };
            self.remove_old(&older, &mut report, request).await;
        }
        report.notes.extend(kept);
        self.note_version(&report, &prepared);
        report
    }

    /// Notes that the version was saved.
    fn note_version(&self, report: &SaveReport, prepared: &Prepared) {
        let new = prepared.stamp();
        let mut seen = self.sighting(&report.job, report.version, new, None);
        if let Some(more) = &mut seen.more {
            more.until = report.kept_until;
        }
        let seen = Observation::Version(prepared.job_tag, seen);
        self.notebook.note(seen);
        let goes_on = GoesOn::With(prepared.line);
        self.notebook
            .note(Observation::GoesOn(prepared.job_tag, goes_on));
    }

    /// Removes what this machine keeps of interrupted saves, once a version is committed, and has hosts remove what no
    /// version uses.
    async fn clear_left(&self, prepared: &mut Prepared) {
        let left = std::mem::take(&mut prepared.left);
        let needs = &prepared.needs;
        let gathered = &prepared.gathered;
        let mut unused = Vec::new();
        for one in left.remnants {
            let reference = one.reference();
            if !needs.contains(&reference) && !one.is_committed {
                unused.push(reference.checkpoint);
            }
            one.left.remove();
        }
        for one in left.others {
            // One that was signed may be committed, and needed by some version.
            if one.remnant.is_none() {
                unused.push(one.journal.head.checkpoint);
            }
            one.remove();
        }
        let mut asking = JoinSet::new();
        for host in gathered.hosts().filter(|host| !self.hosts.is_silent(*host)) {
            for checkpoint in unused.clone() {
                let hosts = self.hosts.clone();
                asking.spawn(async move { hosts.forget(host, checkpoint).await.is_ok() });
            }
        }
        // What can't be removed now goes by itself.
        let _ = tokio::time::timeout(RETRACT_TIMEOUT, asking.join_all()).await;
    }

    /// Enters into a report what the version owes to its base, or why it has none.
    fn report_base(&self, prepared: &Prepared, request: &SaveRequest, report: &mut SaveReport) {
        if let Some(base) = &prepared.base {
            return base.report_to(&prepared.needs, report);
        }
        report.new_bytes = None;
        let note = self.note_of_memory(prepared.newest.as_ref());
        report.notes.extend(note.filter(|_| !request.options.full));
    }

    /// A warning that the version has much fewer bytes than the one before.
    fn warning_of_size(&self, report: &SaveReport, prepared: &Prepared) -> Option<String> {
        let mut of_line = self.newest_of_line(&prepared.gathered.inventory, prepared.line);
        let before = of_line.find(|known| self.wholeness(known) == Wholeness::Whole)?;
        let bytes = before.manifest.brief().ok()?.image_bytes;
        is_much_smaller(report.image_bytes, bytes).then(|| {
            format!(
                "the image has {} bytes, and that of version {} had {bytes}: if something is missing, that \
                 version is kept once more than --keep says",
                report.image_bytes,
                before.version()
            )
        })
    }

    /// A note on a version that this machine has seen and that no host showed before the save: this save does
    /// not continue it.
    fn note_of_unfound(&self, prepared: &Prepared) -> Option<String> {
        let gathered = &prepared.gathered;
        let seen = self.unfound(prepared.job_tag, gathered)?;
        let note = self.unfound_note(&seen, gathered);
        let then = if prepared.begins_line {
            "this save begins anew without it, and --keep removes neither it nor what it follows"
        } else {
            "when its hosts are back it counts as an older version (--keep)"
        };
        Some(format!("before this save, {note}; {then}"))
    }

    /// Gives the claimed version back unless its checkpoint may have been chosen or its rows are left for the next save,
    /// and adds to the failure what is stored now.
    pub(super) async fn give_up(
        &self,
        mut failure: Failure,
        prepared: &Prepared,
        leaves_rows: bool,
    ) -> Failure {
        let gathered = &prepared.gathered;
        let own = prepared.checkpoint;
        let successor = failure.successor.as_ref();
        if !leaves_rows && successor.is_none_or(|successor| successor.checkpoint != own) {
            self.retract_claims(gathered, own).await;
        }
        if failure.status == ExitStatus::TooFewHosts {
            failure.hosts = self.with_silent(failure.hosts, gathered);
        }
        failure.state = Some(match &prepared.newest {
            _ if failure.successor.is_some() => state_of(&failure, own),
            Some(newest) => format!(
                "nothing was committed; version {} is still the newest",
                newest.version()
            ),
            None => "nothing was committed; the job has no checkpoint".into(),
        });
        failure
    }

    /// Records in the notebook what a save shows of the job and of this machine.
    fn learn(&self, job_tag: JobTag, report: &SaveReport) {
        let times = SaveTimes {
            seconds: report.seconds,
            held_seconds: Some(report.held_seconds),
        };
        self.notebook.note(Observation::Save(job_tag, times));
        // A small save takes as long as its round trips, and a save that one host held up does not show what
        // this machine can send.
        let is_limited = self.resources.bytes_per_second.is_some() || !report.replaced.is_empty();
        if report.shard_bytes >= UPLINK_BYTES_MIN && !is_limited {
            let rate = report.shard_bytes as f64 / report.seconds.max(1e-3);
            self.notebook.note(Observation::Uplink(rate));
        }
    }

    fn add_placement(
        &self,
        report: &mut SaveReport,
        placed: &Placed,
        request: &SaveRequest,
        gathered: &Gathered,
    ) {
        report.notes.extend(self.placement_notes(placed));
        if let Some(target) = request
            .options
            .placement
            .target
            .filter(|_| !placed.reaches_target)
        {
            let reached = placed.score.reliability.value();
            let warning = format!(
                "restart probability {reached:.5} instead of {target}: no code reaches more on these hosts"
            );
            report.warnings.push(warning);
        }
        if request.options.placement.explain {
            report.placement = Some(self.report(placed, &request.job, gathered));
        }
    }

    async fn retract_claims(&self, gathered: &Gathered, checkpoint: CheckpointId) {
        let mut asking = JoinSet::new();
        // Hosts that fell silent are left out: they were asked already to remove their shards, if any.
        for host in gathered.hosts().filter(|host| !self.hosts.is_silent(*host)) {
            let hosts = self.hosts.clone();
            asking.spawn(async move { hosts.forget(host, checkpoint).await.is_ok() });
        }
        // Claims and shards that can't be removed now expire by themselves.
        let _ = tokio::time::timeout(RETRACT_TIMEOUT, asking.join_all()).await;
    }
}

/// Says that the version is from the future, if it is by most hosts' clocks. That is a warning if this machine's clock
/// is wrong; it is only a note if an earlier version is from the future, after which all later ones have to be.
fn note_future(prepared: &Prepared, report: &mut SaveReport) {
    let clocks = prepared.gathered.clocks();
    if let Some(ahead) = clocks.ahead(clocks.own) {
        report.warnings.push(format!(
            "this machine's clock is {} ahead of most hosts' clocks: the version, and all later ones of the job, \
             have a time from the future, and nobody knows their age; set the clock (NTP)",
            span(ahead)
        ));
    } else if let Some(ahead) = clocks.ahead(prepared.created) {
        report.notes.push(format!(
            "the version has a time that is {} ahead of most hosts' clocks, because an earlier version has one",
            span(ahead)
        ));
    }
}

/// What is stored after a save that failed to follow another version, or that is half done.
fn state_of(failure: &Failure, own: CheckpointId) -> String {
    match failure.successor.as_deref() {
        Some(it) if it.checkpoint == own => format!(
            "version {} (checkpoint {own}) is stored, and may have been chosen: the next save after the \
             same version finishes it",
            it.version
        ),
        _ => "nothing of this save was committed".into(),
    }
}
