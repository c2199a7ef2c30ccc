//! The report as text.

use std::io::{self, Write};

use command_line::size::format as bytes;
use command_line::text::{Table, count, one_line, shown};
use command_line::time::{since_utc, utc as time};

use crate::{
    Basis, GridHealth, Health, HostHealth, HostState, HostsHealth, Known, RegistryHealth,
    WorkHealth, expiry, span,
};

/// How many submitters are listed in the text. The JSON has all.
const OWNERS_SHOWN: usize = 20;

/// Longest reason that is shown, characters.
const WHY_WIDTH: usize = 60;

/// Writes the report.
///
/// # Errors
/// When `out` can't be written.
pub fn write(out: &mut dyn Write, health: &Health) -> io::Result<()> {
    write_attention(out, health)?;
    if !health.jobs.is_empty() {
        let mut table = Table::new(&[
            "JOB",
            "NEWEST",
            "SAVED",
            "AGE",
            "CODE",
            "SHARDS",
            "STATE",
            "KEPT UNTIL",
        ]);
        for job in health.jobs_worst_first() {
            table.row(vec![
                job.job.to_string(),
                format!("{} ({})", job.version, count(job.versions, "version")),
                time(job.created.value),
                job.age_s.map_or_else(|| "unknown".to_owned(), span),
                job.redundancy.to_string(),
                format!("{} of {}", job.shards.value, job.redundancy.total()),
                match job.retired {
                    true => format!("{}, by a retired key", state(job.can_lose.value)),
                    false => format!("{}, {}", state(job.can_lose.value), basis(job.can_lose)),
                },
                job.kept_until
                    .map_or("for ever".to_owned(), |until| time(until.value)),
            ]);
        }
        table.write(out)?;
    } else if health.grid.is_none() {
        let where_ = match health.unfound.is_empty() {
            true => "",
            false => " at the hosts that answer",
        };
        writeln!(out, "no checkpoints found{where_}")?;
    }
    if let Some(work) = &health.work {
        writeln!(out, "{}", work_line(work))?;
    }
    if let Some(grid) = &health.grid {
        write_grid(out, grid)?;
    }
    write_hosts(out, &health.hosts, health.at)?;
    for registry in &health.registries {
        writeln!(out, "{}", registry_line(registry))?;
    }
    for key in &health.keys {
        writeln!(
            out,
            "{} {} ({})",
            one_line(&key.what),
            expiry(key.left_s),
            time(key.ends.value)
        )?;
    }
    Ok(())
}

/// What is at risk on this machine, and what evictions cost.
pub fn work_line(work: &WorkHealth) -> String {
    let time = |seconds: f64| span(seconds as u64);
    let evictions = usize::try_from(work.evictions).unwrap_or(usize::MAX);
    let why = work.why.as_deref().map(one_line);
    let why = why.map_or_else(String::new, |why| format!("; last save that failed: {why}"));
    format!(
        "here: {} of work at risk in {}; {} of {} survived, {} of work rescued, {} lost (seen){why}",
        time(work.at_risk_seconds),
        count(work.running, "running job"),
        work.survived,
        count(evictions, "eviction"),
        time(work.rescued_seconds),
        time(work.lost_seconds),
    )
}

/// What the loss of shards would do to a checkpoint: `can lose 2`.
pub fn state(can_lose: Option<usize>) -> String {
    match can_lose {
        None => "NOT RESTORABLE NOW".to_owned(),
        Some(0) => "can lose none".to_owned(),
        Some(n) => format!("can lose {n}"),
    }
}

/// How a number came to be known.
pub fn basis<T: Copy>(known: Known<T>) -> &'static str {
    match known.basis {
        Basis::Proved => "proved",
        Basis::Announced => "as hosts report",
        Basis::Seen => "seen",
    }
}

fn write_attention(out: &mut dyn Write, health: &Health) -> io::Result<()> {
    let attention = &health.attention;
    if health.hosts.up.value == 0 {
        writeln!(out, "NOBODY  no host answers: ckpt doctor")?;
    } else if attention.is_empty() {
        return writeln!(out, "all is well");
    }
    for one in attention {
        let remedy = one.remedy.as_ref();
        let remedy = remedy.map_or(String::new(), |remedy| format!("; {remedy}"));
        writeln!(
            out,
            "ATTENTION {}: {}{remedy}",
            one_line(&one.about),
            one_line(&one.what)
        )?;
    }
    Ok(())
}

