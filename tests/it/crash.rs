//! A daemon that is killed again and again while it writes shards.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ckpt_agent::core::HostIndex;
use codec::compress::Level;
use codec::encode::{CheckpointBuilder, CheckpointPlan, EncodedRow, RowEncoder};
use codec::keys::Keys;
use codec::labels::Labels;
use codec::manifest::{ImageKind, Manifest};
use codec::seal::{Cipher, DataKey};
use codec::{CheckpointId, JobId, OwnerId, Redundancy, Version};
use protocol::grid::Grid as GridFile;
use protocol::identity::{Identity, certificate_from_pem, read_key};
use protocol::wire::message::{PutEnd, PutShard, Request};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tests::Grid;
use transfer::Hosts;
use transfer::find::Shown;
use transfer::get::BlockReader;
use transfer::put::{Meter, PutCommand, PutProgress, put_shard};

/// Number of shards that are written.
const SHARDS: u64 = 1000;

/// Number of writers at the same time.
const WRITERS: u64 = 4;

/// How often the daemon is killed.
const KILLS: u64 = 5;

const HOST: HostIndex = HostIndex(0);

/// A checkpoint of one shard, with a row for the image and a row for the index.
fn checkpoint(keys: &Keys, number: u64, rng: &mut SmallRng) -> Result<(Manifest, Vec<EncodedRow>)> {
    let redundancy = Redundancy::new(1, 0)?;
    let mut id = [0; 16];
    rng.fill(&mut id);
    let job: JobId = format!("crash-{number}").parse()?;
    let plan = CheckpointPlan {
        link: None,
        labels: Labels::default(),
        checkpoint: CheckpointId(id),
        job_tag: keys.job_tag(&job).context("no tag")?,
        job,
        version: Version::FIRST,
        created: 0,
        previous: None,
        redundancy,
        cipher: Cipher::Aes256Gcm,
        data_key: DataKey::new(rng.random()),
    };
    let mut encoder = RowEncoder::new(redundancy, plan.sealer(), Level::DEFAULT);
    let mut builder = CheckpointBuilder::new(plan);
    let mut rows = Vec::new();
    let mut image = vec![0; rng.random_range(1..200_000)];
    rng.fill(image.as_mut_slice());
    let row = encoder.encode(0, &image, Vec::new());
    builder.push_row(&row)?;
    rows.push(row);
    let file = codec::index::FileEntry {
        path: Vec::new(),
        mode: 0o600,
        mtime_s: 0,
        mtime_ns: 0,
        kind: codec::index::FileKind::Regular {
            size: image.len() as u64,
            extents: vec![codec::index::Extent {
                offset: 0,
                len: image.len() as u64,
            }],
        },
        attributes: None,
    };
    let index = builder.finish_image(vec![file], 0)?;
    let row = encoder.encode(1, &index, Vec::new());
    builder.push_index_row(&row)?;
    rows.push(row);
    let draft = builder.finish(ImageKind::Stream);
    Ok((draft.sign(keys, Vec::new())?, rows))
}

/// Writes one shard, and returns whether the host acknowledged it.
async fn write(hosts: &Hosts, manifest: &Manifest, rows: &[EncodedRow]) -> bool {
    let public = manifest.public();
    let Some(first) = public.redundancy.shard(0) else {
        return false;
    };
    let put = PutShard {
        expected_bytes: 0,
        ..PutShard::of(public, first)
    };
    let (commands, queue) = tokio::sync::mpsc::unbounded_channel();
    for row in rows {
        let _ = commands.send(PutCommand::Block(row.row, row.blocks.clone().into()));
    }
    let end = PutEnd {
        rows: public.rows,
        root: public.roots[0],
    };
    let _ = commands.send(PutCommand::Finish(end));
    let mut stored = false;
    let on_progress = |progress| stored |= matches!(progress, PutProgress::Stored);
    let meter = Meter::default();
    let put = put_shard(
        hosts.clone(),
        HOST,
        Request::PutShard(put),
        queue,
        &meter,
        on_progress,
    );
    let done = tokio::time::timeout(Duration::from_secs(60), put).await;
    matches!(done, Ok(Ok(()))) && stored
}

