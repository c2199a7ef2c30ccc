//! Runs the README's commands for a grid of three machines, and checks how few they are.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::machines::Machines;
use tests::net::{Lan, available};
use tests::port::free_address;
use tests::program::{run, wait_until};
use tests::skip::not_checked;
use tests::{Outcome, ckpt, image};

const README: &str = include_str!("../../README.md");

const LIMIT: Duration = Duration::from_secs(60);

/// The commands of the README's block with `grid init`, grouped by the comments above them.
fn commands() -> Result<Vec<Vec<String>>> {
    let blocks = README.split("```sh\n").skip(1);
    let mut blocks = blocks.filter_map(|rest| rest.split("```").next());
    let block = blocks
        .find(|block| block.contains("grid init"))
        .context("no such block")?;
    let mut parts: Vec<Vec<String>> = Vec::new();
    for line in block.lines().filter(|line| !line.is_empty()) {
        if line.starts_with('#') {
            parts.push(Vec::new());
        } else {
            let part = parts
                .last_mut()
                .context("a command without a comment above")?;
            part.push(line.to_owned());
        }
    }
    Ok(parts)
}

/// Three machines: in network namespaces or, where these can't be made, on loopback addresses.
struct Trial {
    machines: Machines,
    lan: Option<Lan>,
    /// The address that replaces the README's address of the registry on loopback.
    registry: String,
    running: Vec<Child>,
}

impl Drop for Trial {
    fn drop(&mut self) {
        for daemon in &mut self.running {
            // The daemon may have ended already.
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

impl Trial {
    fn new() -> Result<Self> {
        let lan = match available() {
            Ok(()) => Some(Lan::new(3)?),
            Err(why) => {
                not_checked(
                    "the README's three machines, each with a network of its own",
                    &why,
                )?;
                None
            }
        };
        let trial = Self {
            machines: Machines::new()?,
            lan,
            registry: free_address()?.to_string(),
            running: Vec::new(),
        };
        let programs = trial.programs();
        fs::create_dir_all(&programs)?;
        for name in ["ckpt", "ckpt-store"] {
            symlink(ckpt()?, programs.join(name))?;
        }
        Ok(trial)
    }

    fn programs(&self) -> PathBuf {
        self.machines.home("bin")
    }

    /// A command of the README, with `token` in the place of TOKEN.
    fn line(&self, machine: u8, line: &str, token: &str) -> Result<Command> {
        let line = line.replace("TOKEN", token);
        let line = format!("exec {}", line.trim_end_matches(" &"));
        let mut command = match &self.lan {
            Some(lan) => lan.shell(machine, &line),
            None => {
                let mut line = line.replace("10.0.0.1:7601", &self.registry);
                if line.contains("ckpt-store serve") {
                    line.push_str(" --listen 127.0.0.1:0");
                }
                if line.contains("ckpt-store join") {
                    line.push_str(&format!(" --name m{machine}"));
                }
                let mut command = Command::new("sh");
                command.args(["-c", &line]).stdin(Stdio::null());
                command
            }
        };
        self.machines.at(&format!("m{machine}"), &mut command)?;
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("PATH", format!("{}:{path}", self.programs().display()))
            .env_remove("CKPT_GRID")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(command)
    }

    /// Runs a command to its end, or starts it if it ends with an ampersand.
    fn run(&mut self, machine: u8, line: &str, token: &str) -> Result<Outcome> {
        let mut command = self.line(machine, line, token)?;
        if !line.ends_with(" &") {
            return run(&mut command)?.expect(0);
        }
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.machines.path(&format!("m{machine}"), "log"))?;
        let daemon = command.stdout(Stdio::null()).stderr(log).spawn()?;
        self.running.push(daemon);
        Ok(Outcome {
            code: None,
            stdout: Vec::new(),
            stderr: String::new(),
        })
    }
}

#[test]
fn three_machines_become_a_grid_with_three_commands_and_two_on_each() -> Result<()> {
    let parts = commands()?;
    let [first, each, submitter] = parts.as_slice() else {
        anyhow::bail!("{parts:?}");
    };
    ensure!(first.len() <= 3, "on the first machine: {first:?}");
    ensure!(each.len() <= 2, "on each machine: {each:?}");
    ensure!(submitter.len() <= 2, "whoever saves: {submitter:?}");
    let mut trial = Trial::new()?;
    let mut said = Vec::new();
    for line in first {
        said = trial.run(1, line, "")?.stdout;
    }
    let said = String::from_utf8(said)?;
    let (people, donors): (Vec<&str>, Vec<&str>) = said
        .lines()
        .partition(|token| token.contains("/submitter/"));
    ensure!((donors.len(), people.len()) == (3, 1), "{said}");
    // Nothing but a token is copied from one machine to another.
    for (machine, token) in (1..=3).zip(&donors) {
        for line in each {
            trial.run(machine, line, token)?;
        }
    }
    let saved = image::memory(3 << 20, 1);
    fs::create_dir_all(trial.machines.home("m3"))?;
    fs::write(trial.machines.path("m3", "image.bin"), &saved)?;
    let [join, save] = submitter.as_slice() else {
        anyhow::bail!("{submitter:?}");
    };
    trial.run(3, join, people[0])?;
    wait_until("three hosts are up", LIMIT, || {
        let mut hosts = trial.line(3, "ckpt hosts --json", "")?;
        let hosts = run(&mut hosts)?.expect(0)?.json()?;
        Ok(hosts["hosts"].to_string().matches("\"up\":true").count() == 3)
    })?;
    trial.run(3, save, "")?;
    let mut restore = trial.line(3, "ckpt restore --job 42 -o -", "")?;
    ensure!(run(&mut restore)?.expect(0)?.stdout == saved);
    Ok(())
}