fn write_grid(out: &mut dyn Write, grid: &GridHealth) -> io::Result<()> {
    writeln!(
        out,
        "checkpoints, by shards that holders proved to each other, counted by {}:",
        count(grid.counted_by, "host")
    )?;
    for (spare, number) in grid.can_lose.iter().enumerate().rev() {
        if *number > 0 {
            writeln!(out, "  {number} {}", state(Some(spare)))?;
        }
    }
    writeln!(
        out,
        "  {} with too few to be restored; {} below their redundancy, of which {} not all asked yet",
        grid.too_few, grid.below, grid.unchecked
    )?;
    writeln!(
        out,
        "checks by submitters that failed within a week: {} (announced); proofs between hosts that failed: {}",
        grid.failed_checks, grid.failed_proofs
    )?;
    for silence in &grid.silent {
        let why = shown(&silence.why, WHY_WIDTH);
        writeln!(out, "not counted by {}: {why}", one_line(&silence.host))?;
    }
    let mut table = Table::new(&["OWNER", "KEY", "USED", "HOSTS"]);
    for owner in grid.owners.iter().take(OWNERS_SHOWN) {
        table.row(vec![
            owner.name.clone().unwrap_or_else(|| "-".to_owned()),
            owner.key.clone(),
            bytes(owner.used_bytes),
            owner.hosts.to_string(),
        ]);
    }
    if !grid.owners.is_empty() {
        table.write(out)?;
    }
    let more = grid.owners.len().saturating_sub(OWNERS_SHOWN);
    if more > 0 {
        writeln!(out, "and {}: --json", count(more, "further owner"))?;
    }
    Ok(())
}

/// The line that sums up all hosts.
pub fn summary(hosts: &HostsHealth) -> String {
    format!(
        "{} of {} up, {} take shards, {} free",
        hosts.up.value,
        count(hosts.known, "host"),
        hosts.take_shards.value,
        bytes(hosts.free_bytes.value)
    )
}

fn write_hosts(out: &mut dyn Write, hosts: &HostsHealth, now: u64) -> io::Result<()> {
    writeln!(
        out,
        "{} (announced); {} of {} used",
        summary(hosts),
        bytes(hosts.used_bytes.value),
        bytes(hosts.capacity_bytes.value)
    )?;
    for host in &hosts.each {
        if let Some(line) = unusual(host, now) {
            writeln!(out, "  {}: {line}", one_line(&host.name))?;
        }
    }
    match hosts.clock_ahead_s.map(|ahead| ahead.value) {
        None => {}
        Some(0) => writeln!(out, "clock: as most hosts' (seen)")?,
        Some(ahead) => {
            let side = if ahead > 0 { "ahead of" } else { "behind" };
            let by = span(ahead.unsigned_abs());
            writeln!(out, "clock: {by} {side} most hosts' (seen)")?;
        }
    }
    Ok(())
}

fn registry_line(registry: &RegistryHealth) -> String {
    let name = one_line(&registry.name);
    match (registry.hosts_heard, &registry.why) {
        (Some(heard), _) => {
            let hosts = count(heard.value, "host");
            format!("registry {name}: up, knows {hosts} (announced)")
        }
        (None, Some(why)) => format!("registry {name}: down: {}", shown(why, WHY_WIDTH)),
        (None, None) => format!("registry {name}: down"),
    }
}

/// Clocks that differ by less than this many seconds are not mentioned.
const CLOCK_SLACK_S: u64 = 60;

/// ` since 22:14Z`, if it is known when the host was seen last.
pub fn silence(host: &HostHealth, now: u64) -> String {
    let since = host.silent_since.map(|at| since_utc(at, now));
    since.map_or_else(String::new, |since| format!(" since {since}"))
}

/// What is remarkable about a host at `now`, Unix seconds; `None` if it is simply up.
pub fn unusual(host: &HostHealth, now: u64) -> Option<String> {
    let why = host.why.as_deref().map(|why| shown(why, WHY_WIDTH));
    let because = why.map_or(String::new(), |why| format!(": {why}"));
    let mut said = match host.state {
        HostState::Up => Vec::new(),
        HostState::Full => vec!["has no room".to_owned()],
        HostState::Down => vec![format!("down{}{because}", silence(host, now))],
        HostState::Silent => vec![format!("silent{}{because}", silence(host, now))],
        HostState::StandsBack => {
            let time = span(host.refuses_for_s.unwrap_or(0).into());
            vec![format!("takes no new shards for {time}{because}")]
        }
    };
    let off = host.clock_ahead_s.unwrap_or(0);
    if off.unsigned_abs() >= CLOCK_SLACK_S {
        let side = if off > 0 { "ahead of" } else { "behind" };
        said.push(format!(
            "its clock is {} {side} most",
            span(off.unsigned_abs())
        ));
    }
    (!said.is_empty()).then(|| said.join("; "))
}
