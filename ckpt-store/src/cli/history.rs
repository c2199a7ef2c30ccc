//! Writes what the monitor saw of this machine as an availability trace (`docs/research/traces.md`).

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use placement::state::AvailabilityState;
use protocol::grid::Grid;
use protocol::identity::{Peer, certificate_from_pem};
use protocol::places::UsualDir;
use traces::{RawHost, RawTrace, Sample, format};

use super::joining;
use super::refusal::Refusal;
use crate::config::LIST_FILE;
use crate::monitor::history::{self, Run};

/// Length of the intervals for which a mean load is written, in seconds: that of the public traces.
const SAMPLE_SECONDS: u32 = 300;
/// How often the monitor takes a reading, in seconds.
const LOOK_SECONDS: u32 = 6;

/// Options of `history`.
#[derive(Debug, clap::Args)]
pub(super) struct History {
    /// Data directory; can be given more than once, for the hosts of a local grid [default: that of
    /// `ckpt-store join`].
    #[arg(long)]
    data: Vec<PathBuf>,
    /// Format of the output.
    #[arg(long, value_enum, default_value = "trace")]
    format: Format,
    /// Folder to write the trace to; a trace that exists there is replaced.
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    /// Site of the machines [default: as in the list of the grid].
    #[arg(long)]
    site: Option<String>,
    /// Owner of the machines [default: as in the list of the grid].
    #[arg(long)]
    owner: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// A folder of tables, described in docs/research/traces.md.
    Trace,
}

/// Writes the trace of the data directories.
pub(super) fn history(args: &History) -> Result<ExitCode> {
    let History { output, .. } = args;
    let data = match args.data.as_slice() {
        [] => vec![joining::data_dir(None, UsualDir::Store)?],
        named => named.to_vec(),
    };
    let has_files = output.exists() && (!output.is_dir() || fs::read_dir(output)?.next().is_some());
    ensure!(
        !has_files || format::is_trace(output),
        Refusal::new(
            format!("{} exists already and is not a trace", output.display()),
            "--output DIR, with another directory"
        )
    );
    let mut hosts = BTreeMap::new();
    let mut runs = 0;
    for dir in &data {
        let seen: Vec<Run> = history::runs(dir)?.collect();
        ensure!(
            !seen.is_empty(),
            Refusal::new(
                format!(
                    "there is no history in {}: a running daemon writes it",
                    dir.display()
                ),
                "--data DIR"
            )
        );
        runs += seen.len();
        let mut host = host_of(&seen);
        let member = member(dir);
        host.site = label(args.site.as_ref().or(member.site.as_ref()));
        host.owner = label(args.owner.as_ref().or(member.owner.as_ref()));
        let name = label(Some(&member.name));
        if hosts.insert(name.clone(), host).is_some() {
            let message = format!("two of the machines are called {name:?}");
            bail!(Refusal::new(
                message,
                "a trace of each alone: ckpt-store history --output DIR"
            ));
        }
    }
    let trace = RawTrace {
        name: "history".to_owned(),
        description: "states and load of machines as their daemons saw them".to_owned(),
        sample_seconds: SAMPLE_SECONDS,
        interval_seconds: LOOK_SECONDS,
        hosts,
    };
    match args.format {
        Format::Trace => format::write(&trace, output)?,
    }
    let names: Vec<&str> = trace.hosts.keys().map(String::as_str).collect();
    writeln!(
        std::io::stdout(),
        "{runs} intervals of {} written to {}",
        names.join(", "),
        output.display()
    )?;
    Ok(ExitCode::SUCCESS)
}

/// The name, site and owner of a machine, from its certificate and the list of its grid.
#[derive(Debug, Default)]
struct Member {
    name: String,
    site: Option<String>,
    owner: Option<String>,
}

fn member(data: &Path) -> Member {
    let certificate = fs::read_to_string(data.join("identity.crt")).ok();
    let certificate = certificate.and_then(|pem| certificate_from_pem(&pem).ok());
    let peer = certificate.and_then(|certificate| Peer::from_certificate(&certificate).ok());
    let Some(peer) = peer else {
        // This may be a copy of the history alone, whose folder probably has the name of the machine.
        let dir = data.canonicalize().unwrap_or_else(|_| data.to_owned());
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        return Member {
            name: name.into_owned(),
            ..Member::default()
        };
    };
    let grid_file = joining::grid_file(None, data);
    let grid = Grid::load_with(&grid_file, Some(data.join(LIST_FILE))).ok();
    let listed = grid.and_then(|grid| grid.hosts.into_iter().find(|host| host.id.0 == peer.id));
    let (site, owner) = listed.map_or((None, None), |host| (host.site, host.owner));
    Member {
        name: peer.name,
        site,
        owner,
    }
}

