//! Times save and restore by the real program on five local daemons, each necessary stage alone, and
//! `zstd -3` to a file, which a user could run instead. All are measured in one run and compared by ratios of
//! time and of processor time.
//!
//! ```text
//! cargo run --release -p benches --bin whole-program -- [IMAGE] [ROUNDS]
//! ```

mod stages;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use benches::meter::{Cost, Meter, median};
use tests::Grid;

/// Number of threads of each stage: all cores, as in the program.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn main() -> Result<()> {
    let mut args = std::env::args_os().skip(1);
    let dir = tempfile::tempdir()?;
    let image = match args.next() {
        Some(path) => PathBuf::from(path).canonicalize()?,
        None => {
            let path = dir.path().join("image");
            fs::write(&path, tests::image::memory(1 << 30, 1))?;
            path
        }
    };
    let rounds = match args.next() {
        Some(text) => text.to_string_lossy().parse()?,
        None => 3,
    };
    let bytes = fs::metadata(&image)?.len();
    let threads = threads();
    println!("image {bytes} bytes, {threads} threads, {rounds} rounds, medians\n");
    let mut costs = Costs::new(Grid::up(5)?)?;
    for _ in 0..rounds {
        round(&mut costs, &image, dir.path())?;
    }
    costs.print(bytes);
    Ok(())
}

/// The costs of everything that was measured, in the order of measuring.
struct Costs {
    grid: Grid,
    meter: Meter,
    all: Vec<(&'static str, Vec<Cost>)>,
}

impl Costs {
    fn new(grid: Grid) -> Result<Self> {
        Ok(Self {
            meter: Meter::of(&grid)?,
            grid,
            all: Vec::new(),
        })
    }

    fn time(&mut self, what: &'static str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let ((), cost) = self.meter.measure(work)?;
        self.enter(what, cost);
        Ok(())
    }

    fn enter(&mut self, what: &'static str, cost: Cost) {
        match self.all.iter_mut().find(|(name, _)| *name == what) {
            Some((_, costs)) => costs.push(cost),
            None => self.all.push((what, vec![cost])),
        }
    }

    /// Measures a `ckpt` command on the grid.
    fn run(&mut self, what: &'static str, args: &[&std::ffi::OsStr]) -> Result<()> {
        let grid = &self.grid;
        let (_, cost) = self.meter.measure(|| grid.run(args)?.expect(0))?;
        self.enter(what, cost);
        Ok(())
    }

    fn median(&self, what: &str) -> Cost {
        let found = self.all.iter().find(|(name, _)| *name == what);
        median(found.map_or(&[], |(_, costs)| costs))
    }

    fn print(&self, bytes: u64) {
        let gib = bytes as f64 / f64::from(1 << 30);
        println!("| | s | GiB/s | CPU s/GiB |\n|---|---|---|---|");
        for (name, _) in &self.all {
            let Cost { wall, cpu } = self.median(name);
            println!(
                "| {name} | {wall:.2} | {:.2} | {:.2} |",
                gib / wall,
                cpu / gib
            );
        }
        let pipe = self.median("zstd -3 to a file, synced").wall;
        println!("\n| ratio | save | restore |\n|---|---|---|");
        let row = |what: &str, of: &dyn Fn(Cost, &[Cost]) -> f64| {
            let ratio = |own: &str, prefix: &str| of(self.median(own), &self.stages(prefix));
            println!(
                "| {what} | {:.2} | {:.2} |",
                ratio("`ckpt save`", "save: "),
                ratio("`ckpt restore`", "restore: ")
            );
        };
        row("time / slowest stage alone", &|own, stages| {
            own.wall / stages.iter().map(|cost| cost.wall).fold(0.0, f64::max)
        });
        row("time / `zstd -3` to a file", &|own, _| own.wall / pipe);
        row("CPU / sum of the stages' CPU", &|own, stages| {
            own.cpu / stages.iter().map(|cost| cost.cpu).sum::<f64>()
        });
        row("share of all cores that is busy", &|own, _| {
            own.cpu / (own.wall * threads() as f64)
        });
    }

    fn stages(&self, prefix: &str) -> Vec<Cost> {
        let named = self.all.iter().filter(|(name, _)| name.starts_with(prefix));
        named.map(|(name, _)| self.median(name)).collect()
    }
}

fn round(costs: &mut Costs, image: &Path, dir: &Path) -> Result<()> {
    let restored = dir.join("restored");
    let save = ["save", "--full", "--job", "bench"].map(AsRef::as_ref);
    costs.run("`ckpt save`", &[&save[..], &[image.as_os_str()]].concat())?;
    let restore = ["restore", "--job", "bench", "--force", "-o"].map(AsRef::as_ref);
    let restore = [&restore[..], &[restored.as_os_str()]].concat();
    costs.run("`ckpt restore`", &restore)?;
    ensure!(same(image, &restored)?, "the restored image differs");
    fs::remove_file(&restored)?;
    stages::measure(costs, image, dir)
}

fn same(a: &Path, b: &Path) -> Result<bool> {
    let status = Command::new("cmp").arg("-s").arg(a).arg(b).status()?;
    Ok(status.success())
}
