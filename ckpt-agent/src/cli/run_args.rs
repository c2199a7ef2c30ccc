//! The command lines of `ckpt run` and `ckpt notify` as users type them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use codec::JobId;
use command_line::time;
use globset::Glob;
use supervision::OnHang;

use super::args::{Placing, parse_exclude, parse_label, parse_level, parse_tenure};
use super::away::OnArgs;
use crate::agent::{DATA_USUAL, PARITY_USUAL, Tenure};
use crate::core::effort::Effort;
use crate::run::kind::Parameter;
use crate::run::notice::Notice;
use crate::run::{AfterSuccess, Ask, Suspend};

/// Options of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The job.
    #[arg(long)]
    pub job: JobId,
    /// Files and directories in which the job keeps its state, up to the next option.
    #[arg(
        long,
        value_name = "PATH",
        num_args = 1..,
        required_unless_present_any = ["via", "on", "staged"],
        conflicts_with_all = ["via", "on", "staged"]
    )]
    pub files: Vec<PathBuf>,
    /// How the job is asked to write its state: none (it does so when it wants to), signal:USR2, or
    /// cmd:'COMMAND', which is run by sh with the job's process id in CKPT_PID and ends with 0 when
    /// the state is written.
    #[arg(
        long,
        default_value = "none",
        value_name = "HOW",
        conflicts_with = "via"
    )]
    pub ask: Ask,
    /// Save an image of the job's processes instead of files.
    #[arg(
        long,
        value_enum,
        conflicts_with_all = ["on", "staged"],
        requires_ifs([("cmd", "checkpoint_cmd"), ("cmd", "restart_cmd")])
    )]
    pub via: Option<Via>,
    /// Command that writes an image of process CKPT_PID into the empty directory CKPT_DIR.
    #[arg(long, value_name = "CMD", requires = "via", requires = "restart_cmd")]
    pub checkpoint_cmd: Option<String>,
    /// Command that goes on from the image in CKPT_DIR: it is the job from then on.
    #[arg(
        long,
        value_name = "CMD",
        requires = "via",
        requires = "checkpoint_cmd"
    )]
    pub restart_cmd: Option<String>,
    /// Begin from what lies here, if it does; else from the newest version as without.
    #[arg(long)]
    pub local: bool,
    /// Wait this long for a version that is known and can't be had, before an older one is taken.
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub wait: Option<Duration>,
    /// Time between the need to leave and the end [default: 30s; 10m under HTCondor].
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub grace: Option<Duration>,
    /// How long the job stands still for the machine's owner before it leaves: auto (as long as that is
    /// expected to pay), never, or a time.
    #[arg(long, default_value = "auto", value_parser = parse_suspend, value_name = "TIME")]
    pub suspend: Suspend,
    /// What to do when the job shows neither progress nor processor time, input or output.
    #[arg(long, value_enum, default_value = "report")]
    pub on_hang: OnHangArg,
    /// Exit status in place of 75: left with its state saved, start me again.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub evict_exit: Option<u8>,
    /// What becomes of the checkpoints when the job has ended with 0: keep, lease (for 7 days),
    /// lease:TIME or forget.
    #[arg(long, default_value = "lease", value_parser = parse_after, value_name = "WHAT")]
    pub after_success: AfterSuccess,
    /// The machine is a batch system's affair: only signals count, not its owner. HTCondor and Slurm are
    /// found by themselves.
    #[arg(long)]
    pub batch: bool,
    /// Whether the job runs while somebody sits at the machine.
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    pub run_if_user_active: bool,
    /// Minutes for which nobody must have used the machine until nobody sits at it.
    #[arg(long, value_name = "MINUTES", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=1440))]
    pub idle_time_to_run: u32,
    /// Load of the owner's programs, in percent, above which the job stands still [default: 60].
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub suspend_cpu_usage: Option<u8>,
    /// Mean time between failures of the machine [default: what its daemon announces, or that of an
    /// average machine].
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub mtbf: Option<Duration>,
    /// Note what the job took in this file when it ends with 0, and foresee its end from what others took
    /// [default: runs.jsonl in the state directory]; none for neither.
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    /// What counts of this run when it is compared with others, instead of the words and numbers of its
    /// command line; can be given more than once.
    #[arg(long, value_name = "NAME=VALUE", value_parser = Parameter::parse)]
    pub param: Vec<Parameter>,
    /// Time after the job's first start in which it should end: it is reported when it won't.
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub finish_within: Option<Duration>,
    /// Only say what would be done here: what holds the job back, which version would be restored,
    /// how often it would be saved.
    #[arg(long)]
    pub check: bool,
    /// The state is a working directory that comes from the store and goes back there: what --on starts.
    #[arg(long, hide = true, conflicts_with_all = ["on", "local", "check"])]
    pub staged: bool,
    /// On other machines.
    #[command(flatten)]
    pub on: OnArgs,
    /// How it is saved.
    #[command(flatten)]
    pub save: RunSave,
    /// The job's command.
    #[arg(last = true, value_name = "CMD", required_unless_present = "check")]
    pub command: Vec<OsString>,
}

