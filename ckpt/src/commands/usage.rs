//! Command lines that can't be parsed.

use std::ffi::OsString;
use std::io::Write;

use clap::error::{ContextKind, ContextValue, ErrorKind};

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
        let mut failure = failure(error);
        failure.next = job_meant(error, args).or(failure.next);
        let _ = write_failure(&failure, form);
    } else {
        let _ = error.print();
        if let Some(meant) = job_meant(error, args) {
            let _ = writeln!(std::io::stderr(), "try: {meant}");
        }
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

/// If the name of a job was given without `--job`: the command that was probably meant.
fn job_meant(error: &clap::Error, args: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let command = args.iter().skip(1).map(|arg| arg.to_str());
    let command = command.flatten().find(|arg| JOB_COMMANDS.contains(arg))?;
    let is_name = error.kind() == ErrorKind::UnknownArgument && !word.starts_with('-');
    let names_none = args
        .iter()
        .all(|arg| !arg.to_string_lossy().starts_with("--job"));
    (is_name && names_none).then(|| format!("ckpt {command} --job {word}"))
}

/// Commands that take the name of a job, and no argument without an option.
const JOB_COMMANDS: [&str; 6] = ["restore", "show", "forget", "touch", "verify", "list"];

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
    fn a_job_without_its_option_is_understood() {
        let meant = |args: &[&str]| {
            let args: Vec<OsString> = args.iter().map(OsString::from).collect();
            job_meant(&Cli::try_parse_from(&args).unwrap_err(), &args)
        };
        let try_it = meant(&["ckpt", "restore", "42"]);
        assert_eq!(try_it.as_deref(), Some("ckpt restore --job 42"));
        assert_eq!(meant(&["ckpt", "show", "--job", "42", "43"]), None);
        assert_eq!(meant(&["ckpt", "restore", "--bogus"]), None);
        assert_eq!(meant(&["ckpt", "save", "--keep", "1"]), None);
    }

    #[test]
    fn a_wrong_command_is_a_failure_like_any_other() {
        let (failure, json) = failed(&["ckpt", "--json", "save"]);
        assert!(json && failure.message.contains("--job"), "{failure}");
        assert!(failure.next.unwrap().starts_with("ckpt save"));
        let (failure, json) = failed(&["ckpt", "bogus", "--json"]);
        assert!(json && failure.message.contains("bogus"), "{failure}");
        let (failure, json) = failed(&["ckpt"]);
        assert!(
            !json && failure.message == "no command is given",
            "{failure}"
        );
        let (_, json) = failed(&["ckpt", "save", "--", "x", "--json"]);
        assert!(!json, "that is the command's own");
    }
}
