//! The process that fetches a job's versions ahead on a host that stands by (`ckpt run --on --standby`).

use std::io;
use std::path::PathBuf;

use ckpt_agent::agent::Agent;
use ckpt_agent::blocks_ahead::BlocksAhead;
use ckpt_agent::report::Failure;
use codec::JobId;
use machine::disk::free_bytes;

use crate::commands::render::{Text, to_json};

/// Share of the free disk that what is fetched ahead may take.
const DISK_PART: u64 = 4;

/// Fetches into the folder `dir`, at the lowest priority: the machine is its owner's. The answer is for the process that
/// stands by.
pub(crate) async fn run(agent: &Agent, job: &JobId, dir: PathBuf) -> Result<Text, Failure> {
    // Fails if it has the lowest priority already.
    let _ = rustix::process::nice(19);
    let folder = BlocksAhead::in_dir(&dir);
    let most_bytes = room(&folder).map_err(|cause| Failure::local(dir.display(), &cause))?;
    let fetched = agent.fetch_ahead(job, &folder, most_bytes).await?;
    Ok(Text(to_json(&fetched).into_bytes()))
}

/// Bytes that the folder may take, with what is in it.
fn room(folder: &BlocksAhead) -> io::Result<u64> {
    // The disk is another's: where its free space is not known, nothing more is put there.
    let free = free_bytes(&rustix::fs::statvfs(folder.dir())?).unwrap_or(0);
    Ok(free.saturating_add(folder.bytes()?) / DISK_PART)
}
