//! Save and restore by the real program on five local daemons, beside what a user could do without
//! it and beside each stage alone; all in one run, as ratios.
//!
//! ```text
//! cargo build --release --bin ckpt
//! cargo run --release -p benches --bin whole-program -- target/release/ckpt [IMAGE] [ROUNDS]
//! ```

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use codec::compress::{Compressor, Level};
use codec::geometry::SEGMENT_BYTES;
use codec::hash::BlockHash;
use codec::rs::Coder;
use codec::seal::{Cipher, DataKey, SealContext, SegmentSealer};
use codec::{CheckpointId, JobTag, Redundancy, Version};

/// Threads that each stage gets, as in the program: all cores.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn main() -> Result<()> {
    let mut args = std::env::args_os().skip(1);
    let program = PathBuf::from(args.next().context("path of the ckpt program")?);
    let dir = tempfile::tempdir()?;
    let image = match args.next() {
        Some(path) => PathBuf::from(path),
        None => make_image(&dir.path().join("image"))?,
    };
    let rounds = match args.next() {
        Some(text) => text.to_string_lossy().parse()?,
        None => 3,
    };
    let bytes = fs::metadata(&image)?.len();
    println!(
        "image {} bytes, {} threads, {rounds} rounds, medians\n",
        bytes,
        threads()
    );
    let grid = LocalGrid::up(&program, dir.path())?;
    let mut times = Times::default();
    for _ in 0..rounds {
        measure(&mut times, &program, &grid, &image, dir.path())?;
    }
    drop(grid);
    times.print(bytes);
    Ok(())
}

