//! The command line as users type it.

pub mod grid;
mod groups;
pub mod job;
pub mod key;
mod limits;
pub mod options;
pub mod run;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use codec::{JobId, Version};
use command_line::time;

use super::names;
use super::rank::RankArgs;
use super::run::past::RunsArgs;
use super::trace::TraceCommand;
use ckpt_agent::agent::{AfterWhich, ByteRange, HealthRequest, Strength, Superseded, Tenure};
use ckpt_agent::core::glob::Glob;
use ckpt_agent::core::sought::{Sought, SoughtLabel};
use ckpt_agent::report::ExitStatus;
use grid::GridCommand;
use health::Limits;
use job::{AnyJob, TypedJob};
use key::KeyCommand;
use limits::parse_range;
use options::{Global, Placing, SaveArgs, parse_tenure};
use run::{NotifyArgs, RunArgs, WatchArgs};

/// Stores checkpoints of long jobs on the disks of machines that may disappear at any time.
#[derive(Debug, Parser)]
#[command(
    name = "ckpt",
    version,
    max_term_width = 100,
    help_template = groups::template(),
    after_help = "Exit status: see ckpt --help",
    after_long_help = exit_table()
)]
pub struct Cli {
    /// What all commands have in common.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Save files, directories, standard input or a command's output as a job's next version.
    ///
    /// The first word is the job if neither --job nor CKPT_JOB names it; a word that is also a file here is refused
    /// then. In scripts, use --job or CKPT_JOB.
    #[command(
        mut_args(groups::shorten_save),
        override_usage = "ckpt save [OPTIONS] [JOB] PATH[=NAME]...\n       ckpt save [OPTIONS] [JOB] -- CMD...",
        after_help = "Example:\n  ckpt save 42 image.bin\n  ckpt save --job 42 -- tar c state/\n\nExit status: see ckpt --help"
    )]
    Save(Box<Save>),
    /// Wait until an image that `ckpt save --detach` set aside is saved; the exit status is that of the save.
    #[command(
        after_help = "Example:\n  ckpt save --detach --take 42 image.bin\n  ckpt wait 42\n\nExit status: that of the save; see ckpt --help; 4 when no image of the job was set aside."
    )]
    Wait {
        /// The job.
        #[command(flatten)]
        job: AnyJob,
    },
    /// The process that saves what `ckpt save --detach` set aside.
    #[command(hide = true)]
    Spool {
        /// The job.
        job: JobId,
    },
    /// Restore a job's files, by default from the newest version that can be restored.
    #[command(
        after_help = "Example:\n  ckpt restore 42\n  ckpt restore --job 42 --if-exists -o image.bin\n  ckpt restore --job 42 --path dump/log.txt -o log.txt\n  ckpt restore --job 42 --path 'dump/**/*.h5' --path dump/conf --dry-run\n\nExit status: see ckpt --help; 3 also when the newest known version can't be restored and an older one is restored."
    )]
    Restore(Restore),
    /// Write one file of a checkpoint, or a part of it, to standard output.
    ///
    /// Fetches only the segments that contain the requested bytes.
    #[command(
        override_usage = "ckpt cat [OPTIONS] [JOB] [PATH]",
        after_help = "Example:\n  ckpt cat 42 dump/log.txt | tail\n  ckpt cat --job 42 --range 1GiB:4KiB > header\n\nExit status: see ckpt --help; 0 also when the reader closes the pipe early; 3 when the newest known version can't be read and an older one is read."
    )]
    Cat(Cat),
    /// Run a job: restore its state, save it regularly, and give way to the machine's owner.
    ///
    /// Chooses the time between checkpoints that loses the least work. Pauses the job while the owner
    /// uses the machine. When the job has to leave the machine, saves a last checkpoint. Ends with the
    /// job's own exit status, or with 75 when the state is saved and the job has to be started again,
    /// here or elsewhere; docs/use/run.md lists the other statuses.
    #[command(
        mut_args(groups::shorten_run),
        after_help = "Example:\n  ckpt run --job 42 --files state/ -- ./sim --steps 1000000\n  ckpt run --job 42 --files state.img --ask signal:USR2 --grace 60s -- ./sim\n  ckpt run --job 42 --files state/ --check\n  ckpt run --on 'ssh {host} --' --job 42 -- ./sim --steps 1000000\n\nExit status: the job's own, or 128 and the number of the signal that ended it; 75 the job left, or was not started because of a signal, and its state is saved: start it again; 76 the job left and its last checkpoint is older than its state; 77 another incarnation of the job has continued; 78 the job hung and was ended; 125 not started; 5 not started because too few hosts answer or this machine lacks something; 126 the command can't be executed; 127 the command doesn't exist."
    )]
    Run(Box<RunArgs>),
    /// Save each directory that a program moves into DIR, such as a trainer's checkpoints.
    ///
    /// A directory is saved once it was renamed into place, no process has its files open for writing,
    /// and the files have not changed for a second. If several directories wait, only the newest ones
    /// are saved, at most as many as --keep. Runs until SIGINT or SIGTERM; either signal aborts a save
    /// in progress. After a restart, directories that are saved already are not saved again.
    #[command(
        after_help = "Example:\n  ckpt watch --job 42 out/checkpoints &\n  ckpt watch --job 42 --once out/checkpoints     save the directories that exist now, then exit\n\nExit status: see ckpt --help; 130 or 143 when a signal ended it"
    )]
    Watch(Box<WatchArgs>),
    /// The part of `ckpt run --on` that runs on a host and reads its orders from standard input.
    #[command(hide = true)]
    There,
    /// The process of a host that stands by for `ckpt run --on`.
    #[command(hide = true)]
    FetchAhead {
        /// The job.
        #[arg(long)]
        job: JobId,
        /// The folder that gets the blocks.
        dir: PathBuf,
    },
    /// Report progress or state from a job to its `ckpt run`.
    ///
    /// Does nothing when the job doesn't run under `ckpt run`.
    #[command(
        after_help = "Example:\n  ckpt notify SAVED=1\n  ckpt notify PROGRESS=0.31 STEP=12000\n  ckpt notify BUSY=1; ./critical; ckpt notify BUSY=0"
    )]
    Notify(NotifyArgs),
    /// Show the jobs that run here now under `ckpt run`, and how much of their work no checkpoint holds.
    ///
    /// Also lists the jobs that `ckpt run --on` runs elsewhere from this machine.
    #[command(
        after_help = "Example:\n  ckpt jobs\n  ckpt --json jobs\n\nExit status: see ckpt --help; 8 when the state of a job can't be read."
    )]
    Jobs,
    /// Show the processor time of earlier runs, or predict that of another one.
    ///
    /// Lists the runs under `ckpt run` that ended with 0, and how accurate their predictions were; then the ledger: how
    /// often jobs lost their machines, what work was rescued, and what was lost.
    #[command(
        after_help = "Example:\n  ckpt runs\n  ckpt runs 42\n  ckpt runs -- ./sim --steps 1               only runs that differ from this one in numbers\n  ckpt runs --predict -- ./sim --steps 1000000\n\nExit status: see ckpt --help; 4 when there is no run to predict from."
    )]
    Runs(RunsArgs),
    /// List checkpoints.
    #[command(
        after_help = "Example:\n  ckpt list 42\n  ckpt list --prefix sweep/\n  ckpt list --label kind=test --older-than 7d\n\nExit status: see ckpt --help"
    )]
    List(ListArgs),
    /// Show which host holds which shard, and what becomes of the jobs if hosts go away.
    ///
    /// A line for each job, a column for each host that holds shards of its newest version.
    #[command(
        after_help = "Example:\n  ckpt map\n  ckpt map --if-down h01,h02\n  ckpt map --if-down site-a\n  ckpt map --tonight\n\nExit status: see ckpt --help"
    )]
    Map(MapArgs),
    /// Describe one checkpoint: files, sizes, and which host holds which shard.
    Show {
        /// The job.
        #[command(flatten)]
        job: AnyJob,
        /// The version [default: the newest].
        #[arg(long, value_parser = parse_version)]
        version: Option<Version>,
    },
    /// Check that hosts still hold the shards of your checkpoints, undamaged.
    ///
    /// Without --sample or --read-data, hashes of blocks are compared with the manifest; no block is read.
    #[command(
        after_help = "Example:\n  ckpt verify --sample 4      regularly: finds hosts that lost or damaged shards\n  ckpt verify --read-data     checks every block\n\nExit status: see ckpt --help"
    )]
    Verify(VerifyArgs),
    /// Remove checkpoints.
    #[command(
        after_help = "Example:\n  ckpt forget --job 42 --keep-within 7d\n  ckpt forget --job 42 --all --label kind=test\n\nWith --label or --older-than, other versions are neither removed nor counted.\n\nExit status: see ckpt --help"
    )]
    Forget(Forget),
    /// Renew or change the lease of a job's checkpoints.
    #[command(
        after_help = "Example:\n  ckpt touch --job 42              renews the lease for the --ttl of the last save\n  ckpt touch --job 42 --ttl 30d\n\nExit status: see ckpt --help"
    )]
    Touch {
        /// The job.
        #[command(flatten)]
        job: TypedJob,
        /// How long to keep the job's checkpoints, such as 7d; or forever.
        #[arg(long, value_parser = parse_tenure, value_name = "TIME")]
        ttl: Option<Tenure>,
    },
    /// Remove what hosts keep without use: expired, deleted and unrecoverable checkpoints.
    ///
    /// Those are checkpoints whose lease has expired, checkpoints that were deleted while a host was
    /// away, and checkpoints with fewer shards left than a restore needs.
    #[command(
        after_help = "Example:\n  ckpt gc --dry-run\n  ckpt gc --keep 2     also removes all but the newest two versions of each job\n\nExit status: see ckpt --help"
    )]
    Gc(GcArgs),
    /// Show the state of all hosts: availability, load, free space, expected stay.
    #[command(
        after_help = "Example:\n  ckpt hosts\n  ckpt hosts --for-job 42      or: ckpt hosts 42\n  ckpt hosts --model"
    )]
    Hosts(HostsArgs),
    /// Report the health of your checkpoints, leases, keys, hosts and disk space.
    ///
    /// For monitoring: ends with 0 when all is well, with 3 when something needs attention, and with 5
    /// when too few hosts answer to judge or to restore.
    #[command(
        after_help = "Example:\n  ckpt health\n  ckpt health --watch --every 10s\n  ckpt health --prove --max-age 1h || mail -s 'checkpoints' me < /dev/null\n  ckpt health --admin --key-file admin.key --cert-file admin.crt\n\nExit status: 0 all is well, 3 something needs attention, 5 too few hosts answer; others: ckpt --help"
    )]
    Health(HealthCommand),
    /// Serve the report of `ckpt health` as a web page that refreshes itself.
    #[command(
        after_help = "Example:\n  ckpt dashboard\n  ckpt dashboard --listen 7481 --max-age 1h\n  ckpt dashboard --listen 0.0.0.0:7481 --token-file token\n\nPages: / and /live (reloads itself), /health.txt, /health.json. It runs until it is interrupted."
    )]
    Dashboard(DashboardArgs),
    /// Find problems of this machine's setup, and print how to fix each.
    ///
    /// Checks the grid file, key, certificate, hosts, clock and limits. Ends with 0 when there is no
    /// problem, with 6 when the key or certificate is the problem, otherwise with 3.
    Doctor,
    /// Plan a job: on which host, when to begin, and how often to take checkpoints.
    #[command(subcommand)]
    Plan(PlanCommand),
    /// The earlier name of `ckpt plan where`.
    #[command(hide = true)]
    Rank(RankArgs),
    /// The earlier name of `ckpt plan when`.
    #[command(hide = true)]
    Advise(Advise),
    /// The earlier name of `ckpt plan pool`.
    #[command(hide = true)]
    Pool(PoolArgs),
    /// Describe a pool of machines from traces of its availability.
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Create your key, and the file from which the grid's admin makes your certificate.
    Init {
        /// Name for the certificate [default: your login name].
        #[arg(long)]
        name: Option<String>,
    },
    /// Join a grid with a token from its admin.
    ///
    /// Creates your key, gets a certificate for it from the registry that the token names, and fetches
    /// the grid file and the list of members.
    #[command(
        after_help = "Example:\n  ckpt join ckpt-join-v2/submitter/...\n  ckpt save --job 42 image.bin"
    )]
    Join {
        /// The token. It is as secret as a password and works once. `-` reads it from standard input, and
        /// `@FILE` from a file, so that it is not in the list of processes.
        #[arg(env = "CKPT_JOIN_TOKEN", hide_env_values = true)]
        token: String,
        /// Name for the certificate [default: your login name].
        #[arg(long)]
        name: Option<String>,
    },
    /// Copy or replace your key, and create or revoke job keys.
    #[command(subcommand)]
    Key(KeyCommand),
    /// Manage the members of a grid, or run a grid on this machine.
    #[command(subcommand)]
    Grid(GridCommand),
    /// Demonstrate ckpt on this machine: a job that is evicted goes on although two of five hosts die.
    ///
    /// Starts six hosts and a job that counts to 40 under `ckpt run`, evicts it, kills two hosts, and starts the job
    /// again elsewhere. Ends within 20 s, and leaves nothing behind.
    #[command(after_help = "Example:\n  ckpt demo\n  ckpt demo ~/results")]
    Demo {
        /// Instead of running a job, save this, restore it without two of its hosts, and compare.
        path: Option<PathBuf>,
    },
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the man pages of all commands (section 1) and of the grid file (section 5).
    Man {
        /// Directory to write to.
        #[arg(long, default_value = ".")]
        dir: PathBuf,
    },
}

