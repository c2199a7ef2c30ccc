//! A daemon that takes no shards: outside of its owner's hours, and while the processors are taken. The
//! tests set the daemon's clock instead of waiting for the evening.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::cluster::faketime;
use tests::program::{run, wait_until};
use tests::skip::not_checked;
use tests::{Grid, Outcome, ckpt};

const DAY: u64 = 86_400;
const HOUR: u64 = 3_600;

/// Longest wait for a state; a daemon samples its machine every six seconds.
const LIMIT: Duration = Duration::from_secs(60);

/// The one host of a grid, whose daemon heeds its owner and has a clock in UTC that can be set.
struct LentMachine {
    grid: Grid,
    library: &'static str,
    daemon: Child,
}

impl Drop for LentMachine {
    fn drop(&mut self) {
        // The daemon may have ended already.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn now() -> Result<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())
}

impl LentMachine {
    /// Starts the daemon with its clock `ahead_s` seconds ahead. `None` if clocks can't be set, which
    /// [`not_checked`] reports.
    fn start(preferences: &str, ahead_s: u64) -> Result<Option<Self>> {
        let Some(library) = faketime() else {
            not_checked("a daemon by the clock", "no libfaketime")?;
            return Ok(None);
        };
        let grid = Grid::up(1)?;
        grid.kill("h01")?;
        let data = grid.data_dir("h01");
        fs::write(data.join("preferences.toml"), preferences)?;
        fs::write(grid.path("clock"), format!("+{ahead_s}\n"))?;
        let address = fs::read_to_string(data.join("address"))?;
        let mut daemon = Command::new(ckpt()?);
        daemon
            .arg0("ckpt-store")
            .args(["serve", "--normal-priority", "--listen", address.trim()])
            .arg("--grid")
            .arg(grid.file())
            .arg("--data")
            .arg(&data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        by_clock(&mut daemon, library, grid.path("clock"));
        let daemon = daemon.spawn()?;
        Ok(Some(Self {
            grid,
            library,
            daemon,
        }))
    }

    fn set_clock(&self, ahead_s: u64) -> Result<()> {
        Ok(fs::write(self.grid.path("clock"), format!("+{ahead_s}\n"))?)
    }

    /// Runs `ckpt-store status` on the machine.
    fn status(&self, args: &[&str]) -> Result<Outcome> {
        let mut status = Command::new(ckpt()?);
        status
            .arg0("ckpt-store")
            .arg("status")
            .args(args)
            .arg("--data")
            .arg(self.grid.data_dir("h01"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        by_clock(&mut status, self.library, self.grid.path("clock"));
        run(&mut status)?.expect(0)
    }

    /// The entry of `ckpt hosts` for the host.
    fn seen(&self) -> Result<Value> {
        let hosts = self.grid.run(["--json", "hosts"])?.json()?;
        Ok(hosts["hosts"][0].clone())
    }
}

fn by_clock(command: &mut Command, library: &str, clock: PathBuf) {
    command
        .env("TZ", "UTC")
        .env("LD_PRELOAD", library)
        .env("FAKETIME_TIMESTAMP_FILE", clock)
        .env("FAKETIME_CACHE_DURATION", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
}

fn text(outcome: &Outcome) -> String {
    String::from_utf8_lossy(&outcome.stdout).into_owned()
}

#[test]
fn a_host_outside_its_owners_hours_says_until_when() -> Result<()> {
    // The clock is set to the next noon, at which a certificate made today is still good.
    let real = now()?;
    let noon = 12 * HOUR;
    let ahead = (DAY + noon - real % DAY) % DAY;
    let Some(host) = LentMachine::start("start_hour = 18\nend_hour = 8\n", ahead)? else {
        return Ok(());
    };
    let evening = real + ahead + 6 * HOUR;
    wait_until("it stands back", LIMIT, || {
        Ok(host.seen()?["refuses_for_s"].as_u64() > Some(0))
    })?;
    let seen = host.seen()?;
    let seconds = seen["refuses_for_s"].as_u64().context("seconds")?;
    ensure!((5 * HOUR..=6 * HOUR).contains(&seconds), "{seen}");
    ensure!(
        seen["why"]
            .as_str()
            .is_some_and(|why| why.contains("at this hour"))
    );
    let shown = text(&host.grid.run(["hosts"])?);
    ensure!(shown.contains("takes no new shards for"), "{shown}");

    let json = host.status(&["--json"])?.json()?;
    let until = json["standing"]["until"].as_u64().context("until")?;
    ensure!(
        until.abs_diff(evening) <= 60,
        "{until}, not {evening}: {json}"
    );
    let shown = text(&host.status(&[])?);
    ensure!(shown.contains("18:00"), "{shown}");
    // After 18:00 the host takes shards.
    host.set_clock(ahead + 6 * HOUR + 60)?;
    wait_until("it takes shards", LIMIT, || {
        Ok(host.seen()?["refuses_for_s"].as_u64() == Some(0))
    })?;
    ensure!(!text(&host.status(&[])?).contains("standing back"));
    Ok(())
}

/// A thread that keeps a processor busy until this is dropped.
struct Load(Arc<AtomicBool>);

impl Load {
    fn begin() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_over);
        std::thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        Self(is_over)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn advice_names_a_machine_whose_processors_are_taken_and_does_not_count_that() -> Result<()> {
    let thresholds = "[monitor]\ncpu_thresholds = [0.0001, 0.0002]\n";
    let Some(host) = LentMachine::start(thresholds, 0)? else {
        return Ok(());
    };
    let _load = Load::begin();
    // More than one minute of the daemon's time passes between two samples, so the load counts as lasting.
    // Less than three minutes pass, after which the machine would count as switched off meanwhile.
    let mut ahead = 0;
    wait_until("its processors count as taken", LIMIT, || {
        ahead += 25;
        host.set_clock(ahead)?;
        std::thread::sleep(Duration::from_secs(2));
        Ok(host.seen()?["refuses_for_s"].as_u64() > Some(0))
    })?;
    let advise = [
        "advise",
        "--job-length",
        "12h",
        "--cost",
        "20s",
        "--compute-host",
        "h01",
    ];
    let advice = host
        .grid
        .run([&["--json"][..], &advise].concat())?
        .expect(0)?;
    let report = advice.json()?;
    let notes = report["notes"].to_string();
    ensure!(notes.contains("host h01 reports"), "{report}");
    ensure!(notes.contains("its processors are taken"), "{report}");
    // The forecast is that of a machine that stays, not of one that ends the job at once.
    let first = report["first_seconds"].as_f64();
    ensure!(first.is_none_or(|first| first > 600.0), "{report}");
    ensure!(report["survives_job"].as_f64() > Some(0.2), "{report}");
    let said = text(&host.grid.run(advise)?.expect(0)?);
    ensure!(said.contains("host h01 reports"), "{said}");
    ensure!(said.lines().all(|line| line.len() < 400), "{said}");
    Ok(())
}
