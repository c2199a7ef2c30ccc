//! `ckpt plan where`: ranks the hosts for a job.

pub mod report;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use command_line::{size, time};
use placement::SurvivalCurve;
use placement::rank::{Failure as Cost, LoadForecast, Place, Rated, Rule, mean_seconds, rank};
use placement::state::AvailabilityState;
use protocol::identity::is_name;
use protocol::wire::machine::MachineClaim;
use supervision::load::contended;

use self::report::{RankReport, RankedHost};
use super::render::{Report, Table, bytes, json_of_self, one_line, shown};
use super::run::past::history_file;
use ckpt_agent::agent::{Agent, HostSays};
use ckpt_agent::core::place::presence_of_unknown;
use ckpt_agent::report::{ExitStatus, Failure, HostNote};
use runner::history::History;

/// Options of `rank`.
#[derive(Clone, Debug, Args)]
pub struct RankArgs {
    /// The job's work, such as 6h: its run time on otherwise idle processors of speed 1.
    ///
    /// `ckpt runs --predict` estimates it.
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub work: Duration,
    /// Processors that the job uses.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub cores: u16,
    /// Memory that the job needs.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size::parse)]
    pub memory: u64,
    /// How to order the hosts [default: expected, or falcon with --no-checkpoints].
    #[arg(long, value_enum)]
    pub rule: Option<RuleArg>,
    /// The job takes no checkpoints: when it has to leave a host, it starts from the beginning.
    #[arg(long)]
    pub no_checkpoints: bool,
    /// Time for which a checkpoint stops the job.
    #[arg(long, default_value = "20s", value_parser = time::parse, value_name = "TIME")]
    pub cost: Duration,
    /// Time from leaving one host to running on another.
    #[arg(long, default_value = "5m", value_parser = time::parse, value_name = "TIME")]
    pub delay: Duration,
    /// History of runs; speeds measured in it replace those that hosts announce [default: runs.jsonl in
    /// the state directory]. With none, no history is used.
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    /// How to print the ranking.
    #[arg(long, value_enum, default_value = "table")]
    pub format: Format,
}

/// By what machines are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RuleArg {
    /// FALCON's rule: where a job that restarts from the beginning after each failure ends first. Hosts that
    /// stay for less time than the job takes come last, by the work that gets done before they fail.
    Falcon,
    /// Where the job is expected to end first, even if it moves to other hosts on the way.
    Expected,
}

/// How a rank is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table for people.
    #[default]
    Table,
    /// One Slurm command (scontrol) per host, which sets the weight of the node of that name.
    Slurm,
}

/// A host that could run the job.
struct FitHost {
    host: String,
    claim: Option<MachineClaim>,
    /// Speed of the host in the user's own runs.
    seen: Option<f64>,
    stays: SurvivalCurve,
}

impl FitHost {
    /// Its speed. What the user's own runs showed outranks what the host claims.
    fn speed(&self) -> Option<f64> {
        self.seen.or_else(|| Some(self.claim.as_ref()?.speed))
    }
}

/// Ranks the hosts of the grid.
pub(super) async fn run(agent: &Agent, args: &RankArgs) -> Result<RankReport, Failure> {
    let speeds = speeds(args)?;
    let mut fit = Vec::new();
    let mut unfit = Vec::new();
    let mut silent = Vec::new();
    for HostSays { host, said } in agent.announcements().await {
        let said = match said {
            Ok(said) => said,
            Err(what) => {
                silent.push(HostNote { host, what });
                continue;
            }
        };
        let claim = said.as_ref().and_then(|said| said.machine);
        let taken = said.as_ref().and_then(|said| taken(said.guest_state));
        let lacks = taken.or_else(|| claim.as_ref().and_then(|claim| lacks(claim, args)));
        if let Some(what) = lacks {
            unfit.push(HostNote { host, what });
            continue;
        }
        fit.push(FitHost {
            seen: speeds.get(&host).copied(),
            host,
            claim,
            stays: said.map_or_else(presence_of_unknown, |said| said.guest),
        });
    }
    if fit.is_empty() {
        let message = format!(
            "no host that answers can run a job with {} processors and {} of memory",
            args.cores,
            bytes(args.memory)
        );
        let mut failure = Failure::new(ExitStatus::TooFewHosts, message);
        failure.hosts = unfit.into_iter().chain(silent).collect();
        return Err(failure.next("ckpt hosts, or smaller --cores and --memory"));
    }
    Ok(report(&fit, args, unfit, silent))
}

