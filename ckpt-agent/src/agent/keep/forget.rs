//! Removes checkpoints of a job.

use std::collections::BTreeSet;

use codec::grant::Rights;
use codec::notice::{Stamp, Words};
use codec::{JobId, Version};

use crate::agent::ask::gather::Gathered;
use crate::agent::keep::gc::Disposal;
use crate::agent::keep::notices::{LeaseChange, NamedJob};
use crate::agent::{Agent, ForgetWhich};
use crate::core::clocks::Clocks;
use crate::core::gather::Wait;
use crate::core::gather::WaitUntil;
use crate::core::retention::{Checkpoint, Contents, Plan, Reach, plan};
use crate::core::sought::Sought;
use crate::inventory::KnownCheckpoint;
use crate::knowledge::{Observation, Sighting};
use crate::report::{ExitStatus, Failure, ForgetReport};
use crate::unix_time::unix_seconds;

impl Agent {
    /// Removes checkpoints of a job, or shows what would be removed.
    ///
    /// # Errors
    /// When no checkpoint is selected.
    pub async fn forget(
        &self,
        job: &JobId,
        which: ForgetWhich,
        sought: &Sought,
        disposal: Disposal,
    ) -> Result<ForgetReport, Failure> {
        self.forget_within(job, which, sought, (Wait::ForAll, disposal))
            .await
    }

    /// Like [`Self::forget`], but does not wait for silent hosts when others have answered.
    ///
    /// # Errors
    /// As [`Self::forget`].
    pub async fn forget_hurriedly(
        &self,
        job: &JobId,
        which: ForgetWhich,
        sought: &Sought,
    ) -> Result<ForgetReport, Failure> {
        let waits = (Wait::NotForSilent, Disposal::Remove);
        self.forget_within(job, which, sought, waits).await
    }

    async fn forget_within(
        &self,
        job: &JobId,
        which: ForgetWhich,
        sought: &Sought,
        (wait, disposal): (Wait, Disposal),
    ) -> Result<ForgetReport, Failure> {
        let doing = format!("cannot forget job {job}");
        let named = self.named_job(job)?;
        self.needs(Rights::REMOVE, &doing)?;
        let wish = Wish {
            which,
            sought,
            now: self.agreed_clock(which, sought).await,
            doing: &doing,
        };
        let mut gathered = self.gather(Some(named.tag), WaitUntil::Answers(wait)).await;
        self.require_answers(&gathered, &doing)?;
        let is_all = which == ForgetWhich::All && sought.is_all();
        let unfound = is_all.then(|| self.unfound(named.tag, &gathered)).flatten();
        let chosen = self.chosen(&gathered, None, &wish)?;
        if chosen.versions.is_empty() && !wish.is_keeping() && unfound.is_none() {
            return Err(self.not_found(&doing, which.wanted(), sought, Some(named.tag), &gathered));
        }
        if disposal == Disposal::Show {
            return Ok(self.shown(job, &gathered, &chosen, unfound.as_ref()));
        }
        let announcing = self.announced(&mut gathered, &named, chosen, &wish, wait);
        let mut chosen = announcing.await?;
        let mut removed = chosen.numbers();
        // A host takes no notice on a job of which it has nothing.
        let place = unfound.as_ref().and_then(Sighting::place);
        if let Some((version, stamp)) = place.filter(|_| !chosen.versions.is_empty()) {
            removed.insert(0, version);
            chosen.also(stamp, gathered.said.as_ref());
        }
        let mut unheard = unfound
            .as_ref()
            .map_or(Vec::new(), |_| self.silent_notes(&gathered));
        if !chosen.plan.gone.is_empty() {
            let last = gathered.said.as_ref();
            let asked_at = gathered.asked_at;
            let lease = LeaseChange::Same { asked_at };
            let hosts = gathered.hosts().collect();
            let announcing = self.announce_to(hosts, &named, last, lease, &chosen.plan, wait);
            let failed = announcing.await;
            self.require_heard(&gathered, &failed, &doing)?;
            if unfound.is_none() {
                let about: Vec<&KnownCheckpoint> = chosen.versions.iter().collect();
                unheard = self.unheard(&gathered, &failed, &about);
            }
            gathered.silent.extend(failed);
        }
        let left = chosen.left.map(|(version, stamp)| {
            let lease = gathered.leases.get(&named.tag);
            self.sighting(job, version, stamp, lease)
        });
        self.notebook.note(Observation::Removed(named.tag, left));
        let only_here = unfound.filter(|seen| !removed.contains(&seen.version));
        let notes = only_here.map(|seen| forgotten_here(&seen));
        Ok(ForgetReport {
            job: job.clone(),
            dry_run: false,
            removed,
            notes: Vec::from_iter(notes),
            silent: self.silent_notes(&gathered),
            unheard,
        })
    }

