//! The command line as users type it.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use codec::compress::Level;
use codec::grant::Rights;
use codec::{JobId, JobScope, Version};
use command_line::time;
use placement::Probability;

use super::grid_args::GridCommand;
use super::limits::{parse_bandwidth, parse_memory, parse_range, parse_target};
use super::rank::RankArgs;
use super::run_args::{NotifyArgs, RunArgs};
use super::runs::RunsArgs;
use super::trace::TraceCommand;
use super::watch::WatchArgs;
use crate::agent::{
    AfterWhich, ByteRange, Choose, DATA_USUAL, HealthRequest, PARITY_USUAL, PlacementWish,
    Strength, Tenure,
};
use crate::core::effort::Effort;
use crate::core::glob::Glob;
use crate::core::sought::{Sought, SoughtLabel};
use crate::image::exclude_pattern;
use crate::report::ExitStatus;
use health::Limits;

/// Keeps checkpoints of long jobs on the disks of machines that can vanish at any minute.
#[derive(Debug, Parser)]
#[command(name = "ckpt", version, max_term_width = 100, after_help = exit_table())]
pub struct Cli {
    /// What all commands have in common.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of all commands.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options of all commands")]
pub struct Global {
    /// Grid file [default: the one of `ckpt join`, ~/.config/ckpt/grid.toml].
    #[arg(long, global = true, env = "CKPT_GRID", value_name = "FILE", value_parser = any_path())]
    pub grid: Option<PathBuf>,
    /// Owner's key file [default: the one that the grid file names].
    #[arg(long, global = true, env = "CKPT_KEY_FILE", value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Command that prints the owner's key, such as of a password manager.
    #[arg(
        long,
        global = true,
        env = "CKPT_KEY_COMMAND",
        value_name = "CMD",
        conflicts_with = "key_file"
    )]
    pub key_command: Option<String>,
    /// Owner's certificate [default: the one that the grid file names].
    #[arg(long, global = true, env = "CKPT_CERT_FILE", value_name = "FILE")]
    pub cert_file: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    /// How to show progress on standard error.
    #[arg(long, global = true, value_enum, default_value = "auto")]
    pub progress: ProgressMode,
    /// Memory to use for data in flight, at least 16MiB [default: 256MiB, or what a limit of the address space (ulimit -v) leaves room for].
    #[arg(long, global = true, value_parser = parse_memory, value_name = "SIZE")]
    pub memory: Option<u64>,
    /// Threads for compression and coding, 1 to 1024 [default: all cores].
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub cpus: Option<u16>,
    /// Move at most so many bytes per second to all hosts together, and from them, such as 10MiB;
    /// at least 64KiB.
    #[arg(long, global = true, value_parser = parse_bandwidth, value_name = "SIZE")]
    pub bandwidth: Option<u64>,
    /// Run at this priority, from 0 to 19, the lowest.
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(i32).range(0..=19))]
    pub nice: Option<i32>,
    /// Say more on standard error; RUST_LOG sets it in detail.
    #[arg(long, short, global = true)]
    pub verbose: bool,
}