/// Speeds of hosts in the user's own runs.
fn speeds(args: &RankArgs) -> Result<BTreeMap<String, f64>, Failure> {
    let path = match &args.history {
        Some(path) if path.as_os_str() == "none" => None,
        named => history_file(named.clone()),
    };
    let Some(path) = path else {
        return Ok(BTreeMap::new());
    };
    let history = History::read(&path).map_err(|cause| {
        Failure::new(ExitStatus::LocalIo, cause.to_string()).next("--history FILE")
    })?;
    Ok(history.speeds())
}

/// What the owner of a machine needs now, so that no guest may be there.
fn taken(state: AvailabilityState) -> Option<String> {
    let what = match state {
        AvailabilityState::Idle | AvailabilityState::Busy => return None,
        AvailabilityState::CpuTaken => "its owner needs the processors now",
        AvailabilityState::Thrashing => "its owner needs the memory now",
        AvailabilityState::Gone => "it is not available now",
    };
    Some(what.to_owned())
}

/// Why a machine can't run the job now, if it can't.
fn lacks(claim: &MachineClaim, args: &RankArgs) -> Option<String> {
    if claim.cores < args.cores {
        return Some(format!("it has {} processors", claim.cores));
    }
    if claim.memory_bytes < args.memory {
        let free = bytes(claim.memory_bytes);
        return Some(format!("it has {free} of memory free for guests now"));
    }
    (claim.places == 0).then(|| "it takes no further guest now".to_owned())
}

fn report(
    fit: &[FitHost],
    args: &RankArgs,
    unfit: Vec<HostNote>,
    silent: Vec<HostNote>,
) -> RankReport {
    let average = average(fit, args);
    let places: Vec<Place> = fit.iter().map(|one| place(one, args, &average)).collect();
    let usual = if args.no_checkpoints {
        RuleArg::Falcon
    } else {
        RuleArg::Expected
    };
    let (rule, name) = match args.rule.unwrap_or(usual) {
        RuleArg::Falcon => (Rule::Falcon, "falcon"),
        RuleArg::Expected => (Rule::Expected, "expected"),
    };
    // The work is the time on all of the job's processors together, so a machine of speed 1 does a second
    // of it per second.
    let ranked = rank(&places, args.work.as_secs_f64(), rule);
    let hosts = ranked.iter().filter_map(|rated| {
        let (candidate, place) = fit.get(rated.place).zip(places.get(rated.place))?;
        Some(ranked_host(candidate, place, rated))
    });
    RankReport {
        work_seconds: args.work.as_secs_f64(),
        cores: args.cores,
        memory_bytes: args.memory,
        rule: name,
        checkpoints: !args.no_checkpoints,
        hosts: hosts.collect(),
        unfit,
        silent,
        format: args.format,
    }
}

fn ranked_host(candidate: &FitHost, place: &Place, rated: &Rated) -> RankedHost {
    let known = |value: f64| Some(value).filter(|value| value.is_finite());
    RankedHost {
        host: candidate.host.clone(),
        assumed: candidate.claim.is_none(),
        speed_seen: candidate.seen.is_some(),
        cores: candidate.claim.map(|claim| claim.cores),
        speed: place.speed,
        memory_bytes: candidate.claim.map(|claim| claim.memory_bytes),
        load: rated.load,
        rate: rated.rate,
        reliability: rated.reliability,
        stays_seconds: known(rated.stays_seconds),
        done_seconds: known(rated.done_seconds),
        work_until_failure: known(rated.work_until_failure),
        done_with_failures: rated.done_with_failures,
        expected_seconds: known(rated.expected_seconds),
    }
}

/// Forecast of the owner's load on the processors that the job takes.
fn contended_load(claim: &MachineClaim, cores: u16) -> LoadForecast {
    let of = |load: f64| contended(load, f64::from(claim.cores), f64::from(cores));
    LoadForecast::new(claim.load.means().map(of))
}

/// Mean speed and load of the machines that claim any; those of the reference if no machine does.
fn average(fit: &[FitHost], args: &RankArgs) -> (f64, LoadForecast) {
    let speeds: Vec<f64> = fit.iter().filter_map(FitHost::speed).collect();
    let speed = match speeds.as_slice() {
        [] => 1.0,
        speeds => speeds.iter().sum::<f64>() / speeds.len() as f64,
    };
    let claims: Vec<&MachineClaim> = fit.iter().filter_map(|one| one.claim.as_ref()).collect();
    if claims.is_empty() {
        return (speed, LoadForecast::default());
    }
    let count = claims.len() as f64;
    let mut means = *LoadForecast::default().means();
    for claim in &claims {
        let load = contended_load(claim, args.cores);
        for (sum, mean) in means.iter_mut().zip(load.means()) {
            *sum += mean / count;
        }
    }
    (speed, LoadForecast::new(means))
}

