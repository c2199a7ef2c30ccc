//! Runs those shell blocks of a page that are for several machines, one after the other, as a reader of
//! the page would. Each machine is a network namespace with a home of its own.
//!
//! `# on m1` names the machine for the lines below it. `TOKEN` stands for the next token that was printed
//! and not used yet. `scp` copies between homes and `systemctl stop` and
//! `restart` end a daemon and start it again: stand-ins
//! for what a reader's machines have. A command that fails for lack of hosts (exit status 5) is tried
//! again.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tests::machines::Machines;
use tests::net::{Lan, available};
use tests::program::{run, wait_until};
use tests::skip::not_checked;
use tests::{Outcome, ckpt};

const LIMIT: Duration = Duration::from_secs(60);

/// Exit status of a command that may succeed later.
const TOO_FEW_HOSTS: i32 = 5;

/// A program `scp` that copies between machines, whose homes are in the same directory.
const SCP: &str = r#"#!/bin/sh
place() {
    case $1 in
        *:*) machine=${1%%:*}; path=${1#*:}; echo "$MACHINES/$machine/${path:-.}" ;;
        *) echo "$1" ;;
    esac
}
exec cp -- "$(place "$1")" "$(place "$2")"
"#;

/// The part of a block that is for one or more machines.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) machines: Vec<u8>,
    /// Commands of one line each, except that a command with `<<END` includes its text up to `END`.
    pub(crate) commands: Vec<String>,
}

/// Splits a block by machine.
pub(crate) fn parts(script: &str) -> Result<Vec<Part>> {
    let mut parts: Vec<Part> = Vec::new();
    let mut is_text = false;
    for line in script.lines() {
        if let Some(place) = line.strip_prefix("# on ") {
            let words = place.split([' ', ',', ':']);
            let words = words.filter(|word| !word.is_empty());
            let numbers = words.map_while(|word| word.strip_prefix('m')?.parse().ok());
            let machines: Vec<u8> = numbers.collect();
            ensure!(!machines.is_empty(), "no machine in {line:?}");
            parts.push(Part {
                machines,
                commands: Vec::new(),
            });
            continue;
        }
        let part = parts.last_mut();
        let part = part.with_context(|| format!("on which machine? {line:?}"))?;
        if is_text {
            let command = part
                .commands
                .last_mut()
                .context("a text without a command")?;
            command.push('\n');
            command.push_str(line);
            is_text = line != "END";
        } else if !line.is_empty() && !line.starts_with('#') {
            part.commands.push(line.to_owned());
            is_text = line.ends_with("<<END");
        }
    }
    Ok(parts)
}

/// A running daemon, and the line that started it.
struct Daemon {
    machine: u8,
    line: String,
    child: Child,
}

/// The machines on which the blocks of a page run, and the tokens that are left.
pub(crate) struct Story {
    lan: Lan,
    machines: Machines,
    daemons: Vec<Daemon>,
    for_machines: VecDeque<String>,
    for_people: VecDeque<String>,
}

impl Drop for Story {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            // The daemon may have ended already.
            let _ = daemon.child.kill();
            let _ = daemon.child.wait();
        }
    }
}

impl Story {
    /// Makes machines, and has `prepare` fill each home. `None` if no network namespaces can be made, which
    /// [`not_checked`] reports.
    pub(crate) fn begin(
        machines: u8,
        prepare: impl Fn(&Path) -> Result<()>,
    ) -> Result<Option<Self>> {
        if let Err(why) = available() {
            not_checked("the manual's commands for several machines", &why)?;
            return Ok(None);
        }
        let story = Self {
            lan: Lan::new(machines)?,
            machines: Machines::new()?,
            daemons: Vec::new(),
            for_machines: VecDeque::new(),
            for_people: VecDeque::new(),
        };
        let programs = story.programs();
        fs::create_dir_all(&programs)?;
        for name in ["ckpt", "ckpt-store"] {
            symlink(ckpt()?, programs.join(name))?;
        }
        let scp = programs.join("scp");
        fs::write(&scp, SCP)?;
        fs::set_permissions(&scp, fs::Permissions::from_mode(0o755))?;
        fs::write(story.passphrase(), "correct horse battery staple\n")?;
        for machine in 1..=machines {
            let home = story.home(machine);
            fs::create_dir_all(&home)?;
            prepare(&home)?;
        }
        Ok(Some(story))
    }

    /// The same machines, all with this host name, as machines of one image have it.
    pub(crate) fn of_one_image(mut self, name: &str) -> Self {
        self.lan.call_all(name);
        self
    }

    fn programs(&self) -> PathBuf {
        self.machines.home("programs")
    }

    fn passphrase(&self) -> PathBuf {
        self.machines.path("programs", "passphrase")
    }

    fn home(&self, machine: u8) -> PathBuf {
        self.machines.home(&format!("m{machine}"))
    }

