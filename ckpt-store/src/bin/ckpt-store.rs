//! The program `ckpt-store`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ckpt_store::cli::main(std::env::args_os())
}