/// Seconds of each thing measured, in the order of measuring.
#[derive(Default)]
struct Times(Vec<(&'static str, Vec<f64>)>);

impl Times {
    fn time(&mut self, what: &'static str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        work()?;
        let seconds = start.elapsed().as_secs_f64();
        match self.0.iter_mut().find(|(name, _)| *name == what) {
            Some((_, seconds_of)) => seconds_of.push(seconds),
            None => self.0.push((what, vec![seconds])),
        }
        Ok(())
    }

    fn median(&self, what: &str) -> f64 {
        let found = self.0.iter().find(|(name, _)| *name == what);
        let mut seconds = found.map(|(_, s)| s.clone()).unwrap_or_default();
        seconds.sort_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn print(&self, bytes: u64) {
        let gib = bytes as f64 / f64::from(1 << 30);
        println!("{:<42} {:>8} {:>8}", "", "s", "GiB/s");
        for (name, _) in &self.0 {
            let seconds = self.median(name);
            println!("{name:<42} {seconds:>8.2} {:>8.2}", gib / seconds);
        }
        let stages = |prefix: &str| -> Vec<f64> {
            let named = self.0.iter().filter(|(name, _)| name.starts_with(prefix));
            named.map(|(name, _)| self.median(name)).collect()
        };
        let pipe = self.median("zstd -3 to a file, synced");
        println!();
        for (what, prefix) in [
            ("ckpt save", "save stage"),
            ("ckpt restore", "restore stage"),
        ] {
            let (own, stages) = (self.median(what), stages(prefix));
            let slowest = stages.iter().copied().fold(0.0, f64::max);
            let sum: f64 = stages.iter().sum();
            println!("{what} / slowest stage alone   {:.2}", own / slowest);
            println!("{what} / sum of the stages     {:.2}", own / sum);
            println!("{what} / zstd -3 to a file     {:.2}", own / pipe);
        }
    }
}

fn measure(
    times: &mut Times,
    program: &Path,
    grid: &LocalGrid,
    image: &Path,
    dir: &Path,
) -> Result<()> {
    let restored = dir.join("restored");
    times.time("ckpt save", || {
        grid.run(
            program,
            &[
                "save".as_ref(),
                "--job".as_ref(),
                "bench".as_ref(),
                image.as_os_str(),
            ],
        )
    })?;
    times.time("ckpt restore", || {
        let args = ["restore", "--job", "bench", "--force", "-o"];
        let mut args: Vec<&std::ffi::OsStr> = args.iter().map(AsRef::as_ref).collect();
        args.push(restored.as_os_str());
        grid.run(program, &args)
    })?;
    ensure!(same(image, &restored)?, "the restored image differs");
    fs::remove_file(&restored)?;

    let raw = fs::read(image)?;
    times.time("zstd -3 to a file, synced", || {
        let mut out = zstd::Encoder::new(File::create(dir.join("zst"))?, 3)?;
        out.write_all(&raw)?;
        Ok(out.finish()?.sync_all()?)
    })?;
    save_stages(times, image, &raw, dir)
}

fn save_stages(times: &mut Times, image: &Path, raw: &[u8], dir: &Path) -> Result<()> {
    times.time("save stage: read", || read_all(image))?;
    let sealer = sealer();
    times.time("save stage: hash", || {
        on_all(raw.chunks(SEGMENT_BYTES), |segment| {
            std::hint::black_box(sealer.hash(segment));
        });
        Ok(())
    })?;
    let stored = Mutex::new(Vec::new());
    times.time("save stage: compress", || {
        thread_local_compress(raw, &stored);
        Ok(())
    })?;
    let mut stored = stored.into_inner().unwrap_or_default();
    times.time("save stage: seal", || {
        on_all(stored.iter_mut(), |segment| sealer.seal(0, segment, 0));
        Ok(())
    })?;
    let redundancy = Redundancy::DEFAULT;
    let coder = Coder::new(redundancy);
    let mut rows: Vec<(usize, Vec<u8>)> = stored
        .into_iter()
        .map(|mut sealed| {
            let block = redundancy.block_len(sealed.len());
            sealed.resize(redundancy.total() * block, 0);
            (block, sealed)
        })
        .collect();
    times.time("save stage: code", || {
        on_all(rows.iter_mut(), |(block, row)| coder.encode(row, *block));
        Ok(())
    })?;
    times.time("save stage: hash blocks", || {
        on_all(rows.iter(), |(block, row)| {
            for block in row.chunks_exact(*block) {
                std::hint::black_box(BlockHash::of(block));
            }
        });
        Ok(())
    })?;
    let total: usize = rows.iter().map(|(_, row)| row.len()).sum();
    times.time("save stage: write five files, sync", || {
        write_shards(&rows, dir)
    })?;
    times.time("save stage: QUIC", || transfer(total))?;
    times.time("restore stage: QUIC", || transfer(total * 3 / 5))?;
    times.time("restore stage: write, sync", || {
        let mut out = File::create(dir.join("image.out"))?;
        out.write_all(raw)?;
        Ok(out.sync_data()?)
    })?;
    times.time("restore stage: hash", || {
        on_all(raw.chunks(SEGMENT_BYTES), |segment| {
            std::hint::black_box(sealer.hash(segment));
        });
        Ok(())
    })
}

fn sealer() -> SegmentSealer {
    let context = SealContext {
        checkpoint: CheckpointId([0; 16]),
        job_tag: JobTag([0; 32]),
        version: Version::FIRST,
    };
    SegmentSealer::new(Cipher::Aes256Gcm, &DataKey::new([1; 32]), context)
}

/// Gives each item to one of the threads.
fn on_all<T: Send>(items: impl Iterator<Item = T> + Send, work: impl Fn(T) + Sync) {
    let items = Mutex::new(items);
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| {
                loop {
                    let next = match items.lock() {
                        Ok(mut items) => items.next(),
                        Err(_) => None,
                    };
                    let Some(item) = next else { return };
                    work(item);
                }
            });
        }
    });
}

fn thread_local_compress(raw: &[u8], stored: &Mutex<Vec<Vec<u8>>>) {
    let segments = Mutex::new(raw.chunks(SEGMENT_BYTES));
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| {
                let mut compressor = Compressor::new(Level::DEFAULT);
                loop {
                    let next = segments
                        .lock()
                        .ok()
                        .and_then(|mut segments| segments.next());
                    let Some(segment) = next else { return };
                    if codec::segment::is_zero(segment) {
                        continue;
                    }
                    let mut out = Vec::with_capacity(SEGMENT_BYTES + 16);
                    compressor.compress(segment, &mut out);
                    if let Ok(mut stored) = stored.lock() {
                        stored.push(out);
                    }
                }
            });
        }
    });
}

