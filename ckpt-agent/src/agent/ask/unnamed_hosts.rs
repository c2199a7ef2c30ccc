//! Hosts that were there and that no registry names any more. They may have what the others do not show.

use std::collections::BTreeMap;
use std::time::Duration;

use codec::JobTag;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::agent::ask::gather::{Gathered, Showing, WaitUntil};
use crate::agent::{Agent, Which};
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

/// Whether absent hosts may have something that the others do not show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// The others show all that matters.
    Nothing,
    /// They show nothing of a job of which this machine does not know anything either.
    Unknown,
    /// They lack shards, or a version that this machine has seen.
    Shards,
}

impl Agent {
    /// Asks absent hosts if the others lack something. Absent hosts that do not answer are entered if something
    /// is lacking then.
    ///
    /// For a job that this machine has never seen they count for nothing: in a grid whose hosts come and go
    /// there are always some, and no new job could begin.
    pub(crate) async fn ask_absent(
        &self,
        job_tag: Option<JobTag>,
        wait_until: WaitUntil,
        showing: &Showing,
        gathered: &mut Gathered,
    ) {
        let absent: Vec<HostIndex> = self.hosts.absent().collect();
        let is_save = matches!(wait_until, WaitUntil::ToSave { .. });
        if absent.is_empty() || is_save || gathered.is_too_much {
            return;
        }
        let lack = |gathered: &Gathered| {
            let seen = job_tag.and_then(|tag| self.kept_sighting(tag, gathered));
            lack(&showing.lock().0, gathered, wait_until, job_tag, seen)
        };
        if lack(gathered) == Lack::Nothing {
            return;
        }
        let answered = self.answers_of_absent(&absent, job_tag, showing).await;
        let silent = absent
            .into_iter()
            .filter(|host| answered.iter().all(|(one, _)| one != host));
        let silent: Vec<_> = silent.map(|host| (host, not_named())).collect();
        for (host, (answer, notices)) in answered {
            gathered.answered.push((host, answer));
            gathered.hear(&notices);
        }
        if lack(gathered) == Lack::Shards {
            gathered.absent = silent;
        }
    }

    async fn answers_of_absent(
        &self,
        absent: &[HostIndex],
        job_tag: Option<JobTag>,
        showing: &Showing,
    ) -> Vec<(HostIndex, crate::agent::ask::gather::Answered)> {
        let mut asking = JoinSet::new();
        for host in absent.iter().copied().take(ASKED_MAX) {
            let (agent, showing) = (self.clone(), showing.clone());
            asking.spawn(async move { (host, agent.ask(host, job_tag, false, &showing).await) });
        }
        let mut answered = Vec::new();
        let mut until = Instant::now() + ABSENT_WAIT;
        let mut is_last = false;
        loop {
            match timeout_at(until, asking.join_next()).await {
                Ok(Some(Ok((host, Ok(answer))))) => answered.push((host, answer)),
                Ok(Some(Ok((host, Err(fault))))) => {
                    if matches!(fault, Fault::Lied(_)) {
                        showing.lock().0.drop_host(host);
                        self.hosts.hang_up(host).await;
                    }
                }
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
    /// shows it or a later one. What an older program recorded does not show whether the owner deleted it, so
    /// it counts only while a host is away.
    pub(crate) fn unfound(&self, job_tag: JobTag, gathered: &Gathered) -> Option<Sighting> {
        let seen = self.kept_sighting(job_tag, gathered)?;
        let is_sure = seen.more.is_some() || self.away(gathered).next().is_some();
        (is_sure && !is_shown(&gathered.inventory, job_tag, &seen)).then_some(seen)
    }

    /// The hosts that did not answer, absent ones that were not asked included.
    fn away<'a>(&self, gathered: &'a Gathered) -> impl Iterator<Item = HostIndex> + use<'a> {
        let absent = self.hosts.absent();
        let absent = absent.filter(|host| gathered.hosts().all(|answered| answered != *host));
        gathered.silent.iter().map(|(host, _)| *host).chain(absent)
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

    /// Counts all absent hosts, which were not asked, as hosts that may have what is lacking.
    pub(crate) fn count_absent(&self, gathered: &mut Gathered) {
        let silent = gathered.silent.len();
        let absent: Vec<HostIndex> = self.away(gathered).skip(silent).collect();
        gathered.absent = absent.into_iter().map(|host| (host, not_named())).collect();
    }

    /// Says that a version is not found: `version 3, which this machine has seen, is shown by no host that
    /// answers; away: m4, m5`.
    pub(crate) fn unfound_note(&self, seen: &Sighting, gathered: &Gathered) -> String {
        let away = self.away(gathered);
        let names: Vec<&str> = away.map(|host| self.hosts.name(host)).collect();
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

fn not_named() -> Fault {
    Fault::Gone("no registry names it any more, and it does not answer".into())
}

fn lack(
    inventory: &Inventory,
    gathered: &Gathered,
    wait_until: WaitUntil,
    job_tag: Option<JobTag>,
    seen: Option<Sighting>,
) -> Lack {
    if gathered.answered.is_empty() {
        return Lack::Shards;
    }
    if let (Some(tag), Some(seen)) = (job_tag, &seen)
        && !is_shown(inventory, tag, seen)
    {
        return Lack::Shards;
    }
    let said = gathered.said.as_ref();
    let all = inventory.newest_first().into_iter();
    let mut all = all.filter(|known| !said.is_some_and(|said| said.is_gone(known.stamp())));
    let is_short = |known: &KnownCheckpoint| match wait_until {
        WaitUntil::ToRestore(_) => known.can_lose().is_none(),
        _ => known.shards_found() < known.manifest.public().redundancy.total(),
    };
    let is_wanted = |known: &KnownCheckpoint| match wait_until {
        WaitUntil::ToRestore(Which::Version(version)) => known.version() == version,
        _ => true,
    };
    // Hosts that are not waited for have what other versions lack here.
    if matches!(wait_until, WaitUntil::ToRestore(_)) && gathered.is_cut_short {
        return Lack::Nothing;
    }
    if all.clone().any(is_short) {
        return Lack::Shards;
    }
    let is_new = job_tag.is_some() && seen.is_none() && !all.any(is_wanted);
    if is_new { Lack::Unknown } else { Lack::Nothing }
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
