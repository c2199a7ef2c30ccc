//! The client, and under other names the daemon (`ckpt-store`) and HTCondor's plug-ins (`ckpt_plugin`,
//! `ckpt_cleanup`): one file to copy, and one to build for the demonstration.

// Commands print with `writeln!`, which can fail.
#![cfg_attr(
    not(test),
    deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)
)]

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use ckpt_agent::image::keeper::{self, KEEPER};

#[allow(
    clippy::exit,
    reason = "a second signal ends the program at once, whatever it does"
)]
pub mod commands;

/// Name under which this program is the daemon.
const DAEMON: &str = "ckpt-store";

fn main() -> ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    match Path::new(&name).file_name().and_then(OsStr::to_str) {
        Some(DAEMON) => return ckpt_store::cli::main(std::env::args_os()),
        Some(condor::PLUGIN) => return condor::plugin(std::env::args_os()),
        Some(condor::CLEANUP) => return condor::cleanup(std::env::args_os()),
        _ => {}
    }
    if name == KEEPER {
        return keeper::main();
    }
    let daemon = commands::DaemonProgram {
        path: "/proc/self/exe".into(),
        arg0: DAEMON,
    };
    commands::main(std::env::args_os(), &daemon)
}
