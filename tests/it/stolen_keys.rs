//! A thief of a job key asks the witnesses of a version for promises and acceptances. Before its key is void it
//! can hold saves up, in some ways; afterwards in none. It never ends a job under `ckpt run`.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use codec::keys::Keys;
use codec::manifest::Manifest;
use codec::proposal::{Ballot, Proposal, ROUNDS_AHEAD_MAX};
use codec::{CheckpointId, JobId};
use protocol::identity::read_key;
use protocol::net::ExchangeError;
use protocol::net::stream::request;
use protocol::wire::Code;
use protocol::wire::message::{Request, Response};
use quinn::Connection;
use rustix::process::Signal;
use tests::program::wait_until;
use tests::solo::{Solo, SoloPlan};
use tests::supervised::RunMachine;
use tests::{Grid, Outcome, image};
use tokio::task::JoinSet;

use crate::jobkeys::{Root, key_for};
use crate::run::HASH_JOB;

/// Longest wait for an answer.
const LIMIT: Duration = Duration::from_secs(30);

/// The checkpoint that a save is to follow, and its job.
#[derive(Clone, Debug)]
struct Followed {
    job: JobId,
    after: CheckpointId,
}

impl Followed {
    /// Saves the image as a version of job 42.
    fn save(grid: &Grid) -> Result<Self> {
        fs::write(grid.path("image"), image::memory(1 << 20, 1))?;
        save(grid, &[])?.expect(0)?;
        Self::newest(grid, "42")
    }

    /// The newest version of a job.
    fn newest(grid: &Grid, job: &str) -> Result<Self> {
        let listed = grid.run(["--json", "list", "--job", job])?.expect(0)?;
        let listed = listed.json()?;
        let all = listed["checkpoints"].as_array().context("no list")?;
        let newest = all.iter().max_by_key(|one| one["version"].as_u64());
        let id = newest.and_then(|one| one["checkpoint"].as_str());
        let after = CheckpointId::from_hex(id.context("no id")?).context("not an id")?;
        let job = job.parse()?;
        Ok(Self { job, after })
    }

    fn prepare(&self, keys: &Keys, ballot: Ballot) -> Result<Request> {
        Ok(Request::Prepare {
            job_tag: keys.job_tag(&self.job).context("no tag")?,
            after: self.after,
            ballot,
        })
    }

    /// Proposes a successor of which no host has a shard.
    fn propose(&self, keys: &Keys, ballot: Ballot, id: u8) -> Result<Request> {
        let plan = SoloPlan {
            job: self.job.clone(),
            version: 2,
            created: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
            id: [id; 16],
            rows: 1,
            block: vec![0],
        };
        let manifest = Manifest::parse(Solo::sign(keys, plan)?.manifest().to_vec())?;
        let proposal = Proposal::sign(keys, &self.job, (self.after, ballot), &manifest)?;
        let proposal = proposal.bytes().to_vec();
        Ok(Request::Propose { proposal })
    }
}

fn save(grid: &Grid, more: &[&str]) -> Result<Outcome> {
    let save = ["--json", "save", "--job", "42", "--keep", "9", "image"];
    grid.run(save.iter().chain(more))
}

fn ballot(round: u64) -> Ballot {
    let proposer = CheckpointId([0xff; 16]);
    Ballot { round, proposer }
}

/// The answer of a witness; `None` from a host that is none.
async fn ask(host: &Connection, asked: &Request) -> Result<Option<Response>> {
    loop {
        match request(host, asked, LIMIT).await {
            Ok((response, _)) => return Ok(Some(response)),
            Err(ExchangeError::Refused(refusal)) if refusal.code == Code::Busy => {}
            Err(ExchangeError::Refused(refusal)) if refusal.code == Code::NotFound => {
                return Ok(None);
            }
            Err(cause) => bail!("{cause}"),
        }
    }
}

/// Asks at most `most` hosts that are witnesses; returns their answers.
async fn ask_all(hosts: &[Connection], asked: &Request, most: usize) -> Result<Vec<Response>> {
    let mut answers = Vec::new();
    for host in hosts {
        if answers.len() == most {
            break;
        }
        answers.extend(ask(host, asked).await?);
    }
    Ok(answers)
}

/// The hosts that answer as witnesses.
async fn witnesses(hosts: &[Connection], asked: &Request) -> Result<Vec<Connection>> {
    let mut witnesses = Vec::new();
    for host in hosts {
        if ask(host, asked).await?.is_some() {
            witnesses.push(host.clone());
        }
    }
    Ok(witnesses)
}

