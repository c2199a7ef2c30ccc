//! The report as a page of HTML, without a script. All texts are escaped; texts that others chose are also
//! made free of characters that change the direction of writing.

use std::collections::BTreeSet;

use command_line::size::format as bytes;
use command_line::text::{count, one_line, shortened};
use command_line::time::utc as time;
use maud::{DOCTYPE, Markup, html};

use crate::history::{History, SAMPLE_PERIOD_S};
use crate::map::{Map, MapColumn, MapLine, svg};
use crate::plot::Plot;
use crate::text::{basis, silence, state, summary, work_line};
use crate::{
    GridHealth, Health, HostHealth, HostState, HostsHealth, JobHealth, Known, expiry, span,
};

/// The style of the page.
pub const STYLE: &str = concat!(include_str!("page.css"), include_str!("map.css"));

/// Seconds after which the page `live` is loaded again.
pub const RELOAD_S: u32 = 30;

/// Longest text that others chose, in a cell, characters.
const CELL_WIDTH: usize = 60;

/// Longest text of what needs attention: eight names of hosts, and what jobs lack behind them.
const ATTENTION_WIDTH: usize = 12 * CELL_WIDTH;

/// Most jobs and hosts of the map, those that can lose least first.
const MAP_JOBS_MAX: usize = 100;
const MAP_HOSTS_MAX: usize = 200;

/// Most hosts and jobs that are listed. The JSON has all.
const ROWS_MAX: usize = 2000;

/// What a page shows.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Whose state it is, such as `grid lab`.
    pub of: &'a str,
    /// The report that the page shows.
    pub health: &'a Health,
    /// What was seen before.
    pub history: &'a History,
    /// Time of the page, Unix seconds.
    pub now: u64,
    /// Why the state is not newer, if it could not be found out again.
    pub stale: Option<&'a str>,
    /// Whether browsers should load the page again and again.
    pub is_live: bool,
}

/// The page.
pub fn page(view: &View<'_>) -> Markup {
    let health = view.health;
    let number = health.attention.len();
    let title = match number {
        0 => format!("all is well - {}", view.of),
        _ => format!("needs attention: {number} - {}", view.of),
    };
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                @if view.is_live { meta http-equiv="refresh" content=(RELOAD_S); }
                title { (title) }
                link rel="stylesheet" href="style.css";
            }
            body {
                a.skip href="#attention" { "To what needs attention" }
                header { (heading(view)) }
                main {
                    (attention(health))
                    @if !health.jobs.is_empty() { (jobs(&health.jobs_worst_first())) (map(health)) }
                    @if let Some(work) = &health.work { p { (work_line(work)) } }
                    @if let Some(grid) = &health.grid { (checkpoints(grid)) }
                    (repairs(health, view.history))
                    (hosts(&health.hosts, health.at))
                    (plots(view.history, &health.hosts))
                    (servers_and_keys(health))
                }
            }
        }
    }
}

fn heading(view: &View<'_>) -> Markup {
    let age = view.now.saturating_sub(view.health.at);
    html! {
        h1 { "ckpt: " (one_line(view.of)) }
        p {
            "As of " time datetime=(time(view.health.at)) { (time(view.health.at)) }
            ", " (span(age)) " ago"
            @if let Some(why) = view.stale {
                ". " strong { "Not refreshed, because: " (shortened(why, CELL_WIDTH * 3)) }
            }
        }
        nav aria-label="This report" {
            a href="health.txt" { "as text" } " "
            a href="health.json" { "as JSON" } " "
            @if view.is_live {
                a href="./" { "stop reloading" }
            } @else {
                a href="live" { "reload every " (RELOAD_S) " seconds" }
            }
        }
    }
}

fn attention(health: &Health) -> Markup {
    let number = health.attention.len();
    html! {
        section aria-labelledby="attention" {
            h2 #attention tabindex="-1" { "Needs attention: " (number) }
            @if health.hosts.up.value == 0 {
                p.bad { "No host answers." }
            } @else if number == 0 {
                p.good { "All is well." }
            }
            @if number > 0 {
                ul.alarms {
                    @for one in &health.attention {
                        li {
                            strong { (one_line(&one.about)) } ": " (shortened(&one.what, ATTENTION_WIDTH))
                            @if let Some(remedy) = &one.remedy { br; "To do: " (one_line(remedy)) }
                        }
                    }
                }
            }
        }
    }
}

