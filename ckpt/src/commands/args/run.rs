//! The command lines of `ckpt run` and `ckpt notify` as users type them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use command_line::{size, time};
use supervision::OnHang;

use crate::commands::args::job::AnyJob;
use crate::commands::args::options::{SaveArgs, parse_exclude};
use crate::commands::names;
use runner::kind::Parameter;
use runner::notice::JobNotice;
use runner::{AfterSuccess, Ask, Suspend};

/// Headings of the options of `run` in its help.
const STATE: &str = "The job's state";
const LEAVING: &str = "When the job leaves or ends";
const OWNER: &str = "The machine's owner";
const LENGTH: &str = "How long the job takes";
const SAVING: &str = "What is saved, and how";
const ELSEWHERE: &str = "On other machines";
const SETUP: &str = "To set it up";

/// Options of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The job.
    #[command(flatten)]
    pub job: AnyJob,
    /// Files and directories in which the job keeps its state; the list ends at the next option.
    #[arg(help_heading = STATE, long,
        value_name = "PATH",
        num_args = 1..,
        required_unless_present_any = ["via", "on", "staged", "setup"],
        conflicts_with_all = ["via", "on", "staged"]
    )]
    pub files: Vec<PathBuf>,
    /// Leave files of --files that match PATTERN out of account when it is judged whether the state is whole: the job
    /// only appends to them, such as to logs.
    ///
    /// A pattern without a slash matches the name at any depth, like that of --exclude. The files are saved. Can be
    /// given more than once.
    #[arg(help_heading = STATE, long, value_name = "PATTERN", value_parser = parse_exclude, conflicts_with = "via")]
    pub append: Vec<globset::Glob>,
    /// How to ask the job to write its state: none, signal:NAME (such as signal:USR2) or cmd:'COMMAND'.
    ///
    /// With none, the job writes its state when it chooses to. COMMAND runs in sh with the job's process
    /// id in CKPT_PID, and has to exit with 0 once the state is written.
    #[arg(help_heading = STATE, long,
        default_value = "none",
        value_name = "HOW",
        conflicts_with = "via"
    )]
    pub ask: Ask,
    /// Save an image of the job's processes instead of its files.
    #[arg(help_heading = STATE, long,
        value_enum,
        conflicts_with_all = ["on", "staged"],
        requires_ifs([("cmd", "checkpoint_cmd"), ("cmd", "restart_cmd")])
    )]
    pub via: Option<Via>,
    /// Command that writes an image of process CKPT_PID into the empty directory CKPT_DIR.
    #[arg(help_heading = STATE, long, value_name = "CMD", requires = "via", requires = "restart_cmd")]
    pub checkpoint_cmd: Option<String>,
    /// Command that continues from the image in CKPT_DIR, and becomes the job.
    #[arg(help_heading = STATE, long,
        value_name = "CMD",
        requires = "via",
        requires = "checkpoint_cmd"
    )]
    pub restart_cmd: Option<String>,
    /// Start from the files on this machine if they exist, otherwise from the newest version.
    #[arg(help_heading = STATE, long)]
    pub local: bool,
    /// Begin anew if no host that answers shows a version, also if silent members may hold one.
    ///
    /// Versions that come back later stay, with lower numbers than those that are saved from now on. Leave it
    /// out of a script that starts the job again: a job that has saved would begin anew, too.
    #[arg(help_heading = STATE, long, conflicts_with = "on")]
    pub new: bool,
    /// Wait this long for the newest known version, if it can't be restored now, before an older one.
    #[arg(help_heading = STATE, long, value_parser = time::parse, value_name = "TIME")]
    pub wait: Option<Duration>,
    /// Time from the order to leave until the job has to be gone [default: 30s; 10m under HTCondor].
    #[arg(help_heading = LEAVING, long, value_parser = time::parse, value_name = "TIME")]
    pub grace: Option<Duration>,
    /// Share of the line that saves may take, so that little is unsaved when the machine is taken: 40%, 1 or 0.
    ///
    /// The job is saved so often that its last save takes a few seconds, also when no failure is expected. With 0 it is
    /// saved only when that pays.
    #[arg(help_heading = LEAVING, long, default_value = "40%", value_parser = parse_spend, value_name = "SHARE")]
    pub spend: f64,
    /// How long to pause the job for the machine's owner before it leaves: auto, never or a time.
    ///
    /// With auto, the job is paused as long as waiting is expected to cost less than leaving.
    #[arg(help_heading = OWNER, long, default_value = "auto", value_parser = parse_suspend, value_name = "TIME")]
    pub suspend: Suspend,
    /// What to do when the job shows no progress and uses no processor time, input or output.
    #[arg(help_heading = LEAVING, long, value_enum, default_value = "report")]
    pub on_hang: OnHangArg,
    /// Exit status to use instead of 75 (state saved, start the job again).
    #[arg(help_heading = LEAVING, long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub evict_exit: Option<u8>,
    /// What to do with the checkpoints once the job has ended with 0: keep, lease, lease:TIME or forget.
    ///
    /// A lease keeps them for 7 days, or for TIME.
    #[arg(help_heading = LEAVING, long, default_value = "lease", value_parser = parse_after, value_name = "WHAT")]
    pub after_success: AfterSuccess,
    /// Leave only on signals of the batch system, and ignore the machine's owner.
    ///
    /// HTCondor and Slurm are detected without this option.
    #[arg(help_heading = OWNER, long)]
    pub batch: bool,
    /// Whether the job may run while somebody uses the machine.
    #[arg(help_heading = OWNER, long, value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    pub run_if_user_active: bool,
    /// Minutes without input by a person after which the machine counts as unused.
    #[arg(help_heading = OWNER, long, value_name = "MINUTES", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=1440))]
    pub idle_time_to_run: u32,
    /// Load of the owner's programs, in percent, above which the job is paused [default: 60].
    #[arg(help_heading = OWNER, long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub suspend_cpu_usage: Option<u8>,
    /// Mean time between failures of the machine [default: what its daemon announces, otherwise an
    /// average machine's].
    #[arg(help_heading = OWNER, long, value_parser = time::parse, value_name = "TIME")]
    pub mtbf: Option<Duration>,
    /// History of runs, to predict when the job ends; a run that ends with 0 is added [default: runs.jsonl
    /// in the state directory]. With none, nothing is predicted or recorded.
    #[arg(help_heading = LENGTH, long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    /// Parameter to compare this run with others by, instead of its command line.
    ///
    /// Can be given more than once. Without it, the words and numbers of the command line are compared.
    #[arg(help_heading = LENGTH, long, value_name = "NAME=VALUE", value_parser = Parameter::parse)]
    pub param: Vec<Parameter>,
    /// Report when the job is not expected to end within this time after its first start.
    #[arg(help_heading = LENGTH, long, value_parser = time::parse, value_name = "TIME")]
    pub finish_within: Option<Duration>,
    /// Only show what would be done here, and run nothing.
    ///
    /// Shows what prevents the job from running, which version would be restored and how often the job
    /// would be saved.
    #[arg(long)]
    pub check: bool,
    /// The state is a working directory that is restored first and saved at the end (used by --on).
    #[arg(long, hide = true, conflicts_with_all = ["on", "local", "check"])]
    pub staged: bool,
    /// Write a script or submit file for the job.
    #[command(flatten)]
    pub setup: SetupArgs,
    /// The job's command.
    #[arg(last = true, value_name = "CMD", add = names::paths(), required_unless_present_any = ["check", "setup"])]
    pub command: Vec<OsString>,
    /// How it is saved.
    #[command(flatten, next_help_heading = SAVING)]
    pub save: RunSave,
    /// On other machines.
    #[command(flatten, next_help_heading = ELSEWHERE)]
    pub on: OnArgs,
}

