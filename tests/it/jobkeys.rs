//! Job keys: a key for some jobs works for these, and shows nothing of the others.

use std::fs;
use std::net::Ipv4Addr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use codec::grant::Rights;
use codec::keys::{JobKeys, Keys, NewJobKeys};
use codec::notice::{Intervals, Notice, Words};
use codec::proof::Spot;
use codec::seal::OwnerSecret;
use codec::{CheckpointId, JobTag, Redundancy, Version};
use protocol::grid::Grid as GridFile;
use protocol::identity::{
    AnyKey, Authority, GridId, HostId, Identity, Revocations, Role, Validity, read_any_key,
    read_key,
};
use protocol::net::stream::request;
use protocol::net::{Door, EndpointConfig, ExchangeError, Members, client, connect, server};
use protocol::wire::message::{
    Audit, AuditFault, Claim, PutShard, Request, Response, RowRun, ShardName,
};
use quinn::Connection;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use tests::{Grid, Outcome, image};

const LIMIT: Duration = Duration::from_secs(30);

/// Makes a job key for the jobs of `scope`, in the file `name`.
pub(crate) fn key_for(grid: &Grid, scope: &str, name: &str, more: &[&str]) -> Result<()> {
    let make = ["key", "for-job", "--job", scope, "-o", name];
    grid.run(make.iter().chain(more))?.expect(0)?;
    Ok(())
}

/// Runs a command with a job key, as on a machine without the owner's key and state.
pub(crate) fn run_with(grid: &Grid, key: &str, args: &[&str]) -> Result<Outcome> {
    let mut command = grid.command(args)?;
    command
        .env("CKPT_KEY_FILE", grid.path(key))
        .env("CKPT_STATE_DIR", grid.path("state-of-job"))
        .env("HOME", grid.path("home"));
    tests::program::run(&mut command)
}

pub(crate) fn save(grid: &Grid, job: &str, seed: u64) -> Result<Vec<u8>> {
    let bytes = image::memory(1 << 20, seed);
    fs::write(grid.path("image"), &bytes)?;
    grid.run(["save", "--job", job, "--keep", "9", "image"])?
        .expect(0)?;
    Ok(bytes)
}

fn listed(outcome: &Outcome) -> Result<Vec<(String, u64, bool)>> {
    let report = outcome.json()?;
    let all = report["checkpoints"].as_array().context("no checkpoints")?;
    let one = |one: &Value| {
        let job = one["job"].as_str()?.to_owned();
        Some((job, one["version"].as_u64()?, one["void"].as_bool()?))
    };
    Ok(all.iter().filter_map(one).collect())
}

#[test]
fn a_job_key_saves_and_restores_its_job_and_no_other() -> Result<()> {
    let grid = Grid::up(6)?;
    let first = save(&grid, "42", 1)?;
    save(&grid, "43", 2)?;
    key_for(&grid, "42", "job.key", &[])?;
    // The job key also reads checkpoints that the owner saved before.
    let restored = run_with(&grid, "job.key", &["restore", "--job", "42", "-o", "-"])?;
    ensure!(restored.expect(0)?.stdout == first);
    let second = image::memory(1 << 20, 3);
    fs::write(grid.path("image"), &second)?;
    let saved = run_with(
        &grid,
        "job.key",
        &["--json", "save", "--job", "42", "--keep", "1", "image"],
    )?;
    let saved = saved.expect(0)?.json()?;
    ensure!(
        saved["version"] == 2 && saved["removed"] == serde_json::json!([]),
        "{saved}"
    );
    ensure!(
        saved["notes"].to_string().contains("no right to remove"),
        "{saved}"
    );
    for reader in ["job.key", "grid/owner.key"] {
        let restored = run_with(&grid, reader, &["restore", "--job", "42", "-o", "-"])?;
        ensure!(restored.expect(0)?.stdout == second, "{reader}");
    }
    let list = run_with(&grid, "job.key", &["--json", "list"])?.expect(0)?;
    let jobs = listed(&list)?;
    ensure!(
        jobs == [("42".into(), 1, false), ("42".into(), 2, false)],
        "{jobs:?}"
    );
    // The client itself denies everything else, before it asks a host.
    for args in [
        ["save", "--job", "43", "image"].as_slice(),
        &["restore", "--job", "43", "-o", "-"],
        &["list", "--job", "43"],
        &["forget", "--job", "42", "--all"],
        &["touch", "--job", "42", "--ttl", "1d"],
        &["key", "for-job", "--job", "43", "-o", "other.key"],
        &["key", "revoke"],
    ] {
        run_with(&grid, "job.key", args)?.expect(6)?;
    }
    Ok(())
}

