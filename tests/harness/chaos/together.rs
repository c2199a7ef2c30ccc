//! Two machines of one owner that save and delete the same job, whatever else happens to the grid.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::cluster::Cluster;
use crate::image;

/// The job.
pub(super) const JOB: &str = "shared";

/// How long a version may take until it is restored.
const LIMIT: Duration = Duration::from_secs(60);

/// `gc --keep` deletes versions of the owner's other jobs, too. They need this many.
const KEPT_OF_ALL_JOBS: u32 = 2;

/// The names of the machines.
pub const MACHINES: [&str; 2] = ["one", "two"];

/// The job and what was acknowledged of it.
#[derive(Debug)]
pub struct Together<'a> {
    cluster: &'a Cluster,
    /// The seeds of the images of acknowledged versions.
    saved: Mutex<BTreeMap<u64, u64>>,
    /// Both machines read it while they work; whoever looks at the job in peace writes it.
    pub(super) working: RwLock<()>,
}

/// An image of which most is the same for all seeds.
fn image_of(seed: u64) -> Vec<u8> {
    let mut bytes = image::noise(5 << 20, 1);
    let changed = image::noise(64 << 10, seed);
    bytes[..changed.len()].copy_from_slice(&changed);
    bytes
}

impl<'a> Together<'a> {
    /// A job without versions.
    pub fn new(cluster: &'a Cluster) -> Self {
        Self {
            cluster,
            saved: Mutex::default(),
            working: RwLock::default(),
        }
    }

    fn saved(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many versions were acknowledged.
    pub fn count(&self) -> usize {
        self.saved().len()
    }

    /// Saves and deletes on one machine. `is_over` says when to end, and `is_quiet` whether as many hosts were there
    /// since the last call as a restore needs.
    ///
    /// # Errors
    /// When a version that was acknowledged, or a newer one, is not restored while hosts are there.
    pub fn work(
        &self,
        machine: &str,
        seed: u64,
        is_over: impl Fn() -> bool,
        mut is_quiet: impl FnMut() -> bool,
    ) -> Result<()> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let file = format!("image-{machine}");
        while !is_over() {
            let keep = rng.random_range(1..4);
            let [keep_of_all, keep] =
                [keep.max(KEPT_OF_ALL_JOBS), keep].map(|keep| keep.to_string());
            let seed = rng.random();
            let args = match rng.random_range(0..10) {
                0..6 => vec!["--json", "save", "--job", JOB, "--keep", &keep, &file],
                6..8 => vec!["forget", "--job", JOB, "--keep", &keep],
                8 => vec!["forget", "--job", JOB, "--keep-within", "2s"],
                _ => vec!["gc", "--keep", &keep_of_all],
            };
            fs::write(self.cluster.path(&file), image_of(seed))?;
            let ended = {
                let _working = self.working.read().unwrap_or_else(PoisonError::into_inner);
                self.cluster.run_on(machine, 0, &args)?
            };
            ensure!(
                matches!(ended.code, Some(0 | 1 | 3 | 4 | 5)),
                "{args:?}: {ended}"
            );
            if args.contains(&"save") && matches!(ended.code, Some(0 | 3)) {
                let version = ended.json()?["version"].as_u64().context("version")?;
                self.saved().insert(version, seed);
                self.is_restored(machine, version, &mut is_quiet)
                    .with_context(|| format!("version {version}"))?;
            }
        }
        Ok(())
    }

    /// The last acknowledged version; 0 if there is none.
    pub(super) fn newest(&self) -> u64 {
        self.saved().keys().last().copied().unwrap_or_default()
    }

    /// The version, or something newer, is restored. What a restore has chosen may be superseded and deleted before
    /// it is read.
    fn is_restored(
        &self,
        machine: &str,
        version: u64,
        is_quiet: &mut impl FnMut() -> bool,
    ) -> Result<()> {
        let out = format!("out-{machine}");
        let begun = Instant::now();
        is_quiet();
        loop {
            let restore = ["--json", "restore", "--job", JOB, "--force", "-o", &out];
            let restored = self.cluster.run_on(machine, 0, restore)?;
            let newest = restored.json().ok();
            let newest = newest.and_then(|report| report["version"].as_u64());
            let is_good = matches!(restored.code, Some(0 | 3)) && newest >= Some(version);
            if is_good || !is_quiet() {
                return Ok(());
            }
            ensure!(begun.elapsed() < LIMIT, "not restored: {restored}");
        }
    }

    /// What hosts show in the end is what was acknowledged last, with the right bytes.
    ///
    /// # Errors
    /// When something of it is lost or wrong.
    pub fn check(&self) -> Result<()> {
        let cluster = self.cluster;
        let saved = self.saved();
        if saved.is_empty() {
            return Ok(());
        }
        let listed = cluster.run(["--json", "list", "--job", JOB])?.json()?;
        let listed = listed["checkpoints"].as_array().context("no versions")?;
        let versions = listed.iter().filter_map(|one| one["version"].as_u64());
        let versions: Vec<u64> = versions.collect();
        ensure!(
            versions.last() >= saved.keys().last(),
            "{versions:?} of {saved:?}"
        );
        for version in &versions {
            let number = version.to_string();
            let Some(seed) = saved.get(version) else {
                continue;
            };
            let restore = ["restore", "--job", JOB, "--version", &number, "-o", "-"];
            let restored = cluster.run(restore)?.expect(0)?;
            ensure!(
                restored.stdout == image_of(*seed),
                "version {version} differs"
            );
        }
        Ok(())
    }
}
