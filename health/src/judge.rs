//! Decides what needs attention.

use super::{
    Attention, GridHealth, Health, HostHealth, HostState, HostsHealth, JobHealth, KeyHealth, Kind,
    RegistryHealth, UnfoundJob, expiry, span,
};

/// From when on a state needs attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Seconds before its end from which on a key or certificate is listed.
    pub key_s: u64,
    /// Seconds before its end from which on a lease is listed.
    pub lease_s: u64,
    /// Age of its newest version from which on a job counts as not saved, seconds; `None` for no limit.
    pub age_s: Option<u64>,
    /// Fewest hosts that have to take shards for the next save.
    pub hosts: usize,
    /// Seconds by which clocks may differ.
    pub clock_s: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            key_s: 30 * 86_400,
            lease_s: 2 * 86_400,
            age_s: None,
            hosts: 5,
            clock_s: 300,
        }
    }
}

/// `health` with its `attention` filled in.
#[must_use]
pub fn judged(mut health: Health, limits: &Limits) -> Health {
    let now = health.at;
    let mut found: Vec<Attention> = Vec::new();
    let away = health.away();
    for job in health.jobs_worst_first() {
        found.extend(of_job(job, away, now, limits));
    }
    found = together(found);
    let unfound = health.unfound.iter();
    found.extend(unfound.map(|job| of_unfound(job, away, now)));
    found.extend(health.keys.iter().filter_map(|key| of_key(key, limits)));
    found.extend(of_hosts(&health.hosts, now, limits));
    found.extend(of_registries(&health.registries));
    found.extend(health.grid.iter().flat_map(of_grid));
    if health.grid.is_some() {
        found.extend(of_members(&health.hosts.each, limits));
    }
    let is_lacking = |one: &Attention| {
        let lacks = [Kind::NotRestorable, Kind::NotFound, Kind::BelowRedundancy];
        lacks.contains(&one.kind)
    };
    if health.grid.is_some() || found.iter().any(is_lacking) {
        found.extend(of_away(&health.hosts.each, &health.jobs, now));
    }
    // The sort is stable: within a kind the order stays.
    found.sort_by_key(|one| one.kind);
    health.attention = found;
    health
}

fn of_job(job: &JobHealth, away: usize, now: u64, limits: &Limits) -> Vec<Attention> {
    let about = format!("job {}", job.job);
    let attention = |kind, what, remedy: &str| Attention {
        kind,
        about: about.clone(),
        what,
        remedy: Some(remedy.to_owned()),
    };
    let mut found = Vec::new();
    let version = job.version;
    let total = job.redundancy.total();
    match job.can_lose.value {
        None => found.push(attention(
            Kind::NotRestorable,
            format!(
                "version {version} can't be restored now: {} of {total} shards are found",
                job.shards.value
            ),
            match away {
                0 => "ckpt verify; an older version, if there is one: ckpt restore --version",
                _ => "ckpt hosts; when the hosts are back: ckpt verify",
            },
        )),
        Some(n) if n < job.redundancy.parity() => found.push(attention(
            Kind::BelowRedundancy,
            format!(
                "version {version} can lose {n} shards instead of {}",
                job.redundancy.parity()
            ),
            "wait for its hosts or for repair, or save again",
        )),
        Some(_) => {}
    }
    if let Some(until) = job.kept_until.map(|until| until.value) {
        let left = until.saturating_sub(now);
        if left <= limits.lease_s {
            found.push(attention(
                Kind::LeaseEnds,
                format!("its lease {}", expiry(left)),
                "ckpt touch, or save again",
            ));
        }
    }
    let Some(age) = job.age_s else {
        let ahead = job.created.value.saturating_sub(now);
        let what = format!(
            "version {version} has a time that is {} in the future: nobody knows its age",
            span(ahead)
        );
        found.push(attention(
            Kind::Clock,
            what,
            "set the clock of the machine that saved it (NTP); check whether the job still runs",
        ));
        return found;
    };
    if limits.age_s.is_some_and(|most| age > most) {
        let what = format!("not saved for {}", span(age));
        found.push(attention(
            Kind::NotSaved,
            what,
            "check whether the job still runs",
        ));
    }
    found
}