#[test]
fn a_key_for_a_prefix_is_good_for_all_jobs_below() -> Result<()> {
    let grid = Grid::up(6)?;
    for job in ["sweep/2", "sweep", "sweeper/1", "other/1"] {
        save(&grid, job, 1)?;
    }
    key_for(&grid, "sweep/", "job.key", &["--rights", "save,restore"])?;
    let bytes = image::memory(1 << 20, 7);
    fs::write(grid.path("image"), &bytes)?;
    for job in ["sweep/1", "sweep/deep/er", "sweep/2"] {
        run_with(&grid, "job.key", &["save", "--job", job, "image"])?.expect(0)?;
        let restored = run_with(&grid, "job.key", &["restore", "--job", job, "-o", "-"])?;
        ensure!(restored.expect(0)?.stdout == bytes, "{job}");
    }
    for job in ["sweep", "sweeper/1", "other/1"] {
        run_with(&grid, "job.key", &["restore", "--job", job, "-o", "-"])?.expect(6)?;
    }
    let list = run_with(&grid, "job.key", &["--json", "list"])?.expect(0)?;
    let jobs: Vec<(String, u64)> = listed(&list)?
        .into_iter()
        .map(|one| (one.0, one.1))
        .collect();
    let below = ["sweep/1", "sweep/2", "sweep/deep/er"];
    ensure!(
        jobs.iter().all(|(job, _)| below.contains(&&**job)),
        "{jobs:?}"
    );
    for expected in [("sweep/1", 1), ("sweep/2", 2), ("sweep/deep/er", 1)] {
        ensure!(jobs.contains(&(expected.0.into(), expected.1)), "{jobs:?}");
    }
    // A checkpoint that the owner saved before is found by the job's name.
    let by_owner = ["restore", "--job", "sweep/2", "--version", "1", "-o", "-"];
    let by_owner = run_with(&grid, "job.key", &by_owner)?.expect(0)?;
    ensure!(by_owner.stdout == image::memory(1 << 20, 1));
    run_with(&grid, "job.key", &["verify", "--read-data"])?.expect(0)?;
    Ok(())
}

