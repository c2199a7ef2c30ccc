//! The client, and the daemon when started under the name `ckpt-store`: one file to copy, and one
//! to build for the demonstration.

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use ckpt_agent::cli::DaemonProgram;
use ckpt_agent::image::keeper::{self, KEEPER};

/// Name under which this program is the daemon.
const DAEMON: &str = "ckpt-store";

fn main() -> ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    if Path::new(&name).file_name() == Some(OsStr::new(DAEMON)) {
        return ckpt_store::cli::main(std::env::args_os());
    }
    if name == KEEPER {
        return keeper::main();
    }
    let daemon = DaemonProgram {
        path: "/proc/self/exe".into(),
        arg0: DAEMON,
    };
    ckpt_agent::cli::main(std::env::args_os(), &daemon)
}