/// The lost save names another one that is half done, and what helps.
fn says_half_done(outcome: &Outcome, id: u8) -> Result<()> {
    let error = outcome.json()?["error"].clone();
    let other = &error["successor"];
    let id = CheckpointId([id; 16]).hex();
    ensure!(
        other["committed"] == false && other["checkpoint"] == id,
        "{outcome}"
    );
    let next = error["next"].to_string();
    ensure!(
        next.contains("ckpt key revoke") && next.contains("--unfenced"),
        "{next}"
    );
    Ok(())
}

fn revoke(grid: &Grid) -> Result<()> {
    grid.run(["key", "revoke"])?.expect(0)?;
    Ok(())
}

#[test]
fn a_thief_of_a_job_key_bids_no_round_that_nobody_exceeds() -> Result<()> {
    let grid = Grid::up(6)?;
    let followed = Followed::save(&grid)?;
    key_for(&grid, "42", "job.key", &[])?;
    let root = Root::new(&grid, "job.key")?;
    root.run(async |hosts, keys| {
        let last = ballot(u64::MAX);
        for asked in [
            followed.prepare(&keys, last)?,
            followed.propose(&keys, last, 9)?,
        ] {
            let answers = ask_all(&hosts, &asked, 6).await?;
            let refuses = |answer: &Response| match answer {
                Response::Outbid { ballot } => ballot.round == 0,
                _ => false,
            };
            ensure!(
                answers.len() >= 5 && answers.iter().all(refuses),
                "{answers:?}"
            );
        }
        Ok(())
    })?;
    save(&grid, &["--after", "1"])?.expect(0)?;
    save(&grid, &["--after", "2", "--fence", "strong"])?.expect(0)?;
    // The highest rounds that witnesses take hold up no save, either.
    let followed = Followed::newest(&grid, "42")?;
    root.run(async |hosts, keys| {
        let asked = followed.prepare(&keys, ballot(ROUNDS_AHEAD_MAX))?;
        let answers = ask_all(&hosts, &asked, 6).await?;
        let promises = |answer: &Response| matches!(answer, Response::Promised { accepted: None });
        ensure!(answers.iter().all(promises), "{answers:?}");
        Ok(())
    })?;
    save(&grid, &["--after", "3"])?.expect(0)?;
    Ok(())
}

/// Three of five witnesses are led to round 1,024,000 by 3,072 requests. A save that needs four of them leads a
/// fourth one there, which takes 1,024 requests.
#[test]
fn a_thief_that_climbs_step_by_step_makes_saves_climb_until_its_key_is_void() -> Result<()> {
    const STEPS: u64 = 1 << 10;
    let grid = Grid::up(6)?;
    key_for(&grid, "42", "job.key", &[])?;
    let root = Root::new(&grid, "job.key")?;
    let climb = |followed: &Followed| {
        root.run(async |hosts, keys| {
            let witnesses = witnesses(&hosts, &followed.prepare(&keys, ballot(1))?).await?;
            let mut climbing = JoinSet::new();
            for host in witnesses.into_iter().take(3) {
                let followed = followed.clone();
                let keys = keys.clone();
                climbing.spawn(async move {
                    for step in 1..=STEPS {
                        let asked = followed.prepare(&keys, ballot(step * ROUNDS_AHEAD_MAX))?;
                        let answer = ask(&host, &asked).await?;
                        ensure!(
                            matches!(answer, Some(Response::Promised { .. })),
                            "{answer:?}"
                        );
                    }
                    Ok(())
                });
            }
            climbing.join_all().await.into_iter().collect()
        })
    };
    climb(&Followed::save(&grid)?)?;
    save(&grid, &["--after", "1"])?.expect(0)?;
    climb(&Followed::newest(&grid, "42")?)?;
    let began = std::time::Instant::now();
    save(&grid, &["--after", "2", "--fence", "strong"])?.expect(0)?;
    eprintln!("a save that climbs takes {:?}", began.elapsed());
    climb(&Followed::newest(&grid, "42")?)?;
    revoke(&grid)?;
    let began = std::time::Instant::now();
    save(&grid, &["--after", "3", "--fence", "strong"])?.expect(0)?;
    eprintln!("once the key is void {:?}", began.elapsed());
    Ok(())
}