fn place(candidate: &FitHost, args: &RankArgs, average: &(f64, LoadForecast)) -> Place {
    let speed = candidate.speed().unwrap_or(average.0);
    let load = match &candidate.claim {
        Some(claim) => contended_load(claim, args.cores),
        None => average.1,
    };
    let delay_seconds = args.delay.as_secs_f64();
    let rate = speed * (1.0 - load.over(args.work.as_secs_f64()));
    let failure = if args.no_checkpoints {
        Cost::Everything { delay_seconds }
    } else {
        let stays = mean_seconds(&candidate.stays);
        Cost::with_checkpoints(delay_seconds, args.cost.as_secs_f64(), rate, stays)
    };
    Place {
        speed,
        load,
        stays: candidate.stays.clone(),
        failure,
    }
}

/// What the columns with short names mean.
const COLUMNS: &str = "\
TR        probability that the job ends before a failure: the host's end, or its owner
MTTF      mean time to a failure
JCT       time of the job without failures
ETL       work done until a failure
JCTF      time of the job with failures, by FALCON's formula
EXPECTED  expected time to the end of the job, on this host or another";

fn span(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 600.0 => format!("{seconds:.0} s"),
        Some(seconds) if seconds < 36_000.0 => format!("{:.0} min", seconds / 60.0),
        Some(seconds) if seconds < 864_000.0 => format!("{:.1} h", seconds / 3600.0),
        Some(seconds) => format!("{:.0} d", seconds / 86_400.0),
    }
}

impl RankReport {
    fn as_slurm(&self, out: &mut dyn Write) -> io::Result<()> {
        for (rank, host) in self.hosts.iter().enumerate() {
            // A name that a host chose must not be run by a shell.
            if !is_name(&host.host) {
                writeln!(out, "# {}: not a valid node name", one_line(&host.host))?;
                continue;
            }
            // Slurm fills the nodes with the least weight first.
            writeln!(
                out,
                "scontrol update nodename={} weight={}",
                host.host,
                10 * (rank + 1)
            )?;
        }
        for note in self.unfit.iter().chain(&self.silent) {
            writeln!(out, "# {}: {}", one_line(&note.host), one_line(&note.what))?;
        }
        Ok(())
    }
}

