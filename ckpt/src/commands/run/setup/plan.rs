//! What is to be set up: from the command line and, on a terminal, from three questions.

use std::ffi::OsString;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Component, Path, PathBuf};

use codec::JobId;

use crate::commands::args::run::{RunArgs, Under};
use ckpt_agent::report::{ExitStatus, Failure};

/// Options that concern the set-up alone, and whether a value follows.
const OF_SETUP: [(&str, bool); 4] = [
    ("--setup", false),
    ("--untried", false),
    ("--under", true),
    ("--script", true),
];

/// Options that name a grid and a key. The trial has its own.
const OF_GRID: [(&str, bool); 4] = [
    ("--grid", true),
    ("--key-file", true),
    ("--key-command", true),
    ("--cert-file", true),
];

/// Characters by which a typed line is one for a shell, not words of a command.
const OF_SHELL: &str = "|&;<>()$`\\\"'*?[]#~{}!";

/// A job, and how it is run.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) job: JobId,
    /// The options of `ckpt run`, the job's name and the place of its state among them.
    pub(super) options: Vec<String>,
    /// Files and directories with the job's state; none if its processes are saved.
    pub(super) files: Vec<PathBuf>,
    pub(super) command: Vec<String>,
    pub(super) under: Under,
    /// Whether the user chose the grace and how long to wait for the newest version.
    pub(super) has_grace: bool,
    pub(super) has_wait: bool,
}

impl Plan {
    /// The plan of a command line. What it leaves open is asked on the terminal.
    ///
    /// # Errors
    /// When something is left open and there is no terminal, and when an answer can't be used.
    pub(super) fn of(args: &RunArgs, typed: &[OsString]) -> Result<Self, Failure> {
        let mut options = run_options(typed)?;
        let mut command = utf8(&args.command)?;
        let has_state = !args.files.is_empty() || args.via.is_some();
        let missing = [
            (args.setup.under.is_none(), "--under shell|slurm|htcondor"),
            (!has_state, "--files PATH... or --via criu"),
            (command.is_empty(), "-- COMMAND"),
        ];
        let missing = missing.iter().filter(|(is_missing, _)| *is_missing);
        let missing: Vec<&str> = missing.map(|(_, what)| *what).collect();
        let is_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
        if !missing.is_empty() && !is_terminal {
            return Err(usage("no terminal to ask on", &missing.join(" ")));
        }

        if command.is_empty() {
            command = words(&ask("What is the job's command?")?);
        }
        let mut files = args.files.clone();
        if !has_state {
            files = ask_for_state(&mut options)?;
        }
        let under = match args.setup.under {
            Some(under) => under,
            None => ask_for_place()?,
        };
        if command.is_empty() {
            return Err(usage("no command", "ckpt run --setup -- COMMAND"));
        }
        let job = match args.job.known()? {
            Some(job) => job,
            None => named_after(&command),
        };
        if args.job.typed()?.is_none() {
            options.extend(["--job".to_owned(), job.to_string()]);
        }
        Ok(Self {
            job,
            options,
            files,
            command,
            under,
            has_grace: args.grace.is_some(),
            has_wait: args.wait.is_some(),
        })
    }

    /// Whether the job can be tried in copies of this directory.
    ///
    /// # Errors
    /// When it can't: why.
    pub(super) fn can_be_tried(&self) -> Result<(), String> {
        let is_below = |path: &Path| {
            let mut parts = path.components();
            parts.all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
        };
        match self.files.iter().find(|path| !is_below(path)) {
            Some(path) => Err(format!("{} is not below this directory", path.display())),
            None => Ok(()),
        }
    }

    /// The options without those that name a grid and a key.
    pub(super) fn options_of_trial(&self) -> Vec<String> {
        without(&self.options, &OF_GRID)
    }
}

fn usage(message: &str, next: &str) -> Failure {
    Failure::new(ExitStatus::Usage, message).next(next)
}

fn utf8(words: &[OsString]) -> Result<Vec<String>, Failure> {
    let all = words.iter().map(|word| {
        let text = word.to_str().map(str::to_owned);
        text.ok_or_else(|| {
            usage(
                &format!("{} is no UTF-8", word.display()),
                "ckpt run without --setup",
            )
        })
    });
    all.collect()
}

/// The words between `run` and the command, without those of the set-up.
fn run_options(typed: &[OsString]) -> Result<Vec<String>, Failure> {
    let own = typed.iter().skip(1).take_while(|word| *word != "--");
    let own: Vec<OsString> = own.cloned().collect();
    let mut own = utf8(&own)?;
    // Options of all commands may stand before it.
    if let Some(at) = own.iter().position(|word| word == "run") {
        own.remove(at);
    }
    own.retain(|word| word != "--json");
    Ok(without(&own, &OF_SETUP))
}