/// A table that scrolls by itself where the page is narrow, by keys too.
fn table(name: &str, head: &[&str], rows: &[(&str, Vec<String>)]) -> Markup {
    html! {
        div.wide role="region" aria-label=(name) tabindex="0" {
            table {
                caption { (name) }
                thead { tr { @for cell in head { th scope="col" { (cell) } } } }
                tbody {
                    @for (class, row) in rows.iter().take(ROWS_MAX) {
                        tr class=(class) {
                            @for (at, cell) in row.iter().enumerate() {
                                @if at == 0 { th scope="row" { (shortened(cell, CELL_WIDTH)) } }
                                @else { td { (shortened(cell, CELL_WIDTH)) } }
                            }
                        }
                    }
                }
            }
        }
        @if rows.len() > ROWS_MAX {
            p { "And " (rows.len() - ROWS_MAX) " more: " a href="health.json" { "as JSON" } }
        }
    }
}

fn jobs(jobs: &[&JobHealth]) -> Markup {
    let row = |job: &&JobHealth| {
        let due = match job.due_in_s() {
            None => "-".to_owned(),
            Some(due @ 0..) => format!("in {}", span(due.unsigned_abs())),
            Some(late) => format!("late by {}", span(late.unsigned_abs())),
        };
        let class = if job.is_below_redundancy() { "bad" } else { "" };
        let cells = vec![
            job.job.to_string(),
            job.version.to_string(),
            job.age_s.map_or_else(|| "unknown".to_owned(), span),
            due,
            format!("{}, {}", state(job.can_lose.value), basis(job.can_lose)),
            format!("{} of {}", job.shards.value, job.redundancy.total()),
            job.kept_until
                .map_or("for ever".to_owned(), |until| time(until.value)),
        ];
        (class, cells)
    };
    let rows: Vec<_> = jobs.iter().map(row).collect();
    let head = [
        "Job",
        "Newest",
        "Age",
        "Next due",
        "State",
        "Shards",
        "Kept until",
    ];
    html! {
        section aria-labelledby="jobs" {
            h2 #jobs { "Jobs: " (jobs.len()) }
            (table("Newest checkpoint of each job", &head, &rows))
        }
    }
}

/// Which host holds which shard of the jobs that can lose least.
fn map(health: &Health) -> Markup {
    let worst_first = health.jobs_worst_first();
    let jobs = || worst_first.iter().take(MAP_JOBS_MAX);
    let holders = jobs().flat_map(|job| &job.holders);
    let holders: BTreeSet<&str> = holders.map(|held| held.host.as_str()).collect();
    let names: Vec<&str> = holders.into_iter().take(MAP_HOSTS_MAX).collect();
    let lines = jobs().map(|job| MapLine {
        job: job.job.as_str(),
        can_lose: job.can_lose.value,
        says: state(job.can_lose.value),
        shards: job
            .holders
            .iter()
            .filter_map(|held| {
                let column = names.binary_search(&held.host.as_str()).ok()?;
                Some((column, held.shard))
            })
            .collect(),
    });
    let lines: Vec<MapLine<'_>> = lines.collect();
    let says = format!(
        "the shards of {} on {}",
        count(lines.len(), "job"),
        count(names.len(), "host")
    );
    let hosts = names.iter().map(|name| MapColumn { name, goes: false });
    let map = Map {
        hosts: hosts.collect(),
        jobs: lines,
        says,
    };
    html! {
        section aria-labelledby="map" {
            h2 #map { "Where the shards are" }
            @if worst_first.len() > MAP_JOBS_MAX {
                p { "The " (MAP_JOBS_MAX) " jobs that can lose least." }
            }
            div.wide role="region" aria-label="Map of shards" tabindex="0" { (svg(&map, false)) }
            p { "If a host or a site goes away: " code { "ckpt map --if-down HOST|SITE" } }
        }
    }
}

