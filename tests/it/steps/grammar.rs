//! The command lines that a text names, compared with the man pages that both programs write of themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;

use anyhow::{Context, Result};
use tests::program::{command, run};

/// The two programs.
const PROGRAMS: [&str; 2] = ["ckpt", "ckpt-store"];

/// Words with which a command line ends.
const BETWEEN: [&str; 8] = ["or", "and", "then", "|", "||", "<", ">", "instead"];

/// Words that follow a program's name in a sentence, and are no commands.
const PROSE: [&str; 8] = [
    "acts",
    "directory",
    "in",
    "is",
    "or",
    "reads",
    "there",
    "to",
];

/// Options of other programs, and of commands that only the programs themselves use.
const FOREIGN: [&str; 9] = [
    "--decrypt",
    "--features",
    "--lowest",
    "--own-session",
    "--pid",
    "--resource",
    "--scratch",
    "--staged",
    "--started",
];

/// All commands of both programs, such as `ckpt key export`, each with its options, such as `--output` and `-o`.
#[derive(Debug)]
pub(super) struct Commands(BTreeMap<String, BTreeSet<String>>);

impl Commands {
    /// The commands that the programs write man pages of.
    pub(super) fn of_the_programs() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let mut commands = Self(BTreeMap::new());
        for program in PROGRAMS {
            let pages = dir.path().join(program);
            let mut man = command(["man", "--dir"])?;
            run(man.arg(&pages).arg0(program))?.expect(0)?;
            for entry in fs::read_dir(&pages)? {
                commands.read(&entry?.path())?;
            }
        }
        Ok(commands)
    }

    fn read(&mut self, page: &Path) -> Result<()> {
        if page.extension().is_none_or(|section| section != "1") {
            return Ok(());
        }
        let text = fs::read_to_string(page)?.replace("\\-", "-");
        let synopsis = text.split(".SH SYNOPSIS\n\\fB").nth(1);
        let name = synopsis.and_then(|rest| rest.split("\\fR").next());
        let name = name.with_context(|| format!("no synopsis: {}", page.display()))?;
        let lines = text.lines().filter(|line| line.starts_with("\\fB-"));
        let bold = lines.flat_map(|line| line.split("\\fB").skip(1));
        let options = bold.filter_map(|rest| rest.split("\\fR").next());
        let options = options.filter(|option| option.starts_with('-'));
        let options = options.map(str::to_owned).collect();
        self.0.insert(name.to_owned(), options);
        Ok(())
    }

    fn has_below(&self, name: &str) -> bool {
        let below = format!("{name} ");
        self.0.keys().any(|other| other.starts_with(&below))
    }

    fn is_option_of_any(&self, option: &str) -> bool {
        self.0.values().any(|options| options.contains(option))
    }

    /// What a text names that there is not: commands and options.
    pub(super) fn missing_from(&self, text: &str) -> Vec<String> {
        let mut missing = Vec::new();
        // A script is for its own programs.
        let lines = text.lines().filter(|_| !text.starts_with("#!"));
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            self.look_for(&words, &mut missing);
        }
        missing
    }

    fn look_for(&self, words: &[&str], missing: &mut Vec<String>) {
        // The command whose options may follow.
        let mut within: Option<String> = None;
        // After `--` come the words of another program.
        let mut is_foreign = false;
        let mut at = 0;
        while let Some(word) = words.get(at) {
            let (bare, ends) = trimmed(word);
            at += 1;
            if let Some(program) = program_of(bare) {
                is_foreign = false;
                let below = words.get(at..).filter(|_| !ends).unwrap_or_default();
                let (found, count) = self.command_at(program, below, missing);
                within = found;
                at += count;
                continue;
            }
            is_foreign |= bare == "--";
            if !is_foreign && is_option(bare) {
                missing.extend(self.lacking(within.as_deref(), option_of(bare)));
            }
            if ends || BETWEEN.contains(&bare) {
                within = None;
                is_foreign = false;
            }
        }
    }

    /// The command of the program that the words begin with, if its options may follow, and how many words it has.
    fn command_at(
        &self,
        program: &str,
        words: &[&str],
        missing: &mut Vec<String>,
    ) -> (Option<String>, usize) {
        let mut name = program.to_owned();
        for (count, word) in words.iter().enumerate() {
            let (bare, ends) = trimmed(word);
            let bare = bare.split('{').next().unwrap_or_default();
            let longer = format!("{name} {bare}");
            if self.0.contains_key(&longer) {
                name = longer;
                if ends {
                    return (None, count + 1);
                }
                continue;
            }
            let is_a_group = self.has_below(&name);
            if is_a_group && PROSE.contains(&bare) {
                return (None, count);
            }
            if is_a_group && is_command_name(bare) {
                missing.push(longer);
                return (None, count);
            }
            return (Some(name), count);
        }
        (Some(name), words.len())
    }

    /// The option, if the command, or without a command each of both programs, has no such option.
    fn lacking(&self, command: Option<&str>, option: &str) -> Option<String> {
        let exists = match command.and_then(|name| self.0.get(name)) {
            Some(options) => options.contains(option),
            None => !option.starts_with("--") || self.is_option_of_any(option),
        };
        let is_lacking = !exists && !FOREIGN.contains(&option);
        is_lacking.then(|| format!("{} {option}", command.unwrap_or("any command")))
    }
}

/// A word without quotes and punctuation, and whether a command line ends with it.
fn trimmed(word: &str) -> (&str, bool) {
    let word = word.trim_start_matches(['`', '(', '"', '\'', '[']);
    let bare = word.trim_end_matches(['`', ')', '"', '\'', ';', ',', ':', '.', ']']);
    (bare, bare.len() < word.len())
}

/// The program that a word names. Options that are put in follow its name in braces, as in `ckpt{options}`.
fn program_of(word: &str) -> Option<&'static str> {
    let name = word.split('{').next().unwrap_or_default();
    PROGRAMS.into_iter().find(|program| *program == name)
}

/// Whether a word is written as the names of commands are.
fn is_command_name(word: &str) -> bool {
    let is_part = |sign: char| sign.is_ascii_lowercase() || sign == '-';
    word.starts_with(|first: char| first.is_ascii_lowercase()) && word.chars().all(is_part)
}

fn is_option(word: &str) -> bool {
    let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-'));
    name.is_some_and(|name| name.starts_with(|first: char| first.is_ascii_alphabetic()))
}

/// An option without its value.
fn option_of(word: &str) -> &str {
    let is_part = |sign: char| sign.is_ascii_alphanumeric() || sign == '-';
    let end = word.find(|sign| !is_part(sign)).unwrap_or(word.len());
    word.get(..end).unwrap_or(word)
}