/// Commands that plan a job.
#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Rank hosts for running a job, by when the job would finish there.
    ///
    /// Takes into account how fast each host is and how long it is expected to stay.
    #[command(
        after_help = "Example:\n  ckpt plan where --work 6h --cores 2 --memory 2GiB\n  ckpt plan where --work 6h --no-checkpoints\n  ckpt plan where --work 6h --format slurm | sh     as an operator of Slurm\n\nExit status: see ckpt --help; 5 when no host that answers is large enough."
    )]
    Where(RankArgs),
    /// Recommend how often to take checkpoints.
    #[command(
        after_help = "Example:\n  ckpt plan when 42 --job-length 12h\n  ckpt plan when --job-length 12h --cost 30s --mtbf 6h\n\nWithout --mtbf, the failure rate comes from the machine's own prediction, if it is a host of the grid."
    )]
    When(Advise),
    /// Show the week of the pool: when hosts are there, and when a job had best begin.
    ///
    /// What hosts announce of their last four weeks, by hour of the week in UTC.
    #[command(after_help = "Example:\n  ckpt plan pool\n  ckpt plan pool --job-length 12h")]
    Pool(PoolArgs),
}

/// Options of `gc`.
#[derive(Debug, Args)]
pub struct GcArgs {
    /// Only show what would be removed.
    #[arg(long)]
    pub dry_run: bool,
    /// Also remove all but the newest N versions of each job.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep: Option<u32>,
    /// Of these, remove only versions older than this, such as 7d.
    #[arg(long, value_name = "TIME", requires = "keep", value_parser = time::parse_with_unit)]
    pub older_than: Option<Duration>,
}

