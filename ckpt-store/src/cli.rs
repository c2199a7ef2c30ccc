//! Command line of the daemon.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use codec::seal::OwnerSecret;
use protocol::grid::Grid;
use protocol::identity::{Identity, Role, certificate_from_pem, read_key, write_key};
use tracing::warn;
use tracing_subscriber::EnvFilter;

use crate::config::DaemonConfig;
use crate::daemon::Daemon;
use crate::disk::{Disk, RealDisk};
use crate::priority;
use crate::store::Store;

/// Keeps shards of checkpoints on this machine's disk.
#[derive(Debug, Parser)]
#[command(name = "ckpt-store", version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make this machine's key and print its public half, to be certified by the grid's authority.
    Init {
        /// Data directory.
        #[arg(long)]
        data: PathBuf,
    },
    /// Run the daemon until SIGTERM or SIGINT.
    Serve(Serve),
    /// Say what is stored (the daemon need not run).
    Status {
        /// Data directory.
        #[arg(long)]
        data: PathBuf,
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Read every block of every shard and report what is damaged.
    Check {
        /// Data directory.
        #[arg(long)]
        data: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
struct Serve {
    /// Grid file.
    #[arg(long, env = "CKPT_GRID")]
    grid: PathBuf,
    /// Data directory with identity.key and identity.crt.
    #[arg(long)]
    data: PathBuf,
    /// Address and port to listen on; port 0 takes a free one.
    #[arg(long)]
    listen: SocketAddr,
    /// Name in logs and answers [default: the one in the certificate].
    #[arg(long)]
    name: Option<String>,
    /// Space to lend, such as 10GiB [default: what is free on the disk at start, less the reserve].
    #[arg(long, value_parser = parse_size)]
    capacity: Option<u64>,
    /// Free space of the disk that is never used.
    #[arg(long, value_parser = parse_size, default_value = "1GiB")]
    reserve: u64,
    /// Memory to use.
    #[arg(long, value_parser = parse_size, default_value = "64MiB")]
    memory: u64,
    /// File to write the address to once the daemon answers.
    #[arg(long)]
    ready_file: Option<PathBuf>,
    /// Run at normal priority instead of nice 19 and idle I/O.
    #[arg(long)]
    normal_priority: bool,
    /// Form of the log on standard error; RUST_LOG sets the level.
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Runs the program; `args` include its name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match Args::try_parse_from(args) {
        Ok(args) => args,
        Err(usage) => {
            // Fails only when nobody reads it.
            let _ = usage.print();
            return ExitCode::from(if usage.use_stderr() { 2 } else { 0 });
        }
    };
    let done = match args.command {
        Command::Init { data } => init(&data),
        Command::Serve(serve) => run(serve),
        Command::Status { data, json } => status(&data, json),
        Command::Check { data } => check(&data),
    };
    match done {
        Ok(code) => code,
        Err(cause) => {
            let _ = writeln!(std::io::stderr(), "ckpt-store: {cause:#}");
            ExitCode::FAILURE
        }
    }
}

fn init(data: &Path) -> Result<ExitCode> {
    fs::create_dir_all(data).with_context(|| format!("data directory {}", data.display()))?;
    let path = data.join("identity.key");
    if !path.exists() {
        let mut seed = [0; 32];
        random(&mut seed)?;
        write_key(&path, &OwnerSecret::new(seed))?;
    }
    let id = read_key(&path)?.id();
    writeln!(std::io::stdout(), "{}", id.hex())?;
    Ok(ExitCode::SUCCESS)
}

fn random(bytes: &mut [u8]) -> Result<()> {
    use std::io::Read;
    let mut source = fs::File::open("/dev/urandom").context("/dev/urandom")?;
    source.read_exact(bytes).context("/dev/urandom")
}

fn run(args: Serve) -> Result<ExitCode> {
    log_to_stderr(args.log_format);
    let ready_file = args.ready_file.clone();
    if !args.normal_priority
        && let Err(cause) = priority::stand_back()
    {
        warn!(%cause, "running at normal priority");
    }
    let config = config(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let daemon = Daemon::start(&config).await?;
        if let Some(path) = ready_file {
            write_ready(&path, daemon.local_addr())?;
        }
        stop_signal().await?;
        daemon.stop().await;
        Ok(ExitCode::SUCCESS)
    })
}

fn config(args: Serve) -> Result<DaemonConfig> {
    let grid = Grid::load(&args.grid)?;
    let identity = load_identity(&args.data)?;
    let peer = identity.peer()?;
    if !peer.has(Role::Donor) {
        bail!("the certificate of {:?} is not that of a donor", peer.name);
    }
    fs::create_dir_all(&args.data)?;
    let free = RealDisk::new(&args.data)
        .free_bytes()
        .with_context(|| format!("data directory {}", args.data.display()))?;
    Ok(DaemonConfig {
        grid,
        identity,
        name: args.name.unwrap_or(peer.name),
        data_dir: args.data,
        listen: args.listen,
        capacity_bytes: args
            .capacity
            .unwrap_or_else(|| free.saturating_sub(args.reserve)),
        reserve_bytes: args.reserve,
        memory_bytes: args.memory,
    })
}

fn load_identity(data: &Path) -> Result<Identity> {
    let secret = read_key(&data.join("identity.key"))
        .context("run `ckpt-store init` and have the key certified")?;
    let path = data.join("identity.crt");
    let pem = fs::read_to_string(&path).with_context(|| {
        format!(
            "certificate {} (the grid's authority makes it)",
            path.display()
        )
    })?;
    Ok(Identity::new(secret, certificate_from_pem(&pem)?)?)
}

/// In one step: whoever waits for the file sees nothing or the whole address.
fn write_ready(path: &Path, addr: SocketAddr) -> Result<()> {
    let temporary = path.with_extension("new");
    fs::write(&temporary, addr.to_string())
        .and_then(|()| fs::rename(&temporary, path))
        .with_context(|| format!("ready file {}", path.display()))
}

async fn stop_signal() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

fn log_to_stderr(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // Fails when there is a logger already: then that one is used.
    let _ = match format {
        LogFormat::Text => log.with_ansi(false).try_init(),
        LogFormat::Json => log.json().try_init(),
    };
}

fn open_store(data: &Path) -> Result<Store<RealDisk>> {
    if !data.join("shards").is_dir() {
        bail!("{} holds no store", data.display());
    }
    let (store, findings) = Store::inspect_only(RealDisk::new(data))?;
    for finding in findings {
        let path = data.join(&finding.path);
        let _ = writeln!(std::io::stderr(), "{}: {}", path.display(), finding.what);
    }
    Ok(store)
}

fn status(data: &Path, json: bool) -> Result<ExitCode> {
    let usage = open_store(data)?.usage();
    let mut out = std::io::stdout();
    if json {
        let object = serde_json::json!({
            "used_bytes": usage.used_bytes,
            "shards": usage.shards,
            "checkpoints": usage.checkpoints,
        });
        writeln!(out, "{object}")?;
    } else {
        writeln!(
            out,
            "{} shards of {} checkpoints, {} bytes",
            usage.shards, usage.checkpoints, usage.used_bytes
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn check(data: &Path) -> Result<ExitCode> {
    let store = open_store(data)?;
    let findings = store.check()?;
    let mut out = std::io::stdout();
    for finding in &findings {
        let path = data.join(&finding.path);
        writeln!(out, "{}: {}", path.display(), finding.what)?;
    }
    writeln!(
        out,
        "{} shards, {} damaged",
        store.usage().shards,
        findings.len()
    )?;
    Ok(ExitCode::from(u8::from(!findings.is_empty())))
}

/// Reads sizes such as `64MiB`, `10GB`, `1048576`.
fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim() {
        "" | "B" => 1,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "TiB" | "T" => 1 << 40,
        "KB" | "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        other => {
            return Err(format!(
                "unit {other:?}; use B, KiB, MiB, GiB, TiB, kB, MB, GB, TB"
            ));
        }
    };
    let number: u64 = number.parse().map_err(|_| format!("{text:?} is no size"))?;
    number
        .checked_mul(factor)
        .ok_or_else(|| format!("{text} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse_size("64MiB"), Ok(64 << 20));
        assert_eq!(parse_size("10 GB"), Ok(10_000_000_000));
        assert_eq!(parse_size("7"), Ok(7));
        assert!(parse_size("x").is_err());
        assert!(parse_size("1XB").is_err());
        assert!(parse_size("99999999999TiB").is_err());
    }
}