#[test]
fn versions_that_a_void_key_saved_are_marked_and_restored_only_by_number() -> Result<()> {
    let grid = Grid::up(6)?;
    let good = save(&grid, "42", 1)?;
    save(&grid, "43", 2)?;
    key_for(&grid, "42", "job.key", &[])?;
    // The holder of the key can save anything.
    let junk: Vec<u8> = image::memory(1 << 18, 9);
    fs::write(grid.path("image"), &junk)?;
    for _ in 0..12 {
        run_with(&grid, "job.key", &["save", "--job", "42", "image"])?.expect(0)?;
    }
    let newest = grid.run(["restore", "--job", "42", "-o", "-"])?.expect(0)?;
    ensure!(newest.stdout == junk);
    let by_version = grid.run(["restore", "--job", "42", "--version", "1", "-o", "-"])?;
    ensure!(by_version.expect(0)?.stdout == good);
    save(&grid, "43", 3)?;

    // One host is away, and later hears from the owner's client that the key is void.
    grid.kill("h06")?;
    grid.run(["key", "revoke"])?.expect(3)?;
    grid.restart()?;
    let newest = grid.run(["restore", "--job", "42", "-o", "-"])?.expect(0)?;
    ensure!(
        newest.stdout == good && newest.stderr.contains("revoked"),
        "{newest}"
    );
    let list = grid.run(["--json", "list", "--job", "42"])?.expect(0)?;
    let void = listed(&list)?.into_iter().filter(|one| one.2).count();
    ensure!(void == 12, "{list}");
    let list = grid.run(["list", "--job", "42"])?.expect(0)?;
    let text = String::from_utf8_lossy(&list.stdout).into_owned();
    let marked = text.lines().filter(|line| line.contains(", void key"));
    ensure!(marked.count() == 12, "{text}");
    ensure!(text.contains("restored only with --version"), "{text}");
    let by_version = grid.run(["restore", "--job", "42", "--version", "5", "-o", "-"])?;
    ensure!(by_version.expect(0)?.stdout == junk);
    tests::program::wait_until("the host that was away has heard", LIMIT, || {
        grid.run(["list"])?.expect(0)?;
        Ok(fs::read_dir(grid.data_dir("h06").join("voids"))?.count() == 1)
    })?;
    run_with(&grid, "job.key", &["save", "--job", "42", "image"])?.expect(6)?;
    // The owner's next version is above all numbers that were taken.
    let next = save(&grid, "42", 4)?;
    let newest = grid.run(["restore", "--job", "42", "-o", "-"])?.expect(0)?;
    ensure!(newest.stdout == next);
    let versions = grid.versions("42")?;
    ensure!(versions.contains(&14), "{versions:?}");
    Ok(())
}

/// The owner runs no command after the host is back, so it can hear only from other hosts.
#[test]
fn a_host_that_holds_nothing_of_an_owner_hears_from_others_which_of_its_keys_are_void() -> Result<()>
{
    let grid = Grid::up_in(3, &[("CKPT_REPAIR_PERIOD", "300ms")])?;
    fs::write(grid.path("image"), image::memory(1 << 16, 1))?;
    let save = [
        "save", "--job", "42", "--data", "1", "--parity", "2", "image",
    ];
    grid.run(save)?.expect(0)?;
    key_for(&grid, "42", "job.key", &[])?;
    grid.run(["forget", "--job", "42", "--all"])?.expect(0)?;
    let accounts = grid.data_dir("h03").join("accounts.json");
    tests::program::wait_until("h03 knows who was there", LIMIT, || Ok(accounts.exists()))?;
    grid.kill("h03")?;
    grid.run(["key", "revoke"])?.expect(3)?;
    grid.restart()?;
    tests::program::wait_until("h03 has heard", LIMIT, || {
        let kept = fs::read_dir(grid.data_dir("h03").join("voids"));
        Ok(kept.is_ok_and(|kept| kept.count() == 1))
    })
}

/// An attacker who is root where job 42 runs: it has the job key, and sends any request with it.
pub(crate) struct Root {
    runtime: tokio::runtime::Runtime,
    connections: Vec<Connection>,
    keys: Keys,
}

impl Root {
    pub(crate) fn new(grid: &Grid, key: &str) -> Result<Self> {
        let AnyKey::Job(identity) = read_any_key(&grid.path(key))? else {
            bail!("not a job key");
        };
        let file = GridFile::load(&grid.file())?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let connections = runtime.block_on(Self::connect(&file, &identity))?;
        let keys = identity.job.as_deref().context("not a job key")?.clone();
        Ok(Self {
            runtime,
            connections,
            keys: keys.into(),
        })
    }

    /// Runs `program` with connections to all hosts and the job key.
    pub(crate) fn run<F: Future<Output = Result<()>>>(
        &self,
        program: impl FnOnce(Vec<Connection>, Keys) -> F,
    ) -> Result<()> {
        let program = program(self.connections.clone(), self.keys.clone());
        self.runtime.block_on(program)
    }

