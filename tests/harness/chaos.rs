//! A grid that is disturbed all the time while jobs save and restore.
//!
//! At any moment at most as many hosts are bad as there are parity shards: killed, stopped, or with a
//! shard lost or damaged that was not rebuilt yet. Then every restore has to succeed, with the right
//! bytes, of the newest acknowledged version or a later one. Everything random follows from a seed;
//! what daemons and the system make of it does not.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::process::Signal;

use crate::damage::flip;
use crate::grid::Grid;
use crate::image;

/// What is disturbed, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Chaos {
    /// Of all that is random.
    pub seed: u64,
    /// For how long.
    pub time: Duration,
    /// Daemons.
    pub hosts: usize,
    /// Jobs, each with an agent of its own.
    pub jobs: usize,
}

/// Hosts that may be bad at once: the parity of the checkpoints.
const BAD_MAX: usize = 2;

/// Largest image.
const IMAGE_BYTES_MAX: usize = 2 << 20;

/// How long full redundancy may take to come back once faults have stopped.
const HEAL_TIMEOUT: Duration = Duration::from_secs(180);

/// What happened.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Saves that were acknowledged.
    pub saved: u64,
    /// Saves that said that they failed.
    pub not_saved: u64,
    /// Restores that were right.
    pub restored: u64,
    /// Seconds until all shards were there again in the end.
    pub healed_after: f64,
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let faults: Vec<String> = self
            .faults
            .iter()
            .map(|(kind, n)| format!("{kind} {n}"))
            .collect();
        write!(
            f,
            "faults: {}; saves: {} acknowledged, {} failed; restores: {} right, 0 wrong, 0 lost; whole again after {:.0} s",
            faults.join(", "),
            self.saved,
            self.not_saved,
            self.restored,
            self.healed_after
        )
    }
}

/// Disturbs a grid and says what happened.
///
/// # Errors
/// When a promise is broken, or the test itself fails.
pub fn run(chaos: &Chaos) -> Result<Tally> {
    let env = [
        ("CKPT_REPAIR_AFTER", "4s"),
        ("CKPT_REPAIR_PERIOD", "1s"),
        ("CKPT_SCRUB_PASS", "5s"),
    ];
    let grid = Grid::up_in(chaos.hosts, &env)?;
    let stage = Stage {
        grid: &grid,
        tally: Mutex::default(),
        over: AtomicBool::new(false),
        jobs: (0..chaos.jobs)
            .map(|_| Mutex::new(Job::default()))
            .collect(),
    };
    let ended = std::thread::scope(|scope| {
        let agents: Vec<_> = (0..chaos.jobs)
            .map(|job| {
                let (stage, seed) = (&stage, chaos.seed ^ ((job as u64 + 1) << 32));
                scope.spawn(move || stage.whole(stage.work(job, seed)))
            })
            .collect();
        let disturbed = stage.whole(stage.disturb(chaos));
        stage.over.store(true, Ordering::SeqCst);
        let mut ended = vec![disturbed];
        for agent in agents {
            ended.push(agent.join().unwrap_or_else(|_| bail!("an agent panicked")));
        }
        ended
    });
    ended.into_iter().collect::<Result<Vec<()>>>()?;
    let healed_after = stage.heal()?;
    let mut tally = stage.tally().clone();
    tally.healed_after = healed_after.as_secs_f64();
    Ok(tally)
}

/// A job, as its owner remembers it.
#[derive(Debug, Default)]
struct Job {
    /// Images that were handed to a save, by number.
    tried: Vec<u64>,
    /// Number of the last that was acknowledged.
    acknowledged: Option<usize>,
}

struct Stage<'a> {
    grid: &'a Grid,
    tally: Mutex<Tally>,
    over: AtomicBool,
    jobs: Vec<Mutex<Job>>,
}

/// An image that follows from its seed.
fn picture(seed: u64) -> Vec<u8> {
    let mut rng = SmallRng::seed_from_u64(seed);
    image::memory(rng.random_range(1000..IMAGE_BYTES_MAX), seed)
}