impl GcArgs {
    /// Which versions are removed although they can be restored.
    pub fn superseded(&self) -> Option<Superseded> {
        let older_than = self.older_than.unwrap_or_default();
        self.keep.map(|keep| Superseded { keep, older_than })
    }
}

/// Options of `plan pool`.
#[derive(Debug, Args)]
pub struct PoolArgs {
    /// Time that the job takes.
    #[arg(long, value_parser = time::parse, value_name = "TIME", default_value = "6h")]
    pub job_length: Duration,
}

/// The name of a file that node_exporter reads.
fn prom_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match (path.extension(), path.file_stem()) {
        (Some(end), Some(_)) if end == "prom" => Ok(path),
        _ => Err("the name has to end with .prom: node_exporter reads no other files".to_owned()),
    }
}

/// Options of `save`.
#[derive(Debug, Args)]
pub struct Save {
    /// The job; also as the first word [default: the variable CKPT_JOB].
    #[arg(long, add = names::jobs())]
    pub job: Option<JobId>,
    /// How it is saved.
    #[command(flatten)]
    pub how: SaveArgs,
    /// Store everything, even what an earlier version already holds.
    #[arg(long)]
    pub full: bool,
    /// Write the outcome of this save to FILE, for node_exporter's textfile collector.
    ///
    /// The name of FILE ends with .prom. The metrics are the time of the last success, the number of
    /// failures, seconds and bytes. Their labels name the file, not the job.
    #[arg(long, value_name = "FILE", value_parser = prom_file)]
    pub metrics_file: Option<PathBuf>,
    /// Commit only as the single successor of this version.
    ///
    /// Of all saves after the same version, at most one is committed. VERSION is a number, the id of a
    /// checkpoint, or none for the first version of a job. If another version follows VERSION, or may
    /// follow it, nothing changes and the exit status is 10.
    #[arg(long, value_name = "VERSION")]
    pub after: Option<AfterWhich>,
    /// Which share of the hosts that hold the version of --after has to agree.
    #[arg(
        long,
        value_enum,
        default_value_t,
        requires = "after",
        value_name = "STRENGTH"
    )]
    pub fence: Fence,
    /// Save after this version without asking the hosts that held it, because they are gone for good.
    #[arg(long, requires = "after", conflicts_with = "fence")]
    pub unfenced: bool,
    /// Finish within this time, such as 240s or 10m, or keep the old version.
    ///
    /// Hosts that are silent or refuse are asked again until the deadline. Without a deadline, silent
    /// hosts are asked again for three seconds, and hosts that refuse until a time they name for up to a
    /// minute.
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub deadline: Option<Duration>,
    /// Leave out unreadable files, with a warning.
    #[arg(long)]
    pub skip_unreadable: bool,
    /// Accept files that change while they are read, with a warning.
    #[arg(long)]
    pub accept_changed: bool,
    /// Keep extended attributes and access control lists; a restore sets them again.
    #[arg(long)]
    pub xattrs: bool,
    /// Keep the numbers of user and group; a restore by root sets them again.
    #[arg(long)]
    pub owners: bool,
    /// Save standard input or the output of a command even if not one byte comes.
    #[arg(long)]
    pub allow_empty: bool,
    /// Store the image unencrypted, so that hosts can read it.
    #[arg(long)]
    pub no_encryption: bool,
    /// Set the files aside and return at once; a process of its own saves them.
    ///
    /// Copies share blocks with the files where the file system can do that. `ckpt wait` waits for the save. A newer
    /// image of the job replaces one whose save has not begun.
    #[arg(long, conflicts_with = "command")]
    pub detach: bool,
    /// Move the files away instead of copying them: they are gone when the command returns.
    #[arg(long, requires = "detach", conflicts_with = "link")]
    pub take: bool,
    /// Keep the files by further names: they are only replaced by renaming, never written in place.
    #[arg(long, requires = "detach")]
    pub link: bool,
    /// Show which hosts were chosen, and why.
    #[arg(long)]
    pub explain: bool,
    /// Files and directories; - for standard input; PATH=NAME stores PATH under the name NAME. The first word may be
    /// the job.
    ///
    /// NAME is relative and may contain directories.
    #[arg(required_unless_present = "command", value_name = "PATH[=NAME]", add = names::jobs_or_paths())]
    pub paths: Vec<PathBuf>,
    /// Save the output of this command; nothing is committed unless the command exits with 0.
    #[arg(last = true, conflicts_with = "exclude", value_name = "CMD", add = names::paths())]
    pub command: Vec<OsString>,
}

