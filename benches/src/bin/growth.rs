//! Measures how time and processor time grow with the size of the image, the number of hosts, the width of
//! the code and the number of clients, with real programs on this machine. Prints medians in tables for
//! `docs/research/performance.md`, and writes plots.
//!
//! ```text
//! cargo run --release -p benches --bin growth -- IMAGE docs/research/img [GIB_MAX [size|hosts|code|clients]]
//! ```

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use benches::meter::{Cost, Meter, median};
use study::plot::{Line, Plot};
use tests::Grid;

const MIB: u64 = 1 << 20;

/// Size of the image, except where sizes are compared.
const USUAL_BYTES: u64 = 256 * MIB;

/// Number of rounds; images larger than [`LARGE_BYTES`] are measured once.
const ROUNDS: usize = 3;
const LARGE_BYTES: u64 = 2 << 30;

fn main() -> Result<()> {
    let mut args = std::env::args_os().skip(1);
    let image = PathBuf::from(args.next().context("which image?")?).canonicalize()?;
    let plots = PathBuf::from(args.next().context("where to put the plots?")?);
    let gib_max = match args.next() {
        Some(text) => text.to_string_lossy().parse()?,
        None => 16,
    };
    let growth = Growth { image, plots };
    let only = args.next();
    let wanted = |what: &str| only.as_ref().is_none_or(|only| only == what);
    if wanted("size") {
        growth.sizes(gib_max)?;
    }
    if wanted("hosts") {
        growth.hosts()?;
    }
    if wanted("code") {
        growth.widths()?;
    }
    if wanted("clients") {
        growth.clients()?;
    }
    Ok(())
}

struct Growth {
    image: PathBuf,
    plots: PathBuf,
}

/// The costs of a save and of a restore at one point of a plot.
struct Point {
    label: String,
    x: f64,
    save: Cost,
    restore: Cost,
}

impl Growth {
    fn sizes(&self, gib_max: u64) -> Result<()> {
        let grid = Grid::up(5)?;
        let mib = [16, 64, 256, 1024, 2048, 4096, 8192, 16_384];
        let mut points = Vec::new();
        for mib in mib.into_iter().filter(|mib| *mib <= gib_max * 1024) {
            let label = format!("{mib} MiB");
            points.push(self.point(&grid, label, mib as f64 / 1024.0, mib * MIB, (3, 2))?);
        }
        self.report("size", "image, GiB", "3+2 on five hosts", &points)
    }

    fn hosts(&self) -> Result<()> {
        let mut points = Vec::new();
        for hosts in [5, 10, 20, 40] {
            let grid = Grid::up(hosts)?;
            points.push(self.point(&grid, hosts.to_string(), hosts as f64, USUAL_BYTES, (3, 2))?);
        }
        self.report("hosts", "hosts", "256 MiB, 3+2", &points)
    }

    fn widths(&self) -> Result<()> {
        let grid = Grid::up(20)?;
        let mut points = Vec::new();
        for (data, parity) in [(2, 1), (3, 2), (4, 2), (6, 3), (8, 4), (12, 4), (16, 4)] {
            let label = format!("{data}+{parity}");
            let x = f64::from(data + parity);
            points.push(self.point(&grid, label, x, USUAL_BYTES, (data, parity))?);
        }
        self.report("code", "shards", "256 MiB on twenty hosts", &points)
    }