    /// The report of a dry run.
    fn shown(
        &self,
        job: &JobId,
        gathered: &Gathered,
        chosen: &Chosen,
        unfound: Option<&Sighting>,
    ) -> ForgetReport {
        let mut removed = chosen.numbers();
        let only_here = unfound.map(|seen| seen.version);
        removed.splice(0..0, only_here.filter(|one| !removed.contains(one)));
        ForgetReport {
            job: job.clone(),
            dry_run: true,
            removed,
            notes: Vec::new(),
            silent: self.silent_notes(gathered),
            unheard: Vec::new(),
        }
    }

    /// The time by which it is decided what is old, if the deletion has such a condition: hosts are asked, since this
    /// machine's clock may be ahead.
    async fn agreed_clock(&self, which: ForgetWhich, sought: &Sought) -> u64 {
        let mut clocks = Clocks {
            own: unix_seconds(),
            hosts: Vec::new(),
        };
        if matches!(which, ForgetWhich::KeepWithin(_)) || !sought.is_all() {
            let said = self.announcements().await.into_iter();
            clocks.hosts = said.filter_map(|host| Some(host.said.ok()??.at)).collect();
        }
        clocks.agreed()
    }

    /// Announces what is about to be deleted, until nothing but that is chosen.
    async fn announced(
        &self,
        gathered: &mut Gathered,
        named: &NamedJob,
        mut chosen: Chosen,
        wish: &Wish<'_>,
        wait: Wait,
    ) -> Result<Chosen, Failure> {
        let mut announced: BTreeSet<Stamp> = BTreeSet::new();
        for _ in 0..ANNOUNCEMENTS_MAX {
            if chosen.plan.gone.iter().all(|one| announced.contains(one)) {
                break;
            }
            announced.extend(chosen.plan.gone.iter().copied());
            let choosing = self.choose_again(gathered, named, chosen, wish, wait);
            chosen = choosing.await?;
        }
        chosen.only(&announced, gathered.said.as_ref(), wish.reach(gathered));
        Ok(chosen)
    }

    /// Announces that something is about to be deleted, and chooses again: what was saved in between may need
    /// something that was chosen before.
    async fn choose_again(
        &self,
        gathered: &mut Gathered,
        named: &NamedJob,
        before: Chosen,
        wish: &Wish<'_>,
        wait: Wait,
    ) -> Result<Chosen, Failure> {
        let last = (gathered.said.as_ref(), gathered.asked_at);
        self.announce_deletion(gathered.hosts(), named, last, &before.plan, wait)
            .await;
        let hosts = gathered.hosts().collect();
        let again = self.gather_again(hosts, named.tag).await;
        self.require_answers(&again, wish.doing)?;
        let chosen = self.chosen(&again, Some(&before), wish)?;
        if again.said.is_some() {
            gathered.said = again.said;
            gathered.asked_at = again.asked_at;
        }
        Ok(chosen)
    }

    /// The checkpoints that are to be removed: those selected, without what those that stay need. With what was
    /// chosen `before`, what was kept then is kept, and with [`ForgetWhich::All`] what was chosen stays chosen.
    fn chosen(
        &self,
        gathered: &Gathered,
        before: Option<&Chosen>,
        wish: &Wish<'_>,
    ) -> Result<Chosen, Failure> {
        let mut newest = gathered.inventory.newest_and_remnants();
        if !wish.is_keeping() {
            newest.extend(gathered.inventory.void());
        }
        let (kept, others) = self.divided(gathered, &newest, wish.which, wish.sought, wish.now);
        let mut others: Vec<KnownCheckpoint> = others.into_iter().cloned().collect();
        // What a thief of a job key signed need not open.
        let judged = |known: &KnownCheckpoint| {
            let judged = self.judged(known);
            let is_void = gathered.inventory.is_void(judged.stamp.checkpoint);
            let nothing = is_void.then(Contents::default);
            Checkpoint {
                contents: judged.contents.or(nothing),
                ..judged
            }
        };
        let mut keeps: Vec<Checkpoint> = kept.into_iter().map(judged).collect();
        if let Some(before) = before {
            let others_now: BTreeSet<Stamp> = others.iter().map(KnownCheckpoint::stamp).collect();
            let is_new = |one: &&KnownCheckpoint| !others_now.contains(&one.stamp());
            let first = before
                .versions
                .iter()
                .filter(is_new)
                .cloned()
                .collect::<Vec<_>>();
            others.extend(first.into_iter().filter(|_| wish.which == ForgetWhich::All));
            keeps.extend(before.keeps.iter().cloned());
        }
        let unwanted: Vec<Checkpoint> = others.iter().map(judged).collect();
        let said = gathered.said.as_ref();
        let plan = plan(&keeps, &unwanted, said, wish.reach(gathered));
        self.refuse(&plan, wish, &newest)?;
        let gone: BTreeSet<Stamp> = plan.gone.iter().copied().collect();
        let is_gone = |known: &KnownCheckpoint| gone.contains(&known.stamp());
        let is_left = |known: &&&KnownCheckpoint| !is_gone(known) && !known.is_remnant();
        let left = newest.iter().find(is_left);
        let left = left.map(|known| (known.version(), known.stamp()));
        let versions = others.into_iter().filter(is_gone).collect();
        Ok(Chosen {
            versions,
            keeps,
            left,
            plan,
        })
    }

