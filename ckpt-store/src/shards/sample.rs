//! Checkpoints for tests. The daemon's tests use this file, too.

use codec::compress::Method;
use codec::index::StoredSegment;
use codec::keys::Keys;
use codec::manifest::{ImageKind, Manifest, NewManifest, Summary, Tail};
use codec::seal::{Cipher, DataKey, OwnerSecret};
use codec::shard_file::{BlockEntry, ShardIdentity, TableBuilder};
use codec::{CheckpointId, Redundancy, ShardRoot, Version};
use protocol::wire::message::{Claim, PutEnd, PutShard, ShardName};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// A checkpoint with one data and one parity shard of random blocks. A host can't distinguish them from
/// blocks of an image.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) manifest: Manifest,
    /// The blocks, by shard and row.
    pub(crate) blocks: [Vec<Vec<u8>>; 2],
}

impl Sample {
    /// Version `version` of a job of `owner`. The rows and all else follow from `seed`.
    pub(crate) fn new(owner: &OwnerSecret, job: &str, version: u64, seed: u64) -> Self {
        let lengths: Vec<usize> = {
            let mut rng = SmallRng::seed_from_u64(seed);
            let rows = rng.random_range(1..5);
            (0..rows).map(|_| rng.random_range(1..3000)).collect()
        };
        Self::with_rows(owner, job, version, seed, &lengths)
    }

    /// The same as [`Self::new`], with rows of these block lengths.
    pub(crate) fn with_rows(
        owner: &OwnerSecret,
        job: &str,
        version: u64,
        seed: u64,
        lengths: &[usize],
    ) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let redundancy = Redundancy::new(1, 1).unwrap();
        let checkpoint = CheckpointId(rng.random());
        let blocks = [0, 1].map(|_| {
            let mut block = |len: &usize| {
                let mut block = vec![0; *len];
                rng.fill(block.as_mut_slice());
                block
            };
            lengths.iter().map(&mut block).collect::<Vec<_>>()
        });
        let roots = redundancy.shards().map(|shard| {
            let identity = ShardIdentity {
                checkpoint,
                redundancy,
                shard,
            };
            root_of(&blocks[shard.at()], &identity)
        });
        let new = NewManifest {
            checkpoint,
            version: Version::new(version).unwrap(),
            created: 0,
            previous: None,
            redundancy,
            cipher: Cipher::Aes256Gcm,
            rows: lengths.len() as u64,
            block_bytes: lengths.iter().sum::<usize>() as u64,
            roots: roots.collect(),
        };
        let summary = Summary {
            job: job.parse().unwrap(),
            data_key: DataKey::new([9; 32]),
            kind: ImageKind::Stream,
            image_bytes: 1,
            stream_bytes: 1,
            stored_bytes: 1,
            files: 1,
            index: vec![StoredSegment {
                raw_len: 1,
                stored_len: 1,
                method: Method::Raw,
            }],
            tail: Tail::default(),
        };
        let manifest = Manifest::sign(&Keys::from(owner.clone()), new, &summary).unwrap();
        Self { manifest, blocks }
    }

    pub(crate) fn id(&self) -> CheckpointId {
        self.manifest.public().checkpoint
    }

    pub(crate) fn claim(&self) -> Claim {
        Claim::of(self.manifest.public())
    }

    /// The head of a transfer of a shard whose size is not announced.
    pub(crate) fn put(&self, shard: u8) -> PutShard {
        let public = self.manifest.public();
        PutShard {
            expected_bytes: 0,
            ..PutShard::of(public, public.redundancy.shard(shard).unwrap())
        }
    }

    /// The head of a transfer of shard 0 that announces this many bytes.
    pub(crate) fn put_of(&self, expected_bytes: u64) -> PutShard {
        PutShard {
            expected_bytes,
            ..self.put(0)
        }
    }

    pub(crate) fn end(&self, shard: u8) -> PutEnd {
        PutEnd {
            rows: self.manifest.public().rows,
            root: self.manifest.public().roots[usize::from(shard)],
        }
    }

    pub(crate) fn name(&self, shard: u8) -> ShardName {
        ShardName {
            checkpoint: self.id(),
            shard,
        }
    }
}

/// The root of a shard with these blocks.
pub(crate) fn root_of(blocks: &[Vec<u8>], identity: &ShardIdentity) -> ShardRoot {
    let mut table = TableBuilder::default();
    for block in blocks {
        table.push(BlockEntry::of(block));
    }
    table.finish().1.root(identity)
}
