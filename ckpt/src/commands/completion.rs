//! Completion in shells. The script of `ckpt completions` has the shell run this program with the words that were typed,
//! so that names of jobs and hosts can be completed, too.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Arg, ArgAction, Command, CommandFactory};
use clap_complete::Shell;
use clap_complete::env::{CompleteEnv, Shells};

use super::args::Cli;
use super::render;
use super::{Answer, done};
use ckpt_agent::report::{ExitStatus, Failure};

/// Variable in which the script names the shell.
const VARIABLE: &str = "CKPT_COMPLETE";

/// The command for which the script is, and by which it finds this program.
const PROGRAM: &str = "ckpt";

/// The script for a shell.
pub(super) fn script(shell: Shell) -> Result<Answer, Failure> {
    let shells = Shells::builtins();
    let named = shells.completer(&shell.to_string());
    let completer = named.ok_or_else(|| {
        Failure::new(ExitStatus::Usage, format!("{shell} can't be served"))
            .next("ckpt completions bash")
    })?;
    let mut script = Vec::new();
    completer
        .write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)
        .map_err(|cause| Failure::new(ExitStatus::Failed, cause.to_string()))?;
    done(render::Text(script))
}

/// Answers the script, if it runs this program. It never says anything but words that complete what was typed.
pub(super) fn answer(args: &[OsString]) -> Option<ExitCode> {
    std::env::var_os(VARIABLE)?;
    let here = std::env::current_dir().ok();
    let answered = CompleteEnv::with_factory(|| quiet(Cli::command()))
        .var(VARIABLE)
        .try_complete(args.iter().cloned(), here.as_deref());
    match answered {
        Ok(false) => None,
        Ok(true) => Some(ExitCode::SUCCESS),
        Err(_) => Some(ExitCode::FAILURE),
    }
}

/// The command with all options hidden. Hidden ones are offered only if nothing else fits: where a job, a host, a file
/// or a command can stand, options appear after a `-`.
fn quiet(command: Command) -> Command {
    let help = Arg::new("help").long("help").short('h');
    let help = help.action(ArgAction::Help).help("Print help");
    let command = command.disable_help_flag(true).arg(help);
    let command = command.mut_args(|option| {
        let is_option = !option.is_positional();
        option.hide(is_option)
    });
    command.mut_subcommands(quiet)
}
