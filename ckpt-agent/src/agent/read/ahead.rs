//! Fetches the shards of a job ahead of a restore, as they are: a machine on which a job may go on gets them before it
//! may open them. Its key need not have the secrets of the job.

use std::collections::BTreeSet;

use bytes::Bytes;
use codec::grant::Rights;
use codec::{JobId, ShardIndex};
use serde::{Deserialize, Serialize};
use tokio::task::{JoinSet, spawn_blocking};
use transfer::get::BlockReader;

use crate::agent::Agent;
use crate::blocks_ahead::{BlocksAhead, ShardAhead, ShardOf};
use crate::core::HostIndex;
use crate::core::gather::{Wait, WaitUntil};
use crate::inventory::KnownCheckpoint;
use crate::report::Failure;

/// Most rows that are read with one call: they are in memory until they are written.
const ROWS_AT_ONCE: u64 = 16;

/// What was fetched ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchedAhead {
    /// The newest version of which hosts show enough shards.
    pub version: Option<u64>,
    /// Bytes that came from hosts.
    pub fetched_bytes: u64,
    /// Bytes that all that is here takes on the disk.
    pub held_bytes: u64,
    /// Whether this version, and all that it can build on, is here.
    pub is_complete: bool,
}

/// A shard to fetch, and the hosts that have it.
#[derive(Clone)]
struct Wanted {
    shard: ShardOf,
    rows: u64,
    holders: Vec<HostIndex>,
    reader: BlockReader,
}

impl Agent {
    /// This client, which takes blocks that were fetched ahead from `folder`.
    #[must_use]
    pub fn with_blocks_ahead(mut self, folder: BlocksAhead) -> Self {
        self.blocks_ahead = Some(folder);
        self
    }

    /// Fetches into `folder` as many shards of each checkpoint of the job as a restore needs, the newest first, and
    /// removes those of checkpoints that no host shows any more, unless so many are silent that they may have one.
    /// Once the folder takes `most_bytes` of the disk, nothing more is fetched.
    ///
    /// # Errors
    /// When too few hosts answer, or the folder can't be written to.
    pub async fn fetch_ahead(
        &self,
        job: &JobId,
        folder: &BlocksAhead,
        most_bytes: u64,
    ) -> Result<FetchedAhead, Failure> {
        let doing = format!("cannot fetch job {job} ahead");
        let job_tag = self.job_tag(job)?;
        self.needs(Rights::RESTORE, &doing)?;
        let wait = WaitUntil::Answers(Wait::NotForSilent);
        let gathered = self.gather(Some(job_tag), wait).await;
        self.require_answers(&gathered, &doing)?;
        let failed = |cause: &std::io::Error| Failure::local(folder.dir().display(), cause);
        let all = gathered.inventory.newest_first().into_iter();
        let all = all.filter(|known| known.can_lose().is_some());
        // What was deleted can still be what others build on.
        let known: Vec<&KnownCheckpoint> = all.chain(gathered.inventory.passed_over()).collect();
        let few = known
            .first()
            .map_or(1, |one| one.manifest.public().redundancy.data());
        if gathered.silent.len() < few {
            let shown = known.iter().map(|one| one.stamp().checkpoint);
            let removed = folder.keep_only(&shown.collect());
            removed.map_err(|cause| failed(&cause))?;
        }
        let wanted = known.iter().flat_map(|one| self.wanted(one, folder));
        let wanted: Vec<Wanted> = wanted.collect();
        let mut held = folder.bytes().map_err(|cause| failed(&cause))?;
        let mut fetched = FetchedAhead {
            version: known.first().map(|one| one.version().number()),
            is_complete: true,
            ..FetchedAhead::default()
        };
        for of_one in wanted.chunk_by(|a, b| a.shard.0 == b.shard.0) {
            let room = most_bytes.saturating_sub(held) / of_one.len() as u64;
            let mut coming = JoinSet::new();
            for wanted in of_one {
                coming.spawn(shard_ahead(wanted.clone(), folder.clone(), room));
            }
            while let Some(came) = coming.join_next().await {
                let came = came.unwrap_or_default();
                fetched.is_complete &= came.is_whole;
                fetched.fetched_bytes += came.bytes;
                held += came.taken;
            }
        }
        fetched.held_bytes = folder.bytes().map_err(|cause| failed(&cause))?;
        Ok(fetched)
    }

