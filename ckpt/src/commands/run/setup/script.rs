//! The script or submit file of a job.

use std::path::Path;

use super::plan::Plan;
use crate::commands::args::run::Under;
use ckpt_agent::report::Failure;

/// The name of a place as users type it.
pub(super) const fn name(under: Under) -> &'static str {
    match under {
        Under::Shell => "shell",
        Under::Slurm => "slurm",
        Under::Htcondor => "htcondor",
    }
}

/// The text of `file`.
///
/// # Errors
/// When a word can't be written there, or this program's path is unknown.
pub(super) fn text(plan: &Plan, file: &Path) -> Result<String, Failure> {
    match plan.under {
        Under::Shell => Ok(shell(plan, &directory(file)?)),
        Under::Slurm => Ok(slurm(plan)),
        Under::Htcondor => htcondor(plan),
    }
}

/// The command that starts the job.
pub(super) fn start(plan: &Plan, file: &Path) -> String {
    let name = quote(&file.display().to_string());
    match plan.under {
        Under::Shell if file.components().count() == 1 => format!("./{name}"),
        Under::Shell => name,
        Under::Slurm => format!("sbatch {name}"),
        Under::Htcondor => format!(
            "ckpt key for-job {} -o job.key, and a copy of the grid file as grid.toml; then condor_submit {name}",
            quote(plan.job.as_str())
        ),
    }
}

/// A word for a shell.
fn quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn quoted(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| quote(word)).collect();
    words.join(" ")
}

/// The line that runs the job, with further options.
fn line(plan: &Plan, more: &[(bool, &str)]) -> String {
    let more = more.iter().filter(|(is_wanted, _)| *is_wanted);
    let more: String = more.map(|(_, option)| format!(" {option}")).collect();
    let options = quoted(&plan.options);
    format!("ckpt run {options}{more} -- {}", quoted(&plan.command))
}

/// The directory in which the job runs, for a script in `file`: that of the script, or this one.
fn directory(file: &Path) -> Result<String, Failure> {
    if file.components().count() == 1 {
        return Ok(r#""$(dirname "$0")""#.to_owned());
    }
    let here = std::env::current_dir().map_err(|cause| Failure::local("this directory", &cause))?;
    Ok(quote(&here.display().to_string()))
}

fn shell(plan: &Plan, directory: &str) -> String {
    let line = line(plan, &[]);
    format!(
        "#!/bin/sh
# Runs the job {} under ckpt, until it has ended. If the machine is taken away, run this on another one.
cd {directory} || exit
while :; do
    {line}
    status=$?
    # 75 and 76: the job left this machine, and is to be started again, here or elsewhere.
    case $status in
    75 | 76) sleep 60 ;;
    *) exit $status ;;
    esac
done
",
        plan.job
    )
}

fn slurm(plan: &Plan) -> String {
    let line = line(
        plan,
        &[
            (!plan.has_grace, "--grace 50s"),
            (!plan.has_wait, "--wait 2m"),
        ],
    );
    let name = quote(&plan.job.file_name());
    format!(
        "#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --requeue --open-mode=append --signal=B:TERM@60
# Runs the job {} under ckpt. Submit it once at a time; give --time to sbatch.
{line} &
child=$!
trap 'kill -TERM $child' TERM
# A signal ends `wait`, and not the job.
until wait $child; status=$?; ! kill -0 $child 2>/dev/null; do :; done
case $status in
# A job that is preempted is requeued by Slurm itself, and would run twice.
75 | 76) scontrol show job \"$SLURM_JOB_ID\" | grep -q 'PreemptTime=[0-9]' || scontrol requeue \"$SLURM_JOB_ID\" ;;
esac
exit $status
",
        plan.job
    )
}

fn htcondor(plan: &Plan) -> Result<String, Failure> {
    let program =
        std::env::current_exe().map_err(|cause| Failure::local("path of this program", &cause))?;
    let options = plan.options_of_trial();
    let words = options.iter().map(String::as_str);
    let own = ["--evict-exit", "85", "--"].into_iter();
    let command = plan.command.iter().map(String::as_str);
    let arguments: Vec<String> = std::iter::once("run")
        .chain(words)
        .chain(own)
        .chain(command)
        .map(of_arguments)
        .collect();
    let mut inputs = vec!["grid.toml", "job.key"];
    let files = plan.command.iter().map(String::as_str);
    inputs.extend(files.filter(|word| Path::new(word).is_relative() && Path::new(word).is_file()));
    Ok(format!(
        "# Runs the job {} under ckpt. Beside this file: grid.toml, and job.key of ckpt key for-job.
executable = {}
arguments = \"{}\"
environment = \"CKPT_GRID=grid.toml CKPT_KEY_FILE=job.key\"
transfer_input_files = {}
should_transfer_files = yes
when_to_transfer_output = on_exit
# 85: the job left with its state saved. 76: its newest version is older than its state.
checkpoint_exit_code = 85
on_exit_remove = ExitCode =!= 76
output = out
error = err
log = log
queue
",
        plan.job,
        program.display(),
        arguments.join(" "),
        inputs.join(", "),
    ))
}

/// A word in the new syntax of HTCondor's `arguments`.
fn of_arguments(word: &str) -> String {
    let doubled = word.replace('"', "\"\"").replace('\'', "''");
    match word.is_empty() || word.contains(|c: char| c.is_whitespace() || c == '\'') {
        true => format!("'{doubled}'"),
        false => doubled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(under: Under) -> Plan {
        let list = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Plan {
            job: "sim".parse().unwrap(),
            options: list(&["--job", "sim", "--grid", "g", "--files", "my state"]),
            files: vec!["my state".into()],
            command: list(&["sh", "-c", "echo \"it's\""]),
            under,
            has_grace: false,
            has_wait: true,
        }
    }

    #[test]
    fn words_are_quoted_for_who_reads_them() {
        let text = |under| text(&plan(under), Path::new("a")).unwrap();
        let run = "ckpt run --job sim --grid g --files 'my state'";
        let command = r#"-- sh -c 'echo "it'\''s"'"#;
        assert!(text(Under::Shell).contains(&format!("    {run} {command}\n")));
        let slurm = text(Under::Slurm);
        assert!(
            slurm.contains(&format!("\n{run} --grace 50s {command} &\n")),
            "{slurm}"
        );
        let submit = text(Under::Htcondor);
        let arguments = r#"arguments = "run --job sim --files 'my state' --evict-exit 85 -- sh -c 'echo ""it''s""'""#;
        assert!(submit.contains(arguments), "{submit}");
    }
}
