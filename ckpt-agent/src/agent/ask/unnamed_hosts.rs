//! Hosts that were there and that no registry names any more. They may have what the others do not show.

use std::collections::BTreeMap;
use std::time::Duration;

use codec::JobTag;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::agent::Agent;
use crate::agent::ask::gather::{Answered, Gathered, Showing};
use crate::core::gather::WaitUntil;
use crate::core::gather::silence::Remembered;
use crate::core::{Fault, HostIndex};
use crate::inventory::{Inventory, KnownCheckpoint};
use crate::knowledge::{Observation, Sighting};
use crate::unix_time::unix_seconds;

/// How long absent hosts are waited for, and once more if one of them is connected by then.
const ABSENT_WAIT: Duration = Duration::from_secs(1);

/// Most absent hosts that are asked: those that were missed last.
const ASKED_MAX: usize = 16;

/// Most jobs that are looked for although no host shows them.
const SIGHTINGS_MAX: usize = 256;

/// Most names of hosts in a sentence.
const NAMES_MAX: usize = 5;

impl Agent {
    /// Asks absent hosts if the others lack something. Those that do not answer, or were not asked, are silent
    /// members: they may have it. If a restore lacks something, hosts that were not asked because they could not be
    /// reached a moment ago (`unreached`) are asked, too.
    pub(crate) async fn ask_absent(
        &self,
        unreached: Vec<HostIndex>,
        job_tag: Option<JobTag>,
        wait_until: WaitUntil,
        showing: &Showing,
        gathered: &mut Gathered,
    ) {
        let mut absent: Vec<HostIndex> = self.hosts.absent().collect();
        let is_save = matches!(wait_until, WaitUntil::ToSave { .. });
        if !is_save && !gathered.is_too_much {
            let seen = job_tag.and_then(|tag| self.kept_sighting(tag, gathered));
            if is_lacking(&showing.lock().0, gathered, wait_until, job_tag, seen) {
                let mut away = match is_restore_of(wait_until) || gathered.answered.is_empty() {
                    true => unreached,
                    false => Vec::new(),
                };
                away.extend(&absent);
                let answered = self.answers_of_absent(&away, job_tag, showing).await;
                let is_away = |host: HostIndex| answered.iter().all(|(one, _)| *one != host);
                absent.retain(|host| is_away(*host));
                gathered.silent.retain(|(host, _)| is_away(*host));
                for (host, answered) in answered {
                    gathered.enter(host, answered);
                }
            }
        }
        let silent = absent.into_iter();
        gathered.absent = silent.map(|host| (host, not_there())).collect();
    }

    /// Hosts that need not be asked since they could not be reached a moment ago, and why. It is tried again in the
    /// background, so that the next call asks those that are back. With no connection at all, the network may have been
    /// down, and all are asked; a save asks all if it can't do without them.
    pub(crate) fn not_to_be_asked(&self, wait_until: WaitUntil) -> BTreeMap<HostIndex, Fault> {
        let hosts = &self.hosts;
        let unreached: BTreeMap<HostIndex, Fault> = hosts
            .all()
            .filter_map(|host| Some((host, hosts.lately_unreached(host)?)))
            .collect();
        let others = hosts.all().count() - unreached.len();
        let needed = match wait_until {
            WaitUntil::ToSave { shards } => shards,
            _ => 1,
        };
        if others < needed || !hosts.all().any(|host| hosts.is_connected(host)) {
            return BTreeMap::new();
        }
        for host in unreached.keys() {
            hosts.try_again(*host);
        }
        unreached
    }

    async fn answers_of_absent(
        &self,
        absent: &[HostIndex],
        job_tag: Option<JobTag>,
        showing: &Showing,
    ) -> Vec<(HostIndex, Answered)> {
        let mut asking = JoinSet::new();
        for host in absent.iter().copied().take(ASKED_MAX) {
            let agent = self.clone();
            let showing = showing.clone();
            asking.spawn(async move { (host, agent.ask(host, job_tag, false, &showing).await) });
        }
        let mut answered = Vec::new();
        let mut until = Instant::now() + ABSENT_WAIT;
        let mut is_last = false;
        loop {
            match timeout_at(until, asking.join_next()).await {
                Ok(Some(Ok((host, Ok(answer))))) => answered.push((host, answer)),
                Ok(Some(Ok((host, Err(fault))))) => self.drop_liar(host, &fault, showing).await,
                Ok(Some(Err(_))) => {}
                Ok(None) => break,
                Err(_) if !is_last && absent.iter().any(|h| self.hosts.is_connected(*h)) => {
                    until = Instant::now() + ABSENT_WAIT;
                    is_last = true;
                }
                Err(_) => break,
            }
        }
        answered
    }

    /// The newest version of a job that this machine has seen and that is still to be kept, as far as is known.
    pub(crate) fn kept_sighting(&self, job_tag: JobTag, gathered: &Gathered) -> Option<Sighting> {
        let now = unix_seconds();
        let known = self.notebook.read(now);
        let heard = gathered.words_on(job_tag);
        let seen = known.newest(job_tag)?;
        seen.is_kept(heard, now).then(|| seen.clone())
    }

    /// The newest version of a job that this machine has seen, if it is to be kept and no host that answers
    /// shows it or a later one.
    fn unshown_sighting(&self, job_tag: JobTag, gathered: &Gathered) -> Option<Sighting> {
        let seen = self.kept_sighting(job_tag, gathered)?;
        (!is_shown(&gathered.inventory, job_tag, &seen)).then_some(seen)
    }