    async fn connect(file: &GridFile, identity: &Identity) -> Result<Vec<Connection>> {
        let config = EndpointConfig::new(identity.clone(), file.authority.clone());
        let endpoint = client(&config, (Ipv4Addr::LOCALHOST, 0).into())?;
        let mut connections = Vec::new();
        for host in &file.hosts {
            connections.push(connect(&endpoint, host.addr.ip().context("a name")?, host.id).await?);
        }
        Ok(connections)
    }

    /// The answers of all hosts as texts, which can be compared.
    pub(crate) fn ask(&self, asked: &Request) -> Vec<String> {
        self.runtime.block_on(async {
            let mut answers = Vec::new();
            for connection in &self.connections {
                let answer = match request(connection, asked, LIMIT).await {
                    // Without the clock in the answer, which differs each time.
                    Ok((Response::Notices { count, .. }, _)) => format!("{count} notices"),
                    Ok((response, _)) => format!("{response:?}"),
                    Err(ExchangeError::Refused(refusal)) => format!("{refusal:?}"),
                    Err(cause) => format!("{cause:?}"),
                };
                answers.push(answer);
            }
            answers
        })
    }
}

/// All requests that name a job or a checkpoint.
fn about(
    owner: codec::OwnerId,
    tag: JobTag,
    id: CheckpointId,
    manifest: &[u8],
    notice: &[u8],
) -> Vec<Request> {
    let claim = Claim {
        job_tag: tag,
        version: Version::FIRST,
        checkpoint: id,
    };
    let put = PutShard {
        claim,
        redundancy: Redundancy::DEFAULT,
        shard: 1,
        expected_bytes: 5,
    };
    let mut all = vec![
        Request::Claim(claim),
        Request::PutShard(put),
        Request::Commit {
            manifest: manifest.to_vec(),
        },
        Request::Find {
            job_tag: Some(tag),
            after: None,
        },
        Request::Forget { checkpoint: id },
        Request::Audited(Audit {
            checkpoint: id,
            shard: 0,
            blocks: 1,
            fault: Some(AuditFault::Missing),
        }),
        Request::Notice {
            notice: notice.to_vec(),
        },
        Request::Notices {
            jobs: vec![(owner, tag)],
        },
        Request::Holders { checkpoint: id },
    ];
    for shard in 0..5 {
        let shard = ShardName {
            checkpoint: id,
            shard,
        };
        let first = 0;
        let count = 1;
        let spot = Spot { row: 0, draw: 0 };
        all.extend([
            Request::Outline(shard),
            Request::Page { shard, page: 0 },
            Request::Rows {
                shard,
                first,
                count,
            },
            Request::RowRuns {
                shard,
                runs: vec![RowRun { first, count }],
            },
            Request::Prove { owner, shard, spot },
        ]);
    }
    all
}

/// Secrets of another job that only the owner and hosts know, as if the attacker had guessed them.
struct Guessed {
    keys: Keys,
    id: CheckpointId,
    manifest: Vec<u8>,
}

impl Guessed {
    fn of(grid: &Grid, job: &str) -> Result<Self> {
        let secret = read_key(&grid.dir().join("grid/owner.key"))?;
        let id = newest(grid, job)?;
        let manifest = grid.manifest_files("h01")?.into_iter().find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(&id.hex())
        });
        Ok(Self {
            keys: Keys::from(OwnerSecret::new(*secret.seed())),
            id,
            manifest: fs::read(manifest.context("no manifest")?)?,
        })
    }

    /// All requests about a job and a checkpoint that they claim to be one of its.
    fn requests(&self, job: &str, id: CheckpointId) -> Result<Vec<Request>> {
        let (tag, path) = self.keys.tag_and_path(&job.parse()?).context("no tag")?;
        let gone = [CheckpointId([1; 16])];
        let none = Intervals::default();
        let owner = self.keys.owner();
        let words = Words::following(None, (owner, tag), 1, None, &gone, &none);
        let notice = Notice::sign(&self.keys, &path.blinded(), &words)?;
        Ok(about(owner, tag, id, &self.manifest, notice.bytes()))
    }
}