/// Options of `list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only checkpoints of this job.
    #[command(flatten)]
    pub job: TypedJob,
    /// Only checkpoints of jobs whose names begin with PREFIX.
    #[arg(long, value_name = "PREFIX", conflicts_with_all = ["job", "place"])]
    pub prefix: Option<String>,
    /// Which of them.
    #[command(flatten)]
    pub filter: Filter,
    /// List the images that `ckpt save --detach` set aside and that are not saved yet.
    #[arg(long, conflicts_with_all = ["prefix", "host", "label", "older_than"])]
    pub queued: bool,
    /// Only checkpoints of which this host holds shards.
    #[arg(long, value_name = "HOST", add = names::hosts())]
    pub host: Option<String>,
}

/// Options of `map`.
#[derive(Debug, Args)]
pub struct MapArgs {
    /// Only this job.
    #[command(flatten)]
    pub job: TypedJob,
    /// Show what is left if these hosts, or the hosts of these sites, go away; several with commas between.
    #[arg(long, value_name = "HOST|SITE", value_delimiter = ',', add = names::hosts())]
    pub if_down: Vec<String>,
    /// Show what is left if the hosts go away that are more likely to go than to stay in the next ten hours.
    #[arg(long)]
    pub tonight: bool,
    /// Write the map as a picture (SVG) to standard output.
    #[arg(long)]
    pub svg: bool,
}

