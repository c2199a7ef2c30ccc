//! A minute of chaos; `cargo run -p tests --bin chaos -- --hours 1` runs it for longer.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use tests::chaos::together::{MACHINES, Together};
use tests::chaos::{Chaos, run};
use tests::cluster::Cluster;

#[test]
fn nothing_acknowledged_is_lost_in_a_minute_of_faults() -> Result<()> {
    let chaos = Chaos {
        seed: std::process::id().into(),
        time: Duration::from_secs(60),
        hosts: 9,
        jobs: 2,
        registries: 2,
        is_listed: true,
        is_shared: true,
        has_thief: true,
        has_broken: true,
    };
    let tally = run(&chaos).with_context(|| format!("{chaos:?}"))?;
    eprintln!("{chaos:?}: {tally}");
    ensure!(
        tally.saved > 3 && tally.restored > 3 && !tally.faults.is_empty(),
        "{tally}"
    );
    Ok(())
}

/// How long two machines save and delete one job.
const TOGETHER: Duration = Duration::from_secs(40);

/// One host after the other stands still for a while.
fn disturb(cluster: &Cluster, is_over: impl Fn() -> bool) -> Result<()> {
    for host in cluster.hosts.iter().cycle() {
        if is_over() {
            break;
        }
        host.signal(Signal::STOP)?;
        std::thread::sleep(Duration::from_secs(2));
        host.signal(Signal::CONT)?;
        std::thread::sleep(Duration::from_secs(2));
    }
    Ok(())
}

#[test]
fn two_machines_that_save_and_delete_one_job_lose_nothing() -> Result<()> {
    let cluster = Cluster::start(7, 0, &[("CKPT_REPAIR_PERIOD", "1s")])?;
    let together = Together::new(&cluster);
    let began = Instant::now();
    let is_over = || began.elapsed() > TOGETHER;
    let seed = u64::from(std::process::id());
    std::thread::scope(|scope| {
        let working = MACHINES.map(|machine| {
            let together = &together;
            let seed = seed ^ u64::from(machine == MACHINES[0]);
            scope.spawn(move || together.work(machine, seed, is_over, || true))
        });
        let disturbing = scope.spawn(|| disturb(&cluster, is_over));
        let mut all = working.into_iter().chain([disturbing]);
        all.try_for_each(|one| one.join().unwrap_or_else(|_| bail!("a machine panicked")))
    })
    .with_context(|| format!("seed {seed}"))?;
    together.check()?;
    ensure!(together.count() > 3, "{}", together.count());
    Ok(())
}
