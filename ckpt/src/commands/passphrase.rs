//! Asks for the passphrase of a sealed file.

use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::commands::args::options::PassphraseArgs;
use ckpt_agent::report::{ExitStatus, Failure};

/// Shortest passphrase of a new file, characters.
const PASSPHRASE_CHARS_MIN: usize = 8;

/// Longest passphrase, bytes.
const PASSPHRASE_BYTES_MAX: u64 = 1024;

/// Which passphrase is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passphrase {
    /// One that is made up now: it has to be long enough, and is typed twice.
    New,
    /// That of an existing file.
    Existing,
}

/// Gets the passphrase: from the first line of a file, or typed by the user.
pub(super) fn ask(args: &PassphraseArgs, which: Passphrase) -> Result<Zeroizing<String>, Failure> {
    let usage = |message: &str| Failure::new(ExitStatus::Usage, message);
    let secret = match &args.passphrase_file {
        Some(path) => {
            let file = File::open(path).map_err(|cause| local(path, &cause))?;
            first_line(file).map_err(|cause| local(path, &cause))?
        }
        None => {
            let typed = type_in("Passphrase: ")?;
            if which == Passphrase::New && *type_in("Repeat the passphrase: ")? != *typed {
                return Err(usage("the two passphrases differ")
                    .next("the same command again, or --passphrase-file FILE"));
            }
            typed
        }
    };
    if which == Passphrase::New && secret.chars().count() < PASSPHRASE_CHARS_MIN {
        let message = format!("a passphrase has at least {PASSPHRASE_CHARS_MIN} characters");
        return Err(usage(&message).next("a longer one, such as five words"));
    }
    Ok(secret)
}

fn first_line(from: impl Read) -> io::Result<Zeroizing<String>> {
    let mut line = Zeroizing::new(String::with_capacity(PASSPHRASE_BYTES_MAX as usize));
    io::BufReader::new(from.take(PASSPHRASE_BYTES_MAX)).read_line(&mut line)?;
    let end = line.trim_end_matches(['\r', '\n']).len();
    line.truncate(end);
    Ok(line)
}

/// Reads a line from the terminal without echo.
fn type_in(prompt: &str) -> Result<Zeroizing<String>, Failure> {
    let no_terminal = |cause: io::Error| {
        let message = format!("there is no terminal to ask for the passphrase: {cause}");
        Failure::new(ExitStatus::Usage, message).next("--passphrase-file FILE")
    };
    let mut terminal = File::options()
        .read(true)
        .write(true)
        .open("/dev/tty")
        .map_err(no_terminal)?;
    let shown = tcgetattr(terminal.as_fd()).map_err(|cause| no_terminal(cause.into()))?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    tcsetattr(terminal.as_fd(), OptionalActions::Flush, &hidden)
        .map_err(|cause| no_terminal(cause.into()))?;
    // The change of the terminal discards input, so the prompt comes after it.
    let asked = terminal.write_all(prompt.as_bytes());
    let line = asked.and_then(|()| first_line(&terminal));
    // Restores the echo, whatever happened.
    let _ = tcsetattr(terminal.as_fd(), OptionalActions::Flush, &shown);
    let _ = terminal.write_all(b"\n");
    line.map_err(no_terminal)
}

fn local(path: &Path, cause: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::local(path.display(), cause)
}