/// Options of `verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Only this job.
    #[command(flatten)]
    pub job: TypedJob,
    /// Only this version.
    #[arg(long, value_parser = parse_version)]
    pub version: Option<Version>,
    /// Read and check every block.
    #[arg(long, conflicts_with = "sample")]
    pub read_data: bool,
    /// Read and check this many random blocks of each shard [default without a number: 4].
    #[arg(long, value_name = "BLOCKS", num_args = 0..=1, default_missing_value = "4", value_parser = clap::value_parser!(u32).range(1..))]
    pub sample: Option<u32>,
}

/// Options that say which checkpoints are meant.
#[derive(Debug, Args)]
pub struct Filter {
    /// Only versions with this label, of any value if none is given; can be given more than once.
    #[arg(long, value_name = "KEY[=VALUE]")]
    pub label: Vec<String>,
    /// Only versions older than this, such as 7d.
    #[arg(long, value_parser = time::parse_with_unit, value_name = "TIME")]
    pub older_than: Option<Duration>,
}

impl Filter {
    /// What these options select.
    pub fn sought(&self) -> Sought {
        let labels = self.label.iter().map(|text| SoughtLabel::parse(text));
        Sought {
            labels: labels.collect(),
            older_than: self.older_than,
        }
    }
}

/// Options of `hosts`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("choice").args(["for_job", "place"]).multiple(true))]
pub struct HostsArgs {
    /// Show where the next checkpoint of this job would go, and why.
    #[arg(long, value_name = "JOB", add = names::jobs())]
    pub for_job: Option<JobId>,
    /// The job, as with --for-job.
    #[arg(value_name = "JOB", add = names::jobs())]
    pub place: Option<JobId>,
    /// Show which model forecasts the hosts, since when, and how accurate it was.
    #[arg(long, conflicts_with = "choice")]
    pub model: bool,
    /// Data shards [default: as for `save`].
    #[arg(long, value_name = "N", requires = "choice")]
    pub data: Option<u8>,
    /// Parity shards [default: 2].
    #[arg(long, value_name = "N", requires = "choice")]
    pub parity: Option<u8>,
    /// How hosts are chosen.
    #[command(flatten)]
    pub placing: Placing,
}

