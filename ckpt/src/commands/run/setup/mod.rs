//! `ckpt run --setup`: asks what a job needs, tries a save and an eviction of it, and writes a script or a submit file.

mod plan;
mod script;
mod trial;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::commands::args::run::{RunArgs, Under};
use crate::commands::call::Call;
use crate::commands::render::{Report, json_of_self};
use crate::commands::{Answer, done};
use ckpt_agent::report::{ExitStatus, Failure};
use plan::Plan;
use trial::Trial;

/// Answer of `ckpt run --setup`.
#[derive(Debug, Serialize)]
pub struct SetupReport {
    /// The script or submit file that was written.
    pub file: PathBuf,
    /// Name of the job.
    pub job: String,
    /// For what the file is: `shell`, `slurm` or `htcondor`.
    pub under: &'static str,
    /// What the trial showed; `None` if the job was not tried.
    pub trial: Option<Trial>,
    /// Why the job was not tried.
    pub untried: Option<String>,
    /// The command that starts the job.
    pub next: String,
}

impl Report for SetupReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        match (&self.trial, &self.untried) {
            (Some(trial), _) => trial.write(out)?,
            (None, Some(why)) => writeln!(out, "not tried: {why}")?,
            (None, None) => {}
        }
        writeln!(out, "written: {}", self.file.display())?;
        writeln!(out, "start the job with: {}", self.next)
    }

    json_of_self!();
}

/// Sets a job up.
pub(crate) fn run(call: Call<'_>, args: &RunArgs) -> Result<Answer, Failure> {
    let plan = Plan::of(args, call.typed)?;
    let usual = || {
        PathBuf::from(format!(
            "run-{}.{}",
            plan.job.file_name(),
            ending(plan.under)
        ))
    };
    let file = args.setup.script.clone().unwrap_or_else(usual);
    if file.symlink_metadata().is_ok() {
        return Err(exists(&file));
    }
    let wanted = match args.setup.untried {
        true => Err("as --untried asks".to_owned()),
        false => plan.can_be_tried(),
    };
    let Err(why) = wanted else {
        return call.cancellable(async |cancel| {
            let trial = trial::run(&call, &plan, &cancel).await?;
            done(written(&plan, file, Some(trial), None)?)
        });
    };
    done(written(&plan, file, None, Some(why))?)
}

const fn ending(under: Under) -> &'static str {
    match under {
        Under::Shell => "sh",
        Under::Slurm => "sbatch",
        Under::Htcondor => "sub",
    }
}

fn exists(file: &Path) -> Failure {
    let message = format!("{} exists", file.display());
    Failure::new(ExitStatus::Usage, message).next("--script FILE, or move it away")
}

/// Writes the file, which must not exist.
fn written(
    plan: &Plan,
    file: PathBuf,
    trial: Option<Trial>,
    untried: Option<String>,
) -> Result<SetupReport, Failure> {
    let text = script::text(plan, &file)?;
    let mode = match plan.under {
        Under::Htcondor => 0o644,
        Under::Shell | Under::Slurm => 0o755,
    };
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(mode).open(&file);
    let ended = opened.and_then(|mut open| open.write_all(text.as_bytes()));
    match ended {
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Err(exists(&file)),
        Err(cause) => {
            let message = format!("{}: {cause}", file.display());
            Err(Failure::new(ExitStatus::LocalIo, message).next("--script FILE"))
        }
        Ok(()) => Ok(SetupReport {
            next: script::start(plan, &file),
            file,
            job: plan.job.to_string(),
            under: script::name(plan.under),
            trial,
            untried,
        }),
    }
}
