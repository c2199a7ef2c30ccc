//! `ckpt watch`: directories that a program puts in place are saved, whoever is killed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::program::{run, wait, wait_until};
use tests::{Grid, image};

const LONG: Duration = Duration::from_secs(60);

/// Writes a checkpoint as trainers do: under another name, and then renamed.
fn put_in_place(grid: &Grid, name: &str, bytes: &[u8]) -> Result<()> {
    let dir = grid.path("out");
    let tmp = dir.join(format!("tmp-{name}"));
    fs::create_dir_all(tmp.join("parts"))?;
    fs::write(tmp.join("model"), bytes)?;
    fs::write(tmp.join("parts/1"), b"part")?;
    // The clock of the file system has to go on, so that the rename shows.
    sleep(Duration::from_millis(20));
    Ok(fs::rename(tmp, dir.join(name))?)
}

/// A running `ckpt watch --json`, and its lines.
struct Watching {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Watching {
    fn start(grid: &Grid, more: &[&str]) -> Result<Self> {
        let dir = grid.path("out");
        fs::create_dir_all(&dir)?;
        let mut command = grid.command(["--json", "watch", "--job", "42"])?;
        command.args(more).arg(&dir).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let lines = BufReader::new(child.stdout.take().context("no output")?);
        Ok(Self { child, lines })
    }