/// Options of `health`.
#[derive(Debug, Args)]
pub struct HealthCommand {
    /// What is looked at.
    #[command(flatten)]
    pub health: HealthArgs,
    /// Show the report again and again, until it is interrupted.
    ///
    /// On a terminal each report replaces the one before. With --json each is a line.
    #[arg(long)]
    pub watch: bool,
    /// How often with --watch.
    #[command(flatten)]
    pub period: PeriodArgs,
}

/// What `health` and `dashboard` look at.
#[derive(Debug, Args)]
pub struct HealthArgs {
    /// Report on the whole grid. Needs a certificate with the role admin.
    ///
    /// Shows the counters of hosts, the space that each submitter uses, hosts that are down or refuse
    /// shards, and differing clocks and program versions.
    #[arg(long, conflicts_with_all = ["prove", "max_age"])]
    pub admin: bool,
    /// Let hosts prove that they hold the newest versions; transfers some 3 KB per shard.
    #[arg(long)]
    pub prove: bool,
    /// Warn of jobs whose newest version is older than this.
    #[arg(long, value_parser = time::parse_with_unit, value_name = "TIME")]
    pub max_age: Option<Duration>,
    /// Warn of leases that expire within this time.
    #[arg(long, value_parser = time::parse_with_unit, value_name = "TIME", default_value = "2d")]
    pub leases: Duration,
    /// Warn of keys and certificates that expire within this time.
    #[arg(long, value_parser = time::parse_with_unit, value_name = "TIME", default_value = "30d")]
    pub keys: Duration,
}

