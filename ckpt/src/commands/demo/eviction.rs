//! A job that is evicted in the middle: it goes on on another machine, although two of five holders are gone.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use serde_json::Value;

use super::machine::{Machine, Running, START_AGAIN, look_again};
use super::{Hosts, io_failure, say};
use crate::commands::args::options::Global;
use crate::commands::call::Call;
use crate::commands::render::{Report, json_of_self};
use crate::commands::{Answer, done};
use ckpt_agent::cancel::Cancel;
use ckpt_agent::report::{ExitStatus, Failure};

/// Steps that the job computes.
const STEPS: usize = 40;

/// After this step the job's first machine is taken away.
const EVICTED_AFTER: usize = 20;

/// The job. It counts in a file that it replaces at each step, so that the file is always whole, and finishes its step
/// when it is asked to leave. What it computed it writes down elsewhere, so that a step that was lost is seen.
const SCRIPT: &str = r#"trap leaves=1 TERM
n=$(cat state/step 2>/dev/null || echo 0)
while [ -z "$leaves" ] && [ "$n" -lt "$1" ]; do
  sleep 0.1
  n=$((n + 1)); echo "$n" > state/step.new; mv state/step.new state/step
  echo "$n" >> "$2"
done
[ "$n" = "$1" ]"#;

/// Answer of `ckpt demo`.
#[derive(Debug, Serialize)]
struct EvictionReport {
    /// Steps that the job had to compute.
    steps: usize,
    /// The last step on the machine that was taken away.
    evicted_after: usize,
    /// The version from which the job went on.
    version: Option<u64>,
    /// The first step on the other machine.
    went_on_at: usize,
    /// Steps that were computed twice.
    computed_twice: usize,
    /// The hosts that were killed meanwhile.
    killed: Vec<String>,
    /// Seconds from start to end.
    seconds: f64,
}

impl Report for EvictionReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let twice = match self.computed_twice {
            0 => "none of them twice".to_owned(),
            count => format!("{count} of them twice"),
        };
        writeln!(
            out,
            "the job computed {} steps on two machines, {twice}; {:.1} s in all",
            self.steps, self.seconds
        )
    }

    json_of_self!();
}

/// Starts the job under `ckpt run`.
fn start(machine: &Machine<'_>, computed: &Path) -> Result<Running, Failure> {
    // The owner of this machine, who watches, is none of the demonstration's.
    let run = ["run", "--job", "demo", "--files", "state", "--batch", "--"];
    let count = STEPS.to_string();
    let job = ["sh", "-c", SCRIPT, "demo", &count];
    let mut command = machine.ckpt(&run);
    machine.start(command.args(job).arg(computed))
}

/// The steps that were computed so far.
fn computed_steps(file: &Path) -> Vec<usize> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Two hosts with a shard of the job's newest version.
fn two_holders(machine: &Machine<'_>) -> Result<Vec<String>, Failure> {
    let shown = machine.ckpt(&["show", "--job", "demo"]).output();
    let shown = shown.map_err(|cause| io_failure("ckpt show", &cause))?;
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap_or_default();
    let holders = shown["holders"].as_array().into_iter().flatten();
    let names = holders.filter_map(|holder| holder["host"].as_str().map(str::to_owned));
    let names: Vec<String> = names.take(2).collect();
    match names.len() {
        2 => Ok(names),
        _ => {
            let message = format!("version without holders: {shown}");
            Err(Failure::new(ExitStatus::Failed, message))
        }
    }
}

/// Runs the job on a machine until that is taken away. Returns the last step.
async fn run_until_evicted(
    machine: &Machine<'_>,
    computed: &Path,
    global: &Global,
    cancel: &Cancel,
) -> Result<usize, Failure> {
    let name = machine.name;
    say(global, &format!("{name}: ckpt run, a job of {STEPS} steps"));
    let mut running = start(machine, computed)?;
    let began = Instant::now();
    while computed_steps(computed).len() < EVICTED_AFTER && running.ended()?.is_none() {
        look_again(began, cancel).await?;
    }
    say(global, &format!("{name}: is taken away (SIGTERM)"));
    running.ask_to_leave();
    let report = running.end(cancel).await?;
    if report["exit_code"] != START_AGAIN {
        let message = format!("the job was not saved: {report}");
        return Err(Failure::new(ExitStatus::Failed, message));
    }
    let last = computed_steps(computed).last().copied().unwrap_or_default();
    say(
        global,
        &format!("{name}: step {last} of {STEPS}; the state is saved"),
    );
    Ok(last)
}

pub(super) async fn run(call: Call<'_>, cancel: Cancel) -> Result<Answer, Failure> {
    let global = call.global;
    let started = Instant::now();
    let hosts = Hosts::start(&call)?;
    let computed = hosts.folder().join("computed");
    let first = Machine::new(&hosts, "machine A")?;
    fs::create_dir(first.dir.join("state")).map_err(|cause| io_failure("state", &cause))?;
    let evicted_after = run_until_evicted(&first, &computed, global, &cancel).await?;

    let killed = two_holders(&first)?;
    say(
        global,
        &format!("killing {}, two of five hosts", killed.join(" and ")),
    );
    hosts.kill(&killed)?;

    let second = Machine::new(&hosts, "machine B")?;
    say(
        global,
        &format!("{}: ckpt run, the same command", second.name),
    );
    let report = start(&second, &computed)?.end(&cancel).await?;
    let steps = computed_steps(&computed);
    if report["exit_code"] != 0 || steps.last() != Some(&STEPS) {
        let message = format!("the job did not go on: {report}");
        return Err(Failure::new(ExitStatus::Failed, message));
    }
    let went_on_at = next_of(&steps, evicted_after);
    let text = format!("{}: went on at step {went_on_at}, and ended", second.name);
    say(global, &text);
    done(EvictionReport {
        steps: STEPS,
        evicted_after,
        version: report["began_from"].as_u64(),
        went_on_at,
        computed_twice: steps.len() - STEPS,
        killed,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// The step that was computed after the one with which the first machine ended.
fn next_of(steps: &[usize], last: usize) -> usize {
    let ended = steps.iter().position(|step| *step == last);
    let next = ended.and_then(|ended| steps.get(ended + 1));
    next.copied().unwrap_or_default()
}
