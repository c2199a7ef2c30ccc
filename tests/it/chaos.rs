//! A minute of chaos; `cargo run -p tests --bin chaos -- --hours 1` runs it for longer.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::process::Signal;
use tests::chaos::{Chaos, run};
use tests::cluster::Cluster;
use tests::image;
use tests::program::wait_until;

#[test]
fn nothing_acknowledged_is_lost_in_a_minute_of_faults() -> Result<()> {
    let chaos = Chaos {
        seed: std::process::id().into(),
        time: Duration::from_secs(60),
        hosts: 9,
        jobs: 2,
        registries: 2,
        is_listed: true,
    };
    let tally = run(&chaos).with_context(|| format!("{chaos:?}"))?;
    eprintln!("{chaos:?}: {tally}");
    ensure!(
        tally.saved > 3 && tally.restored > 3 && !tally.faults.is_empty(),
        "{tally}"
    );
    Ok(())
}

const LIMIT: Duration = Duration::from_secs(60);

/// How long two machines save and delete one job.
const TOGETHER: Duration = Duration::from_secs(40);

/// An image of which most is the same for all seeds.
fn image_of(seed: u64) -> Vec<u8> {
    let mut bytes = image::noise(5 << 20, 1);
    let changed = image::noise(64 << 10, seed);
    bytes[..changed.len()].copy_from_slice(&changed);
    bytes
}

/// Two machines of one owner, which save and delete the same job.
struct Together {
    cluster: Cluster,
    /// The seeds of the images of acknowledged versions.
    saved: Mutex<BTreeMap<u64, u64>>,
    began: Instant,
}

impl Together {
    fn saved(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, u64>> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.began.elapsed() > TOGETHER
    }

    /// Saves and deletes on one machine. What it saved, or something newer, is there right after.
    fn work(&self, machine: &str, seed: u64) -> Result<()> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let file = format!("image-{machine}");
        let out = format!("out-{machine}");
        while !self.is_over() {
            let keep = rng.random_range(1..4).to_string();
            let seed = rng.random();
            let args = match rng.random_range(0..10) {
                0..6 => vec!["--json", "save", "--job", "42", "--keep", &keep, &file],
                6..8 => vec!["forget", "--job", "42", "--keep", &keep],
                8 => vec!["forget", "--job", "42", "--keep-within", "2s"],
                _ => vec!["gc", "--keep", &keep],
            };
            fs::write(self.cluster.path(&file), image_of(seed))?;
            let ended = self.cluster.run_on(machine, 0, &args)?;
            ensure!(matches!(ended.code, Some(0 | 1 | 3)), "{args:?}: {ended}");
            if !args.contains(&"save") || ended.code == Some(1) {
                continue;
            }
            let version = ended.json()?["version"].as_u64().context("version")?;
            self.saved().insert(version, seed);
            // What a restore has chosen may be superseded and deleted before it is read.
            wait_until("the version or a newer one is restored", LIMIT, || {
                let restore = ["--json", "restore", "--job", "42", "--force", "-o", &out];
                let restored = self.cluster.run_on(machine, 0, restore)?;
                let newest = restored.json().ok();
                let newest = newest.and_then(|report| report["version"].as_u64());
                Ok(matches!(restored.code, Some(0 | 3)) && newest >= Some(version))
            })
            .with_context(|| format!("version {version}"))?;
        }
        Ok(())
    }

    /// One host after the other stands still for a while.
    fn disturb(&self) -> Result<()> {
        for host in self.cluster.hosts.iter().cycle() {
            if self.is_over() {
                break;
            }
            host.signal(Signal::STOP)?;
            std::thread::sleep(Duration::from_secs(2));
            host.signal(Signal::CONT)?;
            std::thread::sleep(Duration::from_secs(2));
        }
        Ok(())
    }
}

#[test]
fn two_machines_that_save_and_delete_one_job_lose_nothing() -> Result<()> {
    let together = Together {
        cluster: Cluster::start(7, 0, &[("CKPT_REPAIR_PERIOD", "1s")])?,
        saved: Mutex::default(),
        began: Instant::now(),
    };
    let seed = u64::from(std::process::id());
    std::thread::scope(|scope| {
        let all = [
            scope.spawn(|| together.work("one", seed)),
            scope.spawn(|| together.work("two", seed ^ 0xffff)),
            scope.spawn(|| together.disturb()),
        ];
        let ended = all.map(|one| one.join().unwrap_or_else(|_| bail!("a machine panicked")));
        ended.into_iter().collect::<Result<()>>()
    })
    .with_context(|| format!("seed {seed}"))?;
    let cluster = &together.cluster;
    let listed = cluster.run(["--json", "list", "--job", "42"])?.json()?;
    let listed = listed["checkpoints"].as_array().context("no versions")?;
    let saved = together.saved();
    let versions = listed.iter().filter_map(|one| one["version"].as_u64());
    let versions: Vec<u64> = versions.collect();
    ensure!(
        versions.last() >= saved.keys().last(),
        "{versions:?} of {saved:?}"
    );
    for version in &versions {
        let number = version.to_string();
        let restore = ["restore", "--job", "42", "--version", &number, "-o", "-"];
        let restored = cluster.run(restore)?;
        let Some(seed) = saved.get(version) else {
            continue;
        };
        let restored = restored.expect(0)?;
        ensure!(
            restored.stdout == image_of(*seed),
            "version {version} differs"
        );
    }
    ensure!(saved.len() > 3, "{saved:?}");
    Ok(())
}
