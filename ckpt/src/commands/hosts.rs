//! `ckpt hosts`: the state of hosts, and where the next checkpoint of a job would go.

use super::args::HostsArgs;
use super::args::options;
use super::{Answer, done};
use ckpt_agent::agent::Agent;
use ckpt_agent::report::{ExitStatus, Failure};

/// Shows models, the choice of hosts for a job, or the state of all hosts.
pub(super) async fn run(agent: &Agent, args: HostsArgs) -> Result<Answer, Failure> {
    if args.model {
        return done(agent.models().await);
    }
    let Some(job) = args.chosen_for()? else {
        return ask_hosts(agent).await;
    };
    let redundancy = options::code(args.data, args.parity)?;
    let wish = args.placing.wish();
    done(agent.hosts_for_job(&job, redundancy, &wish).await?)
}

/// Asks all hosts for their state. The status is `TooFewHosts` if none answers.
async fn ask_hosts(agent: &Agent) -> Result<Answer, Failure> {
    let report = agent.hosts().await?;
    let status = match report.summary.up {
        0 => ExitStatus::TooFewHosts,
        _ => ExitStatus::Done,
    };
    Ok((Box::new(report), status))
}
