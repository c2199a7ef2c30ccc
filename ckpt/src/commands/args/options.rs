//! Options that several commands have.

use std::path::PathBuf;

use ckpt_agent::agent::{Choose, PlacementWish, SaveOptions, TARGET_USUAL, Tenure, given_code};
use ckpt_agent::core::effort::Effort;
use ckpt_agent::core::sought::labels_with_note;
use ckpt_agent::image::{Exclude, exclude_pattern};
use ckpt_agent::report::{ExitStatus, Failure};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use codec::Redundancy;
use codec::compress::Level;
use command_line::time;
use placement::Probability;

use crate::commands::args::limits::{parse_bandwidth, parse_memory, parse_target};
use crate::commands::names;
use crate::commands::render::count;

/// Options of all commands.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options of all commands")]
pub struct Global {
    /// Grid file [default: the one that `ckpt join` wrote, ~/.config/ckpt/grid.toml].
    #[arg(long, global = true, env = "CKPT_GRID", value_name = "FILE", value_parser = any_path())]
    pub grid: Option<PathBuf>,
    /// Owner's key file [default: the one that the grid file names].
    #[arg(long, global = true, env = "CKPT_KEY_FILE", value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Command that prints the owner's key, such as a call of your password manager.
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        env = "CKPT_KEY_COMMAND",
        value_name = "CMD",
        conflicts_with = "key_file"
    )]
    pub key_command: Option<String>,
    /// Owner's certificate [default: the one that the grid file names].
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        env = "CKPT_CERT_FILE",
        value_name = "FILE"
    )]
    pub cert_file: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    /// How to show progress on standard error.
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        value_enum,
        default_value = "auto"
    )]
    pub progress: ProgressMode,
    /// Memory for data in flight, at least 16MiB [default: 256MiB, or less under a limit on the address
    /// space (ulimit -v)].
    #[arg(long, global = true, hide_short_help = true, value_parser = parse_memory, value_name = "SIZE")]
    pub memory: Option<u64>,
    /// Threads for compression and erasure coding, 1 to 1024 [default: one per core].
    #[arg(long, global = true, hide_short_help = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub cpus: Option<u16>,
    /// Send and receive at most this many bytes per second, over all hosts, such as 10MiB; at least 64KiB.
    #[arg(long, global = true, hide_short_help = true, value_parser = parse_bandwidth, value_name = "SIZE")]
    pub bandwidth: Option<u64>,
    /// Run at this nice value, from 0 to 19 (19 is the lowest priority).
    #[arg(long, global = true, hide_short_help = true, value_name = "N", value_parser = clap::value_parser!(i32).range(0..=19))]
    pub nice: Option<i32>,
    /// Print more messages on standard error; RUST_LOG selects them in detail.
    #[arg(long, short, global = true)]
    pub verbose: bool,
}

/// How to show progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProgressMode {
    /// Show a bar on a terminal, otherwise nothing.
    Auto,
    /// Show a bar.
    Bar,
    /// Print one JSON object per line.
    Json,
    /// Show nothing.
    None,
}

/// Options of all commands that save.
#[derive(Debug, Args)]
pub struct SaveArgs {
    /// Data shards: any this many shards restore the image (1 to 32) [default: 3; without --data and
    /// --parity by forecast where enough is known of the hosts, else 2 on four hosts, 1 on three].
    #[arg(long, value_name = "N")]
    pub data: Option<u8>,
    /// Parity shards: this many shards can be lost (0 to 32) [default: 2; by forecast at least 2].
    #[arg(long, value_name = "N")]
    pub parity: Option<u8>,
    /// Versions to keep, the newest included.
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep: u32,
    /// Keep the job's checkpoints this long after its last save, such as 7d; or forever [default: the
    /// value of the last save, at first forever].
    #[arg(long, value_parser = parse_tenure, value_name = "TIME")]
    pub ttl: Option<Tenure>,
    /// zstd level, -7 to 19; auto adapts to the speed of link and processors; none stores uncompressed.
    #[arg(long, default_value = "auto", allow_hyphen_values = true, value_parser = parse_level)]
    pub level: Effort,
    /// If hosts are missing, commit with fewer parity shards, but at least this many [default without a
    /// number: 0].
    #[arg(long, value_name = "PARITY", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    pub allow_degraded: Option<u8>,
    /// Leave out files with this name, such as '*.tmp', or at this path, such as '/cache/**'.
    ///
    /// A name matches at any depth. A path that begins with / is relative to each directory that is
    /// saved. Patterns are those of `restore --path`. Can be given more than once.
    #[arg(long, value_name = "PATTERN", value_parser = parse_exclude)]
    pub exclude: Vec<globset::Glob>,
    /// Note on each version, shown by `list` and `show`; hosts can't read it.
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// Label of each version, to select it later; can be given more than once.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    pub label: Vec<(String, String)>,
    /// How hosts are chosen.
    #[command(flatten)]
    pub placing: Placing,
}