    /// Runs a block.
    pub(crate) fn run(&mut self, script: &str) -> Result<()> {
        for part in parts(script)? {
            for machine in &part.machines {
                for command in &part.commands {
                    self.line(*machine, command)
                        .with_context(|| format!("on m{machine}: {command}"))?;
                }
            }
        }
        Ok(())
    }

    fn line(&mut self, machine: u8, line: &str) -> Result<()> {
        let line = self.with_token(line)?;
        if line.starts_with("systemctl restart ckpt-store") {
            return self.restart(machine);
        }
        if line.starts_with("systemctl stop ckpt-store") {
            return self.stop(machine).map(|_| ());
        }
        if let Some(daemon) = line.strip_suffix(" &") {
            return self.start(machine, daemon);
        }
        let begun = Instant::now();
        loop {
            let outcome = run(&mut self.command(machine, &line)?)?;
            if outcome.code == Some(TOO_FEW_HOSTS) && begun.elapsed() < LIMIT {
                std::thread::sleep(Duration::from_millis(300));
                continue;
            }
            return self.keep_tokens(&outcome.expect(0)?);
        }
    }

    fn with_token(&mut self, line: &str) -> Result<String> {
        if !line.contains("TOKEN") {
            return Ok(line.to_owned());
        }
        let tokens = if line.starts_with("ckpt-store ") {
            &mut self.for_machines
        } else {
            &mut self.for_people
        };
        let token = tokens.pop_front().context("no token is left")?;
        Ok(line.replace("TOKEN", &token))
    }

    fn keep_tokens(&mut self, outcome: &Outcome) -> Result<()> {
        let said = std::str::from_utf8(&outcome.stdout)?;
        for token in said.split_whitespace() {
            if !token.starts_with("ckpt-join-") {
                continue;
            }
            let tokens = if token.contains("/submitter/") {
                &mut self.for_people
            } else {
                &mut self.for_machines
            };
            tokens.push_back(token.to_owned());
        }
        Ok(())
    }

    /// A shell of the machine's user that runs `line`.
    fn command(&self, machine: u8, line: &str) -> Result<Command> {
        let home = self.home(machine);
        let script = home.join(".script");
        fs::write(&script, line)?;
        let mut command = self
            .lan
            .shell(machine, "exec bash -e -u -o pipefail .script");
        self.machines.at(&format!("m{machine}"), &mut command)?;
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("PATH", format!("{}:{path}", self.programs().display()))
            .env("XDG_CONFIG_HOME", home.join(".config"))
            .env("XDG_DATA_HOME", home.join(".local/share"))
            .env("XDG_STATE_HOME", home.join(".local/state"))
            .env("CKPT_PASSPHRASE_FILE", self.passphrase())
            .env("MACHINES", home.parent().context("a home has a parent")?)
            .env_remove("CKPT_GRID")
            .env_remove("CKPT_KEY_FILE")
            .env_remove("CKPT_CERT_FILE")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(command)
    }

    /// Starts a daemon or registry, and waits until it is ready.
    fn start(&mut self, machine: u8, line: &str) -> Result<()> {
        let home = self.home(machine);
        let ready = home.join(format!(".ready-{}", self.daemons.len()));
        let log = home.join(".log");
        let whole = format!("exec {line} --ready-file {}", ready.display());
        let mut command = self.command(machine, &whole)?;
        let append = fs::File::options().create(true).append(true).open(&log)?;
        let child = command.stdout(Stdio::null()).stderr(append).spawn()?;
        self.daemons.push(Daemon {
            machine,
            line: line.to_owned(),
            child,
        });
        let daemon = self.daemons.last_mut().context("just started")?;
        wait_until("the daemon is ready", LIMIT, || {
            if let Some(status) = daemon.child.try_wait()? {
                bail!("it ended ({status}): {}", fs::read_to_string(&log)?);
            }
            Ok(ready.exists())
        })
    }

    fn restart(&mut self, machine: u8) -> Result<()> {
        let line = self.stop(machine)?;
        self.start(machine, &line)
    }

    /// Ends the daemon of a machine, and returns the line that started it.
    fn stop(&mut self, machine: u8) -> Result<String> {
        let is_meant = |daemon: &Daemon| daemon.machine == machine;
        let at = self.daemons.iter().position(is_meant);
        let mut daemon = self.daemons.remove(at.context("no daemon to stop")?);
        daemon.child.kill()?;
        daemon.child.wait()?;
        Ok(daemon.line)
    }
}

#[test]
fn blocks_are_taken_apart_by_machine() -> Result<()> {
    let script = "# on m1\na\n\n# on m2, m3: why\nb <<END\nx = 1\n# y\nEND\nc   # more\n";
    let part = |machines: &[u8], commands: &[&str]| Part {
        machines: machines.to_vec(),
        commands: commands.iter().map(ToString::to_string).collect(),
    };
    let expected = [
        part(&[1], &["a"]),
        part(&[2, 3], &["b <<END\nx = 1\n# y\nEND", "c   # more"]),
    ];
    assert_eq!(parts(script)?, expected);
    assert!(parts("ckpt list\n").is_err());
    Ok(())
}
