//! Wrong clocks. Two machines of one owner have clocks a day apart, and a partition cuts the grid in two:
//! one machine deletes a job on its side, and the other saves the same job on the other side.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use tests::cluster::Cluster;
use tests::program::wait_until;
use tests::skip::not_checked;
use tests::{Outcome, image};

const LIMIT: Duration = Duration::from_secs(180);

/// How far the clock of one machine is ahead, in seconds.
const DAY: i64 = 86_400;

/// Number of hosts on each side of the partition.
const SIDE: usize = 5;

/// A machine of the owner.
#[derive(Clone, Copy)]
struct Machine<'a> {
    cluster: &'a Cluster,
    name: &'a str,
    off_s: i64,
}

/// What a save made.
struct Saved {
    version: String,
    /// Number of shards: as many as hosts, of which a slow one may be left out.
    shards: usize,
}

impl Machine<'_> {
    fn run(&self, args: &[&str]) -> Result<Outcome> {
        self.cluster.run_on(self.name, self.off_s, args)
    }

    /// Saves an image.
    fn save(&self, image: &str) -> Result<Saved> {
        let saved = self.run(&["--json", "save", "--job", "42", image])?;
        // A machine whose clock is ahead warns of that.
        let code = if self.off_s > 0 { 3 } else { 0 };
        let saved = saved.expect(code)?.json()?;
        Ok(Saved {
            version: saved["version"].as_u64().context("version")?.to_string(),
            shards: saved["holders"].as_array().context("holders")?.len(),
        })
    }
}

/// Cuts off all hosts except these. A relay drops what is sent to a host, not what the host sends of its own
/// accord, so a host that is cut off stands still, too. It does so before a host of the other side goes on.
fn cut_off_all_but(cluster: &Cluster, side: Range<usize>) -> Result<()> {
    let numbered = || cluster.hosts.iter().enumerate();
    for (_, host) in numbered().filter(|(at, _)| !side.contains(at)) {
        host.relay.cut(true);
        host.signal(Signal::STOP)?;
    }
    for (_, host) in numbered().filter(|(at, _)| side.contains(at)) {
        host.relay.cut(false);
        host.signal(Signal::CONT)?;
    }
    Ok(())
}

fn write_image(cluster: &Cluster, name: &str, seed: u64) -> Result<Vec<u8>> {
    let bytes = image::memory(1 << 20, seed);
    fs::write(cluster.path(name), &bytes)?;
    Ok(bytes)
}

