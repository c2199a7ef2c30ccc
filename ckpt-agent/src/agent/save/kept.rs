//! What a save does between its commit and its report: it looks again whether it is kept, and what it builds
//! on. Somebody else may have deleted that while the save was under way.

use std::collections::BTreeSet;

use codec::ShardIndex;
use codec::notice::Stamp;
use codec::pieces::BaseRef;
use protocol::wire::limits::REQUEST_TIMEOUT;

use super::prepare::Prepared;
use crate::agent::ask::gather::Gathered;
use crate::agent::keep::notices::{self, LeaseChange};
use crate::agent::{Agent, SaveRequest};
use crate::core::HostIndex;
use crate::core::gather::Wait;
use crate::core::retention::{AfterCommit, Checkpoint, Plan, Reach, View, after_commit, plan};
use crate::report::{ExitStatus, Failure, SaveReport};
use crate::unix_time::unix_seconds;

/// A lease that ends within this many seconds is renewed before the save is judged: hosts may be deleting what it
/// builds on.
const LEASE_ENDS_S: u64 = 10;

/// How often a lease is renewed at most, when notices of other machines with later numbers take the place of the
/// renewal.
const RENEWALS_MAX: usize = 3;

/// What a save found after its commit.
pub(super) enum Found {
    /// It is kept; with what hosts showed.
    Kept(Box<Gathered>),
    /// It can't be relied on: why.
    Lost(String),
}

impl Agent {
    /// Looks whether a save that was committed is kept, and what it builds on. A save that `may_repeat` does not
    /// wait until somebody else has deleted something.
    pub(super) async fn look_again(
        &self,
        prepared: &Prepared,
        request: &SaveRequest,
        report: &SaveReport,
        may_repeat: bool,
    ) -> Found {
        let needs = &prepared.needs;
        let mut again = self.ask_again(prepared, report).await;
        for _ in 0..RENEWALS_MAX {
            if !self.renew_in_time(&again, request).await {
                break;
            }
            again = self.ask_again(prepared, report).await;
        }
        let holders = self.holders_in(report);
        let mut found = judge(prepared, needs, &holders, &again);
        if found == AfterCommit::InDoubt && !may_repeat {
            // Whoever deletes has listed the job already, and deletes within the time of a request.
            tokio::time::sleep(REQUEST_TIMEOUT).await;
            again = self.ask_again(prepared, report).await;
            found = judge(prepared, needs, &holders, &again);
        }
        let version_of = |id| {
            let known = prepared.gathered.inventory.get(id);
            known.map_or_else(
                || "an earlier version".to_owned(),
                |known| format!("version {}", known.version()),
            )
        };
        let own = report.version;
        match found {
            AfterCommit::Deleted => Found::Lost(format!(
                "version {own} was deleted while it was saved, or its hosts hide it"
            )),
            AfterCommit::NeedDeleted(id) => Found::Lost(format!(
                "{}, on which version {own} builds, was deleted while it was saved",
                version_of(id)
            )),
            AfterCommit::InDoubt if may_repeat => Found::Lost(format!(
                "versions of the job were saved or deleted meanwhile, and perhaps what version {own} builds on"
            )),
            AfterCommit::InDoubt | AfterCommit::Kept => Found::Kept(Box::new(again)),
        }
    }

    /// Renews a lease that has ended or ends soon, and returns whether there was such a one.
    async fn renew_in_time(&self, again: &Gathered, request: &SaveRequest) -> bool {
        let last = again.said.as_ref();
        let until = last.and_then(|last| last.lease).map(|lease| lease.until);
        let soon = unix_seconds().saturating_add(LEASE_ENDS_S);
        // A job key can't sign a notice.
        let ends = until.is_some_and(|until| until <= soon) && self.keys.grant().is_none();
        let named = self.named_job(&request.job).ok().filter(|_| ends);
        let Some(named) = named else {
            return false;
        };
        let renewed = notices::renewed(last, request.options.tenure);
        let lease = LeaseChange::To(renewed);
        let hosts = again.hosts().collect();
        let nothing = Plan::default();
        let hurried = Wait::NotForSilent;
        self.announce_to(hosts, &named, last, lease, &nothing, hurried)
            .await;
        true
    }

    async fn ask_again(&self, prepared: &Prepared, report: &SaveReport) -> Gathered {
        let hosts = prepared.gathered.hosts().chain(self.holders_in(report));
        self.gather_again(hosts.collect(), prepared.job_tag).await
    }

    /// The hosts that a report names as holders.
    pub(super) fn holders_in(&self, report: &SaveReport) -> BTreeSet<HostIndex> {
        let names = report.holders.iter().filter_map(|one| one.host.as_ref());
        names
            .filter_map(|name| self.hosts.all().find(|host| self.hosts.name(*host) == name))
            .collect()
    }