    /// Fails when the version that is to be forgotten is needed, or when something can't be opened.
    fn refuse(
        &self,
        plan: &Plan,
        wish: &Wish<'_>,
        all: &[&KnownCheckpoint],
    ) -> Result<(), Failure> {
        let doing = wish.doing;
        let version_of = |stamp: Stamp| {
            let known = all.iter().find(|known| known.stamp() == stamp);
            known.map_or_else(|| "another".to_owned(), |known| known.version().to_string())
        };
        if let Some(stamp) = plan.stopped_by {
            let version = version_of(stamp);
            let why = format!(
                "{doing}: version {version} can't be opened, so what it needs is not known: perhaps a newer \
                 program saved it"
            );
            return Err(Failure::new(ExitStatus::Failed, why).next("a newer version of ckpt"));
        }
        let ForgetWhich::Version(version) = wish.which else {
            return Ok(());
        };
        let Some(by) = plan.needed.values().next() else {
            return Ok(());
        };
        let by = version_of(*by);
        let why = format!("{doing}: version {by} builds on version {version}");
        let failure = Failure::new(ExitStatus::Failed, why);
        Err(failure.next("ckpt save --full, then forget both"))
    }
}

/// A checkpoint that is deleted, whatever it needs.
fn unread(stamp: Stamp) -> Checkpoint {
    Checkpoint {
        stamp,
        contents: Some(Contents::default()),
    }
}

/// How often a deletion is announced at most, if the job shows more each time that is to be deleted.
const ANNOUNCEMENTS_MAX: usize = 4;

/// What the user wants to be forgotten.
struct Wish<'a> {
    which: ForgetWhich,
    sought: &'a Sought,
    /// The time of day, by the clocks that decide how old something is, Unix seconds.
    now: u64,
    /// What is being done, for messages.
    doing: &'a str,
}

impl Wish<'_> {
    const fn is_keeping(&self) -> bool {
        matches!(
            self.which,
            ForgetWhich::Keep(_) | ForgetWhich::KeepWithin(_)
        )
    }

    fn reach(&self, gathered: &Gathered) -> Reach {
        match self.which {
            ForgetWhich::Version(_) => Reach::Named,
            // A checkpoint that turns up later need not meet the conditions of `sought`.
            _ if !self.sought.is_all() => Reach::Named,
            ForgetWhich::All => Reach::FromFirst,
            ForgetWhich::Keep(_) | ForgetWhich::KeepWithin(_) => gathered.reach(),
        }
    }
}

/// What is to be removed of a job.
struct Chosen {
    versions: Vec<KnownCheckpoint>,
    keeps: Vec<Checkpoint>,
    /// The newest version that stays.
    left: Option<(Version, Stamp)>,
    plan: Plan,
}

impl Chosen {
    /// The versions that are to be removed.
    fn numbers(&self) -> Vec<Version> {
        self.versions.iter().map(KnownCheckpoint::version).collect()
    }

    /// Leaves out what was not announced: a save may be building on it.
    fn only(&mut self, announced: &BTreeSet<Stamp>, said: Option<&Words>, reach: Reach) {
        if self.plan.gone.iter().all(|one| announced.contains(one)) {
            return;
        }
        let is_announced = |stamp: &Stamp| announced.contains(stamp);
        let unwanted = self.plan.gone.iter().copied().filter(is_announced);
        let unwanted: Vec<Checkpoint> = unwanted.map(unread).collect();
        self.plan = plan(&self.keeps, &unwanted, said, reach);
        let gone: BTreeSet<Stamp> = self.plan.gone.iter().copied().collect();
        self.versions.retain(|known| gone.contains(&known.stamp()));
    }

    /// Adds a version that no host shows.
    fn also(&mut self, stamp: Stamp, said: Option<&Words>) {
        let unwanted = self.plan.gone.iter().copied().chain([stamp]).map(unread);
        let unwanted: Vec<Checkpoint> = unwanted.collect();
        self.plan = plan(&self.keeps, &unwanted, said, Reach::FromFirst);
    }
}

/// A note on a version that no host shows, and of whose deletion no host can hear.
fn forgotten_here(seen: &Sighting) -> String {
    let version = seen.version;
    format!(
        "version {version}, which no host that answers shows, is forgotten on this machine alone: when its \
         hosts are back, so is the version"
    )
}