/// These words without the named options and their values.
fn without(words: &[String], named: &[(&str, bool)]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let name = word.split('=').next().unwrap_or_default();
        match named.iter().find(|(option, _)| *option == name) {
            Some((_, true)) if !word.contains('=') => {
                rest.next();
            }
            Some(_) => {}
            None => kept.push(word.clone()),
        }
    }
    kept
}

/// A line as words: those between blanks, or a shell and the line if it is one for a shell.
fn words(line: &str) -> Vec<String> {
    if line.contains(|c| OF_SHELL.contains(c)) {
        return ["sh", "-c", line].map(str::to_owned).to_vec();
    }
    line.split_whitespace().map(str::to_owned).collect()
}

/// A job named after its program, or after the file that an interpreter runs.
fn named_after(command: &[String]) -> JobId {
    let mut words = command.iter();
    let program = words.next();
    let file = words.find(|word| Path::new(word).is_file());
    let is_file = program.is_some_and(|program| Path::new(program).is_file());
    let named = if is_file { program } else { file.or(program) };
    let stem = named.and_then(|name| Path::new(name).file_stem());
    let stem = stem.and_then(|stem| stem.to_str()).unwrap_or_default();
    let fit: String = stem
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c))
        .collect();
    fit.parse().unwrap_or_else(|_| unnamed())
}

#[allow(clippy::expect_used, reason = "the text is a constant")]
fn unnamed() -> JobId {
    "job".parse().expect("it is a name")
}

/// Asks for a line on the terminal.
fn ask(question: &str) -> Result<String, Failure> {
    let failed = |cause: io::Error| Failure::local("terminal", &cause);
    write!(io::stderr(), "{question} ").map_err(failed)?;
    let mut line = String::new();
    if io::stdin().lock().read_line(&mut line).map_err(failed)? == 0 {
        return Err(usage(
            "no answer",
            "ckpt run --setup --help: each answer is an option, too",
        ));
    }
    Ok(line.trim().to_owned())
}

fn ask_for_state(options: &mut Vec<String>) -> Result<Vec<PathBuf>, Failure> {
    let answer = ask(
        "To which files or directories does it write its state? (none: its processes are saved, by CRIU)",
    )?;
    let files: Vec<PathBuf> = answer.split_whitespace().map(PathBuf::from).collect();
    if files.is_empty() || answer == "none" {
        options.extend(["--via", "criu"].map(str::to_owned));
        return Ok(Vec::new());
    }
    options.push("--files".to_owned());
    options.extend(answer.split_whitespace().map(str::to_owned));
    if !options.iter().any(|word| word.starts_with("--ask")) {
        let how = ask(
            "How is it asked to write it? signal:USR2, cmd:'COMMAND', or none: it does so by itself, and at SIGTERM. [none]",
        )?;
        if !how.is_empty() && how != "none" {
            options.extend(["--ask".to_owned(), how]);
        }
    }
    Ok(files)
}

fn ask_for_place() -> Result<Under, Failure> {
    match ask("Where does it run? shell, slurm or htcondor. [shell]")?
        .to_lowercase()
        .as_str()
    {
        "" | "shell" => Ok(Under::Shell),
        "slurm" => Ok(Under::Slurm),
        "htcondor" | "condor" => Ok(Under::Htcondor),
        other => Err(usage(
            &format!("{other} is neither shell nor slurm nor htcondor"),
            "--under shell|slurm|htcondor",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn options_of_the_set_up_and_their_values_are_left_out() {
        let typed = [
            "ckpt",
            "--json",
            "run",
            "--setup",
            "7",
            "--under",
            "slurm",
            "--script=a b",
            "--grid",
            "g",
            "--files",
            "state",
            "--untried",
            "--keep",
            "3",
            "--",
            "sim",
            "--setup",
        ];
        let typed: Vec<OsString> = typed.iter().map(OsString::from).collect();
        let options = run_options(&typed).unwrap();
        assert_eq!(
            options,
            ["7", "--grid", "g", "--files", "state", "--keep", "3"]
        );
        let of_trial = without(&options, &OF_GRID);
        assert_eq!(of_trial, ["7", "--files", "state", "--keep", "3"]);
    }

    #[test]
    fn a_line_for_a_shell_is_run_by_one() {
        assert_eq!(words(" ./sim  --n 3 "), ["./sim", "--n", "3"]);
        assert_eq!(words("./sim > log"), ["sh", "-c", "./sim > log"]);
        assert!(words("").is_empty());
    }

    #[test]
    fn a_job_is_named_after_what_runs() {
        let name = |command: &[&str]| named_after(&list(command)).to_string();
        assert_eq!(name(&["./bin/sim.x", "3"]), "sim");
        assert_eq!(name(&["/usr/bin/python3", "train.py"]), "python3");
        assert_eq!(name(&["sh", "Cargo.toml"]), "Cargo");
        assert_eq!(name(&["…"]), "job");
    }
}