    /// Removes a version on which nobody can rely, and on which nothing builds. As it was committed, another save
    /// may be building on it just now: so its deletion is announced, too.
    pub(super) async fn remove_own(
        &self,
        prepared: &Prepared,
        request: &SaveRequest,
        report: &SaveReport,
    ) {
        let Ok(named) = self.named_job(&request.job) else {
            return;
        };
        let hurried = Wait::NotForSilent;
        let first = self.ask_again(prepared, report).await;
        let (plan, others) = self.plan_of_own(prepared, &first, Vec::new());
        let last = (first.said.as_ref(), first.asked_at);
        self.announce_deletion(first.hosts(), &named, last, &plan, hurried)
            .await;
        let again = self.ask_again(prepared, report).await;
        let (plan, _) = self.plan_of_own(prepared, &again, others);
        if plan.gone.is_empty() {
            return;
        }
        let asked_at = again.asked_at;
        let lease = LeaseChange::Same { asked_at };
        let hosts = again.hosts().collect();
        let last = again.said.as_ref();
        self.announce_to(hosts, &named, last, lease, &plan, hurried)
            .await;
    }

    /// How only the new version is deleted, and what else hosts show, with what they showed `before`.
    fn plan_of_own(
        &self,
        prepared: &Prepared,
        shown: &Gathered,
        before: Vec<Checkpoint>,
    ) -> (Plan, Vec<Checkpoint>) {
        let own = prepared.stamp();
        let (own, mut others): (Vec<Checkpoint>, Vec<Checkpoint>) = shown
            .inventory
            .newest_and_remnants()
            .into_iter()
            .map(|known| self.judged(known))
            .partition(|one| one.stamp == own);
        others.extend(before);
        let plan = plan(&others, &own, shown.said.as_ref(), Reach::Named);
        (plan, others)
    }
}

impl Prepared {
    /// The new version's place in the history of its job.
    pub(super) const fn stamp(&self) -> Stamp {
        Stamp {
            created: self.created,
            checkpoint: self.checkpoint,
        }
    }
}

/// Judges a save whose `holders` have committed it.
fn judge(
    prepared: &Prepared,
    needs: &[BaseRef],
    holders: &BTreeSet<HostIndex>,
    again: &Gathered,
) -> AfterCommit {
    let mut before = prepared.gathered.inventory.all_ids();
    // The save itself has committed them.
    before.extend(prepared.left.ids());
    let now = again.inventory.all_ids();
    let found = after_commit(
        prepared.stamp(),
        needs,
        View {
            shown: &before,
            said: prepared.gathered.said.as_ref(),
        },
        View {
            shown: &now,
            said: again.said.as_ref(),
        },
    );
    // A lease that ended has hosts delete everything.
    let answering: BTreeSet<HostIndex> = again.hosts().collect();
    let own = again.inventory.get(prepared.checkpoint);
    let is_there = own.is_some_and(|own| own.can_lose().is_some())
        || holders.difference(&answering).next().is_some();
    if !is_there {
        return AfterCommit::Deleted;
    }
    if found == AfterCommit::Kept || found == AfterCommit::InDoubt {
        let mut lost = needs.iter().filter(|need| is_lost(need, prepared, again));
        return lost
            .next()
            .map_or(found, |need| AfterCommit::NeedDeleted(need.checkpoint));
    }
    found
}

/// Whether hosts that held shards of what a save builds on have deleted so many of them that too few are left.
/// Shards of hosts that do not answer now count as being there.
fn is_lost(need: &BaseRef, prepared: &Prepared, again: &Gathered) -> bool {
    let Some(before) = prepared.gathered.inventory.needed(*need) else {
        return false;
    };
    let answering: BTreeSet<HostIndex> = again.hosts().collect();
    let silent = before.holders.iter();
    let silent = silent.filter(|(_, host)| !answering.contains(host));
    let shown = again.inventory.needed(*need);
    let shown = shown.iter().flat_map(|known| &known.holders);
    let shards: BTreeSet<ShardIndex> = silent.chain(shown).map(|(shard, _)| *shard).collect();
    shards.len() < before.manifest.public().redundancy.data()
}

/// The failure of a save that was committed, and on which nobody can rely.
pub(super) fn failure(request: &SaveRequest, why: &str) -> Failure {
    let message = format!("cannot save job {}: {why}", request.job);
    let failure = Failure::new(ExitStatus::Failed, message);
    Failure {
        state: Some("it was removed again; what was not deleted is as it was".into()),
        ..failure.next("the same command again")
    }
}