/// One line for many jobs of which the same is to be said: they have one cause.
fn together(found: Vec<Attention>) -> Vec<Attention> {
    let mut kept = Vec::new();
    let (restorable, others): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|one| one.kind != Kind::NotRestorable);
    let (below, rest): (Vec<_>, Vec<_>) = restorable
        .into_iter()
        .partition(|one| one.kind == Kind::BelowRedundancy);
    let says_of = [
        (others, "can't be restored now"),
        (below, "can lose fewer shards than they were saved for"),
    ];
    for (alike, what) in says_of {
        let Some(first) = alike.first().filter(|_| alike.len() >= TOGETHER_MIN) else {
            kept.extend(alike);
            continue;
        };
        let names = alike.iter().map(|one| one.about.trim_start_matches("job "));
        let shown: Vec<&str> = names.take(NAMES_SHOWN).collect();
        let more = match alike.len().saturating_sub(shown.len()) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        kept.push(Attention {
            kind: first.kind,
            about: format!("{} jobs", alike.len()),
            what: format!("{what}: {}{more}", shown.join(", ")),
            remedy: first.remedy.clone(),
        });
    }
    kept.extend(rest);
    kept
}

/// From this many jobs on that lack the same, they are named in one line.
const TOGETHER_MIN: usize = 4;

/// Most names in a line.
const NAMES_SHOWN: usize = 8;