/// How checkpoints of a supervised job are saved.
#[derive(Debug, Args)]
pub struct RunSave {
    /// Shards that carry data (1 to 32).
    #[arg(long, default_value_t = DATA_USUAL, value_name = "N")]
    pub data: u8,
    /// Further shards, each of which can be lost (0 to 32).
    #[arg(long, default_value_t = PARITY_USUAL, value_name = "N")]
    pub parity: u8,
    /// Versions to keep, the newest included.
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep: u32,
    /// Keep the job's checkpoints this long after its last save, such as 7d; or forever [default: as
    /// the last save said, forever at first].
    #[arg(long, value_parser = parse_tenure, value_name = "TIME")]
    pub ttl: Option<Tenure>,
    /// How long a save may take; the last one of `ckpt run` has the grace instead.
    #[arg(long, default_value = "10m", value_parser = time::parse, value_name = "TIME")]
    pub deadline: Duration,
    /// zstd level, -7 to 19; auto compresses as hard as the link leaves time for; none not at all.
    #[arg(long, default_value = "auto", allow_hyphen_values = true, value_parser = parse_level)]
    pub level: Effort,
    /// Commit with fewer hosts if there are not enough, but with at least this many parity shards.
    #[arg(long, value_name = "PARITY", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    pub allow_degraded: Option<u8>,
    /// Leave out what has this name, such as '*.tmp', or lies at this path below a named directory,
    /// such as '/cache/**'; can be given more than once.
    #[arg(long, value_name = "PATTERN", value_parser = parse_exclude)]
    pub exclude: Vec<Glob>,
    /// A line about each version, which `list` and `show` show; hosts can't read it.
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// A label of each version, by which it is found again; can be given more than once.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    pub label: Vec<(String, String)>,
    /// How hosts are chosen.
    #[command(flatten)]
    pub placing: Placing,
}

/// What takes an image of a job's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Via {
    /// By CRIU 4, as root; the program that CRIU=PATH names, or criu in the path.
    Criu,
    /// By the commands --checkpoint-cmd and --restart-cmd.
    Cmd,
}

/// What is done when a job hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnHangArg {
    /// It is reported.
    Report,
    /// It is ended, with status 78.
    Leave,
}

impl From<OnHangArg> for OnHang {
    fn from(arg: OnHangArg) -> Self {
        match arg {
            OnHangArg::Report => Self::Report,
            OnHangArg::Leave => Self::Leave,
        }
    }
}

/// Options of `notify`.
#[derive(Debug, Args)]
pub struct NotifyArgs {
    /// What to report: SAVED=1 (the state is written), PROGRESS=0.31, BUSY=1 and BUSY=0 (no checkpoint
    /// in between), STEP=12000.
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = parse_notice)]
    pub notices: Vec<Notice>,
}