fn newest(grid: &Grid, job: &str) -> Result<CheckpointId> {
    let shown = grid.run(["--json", "show", "--job", job])?;
    let shown = shown.expect(0)?.json()?;
    let id = shown["checkpoint"]
        .as_str()
        .and_then(CheckpointId::from_hex);
    id.context("no id")
}

#[test]
fn root_with_the_key_of_one_job_does_not_learn_whether_another_is_there() -> Result<()> {
    let grid = Grid::up(5)?;
    save(&grid, "42", 1)?;
    save(&grid, "43", 2)?;
    // Now hosts have a notice about job 43, too.
    grid.run(["touch", "--job", "43", "--ttl", "9d"])?
        .expect(0)?;
    let rights = ["--rights", "save,restore,remove"];
    key_for(&grid, "42", "job.key", &rights)?;
    let root = Root::new(&grid, "job.key")?;
    let guessed = Guessed::of(&grid, "43")?;
    let of_43 = guessed.requests("43", guessed.id)?;
    let of_nothing = guessed.requests("44", CheckpointId([9; 16]))?;
    for (known, nothing) in of_43.iter().zip(&of_nothing) {
        let known = root.ask(known);
        let nothing = root.ask(nothing);
        ensure!(known == nothing, "{known:?} {nothing:?}");
        let gives = [
            "Outline",
            "Page",
            "Rows",
            "Proof",
            "Committed",
            "Claimed",
            "Accepted",
        ];
        let is_leak = |answer: &&String| gives.iter().any(|word| answer.starts_with(word));
        let leak = known.iter().find(is_leak);
        ensure!(leak.is_none(), "{leak:?}");
    }
    // A `Find` without a job finds only checkpoints of the key's own job.
    let job_tag = None;
    let after = None;
    let all = root.ask(&Request::Find { job_tag, after });
    ensure!(
        all.iter().all(|found| found.contains("count: 1")),
        "{all:?}"
    );
    // Whoever knows the id of a checkpoint can't take it for another one.
    let own_tag = guessed.keys.job_tag(&"42".parse()?).context("no tag")?;
    let claim = Claim {
        job_tag: own_tag,
        version: Version::new(9).context("0")?,
        checkpoint: guessed.id,
    };
    let taken = root.ask(&Request::Claim(claim));
    ensure!(
        taken.iter().all(|answer| !answer.starts_with("Claimed")),
        "{taken:?}"
    );
    let restored = grid.run(["restore", "--job", "43", "-o", "-"])?.expect(0)?;
    ensure!(restored.stdout == image::memory(1 << 20, 2));
    // A key for one job can't show the path of another job.
    let path = guessed
        .keys
        .tag_and_path(&"43".parse()?)
        .context("no path")?;
    let path = path.1.blinded();
    let within = root.ask(&Request::Within { path });
    ensure!(
        within.iter().all(|answer| answer.contains("Forbidden")),
        "{within:?}"
    );
    Ok(())
}

#[test]
fn a_job_key_that_may_remove_can_not_remove_the_newest_version() -> Result<()> {
    let grid = Grid::up(5)?;
    for seed in 1..=3 {
        save(&grid, "42", seed)?;
    }
    let rights = ["--rights", "save,restore,remove"];
    key_for(&grid, "42", "job.key", &rights)?;
    let root = Root::new(&grid, "job.key")?;
    let checkpoint = newest(&grid, "42")?;
    let removed = root.ask(&Request::Forget { checkpoint });
    ensure!(
        removed
            .iter()
            .all(|answer| answer.contains("a job key can't remove the newest two versions")),
        "{removed:?}"
    );
    let forget = run_with(&grid, "job.key", &["forget", "--job", "42", "--all"])?;
    forget.expect(1)?;
    let restored = grid.run(["restore", "--job", "42", "-o", "-"])?.expect(0)?;
    ensure!(restored.stdout == image::memory(1 << 20, 3));
    Ok(())
}

