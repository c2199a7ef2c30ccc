//! Command lines that can't be parsed.

use std::ffi::OsString;

use clap::error::ErrorKind;

use super::output::{Form, write_failure};
use ckpt_agent::report::{ExitStatus, Failure};

/// Prints what is wrong with `args`, or the help that they ask for. Returns the exit status of the
/// program.
pub(super) fn said(error: &clap::Error, args: &[OsString]) -> ExitStatus {
    let is_failure = error.use_stderr();
    // Both fail only if the stream is closed.
    if is_failure && wants_json(args) {
        let form = Form {
            json: true,
            is_for_stderr: false,
        };
        let _ = write_failure(&failure(error), form);
    } else {
        let _ = error.print();
    }
    if is_failure {
        ExitStatus::Usage
    } else {
        ExitStatus::Done
    }
}

/// Whether `--json` is among the options. Looks word by word, since the command line could not be parsed;
/// words after `--` belong to another command.
fn wants_json(args: &[OsString]) -> bool {
    let mut options = args.iter().skip(1).take_while(|arg| *arg != "--");
    options.any(|arg| arg == "--json")
}

/// The parser's error as a failure.
fn failure(error: &clap::Error) -> Failure {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Failure::new(ExitStatus::Usage, "no command is given").next("ckpt --help");
    }
    let text = error.render().to_string();
    let (what, usage) = text.split_once("Usage:").unwrap_or((&text, ""));
    let what = what.trim().trim_start_matches("error:");
    let message: Vec<&str> = what.split_whitespace().collect();
    let usage = usage.lines().next().unwrap_or_default().trim();
    Failure::new(ExitStatus::Usage, message.join(" ")).next(if usage.is_empty() {
        "ckpt --help"
    } else {
        usage
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::commands::args::Cli;

    fn failed(args: &[&str]) -> (Failure, bool) {
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        let error = Cli::try_parse_from(&args).unwrap_err();
        (failure(&error), wants_json(&args))
    }

    #[test]
    fn a_wrong_command_is_a_failure_like_any_other() {
        let (failure, json) = failed(&["ckpt", "--json", "save"]);
        assert!(json && failure.message.contains("PATH"), "{failure}");
        assert!(failure.next.unwrap().starts_with("ckpt save"));
        let (failure, json) = failed(&["ckpt", "bogus", "--json"]);
        assert!(json && failure.message.contains("bogus"), "{failure}");
        let (failure, json) = failed(&["ckpt"]);
        assert!(
            !json && failure.message == "no command is given",
            "{failure}"
        );
        let (_, json) = failed(&["ckpt", "save", "--bogus", "--", "x", "--json"]);
        assert!(!json, "that is the command's own");
    }
}