    /// As [`Self::unshown_sighting`]. What an older program recorded does not show whether the owner deleted
    /// it, so it counts only while a host is away.
    pub(crate) fn unfound(&self, job_tag: JobTag, gathered: &Gathered) -> Option<Sighting> {
        let seen = self.unshown_sighting(job_tag, gathered)?;
        (seen.more.is_some() || gathered.away() > 0).then_some(seen)
    }

    /// The newest versions of the owner's jobs that this machine has seen, of those jobs that were seen last. A
    /// job key is not for all of them.
    pub(crate) fn own_sightings(&self) -> BTreeMap<JobTag, Sighting> {
        if self.keys.grant().is_some() {
            return BTreeMap::new();
        }
        let now = unix_seconds();
        let known = self.notebook.read(now);
        let newest = known.newest_of(self.keys.owner(), SIGHTINGS_MAX, now);
        let newest = newest.into_iter();
        newest.map(|(tag, seen)| (tag, seen.clone())).collect()
    }

    /// The jobs of which no host that answers shows the newest version that this machine has seen. Hosts were
    /// asked for the owner's words on them.
    pub(crate) fn all_unfound(&self, gathered: &Gathered) -> Vec<Sighting> {
        let now = unix_seconds();
        let is_unfound = |(tag, seen): &(JobTag, Sighting)| {
            let is_kept = seen.is_kept(gathered.words_on(*tag), now);
            if !is_kept {
                // The hosts that know of its deletion may go.
                self.notebook.note(Observation::Removed(*tag, None));
            }
            is_kept && !is_shown(&gathered.inventory, *tag, seen)
        };
        let unfound = self.own_sightings().into_iter().filter(is_unfound);
        unfound.map(|(_, seen)| seen).collect()
    }

    /// What this machine remembers of a job of which no host that answers shows a version.
    pub(crate) fn remembered(&self, job_tag: JobTag, gathered: &Gathered) -> Remembered {
        match self.unshown_sighting(job_tag, gathered) {
            Some(seen) if seen.more.is_some() => Remembered::Version,
            Some(_) => Remembered::Perhaps,
            None => Remembered::Nothing,
        }
    }

    /// Says that a version is not found: `version 3, which this machine has seen, is shown by no host that
    /// answers; away: m4, m5`.
    pub(crate) fn unfound_note(&self, seen: &Sighting, gathered: &Gathered) -> String {
        let away = gathered.silent.iter().chain(&gathered.absent);
        let names: Vec<&str> = away.map(|(host, _)| self.hosts.name(*host)).collect();
        let away = named(&names).map_or_else(String::new, |names| format!("; away: {names}"));
        format!(
            "version {}, which this machine has seen, is shown by no host that answers{away}",
            seen.version
        )
    }
}

/// `m2, m3 and 4 more`; `None` without names.
fn named(names: &[&str]) -> Option<String> {
    let shown = names.get(..NAMES_MAX).unwrap_or(names).join(", ");
    match names.len().checked_sub(NAMES_MAX) {
        _ if names.is_empty() => None,
        None | Some(0) => Some(shown),
        Some(more) => Some(format!("{shown} and {more} more")),
    }
}

/// Why an absent member does not count as being there.
fn not_there() -> Fault {
    Fault::Gone("no registry names it any more, and it does not answer".into())
}

/// Whether the hosts that answered lack something that absent ones may have.
fn is_lacking(
    inventory: &Inventory,
    gathered: &Gathered,
    wait_until: WaitUntil,
    job_tag: Option<JobTag>,
    seen: Option<Sighting>,
) -> bool {
    if gathered.answered.is_empty() {
        return true;
    }
    if let (Some(tag), Some(seen)) = (job_tag, &seen)
        && !is_shown(inventory, tag, seen)
    {
        return true;
    }
    let is_restore = is_restore_of(wait_until);
    // Hosts that are not waited for have what other versions lack here.
    if is_restore && gathered.is_cut_short {
        return false;
    }
    let said = gathered.said.as_ref();
    let all = inventory.newest_first().into_iter();
    let mut all = all.filter(|known| !said.is_some_and(|said| said.is_gone(known.stamp())));
    let is_short = |known: &KnownCheckpoint| {
        let total = known.manifest.public().redundancy.total();
        (is_restore && known.can_lose().is_none()) || (!is_restore && known.shards_found() < total)
    };
    let is_wanted = |known: &KnownCheckpoint| match wait_until {
        WaitUntil::ToRestoreVersion(version) => known.version() == version,
        _ => true,
    };
    all.clone().any(is_short) || (job_tag.is_some() && !all.any(is_wanted))
}

const fn is_restore_of(wait_until: WaitUntil) -> bool {
    matches!(
        wait_until,
        WaitUntil::ToRestoreNewest | WaitUntil::ToRestoreVersion(_)
    )
}

/// Whether hosts show this version of the job or a later one.
fn is_shown(inventory: &Inventory, job_tag: JobTag, seen: &Sighting) -> bool {
    let all = inventory.newest_first().into_iter();
    let aside = inventory.passed_over().into_iter().chain(inventory.void());
    all.chain(aside)
        .any(|known| known.manifest.public().job_tag == job_tag && known.version() >= seen.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_are_cut() {
        assert_eq!(named(&[]), None);
        assert_eq!(named(&["a", "b"]).as_deref(), Some("a, b"));
        let many = ["a", "b", "c", "d", "e", "f", "g"];
        assert_eq!(named(&many).as_deref(), Some("a, b, c, d, e and 2 more"));
        assert_eq!(named(&many[..5]).as_deref(), Some("a, b, c, d, e"));
    }
}