    /// 1 to 16 clients save at the same time, and then restore at the same time.
    fn clients(&self) -> Result<()> {
        let grid = Grid::up(10)?;
        let meter = Meter::of(&grid)?;
        let mut points = Vec::new();
        // Sixteen clients are more than ten hosts serve for one submitter at the same time, so some wait.
        for clients in [1, 2, 4, 8, 16] {
            let mut costs = Vec::new();
            for _ in 0..ROUNDS {
                let jobs: Vec<String> = (0..clients).map(|client| format!("c{client}")).collect();
                let all = |of: &(dyn Fn(&str) -> Vec<OsString> + Sync)| -> Result<()> {
                    std::thread::scope(|scope| {
                        let running: Vec<_> = jobs
                            .iter()
                            .map(|job| scope.spawn(|| run(&grid, of(job))))
                            .collect();
                        let ended = running.into_iter().map(|client| {
                            let ended = client.join();
                            ended.unwrap_or_else(|_| anyhow::bail!("a client panicked"))
                        });
                        ended.collect()
                    })
                };
                let save = |job: &str| self.save(job, USUAL_BYTES / 4, (3, 2));
                let ((), save) = meter.measure(|| all(&save))?;
                let ((), restore) = meter.measure(|| all(&restore))?;
                costs.push((save, restore));
                for job in &jobs {
                    forget(&grid, job)?;
                }
            }
            points.push(point(clients.to_string(), f64::from(clients), &costs));
        }
        let what = "each 64 MiB, all at once, 3+2 on ten hosts";
        self.report("clients", "clients", what, &points)
    }

    fn point(
        &self,
        grid: &Grid,
        label: String,
        x: f64,
        bytes: u64,
        code: (u8, u8),
    ) -> Result<Point> {
        let meter = Meter::of(grid)?;
        let mut costs = Vec::new();
        for _ in 0..if bytes > LARGE_BYTES { 1 } else { ROUNDS } {
            let ((), save) = meter.measure(|| run(grid, self.save("g", bytes, code)))?;
            let ((), restore) = meter.measure(|| run(grid, restore("g")))?;
            costs.push((save, restore));
            forget(grid, "g")?;
        }
        Ok(point(label, x, &costs))
    }

    /// Arguments of a save of `bytes` bytes, which repeat the image.
    fn save(&self, job: &str, bytes: u64, (data, parity): (u8, u8)) -> Vec<OsString> {
        let data = data.to_string();
        let parity = parity.to_string();
        let again = format!("while cat \"$1\"; do :; done 2>/dev/null | head -c {bytes}");
        let args = [
            "save", "--full", "--job", job, "--data", &data, "--parity", &parity, "--", "sh", "-c",
            &again, "sh",
        ];
        let args = args.iter().map(OsString::from);
        args.chain([self.image.clone().into_os_string()]).collect()
    }

    fn report(&self, name: &str, x: &str, what: &str, points: &[Point]) -> Result<()> {
        println!("\n{what}\n\n| {x} | save s | restore s | save CPU s | restore CPU s |");
        println!("|---|---|---|---|---|");
        for Point {
            label,
            save,
            restore,
            ..
        } in points
        {
            println!(
                "| {label} | {:.2} | {:.2} | {:.2} | {:.2} |",
                save.wall, restore.wall, save.cpu, restore.cpu
            );
        }
        let line = |name: &str, of: fn(&Point) -> f64| Line {
            name: name.into(),
            points: points.iter().map(|point| (point.x, of(point))).collect(),
        };
        let plot = Plot {
            title: what.into(),
            x: x.into(),
            y: "s".into(),
            lines: vec![
                line("save", |point| point.save.wall),
                line("restore", |point| point.restore.wall),
                line("save, CPU", |point| point.save.cpu),
                line("restore, CPU", |point| point.restore.cpu),
            ],
            diagonal: false,
        };
        let path = self.plots.join(format!("growth-{name}.svg"));
        fs::write(&path, plot.to_svg()).with_context(|| path.display().to_string())
    }
}

fn point(label: String, x: f64, costs: &[(Cost, Cost)]) -> Point {
    let (save, restore): (Vec<Cost>, Vec<Cost>) = costs.iter().copied().unzip();
    Point {
        label,
        x,
        save: median(&save),
        restore: median(&restore),
    }
}

fn restore(job: &str) -> Vec<OsString> {
    ["restore", "--job", job, "-o", "-"]
        .map(OsString::from)
        .to_vec()
}

fn forget(grid: &Grid, job: &str) -> Result<()> {
    run(grid, ["forget", "--all", "--job", job].map(OsString::from))
}

/// Runs `ckpt` without a time limit, and throws away its standard output.
fn run(grid: &Grid, args: impl IntoIterator<Item = OsString>) -> Result<()> {
    let mut command = grid.command(args)?;
    let output = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {text}", output.status);
    Ok(())
}