/// How to show progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProgressMode {
    /// A bar on a terminal, otherwise nothing.
    Auto,
    /// A bar.
    Bar,
    /// One JSON object in each line.
    Json,
    /// Nothing.
    None,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Save files, a directory, standard input or a command's output as the next version of a job.
    #[command(
        after_help = "Example:\n  ckpt save --job 42 image.bin\n  ckpt save --job 42 -- tar c state/\n\nExit status: see ckpt --help"
    )]
    Save(Box<Save>),
    /// Restore the newest version of a job that can be restored.
    #[command(
        after_help = "Example:\n  ckpt restore --job 42 --if-exists -o image.bin\n  ckpt restore --job 42 --path dump/log.txt -o log.txt\n  ckpt restore --job 42 --path 'dump/**/*.h5' --path dump/conf --dry-run\n\nExit status: see ckpt --help; 3 also when the newest version that is known can't be restored and an older one is."
    )]
    Restore(Restore),
    /// Write a file of a checkpoint, or a part of it, to standard output. Only the segments that it lies
    /// in are fetched.
    #[command(
        after_help = "Example:\n  ckpt cat --job 42 dump/log.txt | tail\n  ckpt cat --job 42 --range 1GiB:4KiB > header\n\nExit status: see ckpt --help; 0 also when the reader closes its end early; 3 when an older version is read than the newest that is known."
    )]
    Cat(Cat),
    /// Run a job: restore its state, save it when that pays, give way to the machine's owner, and leave
    /// with a last checkpoint.
    ///
    /// Ends with the job's own exit status, or with 75 when the job left with its state saved and is to
    /// be started again; docs/run.md has the others.
    #[command(
        after_help = "Example:\n  ckpt run --job 42 --files state/ -- ./sim --steps 1000000\n  ckpt run --job 42 --files state.img --ask signal:USR2 --grace 60s -- ./sim\n  ckpt run --job 42 --files state/ --check\n  ckpt run --on 'ssh {host} --' --job 42 -- ./sim --steps 1000000\n\nExit status: the job's own, or 128 and the number of the signal that ended it; 75 left with its state saved, start it again; 76 left, and the last checkpoint is older than its state; 77 another incarnation of the job has gone on; 78 hung, given up; 125 not started; 5 not started for want of hosts, or of what this machine lacks; 126, 127 the command can't be executed, or is not there."
    )]
    Run(Box<RunArgs>),
    /// Save each directory that a program puts in place below DIR, as trainers do with their checkpoints.
    ///
    /// A directory is saved when it was renamed to its name, no process can write to its files, and these
    /// have not changed for a second. Of several that wait, only the newest are saved, as many as --keep.
    /// Runs until SIGINT or SIGTERM, which end a save that is under way; what was saved is known again
    /// by the next start.
    #[command(
        after_help = "Example:\n  ckpt watch --job 42 out/checkpoints &\n  ckpt watch --job 42 --once out/checkpoints     save what is there, and end\n\nExit status: see ckpt --help; 130 or 143 when a signal ended it"
    )]
    Watch(Box<WatchArgs>),
    /// What `ckpt run --on` starts on a host: orders come on standard input.
    #[command(hide = true)]
    There,
    /// Report to `ckpt run` from within a job; nothing where the job runs without.
    #[command(
        after_help = "Example:\n  ckpt notify SAVED=1\n  ckpt notify PROGRESS=0.31 STEP=12000\n  ckpt notify BUSY=1; ./critical; ckpt notify BUSY=0"
    )]
    Notify(NotifyArgs),
    /// Show what runs under `ckpt run` took that ended with 0, and how well that was foreseen; or foresee what
    /// another one will take.
    #[command(
        after_help = "Example:\n  ckpt runs\n  ckpt runs -- ./sim --steps 1               only runs that differ from this one in numbers\n  ckpt runs --predict -- ./sim --steps 1000000\n\nExit status: see ckpt --help; 4 when there is no run to predict from."
    )]
    Runs(RunsArgs),
    /// List checkpoints.
    #[command(
        after_help = "Example:\n  ckpt list --job 42\n  ckpt list --prefix sweep/\n  ckpt list --label kind=test --older-than 7d\n\nExit status: see ckpt --help"
    )]
    List {
        /// Only those of this job.
        #[arg(long)]
        job: Option<JobId>,
        /// Only those of jobs whose names begin so.
        #[arg(long, value_name = "PREFIX", conflicts_with = "job")]
        prefix: Option<String>,
        /// Which of them.
        #[command(flatten)]
        filter: Filter,
        /// Only those of which this host holds shards.
        #[arg(long, value_name = "HOST")]
        host: Option<String>,
    },
    /// Describe one checkpoint: files, sizes, and which host holds which shard.
    Show {
        /// The job.
        #[arg(long)]
        job: JobId,
        /// The version [default: the newest].
        #[arg(long, value_parser = parse_version)]
        version: Option<Version>,
    },
    /// Check that shards are where they should be.
    #[command(
        after_help = "Example:\n  ckpt verify --sample 4      now and then: finds hosts that lost or damaged what they took\n  ckpt verify --read-data     everything\n\nExit status: see ckpt --help"
    )]
    Verify {
        /// Only this job.
        #[arg(long)]
        job: Option<JobId>,
        /// Only this version.
        #[arg(long, value_parser = parse_version)]
        version: Option<Version>,
        /// Read and check every block.
        #[arg(long, conflicts_with = "sample")]
        read_data: bool,
        /// Read and check so many blocks of each shard, chosen at random.
        #[arg(long, value_name = "BLOCKS", num_args = 0..=1, default_missing_value = "4", value_parser = clap::value_parser!(u32).range(1..))]
        sample: Option<u32>,
    },
    /// Remove checkpoints.
    #[command(
        after_help = "Example:\n  ckpt forget --job 42 --keep-within 7d\n  ckpt forget --job 42 --all --label kind=test\n\nWith --label or --older-than the others stay and are not counted.\n\nExit status: see ckpt --help"
    )]
    Forget(Forget),
    /// Renew the lease of a job's checkpoints, or change it.
    #[command(
        after_help = "Example:\n  ckpt touch --job 42              as long as the last save said, from now on\n  ckpt touch --job 42 --ttl 30d\n\nExit status: see ckpt --help"
    )]
    Touch {
        /// The job.
        #[arg(long)]
        job: JobId,
        /// For how long to keep its checkpoints, such as 7d; or forever.
        #[arg(long, value_parser = parse_tenure, value_name = "TIME")]
        ttl: Option<Tenure>,
    },
    /// Find what is kept for nothing, and remove it: leases that are over, checkpoints that were deleted
    /// while a host was away or of which too little is left.
    #[command(
        after_help = "Example:\n  ckpt gc --dry-run\n  ckpt gc --keep 2     of each job all but the newest two, too\n\nExit status: see ckpt --help"
    )]
    Gc {
        /// Only say what would be removed.
        #[arg(long)]
        dry_run: bool,
        /// Remove of each job all but the newest so many, too.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        keep: Option<u32>,
    },
    /// Ask all hosts how they are.
    #[command(
        after_help = "Example:\n  ckpt hosts\n  ckpt hosts --for-job 42\n  ckpt hosts --model"
    )]
    Hosts(HostsArgs),
    /// Say on which hosts a job should run: how fast they are, how long they stay, when it would end there.
    #[command(
        after_help = "Example:\n  ckpt rank --work 6h --cores 2 --memory 2GiB\n  ckpt rank --work 6h --no-checkpoints\n  ckpt rank --work 6h --format slurm | sh     as an operator of Slurm\n\nExit status: see ckpt --help; 5 when no host that answers is large enough."
    )]
    Rank(RankArgs),
    /// Say how things are: your newest checkpoints, leases and keys that end, hosts, space, clocks.
    ///
    /// Ends with 0 when all is well, with 3 when something needs attention, with 5 when too few hosts
    /// answer to say or to restore: for monitoring.
    #[command(
        after_help = "Example:\n  ckpt health\n  ckpt health --prove --max-age 1h || mail -s 'checkpoints' me < /dev/null\n  ckpt health --admin --key-file admin.key --cert-file admin.crt\n\nExit status: 0 well, 3 something needs attention, 5 too few hosts answer; others: ckpt --help"
    )]
    Health(HealthArgs),
    /// Show how things are in a browser: what `ckpt health` reports, again and again, as a page.
    #[command(
        after_help = "Example:\n  ckpt dashboard\n  ckpt dashboard --listen 7481 --max-age 1h\n  ckpt dashboard --listen 0.0.0.0:7481 --token-file token\n\nPages: / and /live (reloads itself), /health.txt, /health.json. It runs until it is interrupted."
    )]
    Dashboard(DashboardArgs),
    /// Show how things are in this terminal: what `ckpt health` reports, again and again.
    #[command(
        after_help = "Example:\n  ckpt top\n  ckpt top --every 10s --max-age 1h\n\nKeys: q ends, r looks at once, arrows and Page Up, Page Down, Home, End move."
    )]
    Top(TopArgs),
    /// Look for what stands in the way on this machine: grid file, key, certificate, hosts, clock, limits;
    /// and say what helps.
    ///
    /// Ends with 0 when nothing does, with 6 when it is the identity, else with 3.
    Doctor,
    /// Say when to take checkpoints.
    #[command(
        after_help = "Example:\n  ckpt advise --job-length 12h --job 42\n  ckpt advise --job-length 12h --cost 30s --mtbf 6h\n\nWithout --mtbf the failure rate is what the machine predicts of itself, if it is a host of the grid."
    )]
    Advise(Advise),
    /// Say what a pool of machines is like, from traces of its availability.
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Make your key, and the file of which the grid's admin makes your certificate.
    Init {
        /// Name to be certified [default: your login name].
        #[arg(long)]
        name: Option<String>,
    },
    /// Join a grid with a token from its admin: makes your key, has it certified by the registry that the
    /// token names, and fetches grid file and list.
    #[command(
        after_help = "Example:\n  ckpt join ckpt-join-v2/submitter/...\n  ckpt save --job 42 image.bin"
    )]
    Join {
        /// The token: as secret as a password, good once.
        #[arg(env = "CKPT_JOIN_TOKEN", hide_env_values = true)]
        token: String,
        /// Name to be certified [default: your login name].
        #[arg(long)]
        name: Option<String>,
    },
    /// Copy or replace your key.
    #[command(subcommand)]
    Key(KeyCommand),
    /// Decide who belongs to a grid, or run a grid on this machine.
    #[command(subcommand)]
    Grid(GridCommand),
    /// Show it all: start six hosts, save, kill two, restore, compare.
    #[command(after_help = "Example:\n  ckpt demo\n  ckpt demo ~/results")]
    Demo {
        /// What to save [default: a memory image of 256 MiB that is made up].
        path: Option<PathBuf>,
    },
    /// Print a completion script.
    Completions {
        /// For which shell.
        shell: clap_complete::Shell,
    },
    /// Write the man pages: section 1 for each command, section 5 for the grid file
    /// (ckpt-grid-file.5).
    Man {
        /// Directory to write to.
        #[arg(long, default_value = ".")]
        dir: PathBuf,
    },
}

