//! Options that several commands have.

use std::path::PathBuf;

use ckpt_agent::agent::{Choose, PlacementWish, TARGET_USUAL, Tenure};
use ckpt_agent::core::effort::Effort;
use ckpt_agent::image::exclude_pattern;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use codec::compress::Level;
use command_line::time;
use placement::Probability;

use super::limits::{parse_bandwidth, parse_memory, parse_target};

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
    /// Memory for data in flight, at least 16MiB [default: 256MiB, or less under a limit on the address
    /// space (ulimit -v)].
    #[arg(long, global = true, value_parser = parse_memory, value_name = "SIZE")]
    pub memory: Option<u64>,
    /// Threads for compression and erasure coding, 1 to 1024 [default: one per core].
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub cpus: Option<u16>,
    /// Send and receive at most this many bytes per second, over all hosts, such as 10MiB; at least 64KiB.
    #[arg(long, global = true, value_parser = parse_bandwidth, value_name = "SIZE")]
    pub bandwidth: Option<u64>,
    /// Run at this nice value, from 0 to 19 (19 is the lowest priority).
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(i32).range(0..=19))]
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
    #[arg(long, env = "CKPT_COMPUTE_HOST", value_name = "HOST")]
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
