//! The map of shards.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use ckpt_agent::map::{MapHost, MapIf, MapJob, MapReport};
use ckpt_agent::unix_time::unix_seconds;
use health::map::{Map, MapColumn, MapLine, svg};
use health::span;

use super::{Report, Table, count, json_of_self, write_silent};

/// Where no shard is.
const EMPTY: &str = ".";

impl Report for MapReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = columns(self);
        let going: Vec<&MapHost> = self.hosts.iter().filter(|host| host.goes).collect();
        let heads: Vec<String> = (1..=columns.len())
            .map(|number| number.to_string())
            .collect();
        let mut all = vec!["JOB", "VERSION", "AGE", "CODE"];
        all.extend(heads.iter().map(String::as_str));
        all.push("NOW");
        all.extend(self.is_supposed.then_some("THEN"));
        let mut table = Table::new(&all);
        for job in &self.jobs {
            table.row(row(job, &columns, self.is_supposed));
        }
        table.write(out)?;
        if !columns.is_empty() {
            writeln!(
                out,
                "A field is the shard that the host of that number has; a dot is none."
            )?;
        }
        for (number, host) in columns.iter().enumerate() {
            let goes = if host.goes { ", goes" } else { "" };
            let site = host.site.as_deref();
            let site = site.map_or(String::new(), |site| format!(" ({site})"));
            writeln!(out, "{:>3}  {}{site}{goes}", number + 1, host.name)?;
        }
        if self.is_supposed {
            writeln!(out, "{}", verdict(&self.jobs, &going))?;
        }
        write_silent(out, &self.silent)
    }

    json_of_self!();
}

/// The map as a file of SVG. Colours say how the jobs stand when the hosts that are assumed to go are gone.
pub(in crate::commands) fn picture(map: &MapReport) -> String {
    let columns = columns(map);
    let column_of = |host: &str| columns.iter().position(|column| column.name == host);
    let lines = map.jobs.iter().map(|job| {
        let from = if map.is_supposed { &job.then } else { &job.now };
        let holders = job.holders.iter();
        MapLine {
            job: job.job.as_str(),
            can_lose: from.as_ref().map(|from| from.can_lose),
            says: stands(job, from.as_ref()),
            shards: holders
                .filter_map(|held| Some((column_of(held.host.as_deref()?)?, held.shard)))
                .collect(),
        }
    });
    let going: Vec<&MapHost> = map.hosts.iter().filter(|host| host.goes).collect();
    let jobs = count(map.jobs.len(), "job");
    let drawn = Map {
        jobs: lines.collect(),
        says: match map.is_supposed {
            true => verdict(&map.jobs, &going),
            false => format!("the shards of {jobs} on {}", count(columns.len(), "host")),
        },
        hosts: columns
            .iter()
            .map(|host| MapColumn {
                name: &host.name,
                goes: host.goes,
            })
            .collect(),
    };
    svg(&drawn, true).into_string()
}

/// The hosts with shards of the newest versions, and those that go away, in the order of the grid.
fn columns(map: &MapReport) -> Vec<&MapHost> {
    let holders = map.jobs.iter().flat_map(|job| &job.holders);
    let names: BTreeSet<&str> = holders.filter_map(|at| at.host.as_deref()).collect();
    let hosts = map.hosts.iter();
    hosts
        .filter(|host| host.goes || names.contains(host.name.as_str()))
        .collect()
}

fn row(job: &MapJob, columns: &[&MapHost], has_then: bool) -> Vec<String> {
    let mut shards: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for holder in &job.holders {
        let host = holder.host.as_deref().unwrap_or_default();
        shards
            .entry(host)
            .or_default()
            .push(holder.shard.to_string());
    }
    let at = |host: &&MapHost| {
        let found = shards.get(host.name.as_str());
        found.map_or(EMPTY.to_owned(), |found| found.join("+"))
    };
    let mut cells = vec![
        job.job.to_string(),
        job.version.to_string(),
        span(unix_seconds().saturating_sub(job.created)),
        job.redundancy.to_string(),
    ];
    cells.extend(columns.iter().map(at));
    cells.push(stands(job, job.now.as_ref()));
    cells.extend(has_then.then(|| stands(job, job.then.as_ref())));
    cells
}

/// How a job stands that goes on from `from`.
fn stands(job: &MapJob, from: Option<&MapIf>) -> String {
    match from {
        None => "can't be restored".to_owned(),
        Some(from) if from.version == job.version => can_lose(from),
        Some(from) => format!(
            "version {}, {} older; {}",
            from.version,
            span(from.older_s),
            can_lose(from)
        ),
    }
}

fn can_lose(from: &MapIf) -> String {
    match from.can_lose {
        0 => "can lose none".to_owned(),
        more => format!("can lose {more}"),
    }
}

/// What becomes of the jobs, in words.
fn verdict(jobs: &[MapJob], going: &[&MapHost]) -> String {
    const NAMED_MAX: usize = 5;
    if going.is_empty() {
        return "no host is more likely to go than to stay".to_owned();
    }
    let mut names: Vec<&str> = going.iter().map(|host| host.name.as_str()).collect();
    let more = names.split_off(names.len().min(NAMED_MAX)).len();
    let mut hosts = names.join(", ");
    if more > 0 {
        hosts.push_str(&format!(" and {more} more"));
    }
    let then = || jobs.iter().map(|job| (job, job.then.as_ref()));
    let stand = then().filter(|(_, from)| from.is_none()).count();
    let is_older = |job: &MapJob, from: &MapIf| from.version != job.version;
    let older = then().filter_map(|(job, from)| from.filter(|from| is_older(job, from)));
    let older: Vec<u64> = older.map(|from| from.older_s).collect();
    let none = then().filter(|(_, from)| from.is_some_and(|from| from.can_lose == 0));
    let mut said = vec![match stand {
        0 => format!("{} can go on", all_of(jobs.len())),
        stand => format!(
            "{stand} of {} can't be restored until they are back",
            count(jobs.len(), "job")
        ),
    }];
    if let Some(most) = older.iter().max() {
        said.push(format!(
            "{} from an older version, at most {} of work lost",
            count(older.len(), "job"),
            span(*most)
        ));
    }
    match none.count() {
        0 => {}
        lose => said.push(format!("{} can lose none", count(lose, "job"))),
    }
    let goes = if going.len() == 1 { "goes" } else { "go" };
    format!("if {hosts} {goes} away: {}", said.join("; "))
}

fn all_of(jobs: usize) -> String {
    match jobs {
        1 => "the job".to_owned(),
        jobs => format!("all {jobs} jobs"),
    }
}