/// Usual time for which the checkpoints of a job that has succeeded are kept.
const LEASE_USUAL: Duration = Duration::from_secs(7 * 86_400);

fn parse_suspend(text: &str) -> Result<Suspend, String> {
    match text {
        "auto" => Ok(Suspend::Auto),
        "never" => Ok(Suspend::Never),
        text => time::parse(text)
            .map(Suspend::After)
            .map_err(|cause| format!("auto, never or a time: {cause}")),
    }
}

fn parse_after(text: &str) -> Result<AfterSuccess, String> {
    match text.split_once(':') {
        None if text == "keep" => Ok(AfterSuccess::Keep),
        None if text == "forget" => Ok(AfterSuccess::Forget),
        None if text == "lease" => Ok(AfterSuccess::Lease(LEASE_USUAL)),
        Some(("lease", time)) => time::parse(time).map(AfterSuccess::Lease),
        _ => Err("keep, lease, lease:TIME or forget".into()),
    }
}

fn parse_notice(text: &str) -> Result<Notice, String> {
    let read = Notice::parse(text.as_bytes()).map_err(|cause| cause.to_string())?;
    match read.as_slice() {
        [one] => Ok(*one),
        _ => Err("one of SAVED=1, PROGRESS=0.31, BUSY=1, BUSY=0, STEP=12000".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::args::{Cli, Command};

    fn parse(args: &[&str]) -> Option<RunArgs> {
        let args = [&["ckpt", "run", "--job", "42"], args].concat();
        match Cli::try_parse_from(args).ok()?.command {
            Command::Run(run) => Some(*run),
            _ => None,
        }
    }

    #[test]
    fn a_job_has_files_or_a_way_to_take_its_image() {
        let run = parse(&["--files", "a", "b", "--ask", "none", "--", "./job", "--x"]).unwrap();
        assert_eq!((run.files.len(), run.command.len()), (2, 2));
        assert!(parse(&["--", "./job"]).is_none());
        assert!(parse(&["--files", "a"]).is_none());
        assert!(parse(&["--files", "a", "--check"]).is_some());
        assert!(parse(&["--via", "cmd", "--", "./job"]).is_none());
        assert!(parse(&["--via", "criu", "--", "./job"]).is_some());
        let both = ["--via", "criu", "--checkpoint-cmd", "c", "--", "./job"];
        assert!(parse(&both).is_none());
        let via = [
            "--via",
            "cmd",
            "--checkpoint-cmd",
            "c",
            "--restart-cmd",
            "r",
        ];
        assert!(parse(&[&via[..], &["--", "./job"]].concat()).is_some());
        assert!(parse(&[&via[..], &["--files", "a", "--", "./job"]].concat()).is_none());
    }

    #[test]
    fn times_and_words_are_read() {
        let with = |more: &[&str]| parse(&[&["--files", "a"], more, &["--", "job"]].concat());
        let of = |word: &str| with(&["--suspend", word]).map(|run| run.suspend);
        assert_eq!(of("auto"), Some(Suspend::Auto));
        assert_eq!(of("1m"), Some(Suspend::After(Duration::from_secs(60))));
        assert_eq!(of("soon"), None);
        let of = |word: &str| with(&["--after-success", word]).map(|run| run.after_success);
        assert_eq!(of("lease"), Some(AfterSuccess::Lease(LEASE_USUAL)));
        let day = Duration::from_secs(86_400);
        assert_eq!(of("lease:1d"), Some(AfterSuccess::Lease(day)));
        assert_eq!(of("forget"), Some(AfterSuccess::Forget));
        assert_eq!(of("lease:"), None);
        assert!(with(&["--evict-exit", "85"]).is_some_and(|run| run.evict_exit == Some(85)));
        assert!(with(&["--evict-exit", "0"]).is_none());
        assert!(with(&["--suspend-cpu-usage", "101"]).is_none());
    }
}
