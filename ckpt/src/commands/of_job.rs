//! Commands that read or remove the checkpoints of one job, by all keys of its owner. If there are none, they name the
//! jobs that the user may have meant.

use codec::{JobId, Version};
use strsim::osa_distance;

use super::args::job::{AnyJob, TypedJob};
use super::args::{Cat, Forget, ListArgs, MapArgs, Restore, VerifyArgs};
use super::call::Call;
use super::key::any::AnyKey;
use super::render::{self, Text};
use super::{Answer, cat, done};
use ckpt_agent::agent::{Departures, Tenure};
use ckpt_agent::report::{ExitStatus, Failure};

/// Most names that a failure proposes.
const MEANT_MAX: usize = 3;

pub(super) fn restore(call: Call<'_>, args: Restore) -> Result<Answer, Failure> {
    let job = args.job.named()?;
    let asked = Some(&job);
    of(call, "restoring", asked, async |keys| {
        keys.restore(job.clone(), args).await
    })
}

pub(super) fn cat(call: Call<'_>, args: Cat) -> Result<Answer, Failure> {
    let request = cat::request(args)?;
    of(call, "", Some(&request.job), async |keys| {
        keys.cat(&request).await
    })
}

pub(super) fn list(call: Call<'_>, args: ListArgs) -> Result<Answer, Failure> {
    let job = args.job.typed()?;
    let asked = job.as_ref();
    of(call, "", asked, async |keys| keys.list(asked, args).await)
}

pub(super) fn map(call: Call<'_>, args: MapArgs) -> Result<Answer, Failure> {
    let job = args.job.typed()?;
    let departures = Departures {
        named: args.if_down,
        tonight: args.tonight,
    };
    call.agent(async |agent| {
        let map = agent.map(job.as_ref(), &departures).await?;
        match args.svg {
            true => done(Text(render::map::picture(&map).into_bytes())),
            false => done(map),
        }
    })
}

pub(super) fn show(
    call: Call<'_>,
    job: &AnyJob,
    version: Option<Version>,
) -> Result<Answer, Failure> {
    let job = job.named()?;
    of(call, "", Some(&job), async |keys| {
        keys.show(&job, version).await
    })
}

pub(super) fn verify(call: Call<'_>, args: VerifyArgs) -> Result<Answer, Failure> {
    let job = args.job.typed()?;
    let asked = job.as_ref();
    of(call, "verifying", asked, async |keys| {
        keys.verify(asked, args).await
    })
}

pub(super) fn forget(call: Call<'_>, args: Forget) -> Result<Answer, Failure> {
    let job = args.job.named()?;
    of(call, "", Some(&job), async |keys| {
        keys.forget(&job, args).await
    })
}

pub(super) fn touch(
    call: Call<'_>,
    job: &TypedJob,
    ttl: Option<Tenure>,
) -> Result<Answer, Failure> {
    let job = job.named()?;
    of(call, "", Some(&job), async |keys| {
        keys.touch(&job, ttl).await
    })
}

/// Carries out a command for `job`, or for all jobs if there is none.
fn of(
    call: Call<'_>,
    title: &'static str,
    job: Option<&JobId>,
    command: impl AsyncFnOnce(&AnyKey<'_>) -> Result<Answer, Failure>,
) -> Result<Answer, Failure> {
    call.keys(title, async |keys| {
        let mut ended = command(keys).await;
        if let (Err(failure), Some(job)) = (&mut ended, job)
            && failure.status == ExitStatus::NotFound
        {
            propose(failure, job, &keys.jobs().await);
        }
        ended
    })
}

/// Names the jobs that were probably meant. Changes nothing if the job exists: then it is a
/// version of it that doesn't.
fn propose(failure: &mut Failure, job: &JobId, existing: &[JobId]) {
    let meant = alike(job, existing);
    if meant.is_empty() {
        return;
    }
    let names: Vec<&str> = meant.iter().map(|job| job.as_str()).collect();
    let question = format!("did you mean job {}?", names.join(" or "));
    failure.state = Some(match failure.state.take() {
        Some(state) => format!("{state}; {question}"),
        None => question,
    });
}

/// The existing jobs with names like this one, the most similar first; none if it exists itself.
fn alike<'a>(job: &JobId, existing: &'a [JobId]) -> Vec<&'a JobId> {
    if existing.contains(job) {
        return Vec::new();
    }
    let wanted = job.as_str().to_lowercase();
    // One slip of the fingers, two in a long name: with more, all names would be alike.
    let slips_max = if wanted.len() < 6 { 1 } else { 2 };
    let slips = |one: &JobId| osa_distance(&wanted, &one.as_str().to_lowercase());
    let near = existing.iter().map(|one| (slips(one), one));
    // Names of one character all differ by one slip.
    let mut near: Vec<(usize, &JobId)> = near
        .filter(|(slips, one)| *slips <= slips_max && *slips < wanted.len().max(one.as_str().len()))
        .collect();
    near.sort();
    near.dedup();
    near.into_iter()
        .map(|(_, one)| one)
        .take(MEANT_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(job: &str, existing: &[&str]) -> Vec<String> {
        let existing: Vec<JobId> = existing.iter().map(|one| one.parse().unwrap()).collect();
        let alike = alike(&job.parse().unwrap(), &existing);
        alike.into_iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_slip_of_the_fingers_is_understood() {
        assert_eq!(meant("24", &["42", "7", "1000"]), ["42"]);
        assert_eq!(meant("SIM", &["sim"]), ["sim"]);
        assert_eq!(
            meant("sweep/frist", &["sweep/first", "first"]),
            ["sweep/first"]
        );
        let order = ["sweep/fir", "sweep/first", "sweep/firt"];
        assert_eq!(
            meant("sweep/firs", &order)[..2],
            ["sweep/fir", "sweep/first"]
        );
    }

    #[test]
    fn names_that_have_little_in_common_are_not_proposed() {
        assert!(meant("42", &["43/a", "sim", "7"]).is_empty());
        assert!(meant("1", &["2", "3"]).is_empty());
        assert!(meant("42", &["42", "43"]).is_empty(), "the job exists");
        let many: Vec<String> = (10..99).map(|n| format!("run-{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(meant("run-5", &many).len(), MEANT_MAX);
    }

    #[test]
    fn a_proposal_stands_before_the_next_thing_to_try() {
        let missing = || Failure::new(ExitStatus::NotFound, "missing").next("ckpt list");
        let job = |name: &str| name.parse::<JobId>().unwrap();
        let mut failure = missing();
        propose(&mut failure, &job("24"), &[job("42"), job("23")]);
        let said = failure.state.as_deref();
        assert_eq!(said, Some("did you mean job 23 or 42?"));
        assert_eq!(failure.next.as_deref(), Some("ckpt list"));
        propose(&mut failure, &job("24"), &[job("42")]);
        let said = failure.state.unwrap();
        assert!(said.ends_with("23 or 42?; did you mean job 42?"), "{said}");
        let mut failure = missing();
        propose(&mut failure, &job("24"), &[job("sim")]);
        assert_eq!(failure.state, None);
    }
}