fn checkpoints(grid: &GridHealth) -> Markup {
    let mut rows: Vec<_> = grid
        .can_lose
        .iter()
        .enumerate()
        .map(|(spare, number)| {
            let class = if spare == 0 && *number > 0 { "bad" } else { "" };
            (class, vec![state(Some(spare)), number.to_string()])
        })
        .collect();
    let class = if grid.too_few > 0 { "bad" } else { "" };
    let lost = vec![state(None), grid.too_few.to_string()];
    rows.insert(0, (class, lost));
    html! {
        section aria-labelledby="checkpoints" {
            h2 #checkpoints { "Checkpoints" }
            p {
                "By shards that holders proved to each other, counted by " (count(grid.counted_by, "host"))
                "; " (grid.silent.len()) " did not count."
            }
            p { "Checks by submitters that failed within a week: " (grid.failed_checks)
                ". Proofs between hosts that failed: " (grid.failed_proofs) "." }
            (table("Checkpoints by what they can lose", &["State", "Checkpoints"], &rows))
        }
    }
}

/// What hosts have to rebuild, and how that changed over the last days.
fn repairs(health: &Health, history: &History) -> Markup {
    let below = health.awaiting_repair();
    let row = |job: &JobHealth| {
        let total = job.redundancy.total();
        let missing = total.saturating_sub(job.shards.value);
        let cells = vec![
            job.job.to_string(),
            job.version.to_string(),
            format!("{missing} of {total}"),
            state(job.can_lose.value),
        ];
        ("bad", cells)
    };
    let jobs = health.jobs_worst_first().into_iter();
    let jobs = jobs.filter(|job| job.is_below_redundancy());
    let rows: Vec<_> = jobs.map(row).collect();
    let unchecked = health.grid.as_ref().map_or(0, |grid| grid.unchecked);
    html! {
        section aria-labelledby="repairs" {
            h2 #repairs { "Repairs" @if let Some(below) = below { ": " (below) } }
            p {
                @match below {
                    None => "Not known: no host has reported what it holds.",
                    Some(0) => "No checkpoint is known to miss a shard.",
                    Some(below) => {
                        (count(usize::try_from(below).unwrap_or(usize::MAX), "checkpoint"))
                        " with fewer shards than at the save. Hosts rebuild a shard when its holder stays away."
                    }
                }
                @if unchecked > 0 {
                    " Of " (unchecked) " of them, some holders were not asked for a proof yet."
                }
            }
            @if !rows.is_empty() {
                (table("Checkpoints with missing shards", &["Job", "Version", "Missing", "State"], &rows))
            }
            (repairs_over_time(history))
        }
    }
}

fn repairs_over_time(history: &History) -> Markup {
    let numbers = history.points(|one| Some(one.awaiting_repair? as f64));
    let most = numbers.iter().map(|(_, y)| *y).fold(0.0, f64::max);
    let Some((_, last)) = numbers.last().filter(|_| numbers.len() > 1 && most > 0.0) else {
        return html! {};
    };
    let length = history.length_s();
    let says = format!(
        "{last} now; the maximum is {most} in the last {}",
        span(length)
    );
    let shares: Vec<_> = numbers.iter().map(|(x, y)| (*x, y / most)).collect();
    html! {
        div.plots { (over_time("Checkpoints with missing shards", &says, &shares, length)) }
    }
}

/// What is wrong comes first.
const fn rank(state: HostState) -> u8 {
    match state {
        HostState::Down => 0,
        HostState::Silent => 1,
        HostState::Full => 2,
        HostState::StandsBack => 3,
        HostState::Up => 4,
    }
}

fn host_row(host: &HostHealth, now: u64) -> (&'static str, Vec<String>) {
    let (class, what) = match host.state {
        HostState::Down => ("bad", "down"),
        HostState::Silent => ("bad", "silent"),
        HostState::Full => ("odd", "has no room"),
        HostState::StandsBack => ("odd", "takes no shards"),
        HostState::Up => ("", "up"),
    };
    let unknown = || "-".to_owned();
    let what = format!("{what}{}", silence(host, now));
    let what = match &host.why {
        Some(why) => format!("{what}: {why}"),
        None => what,
    };
    let disk = match (host.used_bytes, host.capacity_bytes) {
        (Some(used), Some(all)) => format!("{} of {}", bytes(used), bytes(all)),
        (None, Some(all)) => format!("lends {}", bytes(all)),
        _ => unknown(),
    };
    let refuses = match host.refuses_for_s {
        None | Some(0) => unknown(),
        Some(time) => span(time.into()),
    };
    let rate = host.bytes_per_second;
    let cells = vec![
        host.name.clone(),
        what,
        disk,
        host.free_bytes.map_or_else(unknown, bytes),
        rate.map_or_else(unknown, |rate| format!("{}/s", bytes(rate as u64))),
        host.stays_10h.map_or_else(unknown, percent),
        refuses,
    ];
    (class, cells)
}

fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

fn hosts(hosts: &HostsHealth, now: u64) -> Markup {
    let mut sorted: Vec<&HostHealth> = hosts.each.iter().collect();
    sorted.sort_by_key(|host| rank(host.state));
    let rows: Vec<_> = sorted.into_iter().map(|host| host_row(host, now)).collect();
    let head = [
        "Host",
        "State",
        "Used",
        "Free",
        "Rate seen",
        "Stays 10 h",
        "Refuses for",
    ];
    html! {
        section aria-labelledby="hosts" {
            h2 #hosts { "Hosts: " (summary(hosts)) }
            p { (bytes(hosts.used_bytes.value)) " of " (bytes(hosts.capacity_bytes.value))
                " used, as hosts report. Hosts that are not simply up come first." }
            (table("Hosts", &head, &rows))
        }
    }
}

/// A plot over the time of the history, which is `length_s` seconds.
fn over_time(heading: &str, says: &str, points: &[(f64, f64)], length_s: u64) -> Markup {
    let ago = format!("{} ago", span(length_s));
    let edges = [ago.as_str(), "now"];
    Plot {
        heading,
        says,
        edges,
        points,
    }
    .markup()
}

fn plots(history: &History, hosts: &HostsHealth) -> Markup {
    let length = history.length_s();
    let up = history.points(|one| Some(one.up as f64 / one.known.max(1) as f64));
    let used = history.points(|one| Some(one.used_bytes as f64 / one.capacity_bytes.max(1) as f64));
    let least = |points: &[(f64, f64)]| points.iter().map(|(_, y)| *y).fold(1.0, f64::min);
    let most = |points: &[(f64, f64)]| points.iter().map(|(_, y)| *y).fold(0.0, f64::max);
    let now = |points: &[(f64, f64)]| points.last().map_or(0.0, |(_, y)| *y);
    let up_says = format!(
        "{} of the hosts are up; the minimum is {} in the last {}",
        percent(now(&up)),
        percent(least(&up)),
        span(length)
    );
    let used_says = format!(
        "{} of the space is used; the maximum is {} in the last {}",
        percent(now(&used)),
        percent(most(&used)),
        span(length)
    );
    html! {
        @if history.samples().next().is_some() {
            section aria-labelledby="time" {
                h2 #time { "Over time" }
                @if up.len() < 2 {
                    p { "Plots begin after " (span(SAMPLE_PERIOD_S)) "." }
                } @else {
                    div.plots {
                        (over_time("Hosts up", &up_says, &up, length))
                        (over_time("Space used", &used_says, &used, length))
                    }
                }
                (stay(hosts))
            }
        }
    }
}

/// The pool's survival curve.
fn stay(hosts: &HostsHealth) -> Markup {
    let (Some(end), true) = (hosts.stay.last(), hosts.stay.len() > 1) else {
        return html! {};
    };
    let hours = hosts.stay.len() - 1;
    let points = hosts.stay.iter().enumerate();
    let points: Vec<(f64, f64)> = points
        .map(|(hour, share)| (hour as f64 / hours as f64, *share))
        .collect();
    let says = format!(
        "hosts expect {} of them to stay for {hours} hours",
        percent(*end)
    );
    let right = format!("in {hours} hours");
    let edges = ["now", right.as_str()];
    let heading = "How long hosts stay";
    let points = &points;
    let says = &says;
    html! { div.plots { (Plot { heading, says, edges, points }.markup()) } }
}

