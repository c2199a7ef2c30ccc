//! Checkpoints with redundancy 1 + 1, of which one host has the one shard that suffices: the least that a
//! member can write.

use std::time::Duration;

use anyhow::{Context, Result};
use codec::compress::Method;
use codec::index::StoredSegment;
use codec::keys::Keys;
use codec::manifest::{ImageKind, Manifest, NewManifest, Summary, Tail};
use codec::seal::{Cipher, DataKey};
use codec::shard_file::{BlockEntry, ShardIdentity, TableBuilder};
use codec::{CheckpointId, JobId, Redundancy, ShardRoot, Version};
use protocol::net::stream::{ExchangeError, read_frame, request};
use protocol::wire::message::{Claim, PutEnd, PutShard, Request, Response, ShardName};
use quinn::Connection;

/// The fields of a checkpoint to make.
#[derive(Clone, Debug)]
pub struct SoloPlan {
    /// The job.
    pub job: JobId,
    /// The version of the checkpoint.
    pub version: u64,
    /// When the checkpoint was made, in Unix seconds.
    pub created: u64,
    /// Id of the checkpoint.
    pub id: [u8; 16],
    /// Number of rows, all with the same block.
    pub rows: usize,
    /// The block of each row.
    pub block: Vec<u8>,
}

/// A signed checkpoint with the same block in each row.
#[derive(Clone, Debug)]
pub struct Solo {
    claim: Claim,
    redundancy: Redundancy,
    end: PutEnd,
    manifest: Vec<u8>,
    block: Vec<u8>,
}

impl Solo {
    /// Signs the manifest of the checkpoint.
    ///
    /// # Errors
    /// When the keys are not for the job.
    pub fn sign(keys: &Keys, plan: SoloPlan) -> Result<Self> {
        Self::sign_with(keys, plan, 1)
    }

    /// As [`Self::sign`], with a manifest that lists this many segments, each of 11 bytes.
    ///
    /// # Errors
    /// As [`Self::sign`].
    pub fn sign_with(keys: &Keys, plan: SoloPlan, segments: usize) -> Result<Self> {
        let redundancy = Redundancy::new(1, 1)?;
        let checkpoint = CheckpointId(plan.id);
        let claim = Claim {
            job_tag: keys.job_tag(&plan.job).context("no tag")?,
            version: Version::new(plan.version).context("version 0")?,
            checkpoint,
        };
        let entry = BlockEntry::of(&plan.block);
        let roots = redundancy.shards().map(|shard| {
            let mut table = TableBuilder::default();
            for _ in 0..plan.rows {
                table.push(entry);
            }
            let identity = ShardIdentity {
                checkpoint,
                redundancy,
                shard,
            };
            table.finish().1.root(&identity)
        });
        let roots: Vec<ShardRoot> = roots.collect();
        let end = PutEnd {
            rows: plan.rows as u64,
            root: *roots.first().context("no root")?,
        };
        let new = NewManifest {
            checkpoint,
            version: claim.version,
            created: plan.created,
            previous: None,
            redundancy,
            cipher: Cipher::None,
            rows: end.rows,
            block_bytes: (plan.rows * plan.block.len()) as u64,
            roots,
        };
        let segment = StoredSegment {
            raw_len: 1,
            stored_len: 1,
            method: Method::Raw,
        };
        let summary = Summary {
            job: plan.job,
            data_key: DataKey::new([0; 32]),
            kind: ImageKind::Stream,
            image_bytes: 1,
            stream_bytes: 1,
            stored_bytes: 1,
            files: 1,
            index: vec![segment; segments],
            tail: Tail::default(),
        };
        let manifest = Manifest::sign(keys, new, &summary)?;
        Ok(Self {
            claim,
            redundancy,
            end,
            manifest: manifest.bytes().to_vec(),
            block: plan.block,
        })
    }

    /// Has a host show the checkpoint, of which no host has a shard.
    ///
    /// # Errors
    /// When the host refuses.
    pub async fn haunt(&self, host: &Connection, limit: Duration) -> Result<(), ExchangeError> {
        let manifest = self.manifest.clone();
        let asked = Request::KeepManifest { manifest };
        request(host, &asked, limit).await.map(drop)
    }

    /// The offer of the shard to a host.
    pub fn put(&self) -> PutShard {
        PutShard {
            claim: self.claim,
            redundancy: self.redundancy,
            shard: 0,
            expected_bytes: self.end.rows * self.block.len() as u64,
        }
    }

    /// The name by which a client asks for the shard.
    pub const fn shard(&self) -> ShardName {
        ShardName {
            checkpoint: self.claim.checkpoint,
            shard: 0,
        }
    }

    /// The bytes of the manifest.
    pub fn manifest(&self) -> &[u8] {
        &self.manifest
    }

    /// Stores the shard on a host, which has `limit` for each answer.
    ///
    /// # Errors
    /// When the host refuses the shard or does not answer.
    pub async fn store(&self, host: &Connection, limit: Duration) -> Result<(), ExchangeError> {
        let (_, mut exchange) = request(host, &Request::PutShard(self.put()), limit).await?;
        let len = (self.block.len() as u32).to_le_bytes();
        for _ in 0..self.end.rows {
            exchange.send.write_all(&len).await?;
            exchange.send.write_all(&self.block).await?;
        }
        let end = [&[0; 4][..], &self.end.encode()].concat();
        exchange.send.write_all(&end).await?;
        match read_frame(&mut exchange.recv, limit).await? {
            Response::Refused(refusal) => Err(ExchangeError::Refused(refusal)),
            _ => Ok(()),
        }
    }

    /// Commits the checkpoint on a host, which makes it visible there.
    ///
    /// # Errors
    /// When the host refuses.
    pub async fn commit(&self, host: &Connection, limit: Duration) -> Result<(), ExchangeError> {
        let manifest = self.manifest.clone();
        let commit = Request::Commit { manifest };
        request(host, &commit, limit).await.map(drop)
    }
}