/// The name of a file that node_exporter reads.
fn prom_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match (path.extension(), path.file_stem()) {
        (Some(end), Some(_)) if end == "prom" => Ok(path),
        _ => Err("node_exporter reads only files that end with .prom".to_owned()),
    }
}

/// Options of `save`.
#[derive(Debug, Args)]
pub struct Save {
    /// The job.
    #[arg(long)]
    pub job: JobId,
    /// Shards that carry data (1 to 32).
    #[arg(long, default_value_t = DATA_USUAL, value_name = "N")]
    pub data: u8,
    /// Further shards, each of which can be lost (0 to 32).
    #[arg(long, default_value_t = PARITY_USUAL, value_name = "N")]
    pub parity: u8,
    /// Versions to keep, this one included.
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep: u32,
    /// Keep the job's checkpoints this long after its last save, such as 7d; or forever [default: as
    /// the last save said, forever at first].
    #[arg(long, value_parser = parse_tenure, value_name = "TIME")]
    pub ttl: Option<Tenure>,
    /// Store everything, also what an earlier version has.
    #[arg(long)]
    pub full: bool,
    /// Write how this save went to FILE, which ends with .prom, for node_exporter's textfile collector: when
    /// the last one succeeded, how many failed, seconds, bytes. The name of the file is in it, the job is not.
    #[arg(long, value_name = "FILE", value_parser = prom_file)]
    pub metrics_file: Option<PathBuf>,
    /// Commit only as the one version that follows this one: of all saves after it at most one is
    /// committed. A number, or the id of a checkpoint, or none for the first version of a job. When another
    /// follows it, or may, nothing changes and the exit status is 10.
    #[arg(long, value_name = "VERSION")]
    pub after: Option<AfterWhich>,
    /// How many hosts that hold the version of --after have to agree: most of them, none of which may lie,
    /// or so many that some may.
    #[arg(
        long,
        value_enum,
        default_value_t,
        requires = "after",
        value_name = "STRENGTH"
    )]
    pub fence: Strength,
    /// Save after this version without the word of the hosts that held it, because they died for good.
    #[arg(long, requires = "after", conflicts_with = "fence")]
    pub unfenced: bool,
    /// Finish within this time or leave the old version standing, such as 240s or 10m. Hosts that are
    /// silent or refuse are asked again until it ends; without it, for three seconds, or a minute where
    /// they name a time.
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub deadline: Option<Duration>,
    /// zstd level, -7 to 19; auto compresses as hard as the link leaves time for; none not at all.
    #[arg(long, default_value = "auto", allow_hyphen_values = true, value_parser = parse_level)]
    pub level: Effort,
    /// Commit with fewer hosts if there are not enough, but with at least this many parity shards.
    #[arg(long, value_name = "PARITY", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    pub allow_degraded: Option<u8>,
    /// Leave out what has this name, such as '*.tmp' or core, or lies at this path below a named
    /// directory, such as '/cache/**'; can be given more than once. Patterns as for `restore --path`.
    #[arg(long, value_name = "PATTERN", value_parser = parse_exclude, conflicts_with = "command")]
    pub exclude: Vec<globset::Glob>,
    /// A line about this version, which `list` and `show` show; hosts can't read it.
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// A label of this version, by which it is found again; can be given more than once.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    pub label: Vec<(String, String)>,
    /// Leave unreadable files out, with a warning.
    #[arg(long)]
    pub skip_unreadable: bool,
    /// Accept files that change while they are read, with a warning.
    #[arg(long)]
    pub accept_changed: bool,
    /// Let hosts read the image.
    #[arg(long)]
    pub no_encryption: bool,
    /// Show which hosts were chosen, and why.
    #[arg(long)]
    pub explain: bool,
    /// How hosts are chosen.
    #[command(flatten)]
    pub placing: Placing,
    /// Files and directories; - for standard input. PATH=NAME stores it under this name, which may have
    /// directories in it.
    #[arg(required_unless_present = "command", value_name = "PATH[=NAME]")]
    pub paths: Vec<PathBuf>,
    /// Save the output of this command; it counts only if it exits with 0.
    #[arg(last = true, conflicts_with = "paths", value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Options that say which checkpoints are meant.