/// Options of `dashboard`.
#[derive(Debug, Args)]
pub struct DashboardArgs {
    /// Address and port to listen on; a port alone listens on 127.0.0.1.
    #[arg(long, value_name = "ADDR", value_parser = web::parse_listen, default_value = "127.0.0.1:7481")]
    pub listen: SocketAddr,
    /// File with a token that readers have to present, such as `openssl rand -hex 32` makes.
    ///
    /// In a browser, the token is the password. Required if other machines can reach the address.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// How often it looks.
    #[command(flatten)]
    pub period: PeriodArgs,
    /// What is looked at.
    #[command(flatten)]
    pub health: HealthArgs,
}

/// How often a report is made.
#[derive(Debug, Args)]
pub struct PeriodArgs {
    /// Time between two looks, at least 1s.
    #[arg(long, value_name = "TIME", value_parser = time::parse_with_unit, default_value = "30s")]
    every: Duration,
}

impl PeriodArgs {
    /// The time between two looks.
    pub fn every(&self) -> Duration {
        self.every.max(Duration::from_secs(1))
    }
}

/// How many of the witnesses have to agree to a save.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Fence {
    /// More than half of the hosts that hold the version; safe if none of them lies.
    #[default]
    Majority,
    /// One more than half of the sum of these hosts and the parity shards; safe even if some of them lie.
    Strong,
}

impl From<Fence> for Strength {
    fn from(fence: Fence) -> Self {
        match fence {
            Fence::Majority => Self::Majority,
            Fence::Strong => Self::Strong,
        }
    }
}

impl HealthArgs {
    /// These options as a request.
    pub fn request(&self) -> HealthRequest {
        HealthRequest {
            limits: Limits {
                key_s: self.keys.as_secs(),
                lease_s: self.leases.as_secs(),
                age_s: self.max_age.map(|age| age.as_secs()),
                ..Limits::default()
            },
            proves: self.prove,
        }
    }
}

/// Options of `plan when`.
#[derive(Debug, Args)]
pub struct Advise {
    /// Computing time that the job still needs, such as 12h.
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub job_length: Duration,
    /// The job; its last save shows what a checkpoint costs.
    #[command(flatten)]
    pub job: TypedJob,
    /// Time for which a checkpoint stops the job [default: that of the last save, or 10s].
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub cost: Option<Duration>,
    /// Time that a restore takes [default: the cost].
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub restore: Option<Duration>,
    /// Mean time between failures of the machine.
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub mtbf: Option<Duration>,
    /// Host of the grid on which the job runs [default: the one with an address of this machine].
    #[arg(long, env = "CKPT_COMPUTE_HOST", value_name = "HOST", add = names::hosts())]
    pub compute_host: Option<String>,
}

/// Options of `restore`.
#[derive(Debug, Args)]
pub struct Restore {
    /// The job.
    #[command(flatten)]
    pub job: AnyJob,
    /// Only this version [default: the newest that can be restored].
    #[arg(long, value_parser = parse_version)]
    pub version: Option<Version>,
    /// Which of them.
    #[command(flatten)]
    pub filter: Filter,
    /// Target: a path, a directory to restore into (DIR/ or existing), or - for standard output
    /// [default: the saved name, in the current directory].
    #[arg(long, short, value_name = "PATH")]
    pub output: Option<PathBuf>,
    /// Only files and directories that match, by the names that `ckpt show` prints.
    ///
    /// `*` and `?` match characters within a name, `[a-z]` and `{a,b}` one of several, `**/` any
    /// directories. A single path without wildcards is restored as if it had been saved alone; other
    /// files keep the directories above them. Can be given more than once.
    #[arg(long, value_name = "PATTERN", value_parser = OsStringValueParser::new().try_map(|text| Glob::new(text.as_bytes())))]
    pub path: Vec<Glob>,
    /// Only show what would be fetched: version, bytes, hosts, expected time.
    ///
    /// Fails, as the restore would, if the target exists and --force would not replace it.
    #[arg(long)]
    pub dry_run: bool,
    /// Succeed without a restore if the job has no checkpoint.
    ///
    /// That is so if no host that answers shows a checkpoint, fewer members are silent than --data, and this
    /// machine has seen none.
    #[arg(long)]
    pub if_exists: bool,
    /// With --if-exists: the job begins anew if no host that answers shows a checkpoint, whoever is silent.
    ///
    /// Versions that come back later stay, with lower numbers than those that are saved from now on.
    #[arg(long, requires = "if_exists")]
    pub new: bool,
    /// Smallest --data of the job's saves [default: 3, or 1 if there are fewer than 5 hosts].
    #[arg(long, value_name = "N", requires = "if_exists", value_parser = clap::value_parser!(u8).range(1..=32))]
    pub data: Option<u8>,
    /// Take the newest version, also one that is marked because its state was not known to be whole.
    ///
    /// Without this, a marked version is restored only if there is no older one that is whole.
    #[arg(long, conflicts_with = "version")]
    pub accept_marked: bool,
    /// Replace the target: a file or link by a file, a directory by a tree of the same name.
    #[arg(long)]
    pub force: bool,
    /// Restore setuid and setgid bits.
    #[arg(long)]
    pub set_id_bits: bool,
}

