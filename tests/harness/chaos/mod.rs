//! Chaos: a grid in which faults never cease while jobs save and restore.
//!
//! At any moment, at most as many hosts are bad as a checkpoint has parity shards. A bad host is killed,
//! stopped, cut off, lies, or has lost or damaged a shard that was not rebuilt yet. Meanwhile networks
//! lose, delay and throttle packets, disks are full, clocks are wrong, and registries fail.
//!
//! Every restore has to succeed, with the right bytes, of the newest acknowledged version or a later one.
//! The acknowledged version before the newest has to be there, too. A forgotten or superseded version is
//! never restored as the newest. All faults follow from a seed; their timing depends on the machine.
//!
//! Unless the hosts are listed, all members join with tokens, some of them later, and registries lose what
//! they know. At night most hosts go home, for longer than registries count them as there. What was
//! acknowledged is then restored, or is said to be away (5): never absent, lost, or wrong. It is there again
//! in the morning. Some restores are made on machines that were never in the grid before.
//!
//! Two machines of one owner may save and delete one more job at the same time. A thief may have the key of one
//! more job of that owner, until the owner takes it back: then the owner saves and restores it again. Saves of one
//! more, large job may be killed at any moment, and what they sent serves the next one.

mod broken;
mod members;
mod tally;
mod thief;
pub mod together;
mod weather;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::{Cluster, Node};
use crate::damage::flip;
use crate::image;
use crate::liar::{Hoard, Lie};
use crate::skip::not_checked;
use broken::{LARGE, large_image};
pub use tally::Tally;
use thief::Theft;
use together::{JOB, MACHINES, Together};

/// The size of the grid and of the load, and how long faults last.
#[derive(Clone, Copy, Debug)]
pub struct Chaos {
    /// Seed of everything random.
    pub seed: u64,
    /// How long faults are injected.
    pub time: Duration,
    /// Number of daemons.
    pub hosts: usize,
    /// Number of jobs; each runs its own sequence of `ckpt` commands.
    pub jobs: usize,
    /// Number of registries.
    pub registries: usize,
    /// Whether the grid file lists all hosts. Else members join with tokens, and hosts go home at night.
    pub is_listed: bool,
    /// Whether two machines of one owner save and delete one more job.
    pub is_shared: bool,
    /// Whether a thief has the key of one more job of the same owner.
    pub has_thief: bool,
    /// Whether saves of one more, large job are killed.
    pub has_broken: bool,
}

/// Most hosts that are bad at once: the number of parity shards of the checkpoints.
const BAD_MAX: usize = 2;

/// Fewest shards of a checkpoint: one data shard, which a save makes that reaches three hosts, and two of
/// parity.
const SHARDS_MIN: usize = 3;

/// Largest random image.
const IMAGE_BYTES_MAX: usize = 2 << 20;

/// Size of the images that differ little, so that later versions store only what changed.
const PATCHED_BYTES: usize = 5 << 20;

/// Memory that no daemon or registry may exceed while all images are small.
const MEMORY_MAX: u64 = 64 << 20;

/// The same with the large images of a job whose saves are killed: what a daemon promises.
const MEMORY_MAX_LARGE: u64 = 128 << 20;

/// Hosts that join later, unless all are listed.
const LATER: usize = 2;

/// Most checkpoints that a host keeps from one time that it lies to the next.
const HOARD_MAX: usize = 8;

/// Reports of the last saves and removals of a job that a failure shows.
const REPORTS_KEPT: usize = 4;

/// How often a long run prints its tally.
const REPORT_PERIOD: Duration = Duration::from_secs(60);

/// How long full redundancy may take to come back once faults have stopped.
const HEAL_TIMEOUT: Duration = Duration::from_secs(180);