#[test]
fn a_proposal_of_a_stolen_key_blocks_saves_until_the_key_is_void_and_ends_no_job() -> Result<()> {
    let grid = Grid::up(6)?;
    let here = RunMachine::new(&grid, "here", "42", HASH_JOB)?;
    let counted = here.dir.join("state.count");
    // On a slow machine the job would be saved more often, and versions would have other numbers.
    let run_and_leave = |status| -> Result<()> {
        let running = here.start(
            &["--ask", "signal:USR2", "--grace", "8s", "--spend", "0"],
            &["usr2", "every=0", "count"],
        )?;
        // A job that has just been started has nothing to save.
        let steps = || {
            fs::read(&counted)
                .ok()
                .and_then(|bytes| bytes.try_into().ok())
        };
        let steps = || steps().map(u64::from_le_bytes);
        wait_until("the job counts", LIMIT, || Ok(steps().is_some()))?;
        let first = steps();
        let has_worked = || steps() > first.map(|first| first + 20);
        wait_until("the job works", LIMIT, || Ok(has_worked()))?;
        running.signal(Signal::USR1)?;
        let (ended, report) = running.end()?;
        ended.expect(status)?;
        fs::remove_file(&counted)?;
        ensure!(report["ended_by"] == "supervisor", "{report}");
        Ok(())
    };
    run_and_leave(75)?;
    fs::write(grid.path("image"), image::memory(1 << 20, 1))?;
    let followed = Followed::newest(&grid, "42")?;
    key_for(&grid, "42", "job.key", &[])?;
    let root = Root::new(&grid, "job.key")?;
    root.run(async |hosts, keys| {
        let asked = followed.propose(&keys, ballot(1), 9)?;
        let answers = ask_all(&hosts, &asked, 6).await?;
        let agrees = |answer: &Response| *answer == Response::Agreed;
        ensure!(
            answers.len() >= 5 && answers.iter().all(agrees),
            "{answers:?}"
        );
        Ok(())
    })?;
    says_half_done(&save(&grid, &["--after", "1"])?.expect(10)?, 9)?;
    let strong = ["--after", "1", "--fence", "strong"];
    says_half_done(&save(&grid, &strong)?.expect(10)?, 9)?;
    // The job goes on, and its last state is not saved.
    run_and_leave(76)?;
    revoke(&grid)?;
    run_and_leave(75)?;
    // The last start began from the state that was not saved, and saved it first, as version 2.
    save(&grid, &["--after", "3", "--fence", "strong"])?.expect(0)?;
    ensure!(
        grid.versions("42")? == [2, 3, 4],
        "{:?}",
        grid.versions("42")?
    );
    Ok(())
}

/// Three of five witnesses have accepted a save of the owner. Two of them then accept one of the thief, with a
/// later ballot. The owner's remains the only one that may follow.
#[test]
fn what_a_stolen_key_proposes_covers_no_chosen_save_of_the_owner() -> Result<()> {
    let grid = Grid::up(6)?;
    let followed = Followed::save(&grid)?;
    key_for(&grid, "42", "job.key", &[])?;
    let root = Root::new(&grid, "job.key")?;
    let owner = Keys::from(read_key(&grid.dir().join("grid/owner.key"))?);
    root.run(async |hosts, keys| {
        let witnesses = witnesses(&hosts, &followed.prepare(&keys, ballot(1))?).await?;
        ensure!(witnesses.len() == 5, "{}", witnesses.len());
        let first = followed.propose(&owner, ballot(1), 7)?;
        let second = followed.propose(&keys, ballot(5), 9)?;
        for (asked, most) in [(first, 3), (second, 2)] {
            let answers = ask_all(&witnesses, &asked, most).await?;
            let agrees = |answer: &Response| *answer == Response::Agreed;
            ensure!(answers.iter().all(agrees), "{answers:?}");
        }
        Ok(())
    })?;
    let lost = save(&grid, &["--after", "1"])?.expect(10)?;
    says_half_done(&lost, 7)?;
    revoke(&grid)?;
    for fence in ["majority", "strong"] {
        let lost = save(&grid, &["--after", "1", "--fence", fence])?.expect(10)?;
        says_half_done(&lost, 7)?;
    }
    // The thief's proposals alone bind nobody any more: this is the user's word that the owner's is dead.
    save(&grid, &["--after", "1", "--unfenced"])?.expect(0)?;
    let refused = root.run(async |hosts, keys| {
        let asked = followed.prepare(&keys, ballot(9))?;
        ask_all(&hosts, &asked, 6).await.map(drop)
    });
    let refused = refused.map_err(|cause| cause.to_string());
    ensure!(
        refused.as_ref().is_err_and(|text| text.contains("revoked")),
        "{refused:?}"
    );
    Ok(())
}
