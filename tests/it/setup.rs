//! `ckpt run --setup`: the trial, and the script that it writes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use tests::{Grid, Outcome};

/// A job of some ten seconds that goes on from its state, and finishes its step at SIGTERM.
const JOB: &str = r#"trap leaves=1 TERM
mkdir -p state
n=$(cat state/step 2>/dev/null || echo 0)
while [ -z "$leaves" ] && [ "$n" -lt 100 ]; do
  sleep 0.1
  n=$((n + 1)); echo "$n" > state/step.new; mv state/step.new state/step
done
[ "$n" = 100 ]"#;

/// A grid, and the job in its directory.
fn with_job() -> Result<Grid> {
    let grid = Grid::up(5)?;
    fs::write(grid.path("count.sh"), JOB)?;
    // The trial copies the directory, of which the grid's files are no part.
    fs::create_dir(grid.path("here"))?;
    fs::rename(grid.path("count.sh"), grid.path("here/count.sh"))?;
    fs::create_dir(grid.path("bin"))?;
    symlink(tests::ckpt()?, grid.path("bin/ckpt"))?;
    Ok(grid)
}

/// Runs a program in the job's directory, where it finds `ckpt`.
fn here(grid: &Grid, program: &str, args: &[&str], input: &[u8]) -> Result<Outcome> {
    let mut command = grid.command_as(Path::new(program), args)?;
    let dirs = std::env::var("PATH").unwrap_or_default();
    command
        .current_dir(grid.path("here"))
        .env("PATH", format!("{}:{dirs}", grid.path("bin").display()))
        .env("CKPT_STATE_DIR", grid.path("state"));
    tests::program::run_with_input(&mut command, input)
}

#[test]
fn a_job_is_tried_and_its_script_runs_it_to_the_end() -> Result<()> {
    let grid = with_job()?;
    let words = ["--json", "run", "--setup", "--files", "state", "--batch"];
    let command = ["--under", "shell", "--", "sh", "count.sh"];
    let set_up = here(&grid, "ckpt", &[&words[..], &command].concat(), b"")?.expect(0)?;
    let report = set_up.json()?;
    ensure!(report["job"] == "count", "{report}");
    ensure!(report["trial"]["version"].as_u64() >= Some(1), "{report}");
    // The trial has its own grid, and its own directory.
    ensure!(!grid.path("here/state").exists(), "the state was touched");
    ensure!(grid.versions("count")?.is_empty(), "the grid was touched");

    let text = fs::read_to_string(grid.path("here/run-count.sh"))?;
    let line = "ckpt run --files state --batch --job count -- sh count.sh\n";
    ensure!(text.contains(line), "{text}");
    here(&grid, "./run-count.sh", &[], b"")?.expect(0)?;
    let step = fs::read_to_string(grid.path("here/state/step"))?;
    ensure!(step.trim() == "100", "{step}");

    // What is there stays.
    let again = here(&grid, "ckpt", &[&words[1..], &command].concat(), b"")?.expect(2)?;
    ensure!(again.stderr.contains("run-count.sh exists"), "{again}");
    ensure!(fs::read_to_string(grid.path("here/run-count.sh"))? == text);
    Ok(())
}

#[test]
fn what_is_missing_is_named_without_a_terminal_and_asked_for_on_one() -> Result<()> {
    let grid = with_job()?;
    let refused = here(&grid, "ckpt", &["run", "--setup", "7"], b"")?.expect(2)?;
    for option in ["--under shell|slurm|htcondor", "--files", "-- COMMAND"] {
        ensure!(refused.stderr.contains(option), "{option}: {refused}");
    }
    // `script` has a terminal for its command.
    let line = "ckpt run --setup 7 --untried";
    let answers = b"sh count.sh --name 'a b'\nstate\nsignal:USR2\nslurm\n";
    let asked = here(&grid, "script", &["-qec", line, "/dev/null"], answers)?.expect(0)?;
    let text = fs::read_to_string(grid.path("here/run-7.sbatch"));
    let text = text.with_context(|| format!("{asked}"))?;
    let run = "ckpt run 7 --files state --ask signal:USR2 --grace 50s --wait 2m -- \
               sh -c 'sh count.sh --name '\\''a b'\\''' &\n";
    ensure!(text.contains(run), "{text}");
    ensure!(text.contains("#SBATCH --requeue"), "{text}");
    Ok(())
}

#[test]
fn a_job_that_fails_its_trial_gets_no_script() -> Result<()> {
    let grid = with_job()?;
    let words = [
        "run", "--setup", "7", "--files", "state", "--under", "htcondor",
    ];
    let short = here(&grid, "ckpt", &[&words[..], &["--", "true"]].concat(), b"")?.expect(1)?;
    ensure!(
        short.stderr.contains("ended before it was evicted"),
        "{short}"
    );
    ensure!(short.stderr.contains("try: "), "{short}");
    ensure!(!grid.path("here/run-7.sub").exists(), "{short}");

    let untried = [&words[..], &["--untried", "--", "sh", "count.sh"]].concat();
    here(&grid, "ckpt", &untried, b"")?.expect(0)?;
    let text = fs::read_to_string(grid.path("here/run-7.sub"))?;
    let arguments = r#"arguments = "run 7 --files state --evict-exit 85 -- sh count.sh""#;
    ensure!(text.contains(arguments), "{text}");
    let inputs = "transfer_input_files = grid.toml, job.key, count.sh\n";
    ensure!(text.contains(inputs), "{text}");
    Ok(())
}
