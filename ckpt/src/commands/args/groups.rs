//! The list of commands in the help of the program, in groups, and which options a short help has.
//!
//! The parser's library has no headings for commands. Man pages and completions have all commands.

use clap::builder::Styles;
use clap::{Arg, Subcommand};

use super::Command;

/// The commands of the list by what they are for.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Every day", &["run", "save", "restore", "list", "health"]),
    (
        "Look closer",
        &[
            "show",
            "map",
            "cat",
            "verify",
            "hosts",
            "doctor",
            "dashboard",
            "jobs",
            "runs",
        ],
    ),
    ("Tidy up", &["forget", "touch", "gc"]),
    ("Join and keys", &["join", "init", "key"]),
    ("Run a grid", &["grid", "demo"]),
    ("Plan and automate", &["plan", "trace", "watch", "wait"]),
];

/// Commands that people rarely type: they are named, without a line of their own.
const RARE: [&str; 3] = ["notify", "completions", "man"];

/// Options of `ckpt save` that its short help has.
const SAVE_SHORT: &[&str] = &[
    "job", "data", "parity", "keep", "ttl", "exclude", "note", "full", "deadline", "paths",
    "command",
];

/// Options of `ckpt run` that its short help has.
const RUN_SHORT: &[&str] = &[
    "job", "place", "files", "append", "ask", "via", "grace", "batch", "check", "keep", "exclude",
    "ttl", "on", "setup", "command",
];

/// The help of the program as a template of the parser's library.
pub(super) fn template() -> String {
    let all = Command::augment_subcommands(clap::Command::new("ckpt"));
    let styles = Styles::styled();
    let header = |text: &str| {
        let style = styles.get_header();
        format!("{style}{text}:{style:#}\n")
    };
    let literal = styles.get_literal();
    let mut lists = String::new();
    for (title, names) in GROUPS {
        lists.push_str(&header(title));
        for name in names {
            let command = all.find_subcommand(name);
            let about = command.and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            lists.push_str(&format!("  {literal}{name:<10}{literal:#} {about}\n"));
        }
        lists.push('\n');
    }
    format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{lists}Rarely typed: {}. Each command has a help of its \
         own: ckpt COMMAND --help\n\n{}{{options}}{{after-help}}",
        RARE.join(", "),
        header("Options of all commands"),
    )
}

/// Leaves an option of `ckpt save` out of the short help if it is rarely needed.
pub(super) fn shorten_save(option: Arg) -> Arg {
    shorten(option, SAVE_SHORT)
}

/// Leaves an option of `ckpt run` out of the short help if it is rarely needed.
pub(super) fn shorten_run(option: Arg) -> Arg {
    shorten(option, RUN_SHORT)
}

fn shorten(option: Arg, kept: &[&str]) -> Arg {
    let is_kept = kept.contains(&option.get_id().as_str());
    option.hide_short_help(!is_kept)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::commands::args::Cli;

    #[test]
    fn every_command_stands_in_the_help_once() {
        let command = Cli::command();
        let listed = GROUPS.iter().flat_map(|(_, names)| names.iter());
        let mut listed: Vec<&str> = listed.chain(&RARE).copied().collect();
        let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
        let mut all: Vec<&str> = shown.map(clap::Command::get_name).collect();
        listed.sort_unstable();
        all.sort_unstable();
        assert_eq!(listed, all);
    }

    #[test]
    fn the_help_has_six_headings_and_a_line_for_each_command() {
        let help = Cli::command().render_long_help().to_string();
        for (title, names) in GROUPS {
            let below = help.split(&format!("{title}:\n")).nth(1);
            let below = below.and_then(|rest| rest.split("\n\n").next());
            let below = below.unwrap_or_default();
            let found = below.lines().filter_map(|line| {
                let (name, about) = line.trim().split_once(' ')?;
                (about.trim().len() > 10).then_some(name)
            });
            assert_eq!(found.collect::<Vec<_>>(), names, "{title}: {help}");
        }
        assert!(help.contains("Rarely typed: notify"), "{help}");
        assert!(help.contains("--grid") && help.contains("Exit status:"));
    }

    #[test]
    fn a_short_help_has_the_options_that_count_and_the_long_one_has_all() {
        let mut command = Cli::command();
        command.build();
        for (name, kept) in [("save", SAVE_SHORT), ("run", RUN_SHORT)] {
            let one = command.find_subcommand_mut(name).unwrap();
            let short = one.render_help().to_string();
            let long = one.render_long_help().to_string();
            let own = short.split("Options of all commands").next().unwrap();
            let options = own.matches("\n      --").count() + own.matches("\n  -").count();
            assert!((8..=14).contains(&options), "{options}: {short}");
            for argument in one.get_arguments().filter(|one| !one.is_hide_set()) {
                let Some(option) = argument.get_long().map(|long| format!("--{long}")) else {
                    continue;
                };
                let is_there = |help: &str| {
                    let mut words = help.split_whitespace();
                    words.any(|word| word.split('[').next() == Some(&option))
                };
                assert!(is_there(&long), "{name} {option}: {long}");
                let is_kept = kept.contains(&argument.get_id().as_str());
                assert!(!is_kept || is_there(&short), "{name} {option}: {short}");
            }
            for id in kept {
                let mut ids = one.get_arguments().map(|one| one.get_id().as_str());
                assert!(ids.any(|one| one == *id), "{name} has no {id}");
            }
        }
    }
}