/// Starts a grid, injects faults while jobs save and restore, and returns what happened.
///
/// # Errors
/// When a checkpoint is lost, wrong or back after it was forgotten, or when the run itself fails.
pub fn run(chaos: &Chaos) -> Result<Tally> {
    let env = [
        ("CKPT_REPAIR_AFTER", "4s"),
        ("CKPT_REPAIR_PERIOD", "1s"),
        ("CKPT_SCRUB_PASS", "5s"),
    ];
    let cluster = match chaos.is_listed {
        true => Cluster::start(chaos.hosts, chaos.registries, &env)?,
        false => Cluster::start_joined(chaos.hosts, LATER, chaos.registries, &env)?,
    };
    if !cluster.powers.disks {
        not_checked(
            "full disks in chaos",
            "no file system can be mounted (needs root)",
        )?;
    }
    if !cluster.powers.clocks {
        not_checked("wrong clocks in chaos", "libfaketime is not installed")?;
    }
    let jobs = chaos.jobs + usize::from(chaos.has_broken);
    let stage = Stage {
        cluster: &cluster,
        tally: Mutex::default(),
        over: AtomicBool::new(false),
        jobs: (0..jobs).map(|_| Mutex::new(Job::default())).collect(),
        changing: (0..jobs).map(|_| Mutex::default()).collect(),
        broken: chaos.has_broken.then_some(chaos.jobs),
        starting: Mutex::default(),
        hoards: Mutex::default(),
        is_listed: chaos.is_listed,
        nights: AtomicU64::new(0),
        fresh: AtomicU64::new(0),
        together: chaos.is_shared.then(|| Together::new(&cluster)),
        theft: chaos
            .has_thief
            .then(|| Theft::begin(&cluster))
            .transpose()?,
    };
    let ended = std::thread::scope(|scope| {
        let agents: Vec<_> = (0..chaos.jobs)
            .map(|job| {
                let stage = &stage;
                let seed = chaos.seed ^ ((job as u64 + 1) << 32);
                scope.spawn(move || stage.end_all_on_error(stage.work(job, seed)))
            })
            .collect();
        let sharing = MACHINES.map(|machine| {
            let stage = &stage;
            scope.spawn(move || stage.end_all_on_error(stage.share(machine, chaos.seed)))
        });
        let breaking = scope.spawn(|| stage.end_all_on_error(stage.break_saves(chaos.seed)));
        let robbery = scope.spawn(|| stage.end_all_on_error(stage.robbery(chaos.seed)));
        let weather = scope.spawn(|| stage.end_all_on_error(stage.weather(chaos.seed)));
        let disturbed = stage.end_all_on_error(stage.disturb(chaos));
        stage.over.store(true, Ordering::SeqCst);
        let mut ended = vec![disturbed];
        let others = sharing.into_iter().chain([weather, robbery, breaking]);
        for agent in agents.into_iter().chain(others) {
            ended.push(agent.join().unwrap_or_else(|_| bail!("an agent panicked")));
        }
        ended
    });
    let ended = ended.into_iter().collect::<Result<Vec<()>>>();
    ended.with_context(|| stage.tally().to_string())?;
    let healed_after = stage.heal().with_context(|| stage.tally().to_string())?;
    let mut tally = stage.tally().clone();
    tally.healed_after = healed_after.as_secs_f64();
    Ok(tally)
}

/// A job, as its owner remembers it.
#[derive(Debug, Default)]
struct Job {
    /// Seeds of all images that were handed to a save, by number of the image.
    tried: Vec<u64>,
    /// Number of the image that was acknowledged last.
    acknowledged: Option<usize>,
    /// Acknowledged versions and the numbers of their images, since the last save that failed. Such a save
    /// may have been committed and count among the versions that `--keep` keeps, so it clears the list.
    kept: Vec<(u64, usize)>,
    /// The last acknowledged version.
    newest: u64,
    /// Numbers of images of all versions that were acknowledged.
    known: BTreeSet<usize>,
    /// What the last saves and removals reported.
    reports: VecDeque<String>,
}

impl Job {
    fn note(&mut self, report: String) {
        self.reports.push_back(report);
        if self.reports.len() > REPORTS_KEPT {
            self.reports.pop_front();
        }
    }
}

struct Stage<'a> {
    cluster: &'a Cluster,
    tally: Mutex<Tally>,
    over: AtomicBool,
    jobs: Vec<Mutex<Job>>,
    /// One lock for each job, held while it saves or forgets.
    changing: Vec<Mutex<()>>,
    starting: Mutex<()>,
    /// Shards that hosts kept when they lied, by name of the host.
    hoards: Mutex<BTreeMap<String, Hoard>>,
    is_listed: bool,
    /// Counts the beginnings and the ends of nights: it is odd at night.
    nights: AtomicU64,
    /// Counts the machines that were never in the grid before.
    fresh: AtomicU64,
    /// The job of two machines.
    together: Option<Together<'a>>,
    /// Number of the job whose saves are killed.
    broken: Option<usize>,
    /// The job whose key is stolen.
    theft: Option<Theft<'a>>,
}