/// What jobs lack, in words behind a list of hosts that are away; empty if they lack nothing.
fn lacking(jobs: &[JobHealth]) -> String {
    let of = |lose: fn(Option<usize>) -> bool| {
        let jobs = jobs.iter().filter(|job| job.is_below_redundancy());
        jobs.filter(|job| lose(job.can_lose.value)).count()
    };
    let jobs = |count: usize| match count {
        1 => "1 job".to_owned(),
        _ => format!("{count} jobs"),
    };
    let parts = [
        (of(|lose| lose.is_none()), "can't be restored now"),
        (of(|lose| lose == Some(0)), "can lose none"),
        (of(|lose| lose > Some(0)), "can lose less than at the save"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let parts = parts.map(|(count, what)| format!("; {} {what}", jobs(*count)));
    parts.collect()
}

/// The hosts that are away, since when, and what jobs lack.
fn of_away(each: &[HostHealth], jobs: &[JobHealth], now: u64) -> Option<Attention> {
    let away: Vec<&HostHealth> = each.iter().filter(|host| !host.state.is_up()).collect();
    let names = away.iter().take(NAMES_SHOWN).map(|host| {
        let since = host
            .silent_since
            .map(|at| format!("for {}", span(now.saturating_sub(at))));
        match (host.state, since) {
            (HostState::Silent, Some(since)) => format!("{} silent {since}", host.name),
            (HostState::Silent, None) => format!("{} silent", host.name),
            (_, Some(since)) => format!("{} down {since}", host.name),
            (_, None) => format!("{} down", host.name),
        }
    });
    let names: Vec<String> = names.collect();
    let more = match away.len().saturating_sub(names.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!away.is_empty()).then(|| Attention {
        kind: Kind::HostsAway,
        about: "hosts".to_owned(),
        what: format!(
            "{} of {} are away: {}{more}{}",
            away.len(),
            each.len(),
            names.join(", "),
            lacking(jobs)
        ),
        remedy: Some(
            "start them; the admin revokes those that are gone for good: ckpt grid revoke"
                .to_owned(),
        ),
    })
}

fn of_unfound(job: &UnfoundJob, away: usize, now: u64) -> Attention {
    let version = job.version;
    let age = span(now.saturating_sub(job.created));
    Attention {
        kind: Kind::NotFound,
        about: format!("job {}", job.job),
        what: format!(
            "version {version}, saved {age} ago, is shown by no host that answers; {away} hosts are away"
        ),
        remedy: Some(match away {
            0 => format!(
                "if it is gone for good: ckpt forget --job {} --all",
                job.job
            ),
            // What is forgotten now does not come back with its hosts.
            _ => "ckpt restore when they are back".to_owned(),
        }),
    }
}

fn of_registries(registries: &[RegistryHealth]) -> Option<Attention> {
    let silent = registries
        .iter()
        .filter(|registry| registry.hosts_heard.is_none());
    let silent: Vec<&str> = silent.map(|registry| registry.name.as_str()).collect();
    (!silent.is_empty()).then(|| Attention {
        kind: Kind::RegistrySilent,
        about: "registries".to_owned(),
        what: format!(
            "{} of {} do not answer: {}",
            silent.len(),
            registries.len(),
            silent.join(", ")
        ),
        remedy: Some("ckpt doctor; start them again: ckpt-store registry".to_owned()),
    })
}

fn of_key(key: &KeyHealth, limits: &Limits) -> Option<Attention> {
    (key.left_s <= limits.key_s).then(|| Attention {
        kind: Kind::Ends,
        about: key.what.clone(),
        what: expiry(key.left_s),
        remedy: Some(key.remedy().to_owned()),
    })
}

fn of_hosts(hosts: &HostsHealth, now: u64, limits: &Limits) -> Vec<Attention> {
    let mut found = Vec::new();
    let takes = hosts.take_shards.value;
    // In a smaller grid, saves have fewer shards.
    let needed = limits.hosts.min(hosts.known);
    if takes < needed {
        found.push(Attention {
            kind: Kind::TooFewHosts,
            about: "hosts".to_owned(),
            what: format!(
                "{takes} of {} take shards, but {needed} are needed",
                hosts.known
            ),
            remedy: Some("ckpt hosts; or save with fewer shards".to_owned()),
        });
    }
    let ahead = hosts.clock_ahead_s.map_or(0, |ahead| ahead.value);
    if ahead.unsigned_abs() > limits.clock_s {
        found.push(Attention {
            kind: Kind::Clock,
            about: "this machine".to_owned(),
            what: format!("its clock is {} most hosts' clocks", off(ahead)),
            remedy: Some("set the clock (NTP)".to_owned()),
        });
    }
    let ending = |host: &&HostHealth| {
        let ends = host.certificate_ends;
        ends.is_some_and(|ends| ends.saturating_sub(now) <= limits.key_s)
    };
    let names = names(hosts.each.iter().filter(ending));
    if let Some((number, names)) = names {
        found.push(Attention {
            kind: Kind::Ends,
            about: "hosts".to_owned(),
            what: format!(
                "certificates of {number} expire within {}: {names}",
                span(limits.key_s)
            ),
            remedy: Some("ask the grid's admin to renew them: ckpt grid renew".to_owned()),
        });
    }
    found
}

/// Which machines an admin has to look after.
fn of_members(each: &[HostHealth], limits: &Limits) -> Vec<Attention> {
    let mut found = Vec::new();
    for host in each {
        let ahead = host.clock_ahead_s.unwrap_or(0);
        if ahead.unsigned_abs() > limits.clock_s {
            found.push(Attention {
                kind: Kind::Clock,
                about: format!("host {}", host.name),
                what: format!("its clock is {} most others", off(ahead)),
                remedy: Some("set its clock (NTP)".to_owned()),
            });
        }
    }
    let mut versions: Vec<&str> = each
        .iter()
        .filter_map(|host| host.software.as_deref())
        .collect();
    versions.sort_unstable();
    versions.dedup();
    if versions.len() > 1 {
        found.push(Attention {
            kind: Kind::Versions,
            about: "hosts".to_owned(),
            what: format!(
                "programs of {} versions: {}",
                versions.len(),
                versions.join(", ")
            ),
            remedy: Some("update the older ones".to_owned()),
        });
    }
    found
}

fn of_grid(grid: &GridHealth) -> Vec<Attention> {
    let about = |kind, what: String, remedy: &str| Attention {
        kind,
        about: "grid".to_owned(),
        what,
        remedy: Some(remedy.to_owned()),
    };
    let mut found = Vec::new();
    if grid.too_few > 0 {
        found.push(about(
            Kind::NotRestorable,
            format!(
                "{} checkpoints have too few proved shards to be restored",
                grid.too_few
            ),
            "start the hosts that are down",
        ));
    }
    // Hosts that were not asked yet for proofs are asked within hours.
    let below = grid
        .below
        .saturating_sub(grid.too_few)
        .saturating_sub(grid.unchecked);
    if below > 0 {
        found.push(about(
            Kind::BelowRedundancy,
            format!("{below} checkpoints have fewer proved shards than they were saved with"),
            "wait for repair, or start the hosts that are down",
        ));
    }
    if grid.failed_checks > 0 {
        found.push(about(
            Kind::FailedChecks,
            format!("{} checks by submitters failed", grid.failed_checks),
            "ckpt-store status on the hosts that are named",
        ));
    }
    found
}

/// How many hosts these are, and their names; `None` for no hosts.
fn names<'a>(hosts: impl Iterator<Item = &'a HostHealth>) -> Option<(usize, String)> {
    let names: Vec<&str> = hosts.map(|host| &*host.name).collect();
    (!names.is_empty()).then(|| (names.len(), names.join(" ")))
}

/// `5 min ahead of`, `2 h behind`: how far a clock is off.
fn off(ahead_s: i64) -> String {
    let by = span(ahead_s.unsigned_abs());
    if ahead_s > 0 {
        format!("{by} ahead of")
    } else {
        format!("{by} behind")
    }
}
