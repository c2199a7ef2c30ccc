//! A thief of a job key, and the owner of the job, who takes the key back in the middle of the run. What the
//! thief does follows from the seed: bids, proposals, phantoms, junk, removals. All other jobs are of the same
//! owner, and must feel nothing of it.

use std::fs;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use codec::keys::Keys;
use codec::manifest::Manifest;
use codec::proposal::{Ballot, Proposal};
use codec::{CheckpointId, JobId};
use protocol::grid::Grid as GridFile;
use protocol::identity::{AnyKey, HostId, Identity, read_any_key, read_key};
use protocol::net::stream::{ExchangeError, read_frame, request};
use protocol::net::{EndpointConfig, client, connect};
use protocol::wire::message::{Record, Request, Response};
use quinn::Connection;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::tally::Spoils;
use crate::cluster::{Cluster, Node};
use crate::image;
use crate::solo::{Solo, SoloPlan};

/// The job whose key is stolen.
const JOB: &str = "stolen";

/// Longest wait for an answer to the thief.
const LIMIT: Duration = Duration::from_secs(5);

/// After this many saves the owner takes the key back.
const SAVES_BEFORE: u64 = 6;

/// Segments in a manifest of nearly the largest size.
const SEGMENTS: usize = 4_300;

/// The job, and what became of it.
#[derive(Debug)]
pub(super) struct Theft<'a> {
    cluster: &'a Cluster,
    /// Saves of the owner that were acknowledged.
    saved: AtomicU64,
    /// What hosts accepted of the thief.
    taken: AtomicU64,
    /// Attacks that ended with an error, as when the host is away.
    refused: AtomicU64,
}

/// A connection of the thief to a host.
struct Burglar<'a> {
    keys: &'a Keys,
    job: JobId,
    host: Connection,
}