    /// The shards of a checkpoint that are still to be fetched.
    fn wanted(&self, known: &KnownCheckpoint, folder: &BlocksAhead) -> Vec<Wanted> {
        let public = known.manifest.public();
        let reader = BlockReader::new(self.hosts.clone(), public.clone());
        let all = public.redundancy.shards();
        let here = all.filter(|shard| folder.has((public.checkpoint, *shard)));
        let shown = known.holders.iter().map(|(shard, _)| *shard).collect();
        let shards = to_fetch(public.redundancy.data(), &here.collect(), &shown);
        let wanted = shards.into_iter().map(|shard| {
            let holders = known.holders.iter().filter(|(held, _)| *held == shard);
            Wanted {
                shard: (public.checkpoint, shard),
                rows: public.rows,
                holders: holders.map(|(_, host)| *host).collect(),
                reader: reader.clone(),
            }
        });
        wanted.collect()
    }
}

/// Of the shards that hosts show, those to fetch beside the ones that are `here`, until there are as many as a restore
/// needs. Data shards come first, which it asks for first. A host that is silent now takes nothing away.
fn to_fetch(
    needed: usize,
    here: &BTreeSet<ShardIndex>,
    shown: &BTreeSet<ShardIndex>,
) -> Vec<ShardIndex> {
    let lacking = needed.saturating_sub(here.len());
    shown.difference(here).copied().take(lacking).collect()
}

/// What came of a shard.
#[derive(Clone, Copy, Debug, Default)]
struct CameAhead {
    bytes: u64,
    /// Bytes of the disk.
    taken: u64,
    is_whole: bool,
}

/// Fetches a shard from the first of its holders that sends all of it.
async fn shard_ahead(wanted: Wanted, folder: BlocksAhead, room: u64) -> CameAhead {
    let mut all = CameAhead::default();
    for host in &wanted.holders {
        // A full or broken disk: the restore gets this shard from hosts.
        let Ok(file) = folder.begin(wanted.shard) else {
            break;
        };
        let came = from_host(&wanted, *host, file, room).await;
        all.bytes += came.bytes;
        all.taken = came.taken;
        all.is_whole = came.is_whole;
        if came.is_whole {
            break;
        }
    }
    all
}

async fn from_host(wanted: &Wanted, host: HostIndex, file: ShardAhead, room: u64) -> CameAhead {
    let mut came = CameAhead::default();
    let mut file = Some(file);
    let mut next = 0;
    while next < wanted.rows {
        let rows = next..wanted.rows.min(next + ROWS_AT_ONCE);
        next = rows.end;
        let mut blocks: Vec<(u64, Bytes)> = Vec::new();
        let read = wanted
            .reader
            .blocks(wanted.shard.1, host, rows, |row, block| {
                blocks.push((row, block));
            });
        if read.await.is_err() || came.taken > room {
            return came;
        }
        came.bytes += blocks
            .iter()
            .map(|(_, block)| block.len() as u64)
            .sum::<u64>();
        let Some(writes) = file.take() else {
            return came;
        };
        let wrote = spawn_blocking(move || writes.put(&blocks).map(|taken| (taken, writes))).await;
        match wrote {
            Ok(Ok((taken, again))) => {
                came.taken += taken;
                file = Some(again);
            }
            Ok(Err(_)) | Err(_) => return came,
        }
    }
    came.is_whole = file.is_some_and(|file| file.end().is_ok());
    came
}

#[cfg(test)]
mod tests {
    use codec::Redundancy;

    use super::*;

    #[test]
    fn what_is_here_stays_whoever_is_silent_and_only_what_is_lacking_is_fetched() {
        let shards = |numbers: &[u8]| -> BTreeSet<ShardIndex> {
            let shard = |number: &u8| Redundancy::DEFAULT.shard(*number).unwrap();
            numbers.iter().map(shard).collect()
        };
        let fetched = |here: &[u8], shown: &[u8]| -> Vec<u8> {
            let found = to_fetch(3, &shards(here), &shards(shown));
            found.into_iter().map(ShardIndex::number).collect()
        };
        assert_eq!(fetched(&[], &[0, 1, 2, 3, 4]), [0, 1, 2]);
        assert_eq!(fetched(&[], &[0, 2, 4]), [0, 2, 4]);
        assert_eq!(fetched(&[0, 1], &[1, 2, 3]), [2]);
        // The holders of what is here are silent.
        assert_eq!(fetched(&[0, 1, 2], &[3, 4]), [0_u8; 0]);
        assert_eq!(fetched(&[0], &[0]), [0_u8; 0]);
    }
}