#[test]
fn a_job_that_tidies_up_does_not_feel_the_guards() -> Result<()> {
    // The key may have half of this on each host, five times what a host gets of an image.
    let grid = Grid::up_with(5, &["--capacity", "21MiB"])?;
    let rights = ["--rights", "save,restore,remove"];
    key_for(&grid, "42", "job.key", &rights)?;
    let mut rng = SmallRng::seed_from_u64(42);
    let mut image = vec![0; 6_000_000];
    let mut notes = Vec::new();
    for _ in 0..12 {
        rng.fill(image.as_mut_slice());
        fs::write(grid.path("image"), &image)?;
        let save = ["--json", "save", "--job", "42", "--keep", "1", "image"];
        let saved = run_with(&grid, "job.key", &save)?.expect(0)?.json()?;
        notes.push(saved["notes"].to_string());
    }
    ensure!(!notes.concat().contains("not informed"), "{notes:?}");
    ensure!(notes[10].contains("kept as guard"), "{notes:?}");
    // The newest two and the oldest; there is no space for more guards.
    let left = listed(&grid.run(["--json", "list", "--job", "42"])?.expect(0)?)?;
    let left: Vec<u64> = left.into_iter().map(|(_, version, _)| version).collect();
    ensure!(left == [1, 11, 12], "{left:?}");
    let restored = grid.run(["restore", "--job", "42", "-o", "-"])?.expect(0)?;
    ensure!(restored.stdout == image);
    Ok(())
}

/// The keys and certificates of a grid without daemons.
struct Keyring {
    authority: Authority,
    now: u64,
}

impl Keyring {
    fn new(seed: u8) -> Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let validity = validity(now);
        let authority = Authority::create(OwnerSecret::new([seed; 32]), "lab", validity)?;
        Ok(Self { authority, now })
    }

    fn member(&self, seed: u8, role: Role) -> Result<Identity> {
        let secret = OwnerSecret::new([seed; 32]);
        let name = format!("member-{seed}");
        let signed = self
            .authority
            .sign(&[role], &name, secret.id(), validity(self.now));
        Ok(Identity::new(secret, signed?)?)
    }

    fn grid(&self) -> GridId {
        GridId::of(self.authority.certificate())
    }

    /// A job key of `owner`, for this grid unless `change` says otherwise.
    fn job_key(&self, owner: &Identity, change: impl Fn(&mut NewJobKeys)) -> Result<Identity> {
        let mut new = NewJobKeys {
            grid: self.grid().0,
            scope: "42".parse()?,
            rights: Rights::SAVE,
            serial: 1,
            not_before: self.now,
            not_after: self.now + 3600,
        };
        change(&mut new);
        let seed = if owner.job.is_some() { 78 } else { 77 };
        let keys = JobKeys::issue(&owner.secret, [seed; 32], new)?;
        Ok(Identity::of_job(owner, keys)?)
    }
}

fn validity(now: u64) -> Validity {
    Validity {
        from: now,
        lasting: Duration::from_secs(7 * 86_400),
    }
}