/// The image that follows from this seed.
fn image_of(seed: u64) -> Vec<u8> {
    if seed & LARGE != 0 {
        return large_image(seed);
    }
    let mut rng = SmallRng::seed_from_u64(seed);
    if seed.is_multiple_of(2) {
        // Images of even seeds are the same except for about 8 % of their stretches of 64 KiB.
        let mut image = image::memory(PATCHED_BYTES, 0);
        for block in image.chunks_mut(64 << 10) {
            if rng.random_bool(0.08) {
                rng.fill(block);
            }
        }
        return image;
    }
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

    /// Ends the run if this part of it failed.
    fn end_all_on_error(&self, ended: Result<()>) -> Result<()> {
        if ended.is_err() {
            self.over.store(true, Ordering::SeqCst);
        }
        ended
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// A number that does not change while it stays day.
    fn day(&self) -> u64 {
        self.nights.load(Ordering::SeqCst)
    }

    /// Whether it was day all the time since `day` was read.
    fn was_day_since(&self, day: u64) -> bool {
        day.is_multiple_of(2) && day == self.day()
    }

    /// Saves, restores and forgets a job until the run is over.
    fn work(&self, job: usize, seed: u64) -> Result<()> {
        let mut rng = SmallRng::seed_from_u64(seed);
        while !self.is_over() {
            match rng.random_range(0..100) {
                0..58 => self.save(job, rng.random::<u64>() & !LARGE)?,
                58..60 => self.forget(job)?,
                60..80 => self.restore(job, "state")?,
                80..90 => {
                    let number = self.fresh.fetch_add(1, Ordering::SeqCst);
                    self.restore(job, &format!("fresh-{number}"))?;
                }
                _ => self.restore_older(job)?,
            }
        }
        Ok(())
    }

    /// Saves and deletes, on one of two machines, the job that both have.
    fn share(&self, machine: &str, seed: u64) -> Result<()> {
        let Some(together) = &self.together else {
            return Ok(());
        };
        let mut day = self.day();
        let is_quiet = || {
            let was_day = self.was_day_since(day);
            day = self.day();
            was_day
        };
        let seed = seed.wrapping_add(1 + u64::from(machine == MACHINES[0]));
        together.work(machine, seed, || self.is_over(), is_quiet)
    }

    fn save(&self, job: usize, image_seed: u64) -> Result<()> {
        let file = self.cluster.path(&format!("image-{job}"));
        fs::write(&file, image_of(image_seed))?;
        let number = {
            let mut job = self.job(job)?;
            job.tried.push(image_seed);
            job.tried.len() - 1
        };
        let name = format!("job-{job}");
        let image = format!("image-{job}");
        let save = ["--json", "save", "--job", &name, "--ttl", "1h", &image];
        let saved = {
            let _changing = self.changing(job)?;
            let started = Instant::now();
            let saved = self.cluster.run(save)?;
            let mut tally = self.tally();
            tally.longest_save = tally.longest_save.max(started.elapsed());
            saved
        };
        let mut job = self.job(job)?;
        job.note(format!("image {number}: {saved}"));
        if matches!(saved.code, Some(0 | 3)) {
            let report = saved.json()?;
            let version = report["version"].as_u64().context("version")?;
            let redundancy = report["redundancy"].as_str().context("redundancy")?;
            ensure!(
                version > job.newest,
                "{name}: a version after {}: {saved}",
                job.newest
            );
            job.newest = version;
            job.acknowledged = Some(number);
            job.known.insert(number);
            job.kept.push((version, number));
            let mut tally = self.tally();
            tally.saved += 1;
            tally.narrow += u64::from(redundancy != "3+2");
            tally.resumed += u64::from(report["resumed_bytes"].is_u64());
        } else {
            ensure!(matches!(saved.code, Some(1 | 5)), "{name}: {saved}");
            job.kept.clear();
            self.tally().not_saved += 1;
        }
        Ok(())
    }

    fn changing(&self, job: usize) -> Result<std::sync::MutexGuard<'_, ()>> {
        let job = self.changing.get(job).context("no such job")?;
        Ok(job.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Forgets all checkpoints of a job, if one was acknowledged.
    fn forget(&self, job: usize) -> Result<()> {
        if self.job(job)?.acknowledged.is_none() {
            return Ok(());
        }
        let name = format!("job-{job}");
        let day = self.day();
        let forgotten = {
            let _changing = self.changing(job)?;
            self.cluster.run(["forget", "--job", &name, "--all"])?
        };
        let mut job = self.job(job)?;
        job.note(forgotten.to_string());
        match forgotten.code {
            Some(0 | 3) => self.tally().forgotten += 1,
            // Some hosts may have removed the checkpoints nevertheless.
            Some(1 | 5) => job.known.clear(),
            _ => bail!("{name}: {forgotten}"),
        }
        if !self.was_day_since(day) {
            // The few hosts that know of it may be away when the others are back.
            job.known.clear();
        }
        job.acknowledged = None;
        // Versions count from 1 again.
        job.newest = 0;
        job.kept.clear();
        Ok(())
    }

    /// Checks a restore of a job without an acknowledged version: its first save did not succeed yet, or all
    /// was forgotten. The restore may return an image of a save that failed, and no other.
    fn check_not_revived(&self, job: usize, restored: &crate::Outcome) -> Result<()> {
        let out = self.cluster.path(&format!("out-{job}"));
        if !out.exists() {
            return Ok(());
        }
        let bytes = fs::read(out)?;
        let job = self.job(job)?;
        let mut known = job.known.iter().filter_map(|number| job.tried.get(*number));
        ensure!(
            known.all(|seed| image_of(*seed) != bytes),
            "back from the dead: {restored}"
        );
        Ok(())
    }

    /// Restores a job on a machine.
    fn restore(&self, job: usize, machine: &str) -> Result<()> {
        let name = format!("job-{job}");
        let out = format!("out-{job}");
        let day = self.day();
        let acknowledged = self.job(job)?.acknowledged;
        // On a machine of its own an older version stays at the target, so that parts of it are used.
        if machine != "state" || acknowledged.is_none() {
            let _ = fs::remove_file(self.cluster.path(&out));
        }
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
        let restored = crate::program::run(&mut self.cluster.command(machine, restore)?)?;
        let Some(acknowledged) = acknowledged else {
            return self.check_not_revived(job, &restored);
        };
        let is_night = !self.was_day_since(day);
        if is_night && restored.code == Some(5) {
            self.tally().away += 1;
            return Ok(());
        }
        // A machine that is new to the grid knows no hosts while no registry can be reached.
        let shown = String::from_utf8_lossy(&restored.stdout);
        if restored.code == Some(5) && machine != "state" && shown.contains("no host is known") {
            self.tally().without_registry += 1;
            return Ok(());
        }
        // 3: a save that was not acknowledged left a newer version that has too few shards.
        ensure!(
            matches!(restored.code, Some(0 | 3)),
            "{name} has an acknowledged version and is not restored on {machine}: {restored}"
        );
        let bytes = fs::read(self.cluster.path(&out))
            .with_context(|| format!("{name} on {machine}: {restored}"))?;
        // At night the newest that is there may be an older one.
        let first = if is_night { 0 } else { acknowledged };
        let newer = {
            let job = self.job(job)?;
            job.tried.iter().skip(first).copied().collect::<Vec<_>>()
        };
        let found = newer.iter().any(|seed| image_of(*seed) == bytes);
        ensure!(
            found,
            "{name}: {} bytes that are not those of image {acknowledged} or later: {restored}; before: {:#?}",
            bytes.len(),
            self.job(job)?.reports
        );
        self.tally().restored += 1;
        Ok(())
    }

    /// Restores the version before the newest, which `--keep 2` keeps.
    fn restore_older(&self, job: usize) -> Result<()> {
        let name = format!("job-{job}");
        let out = format!("out-{job}");
        let (version, seed) = {
            let job = self.job(job)?;
            let Some([(version, number), _]) = job.kept.last_chunk::<2>() else {
                return Ok(());
            };
            (*version, *job.tried.get(*number).context("no such image")?)
        };
        let number = version.to_string();
        let day = self.day();
        let restore = [
            "restore",
            "--job",
            &name,
            "--force",
            "--version",
            &number,
            "-o",
            &out,
        ];
        let restored = self.cluster.run(restore)?;
        if restored.code == Some(5) && !self.was_day_since(day) {
            self.tally().away += 1;
            return Ok(());
        }
        ensure!(
            restored.code == Some(0),
            "{name}: version {version} was acknowledged, is kept, and is not restored: {restored}; before: {:#?}",
            self.job(job)?.reports
        );
        let bytes = fs::read(self.cluster.path(&out))?;
        ensure!(image_of(seed) == bytes, "{name}: wrong bytes: {restored}");
        let mut tally = self.tally();
        tally.restored += 1;
        tally.restored_older += 1;
        Ok(())
    }

    /// Starts daemons and registries that were killed. The lock keeps this from starting hosts that another
    /// thread still wants dead.
    fn restart(&self) -> Result<()> {
        let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        self.cluster.start_stopped()
    }

    fn watch_memory(&self) -> Result<()> {
        let most = match self.broken {
            Some(_) => MEMORY_MAX_LARGE,
            None => MEMORY_MAX,
        };
        for node in self.cluster.nodes() {
            let peak = node.peak_memory().unwrap_or(0);
            let mut tally = self.tally();
            tally.peak_memory = tally.peak_memory.max(peak);
            ensure!(peak <= most, "{} used {peak} bytes", node.name);
        }
        Ok(())
    }

    /// Injects faults until the time is up, then undoes those that can be undone.
    fn disturb(&self, chaos: &Chaos) -> Result<()> {
        let mut rng = SmallRng::seed_from_u64(chaos.seed);
        let started = Instant::now();
        // Faults before the first save would test nothing.
        while self.tally().saved == 0 && !self.is_over() && started.elapsed() < HEAL_TIMEOUT {
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut reported = Instant::now();
        while started.elapsed() < chaos.time && !self.is_over() {
            self.fault(&mut rng)?;
            self.watch_memory()?;
            if reported.elapsed() > REPORT_PERIOD {
                reported = Instant::now();
                eprintln!("{} s: {}", started.elapsed().as_secs(), self.tally());
            }
        }
        Ok(())
    }

    fn fault(&self, rng: &mut SmallRng) -> Result<()> {
        if !self.is_listed {
            self.change_members(rng)?;
        }
        let mut chosen: Vec<&Node> = self.members();
        for at in 0..chosen.len() {
            let other = rng.random_range(at..chosen.len());
            chosen.swap(at, other);
        }
        chosen.truncate(rng.random_range(1..=BAD_MAX));
        let lasting = Duration::from_millis(rng.random_range(200..8000));
        let kinds = [
            "killed",
            "stopped",
            "cut off",
            "shards damaged",
            "shards lost",
            "lied",
            "lied",
        ];
        let kind = kinds[rng.random_range(0..kinds.len())];
        *self.tally().faults.entry(kind).or_default() += chosen.len() as u64;
        match kind {
            "killed" => {
                // The lock keeps the restart of a registry from starting these hosts, too.
                let starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
                for host in &chosen {
                    host.kill()?;
                }
                self.wait(lasting);
                drop(starting);
                self.restart()?;
            }
            "stopped" => {
                for host in &chosen {
                    host.signal(Signal::STOP)?;
                }
                self.wait(lasting);
                for host in &chosen {
                    host.signal(Signal::CONT)?;
                }
            }
            "cut off" => {
                for host in &chosen {
                    host.relay.cut(true);
                }
                self.wait(lasting);
                for host in &chosen {
                    host.relay.cut(false);
                }
            }
            "lied" => self.lie(&chosen, lasting, rng)?,
            kind => {
                for host in &chosen {
                    spoil_shards(host, kind == "shards lost", rng)?;
                }
                // These hosts count as bad until the shards are rebuilt.
                self.heal_for(HEAL_TIMEOUT)?;
            }
        }
        Ok(())
    }

    fn members(&self) -> Vec<&Node> {
        let hosts = self.cluster.hosts.iter();
        hosts.filter(|host| host.has_joined()).collect()
    }

    /// Replaces daemons by hosts that lie for a while. Each has the shards of its daemon, and those that it
    /// kept when it lied the last time.
    fn lie(&self, chosen: &[&Node], lasting: Duration, rng: &mut SmallRng) -> Result<()> {
        let starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut liars = Vec::new();
        for host in chosen {
            let lie = Lie::ALL[rng.random_range(0..Lie::ALL.len())];
            *self.tally().lies.entry(format!("{lie:?}")).or_default() += 1;
            host.kill()?;
            let more = self.hoards().remove(&host.name).unwrap_or_default();
            liars.push((host, self.cluster.impersonate(host, lie, more)?));
        }
        self.wait(lasting);
        for (host, liar) in liars {
            let mut hoard = self.cluster.unmask(host, liar)?;
            hoard.keep_oldest(HOARD_MAX);
            self.hoards().insert(host.name.clone(), hoard);
        }
        drop(starting);
        self.restart()?;
        // Checkpoints that were saved meanwhile lack the shards that liars took, until they are rebuilt.
        for job in 0..self.jobs.len() {
            drop(self.changing(job)?);
        }
        self.heal_for(HEAL_TIMEOUT)?;
        Ok(())
    }

    fn hoards(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Hoard>> {
        self.hoards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, time: Duration) {
        let started = Instant::now();
        while started.elapsed() < time && !self.is_over() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until every job with an acknowledged version has been whole once. No fault meanwhile takes
    /// shards away, so a job that was whole stays so.
    fn heal_for(&self, limit: Duration) -> Result<Duration> {
        let started = Instant::now();
        let mut missing: Vec<(usize, String)> = (0..self.jobs.len())
            .map(|job| (job, String::new()))
            .collect();
        loop {
            for (job, _) in std::mem::take(&mut missing) {
                // A save would remove versions while `verify` reads them.
                let _changing = self.changing(job)?;
                if self.job(job)?.acknowledged.is_none() {
                    continue;
                }
                if let Some(why) = self.what_is_missing(job)? {
                    missing.push((job, why));
                }
            }
            if missing.is_empty() && self.shared_is_whole()? {
                return Ok(started.elapsed());
            }
            ensure!(
                started.elapsed() < limit,
                "jobs are not whole again after {limit:?}: {missing:#?}"
            );
        }
    }

    /// Whether all shards are there of the job of two machines. They wait meanwhile.
    fn shared_is_whole(&self) -> Result<bool> {
        let Some(together) = &self.together else {
            return Ok(true);
        };
        let _working = together
            .working
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let newest = together.newest();
        Ok(newest == 0 || self.what_is_missing_of(JOB, newest)?.is_none())
    }

    fn what_is_missing(&self, job: usize) -> Result<Option<String>> {
        let newest = self.job(job)?.newest;
        self.what_is_missing_of(&format!("job-{job}"), newest)
    }

    /// What `verify` finds if not all shards are there of every version of a job that hosts show.
    fn what_is_missing_of(&self, name: &str, newest: u64) -> Result<Option<String>> {
        let verify = ["--json", "verify", "--read-data", "--job", name];
        let verified = self.cluster.run(verify)?;
        let found = format!("version {newest} was acknowledged; {verified}");
        let Ok(report) = verified.json() else {
            return Ok(Some(found));
        };
        let Some(checkpoints) = report["checkpoints"].as_array() else {
            return Ok(Some(found));
        };
        // Every version counts: others may build on any of them. A save that reaches few hosts makes fewer
        // shards than five; those that it made and that are missing are among the bad ones.
        let is_whole = |one: &Value| {
            let numbers = |kind: &str| -> BTreeSet<u64> {
                let shards = one[kind].as_array().into_iter().flatten();
                shards.filter_map(|one| one["shard"].as_u64()).collect()
            };
            let good = numbers("good");
            good.len() >= SHARDS_MIN && numbers("bad").is_subset(&good)
        };
        let shown = checkpoints.iter().filter_map(|one| one["version"].as_u64());
        let is_whole = shown.max() >= Some(newest) && checkpoints.iter().all(is_whole);
        Ok((!is_whole).then_some(found))
    }

    /// Starts what does not run, waits until all jobs are whole, and restores all of them.
    fn heal(&self) -> Result<Duration> {
        self.restart()?;
        let took = self.heal_for(HEAL_TIMEOUT)?;
        for job in 0..self.jobs.len() {
            self.restore(job, "state")?;
            self.restore(job, "last")?;
            self.restore_older(job)?;
        }
        self.check_theft()?;
        if let Some(together) = &self.together {
            together.check()?;
            self.tally().shared = together.count() as u64;
        }
        Ok(took)
    }
}

/// Removes or damages all shards of a host.
fn spoil_shards(host: &Node, are_lost: bool, rng: &mut SmallRng) -> Result<()> {
    for file in host.shard_files()? {
        // The shard may have been superseded and its file removed meanwhile.
        let _ = if are_lost {
            fs::remove_file(&file).map_err(Into::into)
        } else {
            let len = fs::metadata(&file).map_or(0, |data| data.len());
            flip(&file, rng.random_range(0..len.max(1)))
        };
    }
    Ok(())
}
