//! A donor that sends shards which it kept to other hosts, as if it had rebuilt them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use ckpt_store::disk::{Disk, RealDisk};
use ckpt_store::shards::ShardReader;
use codec::geometry::BLOCK_BYTES_MAX;
use codec::manifest::Manifest;
use codec::shard_file::{HEADER_BYTES, Header, Outline, ShardIdentity};
use codec::{CheckpointId, JobTag, OwnerId, Version};
use protocol::grid::{Grid, GridHost};
use protocol::net::stream::{read_frame, write_frame};
use protocol::net::{EndpointConfig, client, connect};
use protocol::wire::message::{PutEnd, PutRebuilt, PutShard, Request, Response, RowRun};
use quinn::{Connection, Endpoint};

/// Longest wait for a host.
const LIMIT: Duration = Duration::from_secs(10);

/// A shard in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shard {
    pub(crate) identity: Option<ShardIdentity>,
    pub(crate) blocks: Vec<Vec<u8>>,
    pub(crate) pages: Vec<Vec<u8>>,
    pub(crate) outline: Option<Outline>,
}

/// What the host has of one checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) owner: OwnerId,
    pub(crate) job: JobTag,
    pub(crate) version: Version,
    pub(crate) manifest: Option<Vec<u8>>,
    pub(crate) shards: BTreeMap<u8, Shard>,
}

/// All checkpoints of which a host has shards, with these shards.
#[derive(Clone, Debug, Default)]
pub struct Hoard(pub(crate) BTreeMap<CheckpointId, Held>);

/// Shards to send, and the hosts to send them to.
#[derive(Debug)]
pub struct Replay {
    endpoint: Endpoint,
    hosts: Vec<GridHost>,
    hoard: Hoard,
}

impl Replay {
    pub(crate) fn of(config: &EndpointConfig, grid: &Grid, hoard: Hoard) -> Result<Self> {
        let own = config.identity.secret.id();
        let hosts = grid.hosts.iter().filter(|host| host.id.0 != own);
        Ok(Self {
            endpoint: client(config, (Ipv4Addr::LOCALHOST, 0).into())?,
            hosts: hosts.cloned().collect(),
            hoard,
        })
    }

    /// Sends every shard to every host that can be reached. Returns the checkpoints of which a host took a
    /// shard.
    pub async fn run(&self) -> BTreeSet<CheckpointId> {
        let mut taken = BTreeSet::new();
        for host in &self.hosts {
            let Some(addr) = host.addr.ip() else {
                continue;
            };
            let Ok(connection) = connect(&self.endpoint, addr, host.id).await else {
                continue;
            };
            for (id, held) in &self.hoard.0 {
                for (number, shard) in &held.shards {
                    let sent = send_shard(&connection, held, *number, shard);
                    // A host that closes the connection in the middle has not taken the shard.
                    if let Ok(Ok(true)) = tokio::time::timeout(LIMIT, sent).await {
                        taken.insert(*id);
                    }
                }
            }
            connection.close(0_u32.into(), b"");
        }
        taken
    }
}

/// Sends a shard, and returns whether the host took it.
async fn send_shard(
    connection: &Connection,
    held: &Held,
    number: u8,
    shard: &Shard,
) -> Result<bool> {
    let manifest = held.manifest.clone().context("not committed")?;
    let parsed = Manifest::parse(manifest.clone())?;
    let public = parsed.public();
    let index = public.redundancy.shard(number).context("shard")?;
    let (_, root) = public.shard(index).context("no root")?;
    let put = PutShard::of(public, index);
    let (mut send, mut recv) = connection.open_bi().await?;
    let request = Request::PutRebuilt(Box::new(PutRebuilt { put, manifest }));
    write_frame(&mut send, &request).await?;
    if read_frame::<Response>(&mut recv, LIMIT).await? != Response::Accepted {
        return Ok(false);
    }
    for block in &shard.blocks {
        let len = u32::try_from(block.len())?;
        send.write_all(&len.to_le_bytes()).await?;
        send.write_all(block).await?;
    }
    let rows = shard.blocks.len() as u64;
    send.write_all(&0_u32.to_le_bytes()).await?;
    send.write_all(&PutEnd { rows, root }.encode()).await?;
    send.finish()?;
    let answer = read_frame::<Response>(&mut recv, LIMIT).await?;
    Ok(matches!(answer, Response::Stored(_)))
}

impl Hoard {
    /// Reads the shards and manifests in the data directory of a daemon that does not run, without damaged
    /// files.
    ///
    /// # Errors
    /// When a directory can't be read.
    pub fn read(data: &Path) -> Result<Self> {
        let mut hoard = Self::default();
        let disk = RealDisk::new(data.to_owned(), 0);
        for path in crate::grid::files_of_owners(&data.join("shards"))? {
            let path = path.strip_prefix(data)?;
            // A fault may have damaged or removed the file.
            let Ok((header, shard)) = read_shard(&disk, path) else {
                continue;
            };
            let id = header.identity.checkpoint;
            let manifest = format!("manifests/{}/{}.manifest", header.owner.hex(), id.hex());
            let held = hoard.0.entry(id).or_insert_with(|| Held {
                owner: header.owner,
                job: header.job_tag,
                version: header.version,
                manifest: std::fs::read(data.join(manifest)).ok(),
                shards: Default::default(),
            });
            held.shards.insert(header.identity.shard.number(), shard);
        }
        Ok(hoard)
    }

    /// Adds the checkpoints of another hoard, except those that are here already.
    pub fn add(&mut self, other: Self) {
        for (id, held) in other.0 {
            self.0.entry(id).or_insert(held);
        }
    }

    /// Keeps the `count` committed checkpoints with the lowest versions. Keeps fewer if more than one has
    /// the version at which the list is cut.
    pub fn keep_oldest(&mut self, count: usize) {
        self.0.retain(|_, held| held.manifest.is_some());
        let mut versions: Vec<_> = self.0.values().map(|held| held.version).collect();
        versions.sort();
        if let Some(end) = versions.get(count) {
            self.0.retain(|_, held| held.version < *end);
        }
    }
}

fn read_shard(disk: &RealDisk, path: &Path) -> Result<(Header, Shard)> {
    let file = disk.open(path)?;
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0)?;
    let header = Header::parse(&header)?;
    let reader = ShardReader::open(file, header.identity)?;
    let outline = reader.footer().outline.clone();
    let mut shard = Shard::default();
    for page in 0..outline.pages.len() as u64 {
        let (bytes, _) = reader.page(page)?.context("page")?;
        shard.pages.push(bytes);
    }
    let mut memory = Vec::new();
    for row in 0..outline.rows {
        let run = RowRun {
            first: row,
            count: 1,
        };
        let mut bytes = reader.rows(&[run])?.context("row")?;
        let mut block = Vec::new();
        for range in bytes.next(&mut memory, BLOCK_BYTES_MAX)? {
            block.extend_from_slice(memory.get(range).context("range")?);
        }
        shard.blocks.push(block);
    }
    shard.outline = Some(outline);
    Ok((header, shard))
}