/// Connects to a host of the grid as `client_is`. Returns the peer that the host admits; `None` if it
/// refuses.
async fn admitted(
    ring: &Keyring,
    members: Members,
    client_is: Identity,
) -> Result<Option<protocol::identity::Peer>> {
    let authority = ring.authority.certificate().clone();
    let host = EndpointConfig::new(ring.member(2, Role::Donor)?, authority.clone());
    let endpoint = server(&host, (Ipv4Addr::LOCALHOST, 0).into())?;
    let addr = endpoint.local_addr()?;
    let id = HostId(host.identity.secret.id());
    let door = Door::new(&host, members)?;
    let coming = async {
        let incoming = endpoint.accept().await.context("nobody came")?;
        Ok::<_, anyhow::Error>(door.admit(incoming).await.ok())
    };
    let ours = client(
        &EndpointConfig::new(client_is, authority),
        (Ipv4Addr::LOCALHOST, 0).into(),
    )?;
    let (came, connected) = tokio::join!(coming, connect(&ours, addr, id));
    // TLS 1.3: a client may be done before the host has looked at its certificate.
    drop(connected);
    Ok(came?.map(|(_, peer)| peer))
}

/// Job keys that every host has to refuse, each with what is wrong with it.
fn refused(
    ring: &Keyring,
    owner: &Identity,
    good: &Identity,
) -> Result<Vec<(&'static str, Identity)>> {
    let other = ring.member(4, Role::Submitter)?;
    let elsewhere = Keyring::new(9)?;
    let stranger = elsewhere.member(3, Role::Submitter)?;
    let donor = ring.member(5, Role::Donor)?;
    let day = 86_400;
    Ok(vec![
        (
            "the owner's certificate is missing",
            Identity {
                issuer: None,
                ..good.clone()
            },
        ),
        (
            "another owner's certificate",
            Identity {
                issuer: Some(other.certificate.clone()),
                ..good.clone()
            },
        ),
        (
            "another key",
            Identity {
                secret: OwnerSecret::new([79; 32]),
                ..good.clone()
            },
        ),
        ("an owner of another grid", ring.job_key(&stranger, |_| ())?),
        (
            "an owner that is no submitter",
            ring.job_key(&donor, |_| ())?,
        ),
        (
            "another grid",
            ring.job_key(owner, |new| new.grid = [0; 32])?,
        ),
        (
            "too late",
            ring.job_key(owner, |new| {
                new.not_before = ring.now - 3 * day;
                new.not_after = ring.now - 2 * day;
            })?,
        ),
        (
            "six minutes too late",
            ring.job_key(owner, |new| {
                new.not_before = ring.now - day;
                new.not_after = ring.now - 360;
            })?,
        ),
        (
            "too early",
            ring.job_key(owner, |new| {
                new.not_before = ring.now + 2 * day;
                new.not_after = ring.now + 3 * day;
            })?,
        ),
        ("signed by a job key", ring.job_key(good, |_| ())?),
    ])
}

#[tokio::test]
async fn a_job_key_is_let_in_as_its_owners_and_nobody_elses() -> Result<()> {
    let ring = Keyring::new(1)?;
    let everybody = || Members::fixed(Revocations::default());
    let owner = ring.member(3, Role::Submitter)?;
    let good = ring.job_key(&owner, |_| ())?;
    let peer = admitted(&ring, everybody(), good.clone()).await?;
    let peer = peer.context("not let in")?;
    ensure!(peer.account() == owner.secret.id() && peer.id == good.secret.id());
    ensure!(peer.roles == [Role::Submitter], "{peer:?}");

    // A clock that is behind by minutes does not end a job.
    let ended = ring.job_key(&owner, |new| {
        new.not_before = ring.now - 86_400;
        new.not_after = ring.now - 240;
    })?;
    let peer = admitted(&ring, everybody(), ended).await?;
    ensure!(peer.is_some_and(|peer| peer.not_after == ring.now + 60));

    for (what, identity) in refused(&ring, &owner, &good)? {
        let peer = admitted(&ring, everybody(), identity).await?;
        ensure!(peer.is_none(), "{what}: {peer:?}");
    }
    for gone in [owner.secret.id(), good.secret.id()] {
        let revoked = ring
            .authority
            .revoke(&Revocations::default(), [gone].into())?;
        let peer = admitted(&ring, Members::fixed(revoked), good.clone()).await?;
        ensure!(peer.is_none(), "revoked: {peer:?}");
    }
    Ok(())
}