impl Report for RankReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.format == Format::Slurm {
            return self.as_slurm(out);
        }
        let mut table = Table::new(&[
            "HOST", "CORES", "SPEED", "LOAD", "MEMORY", "TR", "MTTF", "JCT", "ETL", "JCTF",
            "EXPECTED",
        ]);
        for host in &self.hosts {
            let mark = if host.assumed { "?" } else { "" };
            let speed_mark = if host.speed_seen { "*" } else { mark };
            table.row(vec![
                shown(&host.host, 24),
                host.cores.map_or("-".to_owned(), |cores| cores.to_string()),
                format!("{:.2}{speed_mark}", host.speed),
                format!("{:.0}%{mark}", host.load * 100.0),
                host.memory_bytes.map_or("-".to_owned(), bytes),
                format!("{:.3}", host.reliability),
                span(host.stays_seconds),
                span(host.done_seconds),
                span(host.work_until_failure),
                span(host.done_with_failures),
                span(host.expected_seconds),
            ]);
        }
        table.write(out)?;
        let order = match self.rule {
            "falcon" => "FALCON's rule",
            _ => "EXPECTED",
        };
        writeln!(
            out,
            "the best host first, by {order}, for {} of work at speed 1{}",
            span(Some(self.work_seconds)),
            if self.checkpoints {
                ""
            } else {
                " without checkpoints"
            },
        )?;
        writeln!(out, "{COLUMNS}")?;
        if self.hosts.iter().any(|host| host.assumed) {
            writeln!(
                out,
                "? the mean of the other hosts, because this host does not announce its machine"
            )?;
        }
        if self.hosts.iter().any(|host| host.speed_seen) {
            writeln!(
                out,
                "* measured in your own runs (ckpt runs), not announced by the host"
            )?;
        }
        for note in self.unfit.iter().chain(&self.silent) {
            writeln!(out, "  {}  {}", one_line(&note.host), one_line(&note.what))?;
        }
        Ok(())
    }

    json_of_self!();
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::commands::args::{Cli, Command};
    use ckpt_agent::agent::MachineOutlook;

    fn args(words: &[&str]) -> RankArgs {
        let words = [&["ckpt", "rank", "--work", "6h"], words].concat();
        match Cli::try_parse_from(words).unwrap().command {
            Command::Rank(args) => args,
            _ => panic!("another command"),
        }
    }

    fn candidate(host: &str, speed: f64, mtbf_hours: f64) -> FitHost {
        FitHost {
            host: host.to_owned(),
            claim: (speed > 0.0).then(|| MachineClaim {
                cores: 4,
                speed,
                memory_bytes: 1 << 30,
                places: 4,
                load: LoadForecast::constant(0.5),
            }),
            seen: None,
            stays: MachineOutlook::given(mtbf_hours * 3600.0).guest,
        }
    }

    fn order(fit: &[FitHost], args: &RankArgs) -> Vec<String> {
        let report = report(fit, args, Vec::new(), Vec::new());
        report.hosts.into_iter().map(|host| host.host).collect()
    }

    #[test]
    fn with_checkpoints_speed_decides_and_without_staying_does() {
        let fit = [candidate("steady", 1.0, 100.0), candidate("fast", 2.0, 2.0)];
        assert_eq!(order(&fit, &args(&[])), ["fast", "steady"]);
        assert_eq!(
            order(&fit, &args(&["--no-checkpoints"])),
            ["steady", "fast"]
        );
        let falcon = args(&["--rule", "falcon"]);
        assert_eq!(order(&fit, &falcon), ["steady", "fast"]);
    }

    #[test]
    fn a_host_that_says_nothing_of_its_machine_is_an_average_one() {
        let fit = [
            candidate("slow", 0.5, 100.0),
            candidate("unknown", 0.0, 100.0),
            candidate("fast", 1.5, 100.0),
        ];
        assert_eq!(order(&fit, &args(&[])), ["fast", "unknown", "slow"]);
        let report = report(&fit, &args(&["--cores", "4"]), Vec::new(), Vec::new());
        let unknown = &report.hosts[1];
        assert!(unknown.assumed && unknown.cores.is_none());
        // A load of half on four processors is half of each if the job takes all four, and no load on one
        // alone.
        assert_eq!((unknown.speed, unknown.load), (1.0, 0.5));
        assert_eq!(
            super::report(&fit, &args(&[]), vec![], vec![]).hosts[0].load,
            0.0
        );
    }

    #[test]
    fn a_speed_that_was_seen_outranks_what_the_host_says() {
        let mut fit = [
            candidate("braggart", 3.0, 100.0),
            candidate("modest", 1.0, 100.0),
        ];
        assert_eq!(order(&fit, &args(&[])), ["braggart", "modest"]);
        fit[0].seen = Some(0.5);
        assert_eq!(order(&fit, &args(&[])), ["modest", "braggart"]);
        let report = report(&fit, &args(&[]), Vec::new(), Vec::new());
        let seen: Vec<(f64, bool)> = report
            .hosts
            .iter()
            .map(|host| (host.speed, host.speed_seen))
            .collect();
        assert_eq!(seen, [(1.0, false), (0.5, true)]);
        let mut text = Vec::new();
        report.human(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.contains("0.50*") && text.contains("ckpt runs"),
            "{text}"
        );
    }

    #[test]
    fn too_small_a_machine_says_what_it_lacks() {
        let claim = candidate("a", 1.0, 1.0).claim.unwrap();
        let lack = |words: &[&str]| lacks(&claim, &args(words)).unwrap_or_default();
        assert_eq!(lack(&["--cores", "4", "--memory", "1GiB"]), "");
        assert!(lack(&["--cores", "5"]).contains("4 processors"));
        assert!(
            lack(&["--memory", "2GiB"]).contains("1.0 GiB"),
            "{}",
            lack(&["--memory", "2GiB"])
        );
        let full = MachineClaim { places: 0, ..claim };
        assert!(lacks(&full, &args(&[])).is_some());
    }

    #[test]
    fn a_name_that_a_shell_would_obey_sets_no_weight() {
        let fit = [
            candidate("n1", 2.0, 100.0),
            candidate("n2;reboot", 1.0, 100.0),
        ];
        let report = report(&fit, &args(&["--format", "slurm"]), Vec::new(), Vec::new());
        let mut text = Vec::new();
        report.human(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "scontrol update nodename=n1 weight=10");
        assert!(lines[1].starts_with('#') && lines.len() == 2, "{text}");
    }
}