impl Stage<'_> {
    fn tally(&self) -> std::sync::MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn job(&self, job: usize) -> Result<std::sync::MutexGuard<'_, Job>> {
        let job = self.jobs.get(job).context("no such job")?;
        Ok(job.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// One that fails ends all.
    fn whole(&self, ended: Result<()>) -> Result<()> {
        if ended.is_err() {
            self.over.store(true, Ordering::SeqCst);
        }
        ended
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Saves and restores a job until it is over.
    fn work(&self, job: usize, seed: u64) -> Result<()> {
        let mut rng = SmallRng::seed_from_u64(seed);
        while !self.is_over() {
            if rng.random_bool(0.6) {
                self.save(job, rng.random())?;
            } else {
                self.restore(job)?;
            }
        }
        Ok(())
    }

    fn save(&self, job: usize, picture_seed: u64) -> Result<()> {
        let file = self.grid.path(&format!("image-{job}"));
        fs::write(&file, picture(picture_seed))?;
        let number = {
            let mut job = self.job(job)?;
            job.tried.push(picture_seed);
            job.tried.len() - 1
        };
        let name = format!("job-{job}");
        let saved = self
            .grid
            .run(["save", "--job", &name, &format!("image-{job}")])?;
        if saved.code == Some(0) {
            self.job(job)?.acknowledged = Some(number);
            self.tally().saved += 1;
        } else {
            ensure!(matches!(saved.code, Some(1 | 5)), "{name}: {saved}");
            self.tally().not_saved += 1;
        }
        Ok(())
    }

    fn restore(&self, job: usize) -> Result<()> {
        let (name, out) = (format!("job-{job}"), format!("out-{job}"));
        let acknowledged = self.job(job)?.acknowledged;
        let restore = [
            "restore",
            "--job",
            &name,
            "--force",
            "--if-exists",
            "--json",
            "-o",
            &out,
        ];
        let restored = self.grid.run(restore)?;
        let Some(acknowledged) = acknowledged else {
            return Ok(());
        };
        ensure!(
            restored.code == Some(0),
            "{name} has an acknowledged version and is not restored: {restored}"
        );
        let bytes = fs::read(self.grid.path(&out))?;
        let newer = {
            let job = self.job(job)?;
            job.tried
                .iter()
                .skip(acknowledged)
                .copied()
                .collect::<Vec<_>>()
        };
        let found = newer.iter().any(|seed| picture(*seed) == bytes);
        ensure!(
            found,
            "{name}: {} bytes that are not those of version {acknowledged} or later: {restored}",
            bytes.len()
        );
        self.tally().restored += 1;
        Ok(())
    }

    /// Injects faults until the time is up, then undoes those that can be undone.
    fn disturb(&self, chaos: &Chaos) -> Result<()> {
        let mut rng = SmallRng::seed_from_u64(chaos.seed);
        let started = Instant::now();
        // Nothing is worth disturbing before something was saved.
        while self.tally().saved == 0 && !self.is_over() && started.elapsed() < HEAL_TIMEOUT {
            std::thread::sleep(Duration::from_millis(50));
        }
        while started.elapsed() < chaos.time && !self.is_over() {
            self.fault(&mut rng, chaos.hosts)?;
        }
        Ok(())
    }

    fn fault(&self, rng: &mut SmallRng, hosts: usize) -> Result<()> {
        let mut names: Vec<String> = (1..=hosts).map(|number| format!("h{number:02}")).collect();
        let count = rng.random_range(1..=BAD_MAX);
        let mut chosen = Vec::new();
        for _ in 0..count {
            chosen.push(names.swap_remove(rng.random_range(0..names.len())));
        }
        let lasting = Duration::from_millis(rng.random_range(200..8000));
        let kind = ["killed", "stopped", "shards damaged", "shards lost"][rng.random_range(0..4)];
        *self.tally().faults.entry(kind).or_default() += chosen.len() as u64;
        match kind {
            "killed" => {
                for host in &chosen {
                    self.grid.kill(host)?;
                }
                self.wait(lasting);
                self.grid.restart()?;
            }
            "stopped" => {
                for host in &chosen {
                    self.grid.signal(host, Signal::STOP)?;
                }
                self.wait(lasting);
                for host in &chosen {
                    self.grid.signal(host, Signal::CONT)?;
                }
            }
            kind => {
                for host in &chosen {
                    for file in self.grid.shard_files(host)? {
                        // It may have been superseded and removed meanwhile.
                        let _ = if kind == "shards lost" {
                            fs::remove_file(&file).map_err(Into::into)
                        } else {
                            let len = fs::metadata(&file).map_or(0, |data| data.len());
                            flip(&file, rng.random_range(0..len.max(1)))
                        };
                    }
                }
                // Until they are rebuilt these hosts are as bad as dead ones.
                self.heal_for(HEAL_TIMEOUT)?;
            }
        }
        Ok(())
    }

    fn wait(&self, time: Duration) {
        let started = Instant::now();
        while started.elapsed() < time && !self.is_over() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until every shard of every acknowledged job's newest version is there.
    fn heal_for(&self, limit: Duration) -> Result<Duration> {
        let started = Instant::now();
        loop {
            let mut missing = Vec::new();
            for job in 0..self.jobs.len() {
                if self.job(job)?.acknowledged.is_some() && !self.is_whole(job)? {
                    missing.push(job);
                }
            }
            if missing.is_empty() {
                return Ok(started.elapsed());
            }
            ensure!(
                started.elapsed() < limit,
                "jobs {missing:?} are not whole again after {limit:?}"
            );
        }
    }

    fn is_whole(&self, job: usize) -> Result<bool> {
        let name = format!("job-{job}");
        let verified = self
            .grid
            .run(["--json", "verify", "--read-data", "--job", &name])?;
        if verified.code == Some(0) {
            return Ok(true);
        }
        let Ok(report) = verified.json() else {
            return Ok(false);
        };
        // Older versions are removed while this one looks.
        let checkpoints = report["checkpoints"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let newest = checkpoints.iter().max_by_key(|one| one["version"].as_u64());
        let shards = newest
            .and_then(|one| one["good"].as_array().cloned())
            .unwrap_or_default();
        let mut numbers: Vec<_> = shards
            .iter()
            .filter_map(|one| one["shard"].as_u64())
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers.len() == 5)
    }

    /// Everything is undone: waits until all is whole and restores it all.
    fn heal(&self) -> Result<Duration> {
        self.grid.restart()?;
        let took = self.heal_for(HEAL_TIMEOUT)?;
        for job in 0..self.jobs.len() {
            self.restore(job)?;
        }
        Ok(took)
    }
}