impl SaveArgs {
    /// The files that are left out.
    ///
    /// # Errors
    /// When the patterns are too many or too long.
    pub fn excluded(&self) -> Result<Exclude, Failure> {
        Exclude::new(self.exclude.clone())
            .map_err(|cause| usage(cause.to_string()).next("--exclude 'PATTERN', such as '*.tmp'"))
    }

    /// These options of a save; all others are the usual ones.
    ///
    /// # Errors
    /// When options contradict each other.
    pub fn options(self) -> Result<SaveOptions, Failure> {
        let redundancy = code(self.data, self.parity)?;
        let placement = self.placing.wish();
        let parity = redundancy.unwrap_or_default().parity();
        let least = self.allow_degraded.map_or(0, usize::from);
        if least > parity && placement.target.is_none() {
            let shards = count(parity, "parity shard");
            return Err(usage(format!(
                "--allow-degraded={least}: there are {shards}, so at most {parity}"
            ))
            .next(format!("--allow-degraded={parity}, or more --parity")));
        }
        let exclude = self.excluded()?;
        let labels = labels_with_note(self.label, self.note);
        Ok(SaveOptions {
            redundancy,
            allow_degraded: self.allow_degraded,
            keep: self.keep,
            tenure: self.ttl,
            effort: self.level,
            exclude,
            placement,
            labels: labels
                .map_err(|cause| usage(cause.to_string()).next("--label KEY=VALUE; --note TEXT"))?,
            ..SaveOptions::default()
        })
    }
}

/// The numbers of data and parity shards, if the user gave at least one of them.
///
/// # Errors
/// When there is no such code.
pub fn code(data: Option<u8>, parity: Option<u8>) -> Result<Option<Redundancy>, Failure> {
    given_code(data, parity).map_err(|cause| usage(cause.to_string()).next("--data 3 --parity 2"))
}

/// A failure of a command that was typed wrongly.
pub(crate) fn usage(message: String) -> Failure {
    Failure::new(ExitStatus::Usage, message)
}

/// Options that say how hosts are chosen.
#[derive(Debug, Args)]
pub struct Placing {
    /// Choose the numbers of shards that reach the restart probability --target in the least time, and end with 3 if none does.
    #[arg(long, value_name = "auto", value_parser = ["auto"], conflicts_with_all = ["data", "parity"])]
    pub redundancy: Option<String>,
    /// Probability that the checkpoint can be restored; means --redundancy auto [default: 0.999].
    #[arg(long, value_parser = parse_target, conflicts_with_all = ["data", "parity"], value_name = "P")]
    pub target: Option<Probability>,
    /// How to choose hosts: by forecast, at random (for comparison; no spares), or only the named ones.
    #[arg(long, default_value = "forecast", value_parser = parse_choose, value_name = "forecast|random|HOST,...")]
    pub choose: Choose,
    /// Host of the grid on which the job runs [default: the one with an address of this machine].
    #[arg(long, env = "CKPT_COMPUTE_HOST", value_name = "HOST", add = names::hosts())]
    pub compute_host: Option<String>,
}

impl Placing {
    /// These options as a wish for the placement, without the table behind the choice.
    pub fn wish(&self) -> PlacementWish {
        PlacementWish {
            choose: self.choose.clone(),
            target: self.target.or_else(|| {
                let usual = Probability::saturating(TARGET_USUAL);
                self.redundancy.as_ref().map(|_| usual)
            }),
            compute_host: self.compute_host.clone().filter(|name| !name.is_empty()),
            explain: false,
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
                return Err("a host name is missing beside a comma".to_owned());
            }
            Ok(Choose::Hosts(names))
        }
    }
}

/// A path that may be empty: a variable with an empty value counts as not set.
pub(super) fn any_path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

pub(super) fn parse_exclude(text: &str) -> Result<globset::Glob, String> {
    exclude_pattern(text).map_err(|cause| cause.to_string())
}

pub(super) fn parse_label(text: &str) -> Result<(String, String), String> {
    let pair = text
        .split_once('=')
        .ok_or("a label has the form KEY=VALUE")?;
    Ok((pair.0.to_owned(), pair.1.to_owned()))
}

pub(super) fn parse_level(text: &str) -> Result<Effort, String> {
    match text {
        "auto" => return Ok(Effort::Auto),
        "none" => return Ok(Effort::Fixed(Level::STORED)),
        _ => {}
    }
    let level = text.parse();
    let level = level.map_err(|_| "not a level: use a number, auto or none".to_owned())?;
    let level = Level::new(level).map_err(|cause| cause.to_string())?;
    Ok(Effort::Fixed(level))
}

pub(super) fn parse_tenure(text: &str) -> Result<Tenure, String> {
    if text == "forever" {
        return Ok(Tenure::Forever);
    }
    time::parse_with_unit(text).map(Tenure::For)
}

/// Where the passphrase of a sealed file is.
#[derive(Clone, Debug, Args)]
pub struct PassphraseArgs {
    /// File whose first line is the passphrase [default: ask on the terminal].
    #[arg(long, value_name = "FILE", env = "CKPT_PASSPHRASE_FILE")]
    pub passphrase_file: Option<PathBuf>,
}