/// Options of `run --setup`.
#[derive(Debug, Args)]
pub struct SetupArgs {
    /// Ask what the job is, try a save and an eviction, and write a script or submit file that runs it.
    ///
    /// The trial runs the job for some seconds in two copies of this directory, with hosts of its own on this machine.
    /// Three questions are asked on a terminal; each answer is an option, too: -- CMD, --files (with --ask), --under.
    /// All other options go into the file.
    #[arg(help_heading = SETUP, long, conflicts_with_all = ["on", "staged", "check"])]
    pub setup: bool,
    /// Where the job runs.
    #[arg(help_heading = SETUP, long, value_enum, requires = "setup")]
    pub under: Option<Under>,
    /// File to write, which must not exist [default: run-JOB.sh, run-JOB.sbatch or run-JOB.sub].
    #[arg(help_heading = SETUP, long, value_name = "FILE", requires = "setup")]
    pub script: Option<PathBuf>,
    /// Write the file without the trial.
    #[arg(help_heading = SETUP, long, requires = "setup")]
    pub untried: bool,
}

/// What starts a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Under {
    /// A shell.
    Shell,
    /// Slurm.
    Slurm,
    /// HTCondor.
    Htcondor,
}

/// How checkpoints of a supervised job or of a watched directory are saved.
#[derive(Debug, Args)]
pub struct RunSave {
    /// How long a save may take; for the last save of `ckpt run`, --grace counts instead.
    #[arg(long, default_value = "10m", value_parser = time::parse, value_name = "TIME")]
    pub deadline: Duration,
    /// What all commands that save have in common.
    #[command(flatten)]
    pub how: SaveArgs,
}