fn servers_and_keys(health: &Health) -> Markup {
    if health.registries.is_empty() && health.keys.is_empty() {
        return html! {};
    }
    html! {
        section aria-labelledby="rest" {
            h2 #rest { "Registries and keys" }
            ul {
                @for registry in &health.registries {
                    li { "Registry " (one_line(&registry.name)) ": "
                        @match (registry.hosts_heard, &registry.why) {
                            (Some(Known { value, .. }), _) => { "up, knows " (count(value, "host")) },
                            (None, Some(why)) => { strong { "down" } ": " (shortened(why, CELL_WIDTH)) },
                            (None, None) => { strong { "down" } },
                        }
                    }
                }
                @for key in &health.keys {
                    li { (one_line(&key.what)) " "
                        @if key.left_s == 0 { strong { (expiry(key.left_s)) } }
                        @else { (expiry(key.left_s)) }
                        " (" (time(key.ends.value)) ")" }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use codec::{Redundancy, Version};

    use super::*;

    fn shown(health: &Health, is_live: bool) -> String {
        let history = History::default();
        let view = View {
            of: "grid <lab>",
            health,
            history: &history,
            now: health.at + 90,
            stale: Some("<i>gone</i>"),
            is_live,
        };
        page(&view).into_string()
    }

    fn host(name: &str, state: HostState) -> HostHealth {
        HostHealth {
            name: name.to_owned(),
            state,
            ..HostHealth::default()
        }
    }

    #[test]
    fn names_that_others_chose_are_text_and_nothing_else() {
        let trick = "</td><script>alert(1)</script>\u{202e}\u{1b}[2J\" onload=\"x";
        let mut down = host(trick, HostState::Down);
        down.why = Some(trick.to_owned());
        let mut health = Health {
            hosts: HostsHealth::of(vec![down], None),
            ..Health::default()
        };
        health.attention.push(crate::Attention {
            kind: crate::Kind::TooFewHosts,
            about: trick.to_owned(),
            what: trick.to_owned(),
            remedy: Some(trick.to_owned()),
        });
        let text = shown(&health, false);
        assert!(
            !text.contains("<script") && !text.contains("<i>") && !text.contains("<lab>"),
            "{text}"
        );
        assert!(
            !text.contains('\u{202e}') && !text.contains('\u{1b}'),
            "{text}"
        );
        assert!(!text.contains("\" onload"), "{text}");
    }

    #[test]
    fn hosts_that_are_down_or_full_come_first() {
        let each = vec![
            host("aaa", HostState::Up),
            host("bbb", HostState::StandsBack),
            host("ccc", HostState::Down),
            host("ddd", HostState::Full),
        ];
        let health = Health {
            hosts: HostsHealth::of(each, None),
            ..Health::default()
        };
        let text = shown(&health, false);
        let places: Vec<_> = ["ccc", "ddd", "bbb", "aaa"]
            .map(|name| text.find(name))
            .to_vec();
        assert!(
            places.iter().all(Option::is_some) && places.is_sorted(),
            "{places:?}"
        );
        assert!(
            !text.contains("http-equiv") && shown(&health, true).contains("http-equiv=\"refresh\"")
        );
    }

    #[test]
    fn missing_shards_are_listed_with_their_number_over_time() {
        let whole = JobHealth {
            job: "whole".parse().unwrap(),
            version: Version::new(3).unwrap(),
            versions: 1,
            created: Known::proved(1_000_000),
            age_s: Some(60),
            interval_s: None,
            redundancy: Redundancy::DEFAULT,
            shards: Known::announced(5),
            holders: Vec::new(),
            can_lose: Known::announced(Some(2)),
            kept_until: None,
            retired: false,
        };
        let short = JobHealth {
            job: "short".parse().unwrap(),
            shards: Known::announced(4),
            holders: Vec::new(),
            can_lose: Known::announced(Some(1)),
            ..whole.clone()
        };
        let mut history = History::default();
        let report = |at, jobs| Health {
            at,
            jobs,
            hosts: HostsHealth::of(vec![host("aaa", HostState::Up)], None),
            ..Health::default()
        };
        let all_whole = report(1_000_000, vec![whole.clone()]);
        history.enter(&all_whole);
        let one_short = report(1_000_600, vec![whole, short]);
        history.enter(&one_short);
        let report_of_nobody = Health {
            at: 1_001_200,
            ..Health::default()
        };
        let text = |health: &Health| {
            let view = View {
                of: "grid lab",
                health,
                history: &history,
                now: health.at,
                stale: None,
                is_live: false,
            };
            page(&view).into_string()
        };
        let now = text(&one_short);
        assert!(now.contains("Repairs: 1<"), "{now}");
        assert!(now.contains("<td>1 of 5</td>"), "{now}");
        assert!(
            now.contains("1 now; the maximum is 1 in the last 10 min"),
            "{now}"
        );
        let later = text(&all_whole);
        let none = "No checkpoint is known to miss a shard.";
        assert!(later.contains(none), "{later}");
        let silent = text(&report_of_nobody);
        assert!(
            silent.contains("Not known: no host has reported"),
            "{silent}"
        );
        assert!(!silent.contains(none), "{silent}");
    }
}