    fn next(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    /// Name and version of the next save.
    fn saved(&mut self) -> Result<(String, u64)> {
        let line = self.next()?;
        let name = line["name"].as_str().with_context(|| line.to_string())?;
        let version = line["saved"]["version"].as_u64();
        Ok((name.to_owned(), version.context("no version")?))
    }

    fn end(mut self, signal: Signal) -> Result<(Value, Option<i32>)> {
        kill_process(Pid::from_child(&self.child), signal)?;
        let last = if signal == Signal::KILL {
            Value::Null
        } else {
            self.next()?
        };
        Ok((last, self.child.wait()?.code()))
    }
}

fn restored(grid: &Grid, name: &str) -> Result<Vec<u8>> {
    let to = grid.path("restored");
    let _ = fs::remove_dir_all(&to);
    fs::create_dir(&to)?;
    let mut restore = grid.command(["restore", "--job", "42", "-o"])?;
    run(restore.arg(&to))?.expect(0)?;
    Ok(fs::read(to.join(name).join("model"))?)
}

#[test]
fn a_directory_renamed_into_place_is_saved_and_restored_under_its_name() -> Result<()> {
    let grid = Grid::up(5)?;
    put_in_place(&grid, "step-1", b"one")?;
    let mut watching = Watching::start(&grid, &[])?;
    ensure!(watching.saved()? == ("step-1".into(), 1));
    ensure!(restored(&grid, "step-1")? == b"one");
    // Half a checkpoint is there all the time.
    let half = grid.path("out/tmp-step-3");
    fs::create_dir(&half)?;
    fs::write(half.join("model"), b"half")?;
    put_in_place(&grid, "step-2", b"two")?;
    ensure!(watching.saved()? == ("step-2".into(), 2));
    let (last, code) = watching.end(Signal::TERM)?;
    ensure!(code == Some(143), "{last}");
    ensure!(last["exit_code"] == 143 && last["error"]["state"] == "version 2 is step-2");
    // The next start knows what was saved.
    let again = ["--json", "watch", "--job", "42", "--once"];
    let mut once = grid.command(again)?;
    let report = run(once.arg(grid.path("out")))?.expect(0)?.json()?;
    ensure!(
        report["saves"] == 0 && report["version"].is_null(),
        "{report}"
    );
    ensure!(report["passed_over"][0] == "tmp-step-3", "{report}");
    // Older than what is saved, it would not become the newest version.
    fs::write(half.join("more"), b"half")?;
    let in_place = ["watch", "--job", "42", "--once", "--in-place"];
    run(grid.command(in_place)?.arg(grid.path("out")))?.expect(2)?;
    let mut in_place = grid.command(in_place)?;
    let in_place = in_place.args(["--unless", "writing"]);
    let said = run(in_place.arg(grid.path("out")))?.expect(0)?;
    let out = String::from_utf8_lossy(&said.stdout);
    ensure!(out.contains("tmp-step-3: job 42 version 3"), "{said}");
    ensure!(out.contains("job 42: 1 checkpoint saved"), "{said}");
    Ok(())
}

#[test]
fn what_a_trainer_writes_in_place_is_saved_when_its_last_file_is_there() -> Result<()> {
    let grid = Grid::up(5)?;
    let out = grid.path("out");
    let write = |path: &str, text: &str| -> Result<()> {
        let path = out.join(path);
        fs::create_dir_all(path.parent().context("parent")?)?;
        Ok(fs::write(path, text)?)
    };
    write("checkpoint-500/model.safetensors", "half")?;
    write("global_step7/model", "whole")?;
    write("own/data", "half")?;
    let once = |more: &[&str]| -> Result<Value> {
        let mut command = grid.command(["--json", "watch", "--job", "42", "--once"])?;
        let said = run(command.args(more).arg(&out))?.expect(0)?;
        // Each save has a line of its own before the report.
        let text = String::from_utf8_lossy(&said.stdout);
        Ok(serde_json::from_str(
            text.lines().last().unwrap_or_default(),
        )?)
    };
    let nothing = once(&[])?;
    ensure!(nothing["saves"] == 0, "{nothing}");
    let passed_over = nothing["passed_over"].as_array().context("passed_over")?;
    ensure!(passed_over.len() == 3, "{nothing}");
    // Transformers' last file, and DeepSpeed's.
    write("checkpoint-500/trainer_state.json", "{}")?;
    write("latest", "global_step7\n")?;
    let both = once(&["--keep", "5"])?;
    ensure!(both["saves"] == 2, "{both}");
    ensure!(both["passed_over"] == serde_json::json!(["own"]), "{both}");
    // A program of one's own: nothing else counts then.
    write("own/DONE", "")?;
    let marked = once(&["--keep", "5", "--marker", "DONE"])?;
    ensure!(marked["saves"] == 1, "{marked}");
    let back = grid.path("back");
    let mut restore = grid.command(["restore", "--job", "42", "-o"])?;
    run(restore.arg(&back))?.expect(0)?;
    ensure!(fs::read_to_string(back.join("data"))? == "half" && back.join("DONE").is_file());
    Ok(())
}

#[test]
fn a_watcher_that_is_killed_in_a_save_leaves_the_one_before_and_saves_it_after_its_next_start()
-> Result<()> {
    let grid = Grid::up(5)?;
    put_in_place(&grid, "step-1", b"one")?;
    let mut watching = Watching::start(&grid, &[])?;
    ensure!(watching.saved()? == ("step-1".into(), 1));
    put_in_place(&grid, "step-2", &image::memory(64 << 20, 1))?;
    wait_until("a shard is being written", LONG, || {
        let incoming = grid.data_dir("h01").join("incoming");
        Ok(fs::read_dir(incoming)?.next().is_some())
    })?;
    watching.end(Signal::KILL)?;
    ensure!(restored(&grid, "step-1")? == b"one");
    let mut watching = Watching::start(&grid, &[])?;
    let (name, version) = watching.saved()?;
    ensure!(name == "step-2" && version >= 2, "{version}");
    ensure!(restored(&grid, "step-2")? == image::memory(64 << 20, 1));
    let (_, code) = watching.end(Signal::INT)?;
    ensure!(code == Some(130));
    Ok(())
}

#[test]
fn a_checkpoint_that_hosts_can_t_take_is_saved_when_they_can() -> Result<()> {
    let grid = Grid::up(5)?;
    let names = ["h01", "h02", "h03"];
    for name in names {
        grid.kill(name)?;
    }
    put_in_place(&grid, "step-1", b"one")?;
    let dir = grid.path("out");
    let mut command = grid.command(["watch", "--job", "42", "--once", "--deadline", "3s"])?;
    command.arg(&dir).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut said = BufReader::new(child.stderr.take().context("no errors")?);
    let mut line = String::new();
    while !line.contains("step-1 is not saved") {
        line.clear();
        ensure!(said.read_line(&mut line)? > 0, "it ended");
    }
    ensure!(line.contains("tried again in"), "{line}");
    grid.restart()?;
    wait(child)?.expect(0)?;
    ensure!(restored(&grid, "step-1")? == b"one");
    Ok(())
}

#[test]
fn a_directory_that_is_not_there_is_named() -> Result<()> {
    let grid = Grid::up(1)?;
    let said = grid.run(["watch", "--job", "42", "nowhere"])?.expect(8)?;
    ensure!(
        said.stderr.contains("nowhere: it is not a directory"),
        "{said}"
    );
    Ok(())
}
