//! FALCON's figures with real programs: donors, compute machines and a server in network namespaces with
//! links of limited rate. Prints the tables of `benches/tables/falcon.md`. Needs root, and two hours for all.
//!
//! ```text
//! cargo build --release -p tests --bin hash-job
//! cargo run --release -p benches --bin falcon-figures -- TRACE
//! ```

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use benches::falcon::lab::{Lab, Links};
use benches::falcon::makespan::{Setting, makespans};
use benches::falcon::{server, storage};
use benches::traces::{Trace, format};
use clap::{Parser, Subcommand, ValueEnum};

/// Run FALCON's experiments with real programs over links of limited rate.
#[derive(Parser)]
#[command(
    name = "falcon-figures",
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
struct Args {
    /// A trace of machines that are taken away (docs/research/traces.md)
    #[arg(required = true)]
    trace: Option<PathBuf>,
    /// Only these experiments
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Experiment>,
    /// Sizes of images, MiB
    #[arg(long, value_delimiter = ',', default_values_t = [256, 512, 1024])]
    sizes: Vec<usize>,
    /// Rounds of each size
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Clients at the same time
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16])]
    clients: Vec<u8>,
    /// Jobs at the same time in the makespan experiments
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8])]
    jobs: Vec<u8>,
    /// State of each of these jobs, MiB
    #[arg(long, default_value_t = 256)]
    state: usize,
    /// Time that each of these jobs needs for itself, seconds
    #[arg(long, default_value_t = 300)]
    work: u64,
    /// Seconds of the trace for each second here
    #[arg(long, default_value_t = 60.0)]
    speed_up: f64,
    /// Seeds, from 1 on, of evictions
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Links of donors and compute machines, Mbit/s
    #[arg(long, default_value_t = 200)]
    usual: u32,
    /// Links of the three donors of twelve that are behind slow ones, Mbit/s
    #[arg(long, default_value_t = 20)]
    slow: u32,
    /// The server's link, Mbit/s
    #[arg(long, default_value_t = 200)]
    server: u32,
    #[command(subcommand)]
    inside: Option<Inside>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// What each part of the path gives
    Parts,
    /// Many clients at once
    Clients,
    /// Donors that die
    Losses,
    /// Jobs under evictions
    Makespan,
}

/// What this program starts of itself on the machines.
#[derive(Subcommand)]
enum Inside {
    /// The server
    #[command(hide = true)]
    Serve { dir: PathBuf, addr: SocketAddr },
    /// Saves a file there
    #[command(hide = true)]
    Put {
        addr: SocketAddr,
        name: String,
        file: PathBuf,
    },
    /// Fetches a file from there
    #[command(hide = true)]
    Get {
        addr: SocketAddr,
        name: String,
        out: PathBuf,
    },
}

fn main() -> Result<()> {
    let args = Args::parse();
    match &args.inside {
        Some(Inside::Serve { dir, addr }) => server::serve(dir, *addr),
        Some(Inside::Put { addr, name, file }) => server::put(*addr, name, file),
        Some(Inside::Get { addr, name, out }) => server::get(*addr, name, out),
        None => experiments(&args),
    }
}

fn experiments(args: &Args) -> Result<()> {
    if let Err(why) = tests::net::available() {
        anyhow::bail!("no network namespaces here: {why}");
    }
    let wanted = |one| args.only.is_empty() || args.only.contains(&one);
    let links = Links {
        usual: args.usual,
        slow: args.slow,
        server: args.server,
    };
    let most = args.clients.iter().chain(&args.jobs).copied().max();
    let mut lab = Lab::up(most.context("no clients")?, links)?;
    if wanted(Experiment::Parts) {
        println!("{}", storage::parts(&lab, &args.sizes, args.rounds)?);
    }
    if wanted(Experiment::Clients) {
        println!("{}", storage::clients(&lab, &args.clients, args.state)?);
    }
    if wanted(Experiment::Losses) {
        println!("{}", storage::losses(&mut lab, args.state)?);
    }
    if wanted(Experiment::Makespan) {
        let folder = args.trace.as_ref().context("which trace?")?;
        let table = format::read(folder).with_context(|| folder.display().to_string())?;
        let trace = Trace::new(table);
        for clients in &args.jobs {
            let setting = Setting {
                clients: *clients,
                state_bytes: args.state << 20,
                work: Duration::from_secs(args.work),
                speed_up: args.speed_up,
                seed: 1,
            };
            println!("{}", makespans(&lab, &trace, setting, args.seeds)?);
        }
    }
    Ok(())
}
