//! Where and how a command prints its result or its failure.

use std::io::{self, Write};
use std::process::ExitCode;

use super::Answer;
use super::args::{Cli, Command};
use super::render::{Report, one_line};
use ckpt_agent::report::{ExitStatus, Failure, HostNote};

/// How and where a command prints its result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    /// Whether to print JSON.
    pub(crate) json: bool,
    /// Whether standard output is kept for the image or for the job's output, so that even a failure goes
    /// to standard error.
    pub(crate) is_for_stderr: bool,
}

impl Form {
    pub(crate) fn of(cli: &Cli) -> Self {
        let is_for_stderr = match &cli.command {
            Command::Restore(restore) => {
                let output = restore.output.as_deref();
                output.is_some_and(|path| path.as_os_str() == "-")
            }
            Command::Cat(_) => true,
            Command::Run(run) => !run.check,
            _ => false,
        };
        Self {
            json: cli.global.json,
            is_for_stderr,
        }
    }
}

/// Prints what a command returned. Returns the exit status of the program.
pub(crate) fn finish(ended: &Result<Answer, Failure>, form: Form) -> ExitCode {
    ExitCode::from(match ended {
        Ok((report, status)) => {
            let code = report.exit_code().unwrap_or(*status as u8);
            match write_report(report.as_ref(), form.json) {
                Ok(()) => code,
                // The reader has closed standard output: the result is not wanted.
                Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => code,
                Err(cause) => {
                    let _ = writeln!(io::stderr(), "ckpt: writing the result: {cause}");
                    report.exit_code().unwrap_or(ExitStatus::LocalIo as u8)
                }
            }
        }
        Err(failure) => {
            let _ = write_failure(failure, form);
            failure.exit_code()
        }
    })
}

pub(crate) fn write_report(report: &dyn Report, json: bool) -> io::Result<()> {
    let mut out: Box<dyn Write> = if report.is_for_stderr() {
        // Standard output has the image, or the job's output.
        Box::new(io::stderr().lock())
    } else {
        Box::new(io::stdout().lock())
    };
    if json {
        writeln!(out, "{}", report.json())?;
    } else {
        report.human(&mut out)?;
    }
    out.flush()
}

/// Most hosts of which a failure says one by one that the same kept them from answering.
const ALIKE_MAX: usize = 5;

pub(crate) fn write_failure(failure: &Failure, form: Form) -> io::Result<()> {
    if form.json {
        let object = serde_json::json!({
            "error": failure,
            "exit_code": failure.exit_code(),
        });
        if form.is_for_stderr || failure.image_on_stdout {
            return writeln!(io::stderr(), "{object}");
        }
        return writeln!(io::stdout(), "{object}");
    }
    let mut err = io::stderr().lock();
    writeln!(err, "ckpt: {}", one_line(&failure.message))?;
    let alike = |one: &HostNote, next: &HostNote| one.what == next.what;
    for notes in failure.hosts.chunk_by(alike) {
        write_notes(&mut err, notes)?;
    }
    if let Some(state) = &failure.state {
        writeln!(err, "{}", one_line(state))?;
    }
    if let Some(next) = &failure.next {
        writeln!(err, "try: {}", one_line(next))?;
    }
    Ok(())
}

/// Writes what hosts have to do with a failure, which is the same for all of these. Many are one line.
fn write_notes(err: &mut impl Write, notes: &[HostNote]) -> io::Result<()> {
    if let Some((named, [last, more @ ..])) = notes.split_at_checked(ALIKE_MAX) {
        let names = named.iter().map(|note| one_line(&note.host).into_owned());
        let names = names.collect::<Vec<_>>().join(", ");
        let more = more.len() + 1;
        let what = one_line(&last.what);
        return writeln!(err, "  {names} and {more} more  {what}");
    }
    for note in notes {
        writeln!(err, "  {}  {}", one_line(&note.host), one_line(&note.what))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_hosts_with_one_reason_are_one_line() {
        let note = |at: usize| HostNote {
            host: format!("m{at}"),
            what: "away".to_owned(),
        };
        let written = |count: usize| {
            let notes: Vec<HostNote> = (1..=count).map(note).collect();
            let mut out = Vec::new();
            write_notes(&mut out, &notes).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written(2), "  m1  away\n  m2  away\n");
        assert_eq!(written(5).lines().count(), 5);
        assert_eq!(written(64), "  m1, m2, m3, m4, m5 and 59 more  away\n");
    }
}