impl<'a> Theft<'a> {
    /// Saves the job once and makes its key.
    pub(super) fn begin(cluster: &'a Cluster) -> Result<Self> {
        fs::write(cluster.path("image-stolen"), image::memory(300_000, 1))?;
        cluster
            .run(["save", "--job", JOB, "image-stolen"])?
            .expect(0)?;
        let rights = "save,restore,remove";
        let make = [
            "key",
            "for-job",
            "--job",
            JOB,
            "--rights",
            rights,
            "-o",
            "stolen.key",
        ];
        cluster.run(make)?.expect(0)?;
        Ok(Self {
            cluster,
            saved: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    /// Saves the job beside the thief, and takes the key back after a while.
    pub(super) fn own(&self, is_over: impl Fn() -> bool) -> Result<()> {
        let mut seed = 2;
        let mut is_revoked = false;
        while !is_over() {
            fs::write(
                self.cluster.path("image-stolen"),
                image::memory(300_000, seed),
            )?;
            seed += 1;
            let saved = self.cluster.run(["save", "--job", JOB, "image-stolen"])?;
            ensure!(matches!(saved.code, Some(0 | 1 | 3 | 5)), "{JOB}: {saved}");
            let good = matches!(saved.code, Some(0 | 3));
            let count = self.saved.fetch_add(u64::from(good), Ordering::SeqCst);
            if !is_revoked && count >= SAVES_BEFORE {
                is_revoked = matches!(self.cluster.run(["key", "revoke"])?.code, Some(0 | 3));
            }
        }
        Ok(())
    }

    /// Does to random hosts what hurts, until the run is over.
    pub(super) fn steal(&self, seed: u64, is_over: impl Fn() -> bool) -> Result<()> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let AnyKey::Job(identity) = read_any_key(&self.cluster.path("stolen.key"))? else {
            bail!("not a job key");
        };
        let keys: Keys = identity.job.as_deref().context("no keys")?.clone().into();
        let file = GridFile::load(self.cluster.grid_file())?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        while !is_over() {
            let hosts = &self.cluster.hosts;
            let host = &hosts[rng.random_range(0..hosts.len())];
            let done = runtime.block_on(async {
                let host = enter(&file, &identity, host).await?;
                let job = JOB.parse()?;
                let keys = &keys;
                Burglar { keys, job, host }.hurt(&mut rng).await
            });
            // A host that is away, or refuses the key, is no failure of the run.
            match done {
                Ok(taken) => self.taken.fetch_add(taken, Ordering::SeqCst),
                Err(_) => self.refused.fetch_add(1, Ordering::SeqCst),
            };
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Once all hosts are there and the key is void, the owner saves and restores this job as any other.
    pub(super) fn check(&self) -> Result<()> {
        let cluster = self.cluster;
        cluster.run(["key", "revoke"])?.expect(0)?;
        for seed in [1001, 1002] {
            let image = image::memory(300_000, seed);
            fs::write(cluster.path("image-stolen"), &image)?;
            let newest = cluster.run([
                "--json",
                "restore",
                "--job",
                JOB,
                "--force",
                "-o",
                "out-stolen",
            ])?;
            let newest = newest.json()?["version"].as_u64().context("no version")?;
            let save = [
                "save",
                "--job",
                JOB,
                "--after",
                &newest.to_string(),
                "image-stolen",
            ];
            let saved = cluster.run(save)?;
            ensure!(matches!(saved.code, Some(0 | 3)), "after {newest}: {saved}");
            let restored = cluster.run(["restore", "--job", JOB, "-o", "-"])?;
            ensure!(matches!(restored.code, Some(0 | 3)), "{restored}");
            ensure!(
                restored.stdout == image,
                "the owner's newest version is not restored"
            );
        }
        Ok(())
    }
}

impl super::Stage<'_> {
    /// The owner saves beside the thief.
    pub(super) fn robbery(&self, seed: u64) -> Result<()> {
        let Some(theft) = &self.theft else {
            return Ok(());
        };
        std::thread::scope(|scope| {
            let thief = scope.spawn(|| theft.steal(seed, || self.is_over()));
            let robbed = theft.own(|| self.is_over());
            let thief = thief.join().unwrap_or_else(|_| bail!("the thief panicked"));
            robbed.and(thief)
        })
    }

    pub(super) fn check_theft(&self) -> Result<()> {
        if let Some(theft) = &self.theft {
            theft.check()?;
            self.tally().thief = Spoils {
                saved: theft.saved.load(Ordering::SeqCst),
                accepted: theft.taken.load(Ordering::SeqCst),
                ended: theft.refused.load(Ordering::SeqCst),
            };
        }
        Ok(())
    }
}

async fn enter(file: &GridFile, who: &Identity, host: &Node) -> Result<Connection> {
    let id = HostId(read_key(&host.data().join("identity.key"))?.id());
    let config = EndpointConfig::new(who.clone(), file.authority.clone());
    let endpoint = client(&config, (Ipv4Addr::LOCALHOST, 0).into())?;
    Ok(connect(&endpoint, host.relay.addr, id).await?)
}

impl Burglar<'_> {
    /// One attack. Returns how many of its requests the host accepted.
    async fn hurt(&self, rng: &mut SmallRng) -> Result<u64> {
        let found = self.found().await?;
        let newest = found.last().map(|manifest| manifest.public());
        let (after, next) = match newest {
            Some(newest) => (newest.checkpoint, newest.version.number() + 1),
            None => (CheckpointId([0; 16]), 1),
        };
        let ballot = Ballot {
            round: [1, 900, u64::MAX][rng.random_range(0..3)],
            proposer: CheckpointId(rng.random()),
        };
        let job_tag = self.keys.job_tag(&self.job).context("no tag")?;
        match rng.random_range(0..5) {
            0 => {
                self.ask(Request::Prepare {
                    job_tag,
                    after,
                    ballot,
                })
                .await
            }
            1 => {
                let nothing = self.version(rng, next, 1)?;
                let manifest = Manifest::parse(nothing.manifest().to_vec())?;
                let proposal = Proposal::sign(self.keys, &self.job, (after, ballot), &manifest)?;
                let proposal = proposal.bytes().to_vec();
                self.ask(Request::Propose { proposal }).await
            }
            2 => {
                let mut count = 0;
                for _ in 0..20 {
                    let phantom = self.version(rng, next, SEGMENTS)?;
                    count += accepted(phantom.haunt(&self.host, LIMIT).await)?;
                }
                Ok(count)
            }
            3 => {
                let version = [next, next + 5, 1 << 48, u64::MAX][rng.random_range(0..4)];
                let junk = self.version(rng, version, 1)?;
                let stored = accepted(junk.store(&self.host, LIMIT).await)?;
                Ok(stored + accepted(junk.commit(&self.host, LIMIT).await)?)
            }
            _ => {
                let mut count = 0;
                for manifest in &found {
                    let checkpoint = manifest.public().checkpoint;
                    count += self.ask(Request::Forget { checkpoint }).await?;
                }
                Ok(count)
            }
        }
    }

    fn version(&self, rng: &mut SmallRng, version: u64, segments: usize) -> Result<Solo> {
        let plan = SoloPlan {
            job: self.job.clone(),
            version,
            created: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
            id: rng.random(),
            rows: 1,
            block: vec![0],
        };
        Solo::sign_with(self.keys, plan, segments)
    }

    async fn ask(&self, asked: Request) -> Result<u64> {
        accepted(request(&self.host, &asked, LIMIT).await.map(drop))
    }

    /// The versions that the host shows, in the order of versions.
    async fn found(&self) -> Result<Vec<Manifest>> {
        let asked = Request::Find {
            job_tag: self.keys.job_tag(&self.job),
            after: None,
        };
        let (Response::Found { count, .. }, mut exchange) =
            request(&self.host, &asked, LIMIT).await?
        else {
            bail!("another answer");
        };
        let mut found = Vec::new();
        for _ in 0..count {
            let record: Record = read_frame(&mut exchange.recv, LIMIT).await?;
            found.push(Manifest::parse(record.manifest)?);
        }
        found.sort_by_key(|manifest| manifest.public().version);
        Ok(found)
    }
}

/// Counts an accepted request. A refusal is none; anything else ends the attack.
fn accepted(answer: Result<(), ExchangeError>) -> Result<u64> {
    match answer {
        Ok(()) => Ok(1),
        Err(ExchangeError::Refused(_)) => Ok(0),
        Err(cause) => Err(cause.into()),
    }
}