#[derive(Debug, Args)]
pub struct Filter {
    /// Only those with this label; can be given more than once. Without a value, any.
    #[arg(long, value_name = "KEY[=VALUE]")]
    pub label: Vec<String>,
    /// Only those that were saved longer ago than this, such as 7d.
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

/// Options that say how hosts are chosen.
#[derive(Debug, Args)]
pub struct Placing {
    /// As many shards as give the probability --target of being able to restart.
    #[arg(long, value_name = "auto", value_parser = ["auto"], conflicts_with_all = ["data", "parity"])]
    pub redundancy: Option<String>,
    /// Probability of being able to restart, for --redundancy auto.
    #[arg(long, default_value = "0.999", value_parser = parse_target, requires = "redundancy", value_name = "P")]
    pub target: Probability,
    /// By what hosts are chosen: forecast, random (any that take a shard, none in reserve; to compare
    /// with), or these hosts alone.
    #[arg(long, default_value = "forecast", value_parser = parse_choose, value_name = "forecast|random|HOST,...")]
    pub choose: Choose,
    /// Host of the grid on which the job runs [default: the one with an address of this machine].
    #[arg(long, env = "CKPT_COMPUTE_HOST", value_name = "HOST")]
    pub compute_host: Option<String>,
}

impl Placing {
    /// These options as a wish for the placement.
    pub fn wish(&self, explain: bool) -> PlacementWish {
        PlacementWish {
            choose: self.choose.clone(),
            target: self.redundancy.as_ref().map(|_| self.target),
            compute_host: self.compute_host.clone().filter(|name| !name.is_empty()),
            explain,
        }
    }
}

fn parse_choose(text: &str) -> Result<Choose, String> {
    match text {
        "forecast" => Ok(Choose::Forecast),
        "random" => Ok(Choose::Random),
        names => {
            let names: Vec<String> = names
                .split(',')
                .map(|name| name.trim().to_owned())
                .collect();
            if names.iter().any(String::is_empty) {
                return Err("a name of a host is missing".to_owned());
            }
            Ok(Choose::Hosts(names))
        }
    }
}

/// Options of `hosts`.
#[derive(Debug, Args)]
pub struct HostsArgs {
    /// Show where the next checkpoint of this job would go, and why.
    #[arg(long, value_name = "JOB")]
    pub for_job: Option<JobId>,
    /// Show which model makes the forecasts of hosts, since when, and how good it has been.
    #[arg(long, conflicts_with = "for_job")]
    pub model: bool,
    /// Shards that carry data.
    #[arg(long, default_value_t = DATA_USUAL, value_name = "N", requires = "for_job")]
    pub data: u8,
    /// Further shards, each of which can be lost.
    #[arg(long, default_value_t = PARITY_USUAL, value_name = "N", requires = "for_job")]
    pub parity: u8,
    /// How hosts are chosen.
    #[command(flatten)]
    pub placing: Placing,
}

/// Options of `health`.
#[derive(Debug, Args)]
pub struct HealthArgs {
    /// Of the whole grid, for its admin: what hosts count, who uses how much, which hosts are down or
    /// stand back, clocks and versions that differ. Needs a certificate with the role admin.
    #[arg(long, conflicts_with_all = ["prove", "max_age"])]
    pub admin: bool,
    /// Have each holder prove a part of each shard of the newest versions: some 3 KB a shard.
    #[arg(long)]
    pub prove: bool,
    /// A job whose newest version is older than this needs attention.
    #[arg(long, value_parser = time::parse_with_unit, value_name = "TIME")]
    pub max_age: Option<Duration>,
    /// Leases that end within this time need attention.
    #[arg(long, value_parser = time::parse_with_unit, value_name = "TIME", default_value = "2d")]
    pub leases: Duration,
    /// Keys and certificates that end within this time need attention.
    #[arg(long, value_parser = time::parse_with_unit, value_name = "TIME", default_value = "30d")]
    pub keys: Duration,
}

/// Options of `dashboard`.
#[derive(Debug, Args)]
pub struct DashboardArgs {
    /// Address and port to listen on; a port alone is one of this machine.
    #[arg(long, value_name = "ADDR", value_parser = web::parse_listen, default_value = "127.0.0.1:7481")]
    pub listen: SocketAddr,
    /// File with a token, such as `openssl rand -hex 32` makes: who asks has to show it; in a browser, it
    /// is the password. Needed if other machines can reach the address.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// What is looked at, and how often.
    #[command(flatten)]
    pub looking: TopArgs,
}

/// Options of `top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Time between two looks, at least 1s.
    #[arg(long, value_name = "TIME", value_parser = time::parse_with_unit, default_value = "30s")]
    pub every: Duration,
    /// What is looked at.
    #[command(flatten)]
    pub health: HealthArgs,
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

/// Options of `advise`.
#[derive(Debug, Args)]
pub struct Advise {
    /// Work that is left to do, such as 12h.
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub job_length: Duration,
    /// The job, of which an earlier save tells what a checkpoint costs.
    #[arg(long)]
    pub job: Option<JobId>,
    /// Time for which a checkpoint holds the job up [default: that of the last save, or 10s].
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub cost: Option<Duration>,
    /// Time that a restore takes [default: the cost].
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub restore: Option<Duration>,
    /// Mean time between failures of the machine.
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub mtbf: Option<Duration>,
    /// Host of the grid on which the job runs [default: the one with an address of this machine].
    #[arg(long, env = "CKPT_COMPUTE_HOST", value_name = "HOST")]
    pub compute_host: Option<String>,
}

/// Options of `restore`.
#[derive(Debug, Args)]
pub struct Restore {
    /// The job.
    #[arg(long)]
    pub job: JobId,
    /// This version and no other [default: the newest that can be restored].
    #[arg(long, value_parser = parse_version)]
    pub version: Option<Version>,
    /// Which of them.
    #[command(flatten)]
    pub filter: Filter,
    /// Where to: a path; an existing directory, or DIR/, to restore into it; or - for standard output
    /// [default: the saved name, here].
    #[arg(long, short, value_name = "PATH")]
    pub output: Option<PathBuf>,
    /// Only this file or directory, as `ckpt show` names it; can be given more than once. `*` and `?`
    /// stand for characters within a name, `[a-z]` and `{a,b}` for one of some, `**/` for any
    /// directories. One path without these is restored as if it had been saved alone, others below the
    /// directories that they were in.
    #[arg(long, value_name = "PATTERN", value_parser = OsStringValueParser::new().try_map(|text| Glob::new(text.as_bytes())))]
    pub path: Vec<Glob>,
    /// Only say what would be fetched: version, bytes, hosts, expected time. Ends as the restore would
    /// begin: with an error where something is at the target, unless --force would replace it.
    #[arg(long)]
    pub dry_run: bool,
    /// Succeed, doing nothing, when the job has no checkpoint: no host that answers shows one, and
    /// fewer hosts are silent than --data.
    #[arg(long)]
    pub if_exists: bool,
    /// Fewest data shards with which the job is saved [default: 3, or 1 where there are fewer than 5
    /// hosts].
    #[arg(long, value_name = "N", requires = "if_exists", value_parser = clap::value_parser!(u8).range(1..=32))]
    pub data: Option<u8>,
    /// Replace what is at the target: a file or link by a file, a directory by a tree of that name.
    #[arg(long)]
    pub force: bool,
    /// Restore setuid and setgid bits.
    #[arg(long)]
    pub set_id_bits: bool,
}

/// Options of `cat`.
#[derive(Debug, Args)]
pub struct Cat {
    /// The job.
    #[arg(long)]
    pub job: JobId,
    /// This version and no other [default: the newest that can be read].
    #[arg(long, value_parser = parse_version)]
    pub version: Option<Version>,
    /// Only this part, such as 1GiB:4KiB; OFFSET: reaches to the end. What lies beyond the end of the
    /// file is left out.
    #[arg(long, value_name = "OFFSET:LENGTH", value_parser = parse_range)]
    pub range: Option<ByteRange>,
    /// The file, as `ckpt show` names it [default: the only one that there is].
    #[arg(value_name = "PATH")]
    pub path: Option<OsString>,
}

/// Options of `forget`.
#[derive(Debug, Args)]
pub struct Forget {
    /// The job.
    #[arg(long)]
    pub job: JobId,
    /// Which of its checkpoints.
    #[command(flatten)]
    pub which: ForgetChoice,
    /// Of these.
    #[command(flatten)]
    pub filter: Filter,
}

/// Which checkpoints to remove: exactly one of these.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct ForgetChoice {
    /// This version.
    #[arg(long, value_parser = parse_version)]
    pub version: Option<Version>,
    /// All but the newest so many.
    #[arg(long, value_name = "N")]
    pub keep: Option<u32>,
    /// All but the newest that can be restored, and those that were saved within this time before it,
    /// such as 7d.
    #[arg(long, value_parser = time::parse_with_unit, value_name = "TIME")]
    pub keep_within: Option<Duration>,
    /// All.
    #[arg(long)]
    pub all: bool,
}