/// A name for a table of comma-separated values. Labels may have commas.
fn label(name: Option<&String>) -> String {
    name.map_or_else(String::new, |name| name.replace([',', '\n', '\r'], ";"))
}

/// Turns runs of states into intervals of states, and their loads into means of five minutes.
fn host_of(runs: &[Run]) -> RawHost {
    let mut host = RawHost::default();
    let mut loads: BTreeMap<u64, (u64, f64)> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.span.start < run.span.end) {
        let Some(states) = run.states else { continue };
        if states.guest == AvailabilityState::Gone {
            host.down.push(run.span.clone());
            continue;
        }
        host.states.push((run.span.clone(), states.guest));
        let step = u64::from(SAMPLE_SECONDS);
        for slot in run.span.start / step..=(run.span.end - 1) / step {
            let seconds = run.span.end.min((slot + 1) * step) - run.span.start.max(slot * step);
            let (known, sum) = loads.entry(slot).or_default();
            *known += seconds;
            *sum += seconds as f64 * run.cpu;
        }
    }
    // If less than half of a slot is known, its mean is not known.
    let known = loads
        .into_iter()
        .filter(|(_, (known, _))| 2 * known >= u64::from(SAMPLE_SECONDS));
    let samples = known.map(|(slot, (known, sum))| Sample {
        unix_seconds: slot * u64::from(SAMPLE_SECONDS),
        cpu: (sum / known as f64) as f32,
        memory: None,
    });
    host.samples = samples.collect();
    host
}

#[cfg(test)]
mod tests {
    use placement::state::StorageState;

    use super::*;
    use crate::monitor::history::{States, write};

    fn run(start: u64, end: u64, guest: Option<AvailabilityState>, cpu: f64) -> Run {
        Run {
            span: start..end,
            states: guest.map(|guest| States {
                guest,
                storage: StorageState::FullRate,
            }),
            cpu,
            disk: 0.0,
        }
    }

    fn args(words: &[&str]) -> History {
        use clap::Parser;
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            history: History,
        }
        Line::try_parse_from([&["history"], words].concat())
            .unwrap()
            .history
    }

    #[test]
    fn a_history_becomes_a_trace_with_the_same_states() {
        use AvailabilityState::{CpuTaken, Gone, Idle, Thrashing};
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("pc7");
        fs::create_dir(&data).unwrap();
        let runs = [
            run(1000, 1300, Some(Idle), 0.0),
            run(1300, 1500, Some(CpuTaken), 1.0),
            run(1500, 1600, Some(Thrashing), 0.0),
            run(1600, 1700, None, 0.0),
            run(1700, 2000, Some(Gone), 0.0),
            run(2000, 2100, Some(Idle), 0.0),
        ];
        write(&data, &runs).unwrap();
        let output = dir.path().join("out");
        let words = [
            "--data",
            data.to_str().unwrap(),
            "-o",
            output.to_str().unwrap(),
        ];
        history(&args(&words)).unwrap();
        // A trace that exists is replaced.
        history(&args(&[&words[..], &["--site", "room 5, east"]].concat())).unwrap();
        let trace = traces::Trace::new(format::read(&output).unwrap());
        let host = &trace.hosts[0];
        assert_eq!(
            (host.name.as_str(), host.site.as_str()),
            ("pc7", "room 5; east")
        );
        let at = [1100, 1400, 1550, 1650, 1800, 2050, 2150];
        let seen = at.map(|time| host.timeline.state_at(time));
        let expected = [
            Some(Idle),
            Some(CpuTaken),
            Some(Thrashing),
            None,
            Some(Gone),
            Some(Idle),
            None,
        ];
        assert_eq!(seen, expected);
        // From 1200 to 1500, 200 of 300 s were busy; 900 to 1200 is known for 200 s; 1500 for 100 alone.
        assert_eq!(host.loads, [(900, 0.0), (1200, 0.667)]);
    }

    #[test]
    fn a_folder_with_other_things_is_not_written_to() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &[run(0, 6, Some(AvailabilityState::Idle), 0.0)]).unwrap();
        let path = dir.path().to_str().unwrap();
        let refused = history(&args(&["--data", path, "-o", path])).unwrap_err();
        assert!(refused.to_string().contains("is not a trace"), "{refused}");
        let empty = dir.path().join("empty");
        fs::create_dir(&empty).unwrap();
        let empty = empty.to_str().unwrap();
        let refused = history(&args(&["--data", empty, "-o", empty])).unwrap_err();
        assert!(refused.to_string().contains("no history"), "{refused}");
    }
}