#[test]
fn every_acknowledged_shard_survives_kills() -> Result<()> {
    let grid = Grid::up(1)?;
    let file = GridFile::load(&grid.file())?;
    let files = file.owner.clone().context("no owner")?;
    let certificate = certificate_from_pem(&std::fs::read_to_string(&files.certificate)?)?;
    let identity = Identity::new(read_key(&files.key)?, certificate)?;
    let seed: u64 = rand::rng().random();
    eprintln!("seed {seed}");
    let runtime = tokio::runtime::Runtime::new()?;
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    let written = Arc::new(AtomicU64::new(0));
    let hosts = {
        let _runtime = runtime.enter();
        Hosts::new(&file, &identity, 1 << 20)?
    };
    for writer in 0..WRITERS {
        let hosts = hosts.clone();
        let keys = Keys::from(identity.secret.clone());
        let acknowledged = Arc::clone(&acknowledged);
        let written = Arc::clone(&written);
        runtime.spawn(async move {
            let mut rng = SmallRng::seed_from_u64(seed ^ writer);
            while written.load(Ordering::Relaxed) < SHARDS {
                let number = written.fetch_add(1, Ordering::Relaxed);
                let Ok((manifest, rows)) = checkpoint(&keys, number, &mut rng) else {
                    return;
                };
                if write(&hosts, &manifest, &rows).await {
                    // Every second checkpoint is committed, too.
                    let bytes = manifest.bytes().to_vec();
                    let committed =
                        number.is_multiple_of(2) && hosts.commit(HOST, bytes).await.is_ok();
                    acknowledged.lock().unwrap().push((manifest, committed));
                } else {
                    // The daemon is down, and is started again soon.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        });
    }
    let mut rng = SmallRng::seed_from_u64(seed);
    for kill in 0..KILLS {
        let until = (kill + 1) * SHARDS / (KILLS + 1) + rng.random_range(0..20);
        tests::program::wait_until("shards are written", Duration::from_secs(120), || {
            Ok(written.load(Ordering::Relaxed) >= until.min(SHARDS))
        })
        .with_context(|| format!("{} shards, {}", written.load(Ordering::Relaxed), log(&grid)))?;
        grid.kill("h01")?;
        grid.restart()?;
    }
    tests::program::wait_until("all shards are written", Duration::from_secs(120), || {
        Ok(written.load(Ordering::Relaxed) >= SHARDS)
    })
    .with_context(|| format!("{} shards, {}", written.load(Ordering::Relaxed), log(&grid)))?;
    let acknowledged = std::mem::take(&mut *acknowledged.lock().unwrap());
    ensure!(
        acknowledged.len() as u64 > SHARDS / 4,
        "only {} shards",
        acknowledged.len()
    );
    eprintln!("{} acknowledged of {SHARDS}", acknowledged.len());
    let owner = identity.secret.id();
    runtime.block_on(check(&hosts, owner, &acknowledged))
}

/// The last 20 lines of the daemon's log.
fn log(grid: &Grid) -> String {
    let log = std::fs::read_to_string(grid.data_dir("h01").join("log"));
    let log = log.unwrap_or_else(|cause| cause.to_string());
    let last: Vec<&str> = log.lines().rev().take(20).collect();
    last.into_iter().rev().collect::<Vec<_>>().join("\n")
}

/// Reads every acknowledged shard, and checks that committed checkpoints are found.
async fn check(hosts: &Hosts, owner: OwnerId, acknowledged: &[(Manifest, bool)]) -> Result<()> {
    let mut found = Vec::new();
    let take = |shown: Shown| {
        found.push(shown.checkpoint);
        true
    };
    hosts.find(HOST, owner, None, |_| None, take).await?;
    for (manifest, committed) in acknowledged {
        let public = manifest.public().clone();
        let id = public.checkpoint;
        let shard = public.redundancy.shard(0).context("no shard")?;
        let rows = public.rows;
        let reader = BlockReader::new(hosts.clone(), public);
        let mut blocks = 0;
        reader
            .blocks(shard, HOST, 0..rows, |_, _| blocks += 1)
            .await
            .with_context(|| format!("shard of {id}"))?;
        ensure!(blocks == rows, "{id}: {blocks} of {rows} blocks");
        if *committed {
            let known = found.contains(&id);
            ensure!(known, "{id} was committed and is not found");
        }
    }
    Ok(())
}