/// Commands for the submitter's key.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Write the key to a new file, as a copy to keep offline.
    Export {
        /// Where to; - for standard output.
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
    },
    /// Replace the key: makes the next one; with its certificate, puts both in place.
    ///
    /// The present key is kept as a retired one, with which `ckpt restore`, list, show, verify, forget
    /// and gc still reach what it saved until its certificate ends or is revoked.
    Rotate {
        /// Name to be certified [default: the present one, numbered].
        #[arg(long)]
        name: Option<String>,
        /// Certificate of the next key.
        #[arg(long, value_name = "FILE")]
        cert: Option<PathBuf>,
    },
    /// Make a key for one job, or for all below a prefix: what a job's machine needs instead of yours.
    ///
    /// Whoever has it learns nothing of your other jobs. Use it as any key: --key-file FILE, or
    /// CKPT_KEY_FILE=FILE; it needs no certificate beside it.
    #[command(
        after_help = "Example:\n  ckpt key for-job --job 42 -o job.key\n  ckpt key for-job --job sweep/ --ttl 30d --rights save,restore,remove -o job.key"
    )]
    ForJob {
        /// The job; with a slash at its end, all jobs whose names begin so.
        #[arg(long, value_name = "JOB|PREFIX/")]
        job: JobScope,
        /// For how long the key is good.
        #[arg(long, default_value = "3d", value_parser = time::parse_with_unit, value_name = "TIME")]
        ttl: Duration,
        /// What it is good for: save, restore, remove.
        #[arg(long, default_value = "save,restore", value_name = "RIGHTS")]
        rights: Rights,
        /// File to write it to.
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
    },
    /// Make job keys void: all that were made until now or, with --file, that one and all before it.
    ///
    /// Hosts pass it on. What was saved with such a key is marked in lists, and restored by --version
    /// only.
    Revoke {
        /// A job key.
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

fn exit_table() -> String {
    let rows = ExitStatus::ALL
        .iter()
        .map(|(status, meaning)| format!("  {:>3}  {meaning}\n", *status as u8));
    format!("Exit status:\n{}", rows.collect::<String>())
}

/// A path that may be empty: a variable with an empty value counts as not set.
fn any_path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

pub(super) fn parse_exclude(text: &str) -> Result<globset::Glob, String> {
    exclude_pattern(text).map_err(|cause| cause.to_string())
}

fn parse_version(text: &str) -> Result<Version, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(Version(number)),
        _ => Err("versions are numbers from 1".into()),
    }
}

pub(super) fn parse_label(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').ok_or("KEY=VALUE")?;
    Ok((pair.0.to_owned(), pair.1.to_owned()))
}

pub(super) fn parse_level(text: &str) -> Result<Effort, String> {
    match text {
        "auto" => return Ok(Effort::Auto),
        "none" => return Ok(Effort::Fixed(Level::STORED)),
        _ => {}
    }
    let level = text.parse();
    let level = level.map_err(|_| "neither a number nor auto nor none".to_owned())?;
    let level = Level::new(level).map_err(|cause| cause.to_string())?;
    Ok(Effort::Fixed(level))
}

pub(super) fn parse_tenure(text: &str) -> Result<Tenure, String> {
    if text == "forever" {
        return Ok(Tenure::Forever);
    }
    time::parse_with_unit(text).map(Tenure::For)
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
        assert!(parse(&["ckpt", "save", "--job", "42", "a", "--", "cmd"]).is_err());
        assert!(parse(&["ckpt", "forget", "--job", "42"]).is_err());
    }
}