/// What takes an image of a job's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Via {
    /// Use CRIU 4, as root: the program that CRIU=PATH names, or criu in the PATH.
    Criu,
    /// Use the commands --checkpoint-cmd and --restart-cmd.
    Cmd,
}

/// What is done when a job hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnHangArg {
    /// Report it.
    Report,
    /// End the job, with status 78.
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
    /// What to report: SAVED=1 (the state is written), PROGRESS=0.31 (the share of the work that is
    /// done), STEP=12000, BUSY=1 and BUSY=0 (take no checkpoint in between).
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = parse_notice)]
    pub notices: Vec<JobNotice>,
}

/// Options of `run` for other machines.
#[derive(Debug, Args)]
pub struct OnArgs {
    /// Run the job on the best host of the grid, reached by this command, such as 'ssh {host} --'.
    ///
    /// {host} stands for the host's name in the grid. The working directory is saved, LAUNCHER starts
    /// `ckpt run` on the host, and the result comes back to this machine. When the job has to leave the
    /// host, it continues on the next best one.
    #[arg(long, value_name = "LAUNCHER", conflicts_with = "check")]
    pub on: Option<String>,
    /// Path of the program ckpt on the hosts, such as ~/bin/ckpt.
    #[arg(long, value_name = "PATH", default_value = "ckpt", requires = "on")]
    pub program: String,
    /// The job's work: its run time on otherwise idle processors of speed 1 [default: estimated from
    /// earlier runs, otherwise 1h].
    #[arg(long, value_parser = time::parse, value_name = "TIME", requires = "on")]
    pub work: Option<Duration>,
    /// Processors that the job uses.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..), requires = "on")]
    pub cores: u16,
    /// Memory that the job needs.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size::parse, requires = "on")]
    pub needs: u64,
    /// Have the host on which the job would go on fetch each version ahead, so that a move takes seconds.
    ///
    /// The host can't read what it fetches before the job comes. It takes at most a quarter of its free disk, and is
    /// removed when the job ends. Needs the owner's key.
    #[arg(long, requires = "on")]
    pub standby: bool,
    /// Time between two reports of the host; after six missing reports the job continues elsewhere.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time::parse, requires = "on")]
    pub report_every: Duration,
    /// Time until hosts are asked again if none is free; also the longest pause for a host that failed.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = time::parse, requires = "on")]
    pub retry: Duration,
}