/// Options of `cat`.
#[derive(Debug, Args)]
pub struct Cat {
    /// The job; also as the first word [default: the variable CKPT_JOB].
    #[arg(long, add = names::jobs())]
    pub job: Option<JobId>,
    /// Only this version [default: the newest that can be read].
    #[arg(long, value_parser = parse_version)]
    pub version: Option<Version>,
    /// Only this part, such as 1GiB:4KiB; `OFFSET:` reads to the end of the file.
    ///
    /// A part that reaches beyond the end of the file is cut there.
    #[arg(long, value_name = "OFFSET:LENGTH", value_parser = parse_range)]
    pub range: Option<ByteRange>,
    /// The file, by the name that `ckpt show` prints [default: the only file of the checkpoint]. Before it may stand the
    /// job.
    #[arg(value_name = "PATH", num_args = 0..=2, add = names::jobs())]
    pub words: Vec<OsString>,
}

/// Options of `forget`.
#[derive(Debug, Args)]
pub struct Forget {
    /// The job.
    #[command(flatten)]
    pub job: TypedJob,
    /// Which of its checkpoints.
    #[command(flatten)]
    pub which: ForgetChoice,
    /// Of these.
    #[command(flatten)]
    pub filter: Filter,
    /// Only show what would be removed.
    #[arg(long)]
    pub dry_run: bool,
}

/// Which checkpoints to remove: exactly one of these.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct ForgetChoice {
    /// Remove this version.
    #[arg(long, value_parser = parse_version)]
    pub version: Option<Version>,
    /// Remove all but the newest N versions; of those alone that --older-than or --label choose, so that newer ones
    /// stay in addition.
    #[arg(long, value_name = "N")]
    pub keep: Option<u32>,
    /// Remove all but the newest version that can be restored and those saved within this time before
    /// it, such as 7d.
    #[arg(long, value_parser = time::parse_with_unit, value_name = "TIME")]
    pub keep_within: Option<Duration>,
    /// Remove all versions.
    #[arg(long)]
    pub all: bool,
}

fn exit_table() -> String {
    let rows = ExitStatus::ALL
        .iter()
        .map(|(status, meaning)| format!("  {:>3}  {meaning}\n", *status as u8));
    format!("Exit status:\n{}", rows.collect::<String>())
}

fn parse_version(text: &str) -> Result<Version, String> {
    let version = text.parse().ok().and_then(Version::new);
    version.ok_or_else(|| "not a version: versions are whole numbers from 1 on".into())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn save_takes_paths_or_a_command() {
        let parse = |args: &[&str]| Cli::try_parse_from(args);
        assert!(parse(&["ckpt", "save", "--job", "42", "a", "b"]).is_ok());
        assert!(parse(&["ckpt", "save", "--job", "42", "-"]).is_ok());
        assert!(parse(&["ckpt", "save", "--job", "42", "--", "cmd", "-x"]).is_ok());
        assert!(parse(&["ckpt", "save", "--job", "42"]).is_err());
        assert!(parse(&["ckpt", "save", "--job", "4//2", "a"]).is_err());
        assert!(parse(&["ckpt", "forget", "--job", "42"]).is_err());
    }
}