/// Until a holder has heard of the deletion, it shows the saved version as any other one.
fn wait_until_holders_have_heard(cluster: &Cluster) -> Result<()> {
    wait_until("all holders have heard of the deletion", LIMIT, || {
        for host in &cluster.hosts {
            if !host.shard_files()?.is_empty() && host.files_of("notices")?.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

fn await_all(machine: &Machine<'_>) -> Result<()> {
    wait_until("all hosts answer", LIMIT, || {
        let hosts = machine.run(&["--json", "hosts"])?.json()?;
        let all = hosts["hosts"].as_array().context("no hosts")?;
        Ok(all.iter().all(|host| host["up"] == true))
    })
}

/// One machine saves and then forgets the whole job on its side, and the other saves it on the other side.
fn across_a_partition(remover_is_ahead: bool, remover_is_first: bool) -> Result<()> {
    let env = [("CKPT_REPAIR_PERIOD", "300ms")];
    let cluster = Cluster::start(2 * SIDE, 0, &env)?;
    if !cluster.powers.clocks {
        return not_checked("clocks a day apart", "libfaketime is not installed");
    }
    let machine = |name, off_s| Machine {
        cluster: &cluster,
        name,
        off_s,
    };
    let (remover, saver) = if remover_is_ahead {
        (machine("remover", DAY), machine("saver", 0))
    } else {
        (machine("remover", 0), machine("saver", DAY))
    };
    for (name, seed) in [("first", 1), ("second", 2)] {
        write_image(&cluster, name, seed)?;
    }
    let bytes = write_image(&cluster, "third", 3)?;
    // A deletion names what the remover sees on its side, so the first version must not lie on the other
    // side's hosts alone.
    cut_off_all_but(&cluster, 0..2 * SIDE - 1)?;
    remover.save("first")?;
    cut_off_all_but(&cluster, 0..2 * SIDE)?;
    // The other side's version is dated a second after the first one, if that is dated a day ahead. Of two
    // versions of one second the id decides, so the remover's second one has to be of a later second.
    let saved_first = SystemTime::now();
    wait_until("the second after the first save is over", LIMIT, || {
        Ok(saved_first.elapsed()? >= Duration::from_secs(2))
    })?;

    let remove = || -> Result<()> {
        cut_off_all_but(&cluster, 0..SIDE)?;
        remover.save("second")?;
        let forgotten = remover.run(&["forget", "--job", "42", "--all"])?;
        // Exit status 3 means that hosts of the other side have not heard of the deletion.
        ensure!(matches!(forgotten.code, Some(0 | 3)), "{forgotten}");
        Ok(())
    };
    if remover_is_first {
        remove()?;
    }
    cut_off_all_but(&cluster, SIDE..2 * SIDE)?;
    let saved = saver.save("third")?;
    if !remover_is_first {
        remove()?;
    }

    cut_off_all_but(&cluster, 0..2 * SIDE)?;
    let shards = || -> Result<Vec<Vec<PathBuf>>> {
        cluster
            .hosts
            .iter()
            .map(|host| host.shard_files())
            .collect()
    };
    wait_until("what was forgotten is gone", LIMIT, || {
        Ok(shards()?.iter().flatten().count() == saved.shards)
    })
    .with_context(|| format!("the hosts hold {:?}", shards()))?;
    wait_until_holders_have_heard(&cluster)?;
    let another = machine("another", 0);
    await_all(&another)?;
    for machine in [remover, saver, another] {
        check(machine, &saved.version, &bytes, remover_is_ahead)
            .with_context(|| format!("on the machine called {}", machine.name))?;
    }
    Ok(())
}

/// Checks that the saved version is restored, and never a forgotten one. With `is_passed_over`, a restore
/// without `--version` has to fail with a reason, and one with `--version` has to succeed.
fn check(machine: Machine<'_>, version: &str, bytes: &[u8], is_passed_over: bool) -> Result<()> {
    let out = machine.cluster.path("out");
    let mut restored = machine.run(&["restore", "--job", "42", "--force", "-o", "out"])?;
    // Status 5 says that too few hosts answered in time: on a busy machine they do the next time.
    wait_until("enough hosts answer a restore", LIMIT, || {
        if restored.code == Some(5) {
            restored = machine.run(&["restore", "--job", "42", "--force", "-o", "out"])?;
        }
        Ok(restored.code != Some(5))
    })?;
    match restored.code {
        Some(0) => ensure!(!is_passed_over, "{restored}"),
        Some(4) => {
            ensure!(
                is_passed_over
                    && restored
                        .stderr
                        .contains("a deleted part of the job's history"),
                "{restored}"
            );
            let garbage = machine.run(&["--json", "gc", "--dry-run"])?.expect(0)?;
            let garbage = garbage.json()?;
            ensure!(
                garbage["garbage"][0]["version"].as_u64() == version.parse().ok(),
                "{garbage}"
            );
            let asked = ["restore", "--job", "42", "--version", version, "-o", "out"];
            machine.run(&asked)?.expect(0)?;
        }
        _ => bail!("{restored}"),
    }
    ensure!(fs::read(&out)? == bytes, "other bytes");
    fs::remove_file(out)?;
    Ok(())
}

#[test]
fn a_save_survives_a_removal_on_the_other_side_by_a_clock_behind() -> Result<()> {
    across_a_partition(false, true)?;
    across_a_partition(false, false)
}

#[test]
fn a_save_survives_a_removal_on_the_other_side_by_a_clock_ahead() -> Result<()> {
    across_a_partition(true, true)?;
    across_a_partition(true, false)
}

#[test]
fn a_deletion_by_a_clock_four_days_ahead_fails_and_says_why() -> Result<()> {
    let cluster = Cluster::start(SIDE, 0, &[])?;
    if !cluster.powers.clocks {
        return not_checked("a clock that is far ahead", "libfaketime is not installed");
    }
    let machine = |name, off_s| Machine {
        cluster: &cluster,
        name,
        off_s,
    };
    write_image(&cluster, "image", 1)?;
    machine("right", 0).save("image")?;
    let wrong = machine("wrong", 4 * DAY);
    let forgotten = wrong.run(&["forget", "--job", "42", "--all"])?.expect(1)?;
    ensure!(
        forgotten.stderr.contains("check the clock") && !forgotten.stderr.contains("removed"),
        "{forgotten}"
    );
    let restore = ["restore", "--job", "42", "-o", "out"];
    machine("right", 0).run(&restore)?.expect(0)?;
    Ok(())
}