/// Options of `watch`.
#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub struct WatchArgs {
    /// The job.
    #[command(flatten)]
    pub job: AnyJob,
    /// Save the directories that have this file, which the program writes last; may be given several times. Without
    /// it, directories count that were renamed into place, or that have trainer_state.json (Transformers), .metadata
    /// (PyTorch), or whose name is in the file DIR/latest (DeepSpeed).
    #[arg(long, value_name = "NAME")]
    pub marker: Vec<PathBuf>,
    /// Leave out directories while they have this file; may be given several times.
    #[arg(long, value_name = "NAME")]
    pub unless: Vec<PathBuf>,
    /// Save every directory once its files stop changing, even if it was not renamed into place. It may be half
    /// written, so --unless has to name a file that such a one has.
    #[arg(long, requires = "unless", conflicts_with = "marker")]
    pub in_place: bool,
    /// Save the directories that exist now, then exit.
    #[arg(long)]
    pub once: bool,
    /// How they are saved.
    #[command(flatten)]
    pub save: RunSave,
    /// The directory into which a program writes its checkpoints.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
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

fn parse_spend(text: &str) -> Result<f64, String> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse(),
    };
    let share = share.ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "a share from 0 to 100%, such as 40%".to_owned())
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

fn parse_notice(text: &str) -> Result<JobNotice, String> {
    let read = JobNotice::parse(text.as_bytes()).map_err(|cause| cause.to_string())?;
    match read.as_slice() {
        [one] => Ok(*one),
        _ => Err("one of SAVED=1, PROGRESS=0.31, BUSY=1, BUSY=0, STEP=12000".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::commands::args::{Cli, Command};

    fn parse(args: &[&str]) -> Option<RunArgs> {
        let args = [&["ckpt", "run", "--job", "42"], args].concat();
        match Cli::try_parse_from(args).ok()?.command {
            Command::Run(run) => Some(*run),
            _ => None,
        }
    }

    #[test]
    fn each_option_stands_under_the_heading_where_it_belongs() {
        use clap::CommandFactory;
        let mut command = Cli::command();
        command.build();
        let run = command.find_subcommand("run").unwrap();
        let below = |heading: Option<&str>| -> Vec<&str> {
            let options = run.get_arguments().filter(|one| {
                one.get_help_heading() == heading && !one.is_hide_set() && one.get_long().is_some()
            });
            options.filter_map(|one| one.get_long()).collect()
        };
        assert_eq!(below(None), ["job", "check", "help"]);
        let on = [
            "on",
            "program",
            "work",
            "cores",
            "needs",
            "standby",
            "report-every",
            "retry",
        ];
        assert_eq!(below(Some(ELSEWHERE)), on);
        let saving = below(Some(SAVING));
        assert!(
            ["deadline", "data", "keep", "exclude", "choose"]
                .iter()
                .all(|one| saving.contains(one))
        );
        assert!(below(Some(STATE)).contains(&"append") && below(Some(OWNER)).contains(&"suspend"));
        assert!(below(Some(LEAVING)).contains(&"grace") && below(Some(LENGTH)).contains(&"param"));
    }

    #[test]
    fn a_job_that_moves_does_not_begin_anew_on_each_host() {
        let run = |more: &[&str]| parse(&[more, &["--files", "a", "--", "./job"]].concat());
        assert!(run(&["--new"]).is_some_and(|run| run.new));
        let on = ["--new", "--on", "ssh {host} --", "--", "./job"];
        assert!(parse(&on).is_none() && parse(&on[1..]).is_some());
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
        let of = |word: &str| with(&["--spend", word]).map(|run| run.spend);
        assert_eq!(
            (of("25%"), of("0"), of("1")),
            (Some(0.25), Some(0.0), Some(1.0))
        );
        assert_eq!(
            (of("101%"), of("-1"), of("some"), of("nan")),
            (None, None, None, None)
        );
        assert_eq!(with(&[]).map(|run| run.spend), Some(0.4));
    }
}