fn read_all(path: &Path) -> Result<()> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; SEGMENT_BYTES];
    while file.read(&mut buffer)? > 0 {}
    Ok(())
}

fn write_shards(rows: &[(usize, Vec<u8>)], dir: &Path) -> Result<()> {
    std::thread::scope(|scope| -> Result<()> {
        let writers: Vec<_> = (0..Redundancy::DEFAULT.total())
            .map(|shard| {
                scope.spawn(move || -> Result<()> {
                    let mut out = File::create(dir.join(format!("shard{shard}")))?;
                    for (block, row) in rows {
                        out.write_all(&row[shard * block..(shard + 1) * block])?;
                    }
                    Ok(out.sync_data()?)
                })
            })
            .collect();
        for writer in writers {
            writer
                .join()
                .map_err(|_| anyhow::anyhow!("a writer failed"))??;
        }
        Ok(())
    })
}

/// Sends so many bytes over five connections in this process, with the program's own settings.
fn transfer(total: usize) -> Result<()> {
    benches::quic::transfer(total, Redundancy::DEFAULT.total())
}

fn same(a: &Path, b: &Path) -> Result<bool> {
    let status = Command::new("cmp").arg("-s").arg(a).arg(b).status()?;
    Ok(status.success())
}

/// Five daemons of the program under test.
struct LocalGrid {
    program: PathBuf,
    dir: PathBuf,
}

impl LocalGrid {
    fn up(program: &Path, dir: &Path) -> Result<Self> {
        let grid = Self {
            program: fs::canonicalize(program)?,
            dir: dir.join("grid"),
        };
        let up = ["grid", "up", "--hosts", "5", "--dir"];
        let status = Command::new(&grid.program)
            .args(up)
            .arg(&grid.dir)
            .stdout(std::process::Stdio::null())
            .status()?;
        ensure!(status.success(), "grid up: {status}");
        Ok(grid)
    }

    fn run(&self, program: &Path, args: &[&std::ffi::OsStr]) -> Result<()> {
        let output = Command::new(program)
            .args(args)
            .env("CKPT_GRID", self.dir.join("grid.toml"))
            .output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {text}", output.status);
        Ok(())
    }
}

impl Drop for LocalGrid {
    fn drop(&mut self) {
        let down = Command::new(&self.program)
            .args(["grid", "down", "--dir"])
            .arg(&self.dir)
            .stdout(std::process::Stdio::null())
            .status();
        if !down.is_ok_and(|status| status.success()) {
            eprintln!("the daemons in {} did not stop", self.dir.display());
        }
    }
}

/// A gibibyte like a process's memory, in the shares of `docs/performance.md`: smooth fields,
/// random doubles, zero pages, indices.
fn make_image(path: &Path) -> Result<PathBuf> {
    use rand::{Rng, SeedableRng};
    const PIECES: usize = 1 << 14;
    let mut rng = rand::rngs::SmallRng::seed_from_u64(1);
    let mut file = std::io::BufWriter::new(File::create(path)?);
    let mut piece = vec![0_u8; 1 << 16];
    for number in 0..PIECES {
        let (values, _) = piece.as_chunks_mut::<8>();
        match number * 10 / PIECES {
            0..3 => {
                for (at, value) in values.iter_mut().enumerate() {
                    let x = (number * 8192 + at) as f64;
                    let noise: f64 = rng.random_range(-1e-9..1e-9);
                    *value = (300.0 + 10.0 * (x * 0.0007).sin() + noise).to_le_bytes();
                }
            }
            3..6 => values
                .iter_mut()
                .for_each(|v| *v = rng.random::<f64>().to_le_bytes()),
            6..8 => piece.fill(0),
            _ => {
                let mut index = 0_u64;
                for value in values {
                    index += rng.random_range(0..1000);
                    *value = index.to_le_bytes();
                }
            }
        }
        file.write_all(&piece)?;
    }
    file.into_inner()?.sync_all()?;
    Ok(path.to_owned())
}
