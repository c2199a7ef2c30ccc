//! A storage host that keeps shards in memory, follows the protocol, and lies in the way that a test
//! chooses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use codec::geometry::page_of;
use codec::hash::ShardRoot;
use codec::holding::{Asking, ShardSet, Tag};
use codec::notice::Notice;
use codec::proof::{ShardProof, Spot};
use codec::shard_file::{BlockEntry, ShardIdentity, TableBuilder};
use codec::{CheckpointId, JobTag, OwnerId, Version};
use protocol::identity::{Identity, Peer};
use protocol::net::stream::{read_exact, read_frame, write_frame};
use protocol::net::{EndpointConfig, server};
use protocol::wire::Code;
use protocol::wire::message::{
    Claim, HeldTag, HostStatus, PutEnd, PutShard, Record, Refusal, Request, Response, RowRun,
    ShardName, StoredShard,
};
use protocol::wire::parts::Parts;
use quinn::{Connection, Endpoint, RecvStream, SendStream};

use crate::lies::claimed_rows;
pub use crate::lies::{Kind, Lie};
use crate::passed_on::{self, OtherHosts};
pub use crate::replay::Hoard;
use crate::replay::{Held, Replay, Shard};
use crate::witness::Witness;

/// Longest wait for a client.
const LIMIT: Duration = Duration::from_secs(60);

/// How far the clock of a host that lies about the time is ahead.
const AHEAD: Duration = Duration::from_secs(3 * 365 * 86_400);

#[derive(Debug)]
struct State {
    name: String,
    id: OwnerId,
    lie: Mutex<Lie>,
    held: Mutex<BTreeMap<CheckpointId, Held>>,
    /// Checkpoints of which submitters offered it shards, with their owners.
    offered: Mutex<BTreeSet<(OwnerId, CheckpointId)>>,
    /// How often a host asked this one for its notices and its clock.
    clock_asked: AtomicU64,
    witness: Mutex<Witness>,
    /// Whom it asks in place of an answer of its own.
    others: Mutex<Option<Arc<OtherHosts>>>,
}

/// A host that can lie. Dropping it stops it.
#[derive(Debug)]
pub struct Liar {
    state: Arc<State>,
    identity: Identity,
    authority: rustls_pki_types::CertificateDer<'static>,
    endpoint: Endpoint,
    addr: SocketAddr,
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.endpoint.close(0_u32.into(), b"");
    }
}

impl Liar {
    /// Starts a host that is honest until [`Self::lie`]. Needs a tokio runtime around it.
    ///
    /// # Errors
    /// When it can't listen.
    pub fn start(
        name: &str,
        identity: Identity,
        authority: rustls_pki_types::CertificateDer<'static>,
    ) -> Result<Self> {
        let anywhere = ([127, 0, 0, 1], 0).into();
        Self::start_at(anywhere, name, identity, authority, Hoard::default())
    }

    /// Like [`Self::start`], at the address `listen`, with the shards of `hoard`.
    ///
    /// # Errors
    /// When it can't listen there.
    pub fn start_at(
        listen: SocketAddr,
        name: &str,
        identity: Identity,
        authority: rustls_pki_types::CertificateDer<'static>,
        hoard: Hoard,
    ) -> Result<Self> {
        let mut config = EndpointConfig::new(identity.clone(), authority.clone());
        config.streams_max = 64;
        config.receive_window = 8 << 20;
        config.stream_window = 2 << 20;
        let endpoint = server(&config, listen)?;
        let state = Arc::new(State {
            name: name.to_owned(),
            id: identity.secret.id(),
            lie: Mutex::new(Lie::None),
            held: Mutex::new(hoard.0),
            offered: Mutex::default(),
            clock_asked: AtomicU64::new(0),
            witness: Mutex::default(),
            others: Mutex::default(),
        });
        let addr = endpoint.local_addr()?;
        tokio::spawn(accept(endpoint.clone(), Arc::clone(&state)));
        Ok(Self {
            state,
            identity,
            authority,
            endpoint,
            addr,
        })
    }

    /// The address at which it listens.
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Has the host lie in this way from now on.
    pub fn lie(&self, lie: Lie) {
        *self
            .state
            .lie
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = lie;
    }

    /// How often a host asked this one for its notices and its clock.
    pub fn clock_asked(&self) -> u64 {
        self.state.clock_asked.load(Ordering::SeqCst)
    }

    /// A copy of all shards that it has.
    pub fn hoard(&self) -> Hoard {
        let held = &self.state.held;
        Hoard(held.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Lets the host pass questions on to all other hosts of the grid ([`Lie::PassesQuestionsOn`]).
    ///
    /// # Errors
    /// When no socket can be opened.
    pub fn knows(&self, grid: &protocol::grid::Grid) -> Result<()> {
        let config = EndpointConfig::new(self.identity.clone(), self.authority.clone());
        let others = Arc::new(OtherHosts::of(&config, grid)?);
        *self
            .state
            .others
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(others);
        Ok(())
    }

    /// A [`Replay`] that sends all committed shards of this host to every other host of the grid, as if they
    /// were rebuilt.
    ///
    /// # Errors
    /// When no socket can be opened.
    pub fn bring_back(&self, grid: &protocol::grid::Grid) -> Result<Replay> {
        let config = EndpointConfig::new(self.identity.clone(), self.authority.clone());
        Replay::of(&config, grid, self.hoard())
    }
}

async fn accept(endpoint: Endpoint, state: Arc<State>) {
    while let Some(incoming) = endpoint.accept().await {
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let Ok(connection) = incoming.await else {
                return;
            };
            let Ok(peer) = Peer::of(&connection) else {
                return;
            };
            while let Ok((send, recv)) = connection.accept_bi().await {
                let serving = Serving {
                    state: Arc::clone(&state),
                    connection: connection.clone(),
                    owner: peer.id,
                    lie: *state.lie.lock().unwrap_or_else(PoisonError::into_inner),
                    send,
                    recv,
                };
                let connection = connection.clone();
                tokio::spawn(async move {
                    // Errors don't matter: the client has to cope with them. Ending with the connection
                    // frees the address for the daemon that is started after this host.
                    tokio::select! {
                        served = serving.serve() => drop(served),
                        _ = connection.closed() => {}
                    }
                });
            }
        });
    }
}

struct Serving {
    state: Arc<State>,
    connection: Connection,
    owner: OwnerId,
    lie: Lie,
    send: SendStream,
    recv: RecvStream,
}

impl Serving {
    /// Carries out lies that don't depend on the request; returns whether the request is dealt with.
    async fn carries_out_lie(&mut self) -> Result<bool> {
        match self.lie {
            Lie::IsSilent => {
                tokio::time::sleep(LIMIT).await;
                return Ok(true);
            }
            Lie::SendsHugeFrames => {
                self.send.write_all(&u32::MAX.to_le_bytes()).await?;
                for _ in 0..1024 {
                    self.send.write_all(&[0; 64 << 10]).await?;
                }
                return Ok(true);
            }
            Lie::SendsNoise => {
                let noise: Vec<u8> = (0..997_u32).map(|i| (i * 167 % 251) as u8).collect();
                self.send.write_all(&100_u32.to_le_bytes()).await?;
                self.send.write_all(&noise).await?;
                self.send.finish()?;
                return Ok(true);
            }
            _ => {}
        }
        Ok(false)
    }

    async fn serve(mut self) -> Result<()> {
        let asked: Request = read_frame(&mut self.recv, LIMIT).await?;
        if self.carries_out_lie().await? {
            return Ok(());
        }
        self.hang_up_at(kind(&asked))?;
        self.note_offer(&asked)?;
        if let Some(answer) = claimed_rows(&asked).filter(|_| self.lie == Lie::ClaimsRows) {
            return self.say(&answer).await;
        }
        if self.lie == Lie::PassesQuestionsOn && matches!(asked, Request::Prove { .. }) {
            let answer = passed_on::answer(&self.state.others, &asked).await?;
            return self.say(&answer).await;
        }
        if self.lie.refuses_as_malformed(&asked) {
            return self.refuse(Code::BadRequest, "").await;
        }
        match asked {
            Request::Status => self.status().await,
            Request::Claim(claim) => self.claim(&claim).await,
            Request::PutShard(_) | Request::PutRebuilt(_) if self.lie.refuses_shards() => {
                self.refuse(Code::NoSpace, "").await
            }
            Request::PutShard(put) => self.put(put, self.owner, None).await,
            Request::PutRebuilt(rebuilt) => {
                let manifest = codec::manifest::Manifest::parse(rebuilt.manifest)?;
                let bytes = Some(manifest.bytes().to_vec());
                self.put(rebuilt.put, manifest.public().owner, bytes).await
            }
            Request::PeerHolds { salt, tags } => self.peer_holds(&salt, &tags).await,
            Request::Prove { shard, spot, .. } => self.prove(shard, spot).await,
            Request::Commit { manifest } => self.commit(manifest).await,
            Request::Find { job_tag, after } => self.find(job_tag, after).await,
            Request::Outline(shard) => self.outline(shard).await,
            Request::Page { shard, page } => self.page(shard, page).await,
            Request::Rows {
                shard,
                first,
                count,
            } => self.rows(shard, &[RowRun { first, count }]).await,
            Request::RowRuns { shard, runs } => self.rows(shard, &runs).await,
            Request::Forget { .. } | Request::Notice { .. } if self.lie == Lie::IsDeaf => {
                self.refuse(Code::NoSpace, "I hear nothing").await
            }
            Request::Notices { .. } if self.lie == Lie::KeepsNotices => {
                let mut refusal = Refusal::new(Code::Busy, "");
                refusal.retry_after_ms = 1000;
                self.say(&Response::Refused(refusal)).await
            }
            Request::Prepare { .. } | Request::Propose { .. } => self.witness(asked).await,
            Request::Notice { notice } => self.hear(notice).await,
            Request::Notices { .. }
                if matches!(self.lie, Lie::ClockAhead | Lie::ReplaysDeleted) =>
            {
                self.notices().await
            }
            Request::Forget { checkpoint } => {
                let keeps = matches!(self.lie, Lie::ReplaysDeleted | Lie::RefusesNotices);
                let existed = self.with_held(|held| {
                    held.contains_key(&checkpoint) && (keeps || held.remove(&checkpoint).is_some())
                });
                self.say(&Response::Forgotten { existed }).await
            }
            Request::Probe { bytes } => {
                read_exact(&mut self.recv, bytes as usize).await?;
                self.say(&Response::Probed).await
            }
            _ => self.refuse(Code::BadRequest, "").await,
        }
    }

    async fn refuse(&mut self, code: Code, why: &str) -> Result<()> {
        self.say(&Response::Refused(Refusal::new(code, why))).await
    }

    async fn witness(&mut self, asked: Request) -> Result<()> {
        let lies = self.lie == Lie::ForgetsPromises;
        let answer = {
            let witness = &self.state.witness;
            let mut witness = witness.lock().unwrap_or_else(PoisonError::into_inner);
            witness.answer(asked, lies)?
        };
        self.say(&answer.context("no question to a witness")?).await
    }

    async fn claim(&mut self, claim: &Claim) -> Result<()> {
        let next = match self.lie {
            Lie::TakesAllVersions => Version::LAST,
            _ => self.next_version(claim.job_tag),
        };
        let is_free = claim.version >= next && self.lie != Lie::TakesAllVersions;
        let response = match is_free {
            true => Response::Claimed,
            false => Response::Taken { next },
        };
        self.say(&response).await
    }

    fn hang_up_at(&self, kind: Option<Kind>) -> Result<()> {
        if kind.is_some_and(|kind| self.lie == Lie::HangsUpAt(kind)) {
            self.connection.close(1_u32.into(), b"");
            bail!("hung up");
        }
        Ok(())
    }

    fn with_held<T>(&self, look: impl FnOnce(&mut BTreeMap<CheckpointId, Held>) -> T) -> T {
        look(
            &mut self
                .state
                .held
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    async fn say(&mut self, response: &Response) -> Result<()> {
        write_frame(&mut self.send, response).await?;
        // Fails if the stream is finished already.
        let _ = self.send.finish();
        let _ = tokio::time::timeout(Duration::from_secs(1), self.send.stopped()).await;
        Ok(())
    }

    async fn status(&mut self) -> Result<()> {
        let status = HostStatus {
            name: self.state.name.clone(),
            software: "liar".into(),
            capacity_bytes: 1 << 40,
            used_bytes: 0,
            free_bytes: 1 << 40,
            shards: 0,
            checkpoints: 0,
            uptime_s: 1,
            parts: Parts::default(),
        };
        self.say(&Response::Status(Box::new(status))).await
    }

    fn next_version(&self, job: JobTag) -> Version {
        let owner = self.owner;
        let newest = self.with_held(|held| {
            let of_job = held
                .values()
                .filter(|one| one.owner == owner && one.job == job);
            of_job.map(|one| one.version).max()
        });
        newest.map_or(Version::FIRST, Version::next)
    }

    /// Removes the checkpoints that the owner's notice declares gone.
    async fn hear(&mut self, notice: Vec<u8>) -> Result<()> {
        let notice = Notice::parse(notice)?;
        let words = notice.words();
        if self.lie != Lie::ReplaysDeleted {
            self.with_held(|held| {
                held.retain(|id, one| one.owner != words.owner || !words.gone.contains(id));
            });
        }
        self.say(&Response::Noted).await
    }

    /// Answers that this host has no notices, with its clock.
    async fn notices(&mut self) -> Result<()> {
        let mut clock = SystemTime::now().duration_since(UNIX_EPOCH)?;
        if self.lie == Lie::ClockAhead {
            clock += AHEAD;
        }
        let clock = clock.as_secs();
        let count = 0;
        self.say(&Response::Notices { clock, count }).await?;
        self.state.clock_asked.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Remembers the checkpoint of which this host was offered a shard.
    fn note_offer(&self, asked: &Request) -> Result<()> {
        if let Request::PutShard(put) = asked {
            let offered = self.state.offered.lock();
            let mut offered = offered.map_err(|_| anyhow!("a test failed"))?;
            offered.insert((self.owner, put.claim.checkpoint));
        }
        Ok(())
    }

    /// Answers which checkpoints this host holds, or claims to hold.
    async fn peer_holds(&mut self, salt: &[u8; 32], tags: &[Tag]) -> Result<()> {
        let asking = Asking::new(self.owner, self.state.id, salt);
        let known: BTreeMap<(OwnerId, CheckpointId), u64> = match self.lie {
            Lie::ClaimsToHoldAll | Lie::PassesQuestionsOn => {
                let offered = self.state.offered.lock();
                let offered = offered.map_err(|_| anyhow!("a test failed"))?;
                offered.iter().map(|one| (*one, 0b11111)).collect()
            }
            Lie::ClockAhead => BTreeMap::new(),
            _ => self.with_held(|held| {
                let committed = held.iter().filter(|(_, one)| one.manifest.is_some());
                let shards = |one: &Held| one.shards.keys().fold(0, |all, shard| all | 1 << shard);
                committed
                    .map(|(id, one)| ((one.owner, *id), shards(one)))
                    .collect()
            }),
        };
        let place_of = |tag| tags.iter().position(|asked| *asked == tag);
        let held = known.into_iter().filter_map(|((owner, id), shards)| {
            let place = place_of(asking.question(owner, id))?;
            Some(HeldTag {
                place: u16::try_from(place).ok()?,
                shards,
                tag: asking.answer(owner, id, ShardSet(shards)),
            })
        });
        let held = held.collect();
        self.say(&Response::PeerHolds { held }).await
    }

    /// Proves a shard with the bytes that this host kept.
    async fn prove(&mut self, name: ShardName, spot: Spot) -> Result<()> {
        let proof = self.with_held(|held| {
            let shard = held.get(&name.checkpoint)?.shards.get(&name.shard)?;
            let row = usize::try_from(spot.row).ok()?;
            let page = shard
                .pages
                .get(usize::try_from(page_of(spot.row).0).ok()?)?;
            let identity = shard.identity?;
            let outline = shard.outline.as_ref()?;
            ShardProof::of(&identity, outline, page, shard.blocks.get(row)?, spot)
        });
        match proof {
            Some(proof) => self.say(&Response::Proof(proof)).await,
            None => self.refuse(Code::NotFound, "").await,
        }
    }

    async fn put(
        &mut self,
        put: PutShard,
        owner: OwnerId,
        manifest: Option<Vec<u8>>,
    ) -> Result<()> {
        write_frame(&mut self.send, &Response::Accepted).await?;
        let mut shard = Shard::default();
        let mut table = TableBuilder::default();
        let end = loop {
            let len = u32::from_le_bytes(self.take().await?);
            if len == 0 {
                break PutEnd::decode(&self.take().await?);
            }
            let block = read_exact(&mut self.recv, len as usize).await?.to_vec();
            shard.pages.extend(table.push(BlockEntry::of(&block)));
            shard.blocks.push(block);
            self.hang_up_at(Some(Kind::Put))?;
        };
        self.hang_up_at(Some(Kind::Stored))?;
        let (last, outline) = table.finish();
        shard.pages.extend(last);
        let index = put.shard().context("shard")?;
        let identity = ShardIdentity {
            checkpoint: put.claim.checkpoint,
            redundancy: put.redundancy,
            shard: index,
        };
        let mut root = outline.root(&identity);
        if self.lie == Lie::AcknowledgesAnotherRoot {
            root = ShardRoot([7; 32]);
        }
        (shard.outline, shard.identity) = (Some(outline), Some(identity));
        if self.lie == Lie::StoresOther {
            for byte in shard.blocks.iter_mut().flatten() {
                *byte ^= 1;
            }
        }
        if self.lie != Lie::StoresNothing {
            self.with_held(|held| {
                let checkpoint = held.entry(put.claim.checkpoint).or_insert_with(|| Held {
                    owner,
                    job: put.claim.job_tag,
                    version: put.claim.version,
                    manifest,
                    shards: BTreeMap::new(),
                });
                checkpoint.shards.insert(put.shard, shard);
            });
        }
        let rows = end.rows;
        self.say(&Response::Stored(StoredShard { rows, root }))
            .await
    }

    async fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = read_exact(&mut self.recv, N).await?;
        Ok(bytes.as_ref().try_into()?)
    }

    async fn commit(&mut self, manifest: Vec<u8>) -> Result<()> {
        let parsed = codec::manifest::Manifest::parse(manifest.clone())?;
        let checkpoint = parsed.public().checkpoint;
        self.with_held(|held| {
            if let Some(held) = held.get_mut(&checkpoint) {
                held.manifest = Some(manifest);
            }
        });
        self.say(&Response::Committed).await
    }

    fn records(&self, job: Option<JobTag>, after: Option<CheckpointId>) -> Vec<Record> {
        let owner = self.owner;
        let lie = self.lie;
        let job = job.filter(|_| lie != Lie::MixesJobsUp);
        self.with_held(|held| {
            let mine = |one: &&Held| {
                one.owner == owner && one.manifest.is_some() && job.is_none_or(|job| one.job == job)
            };
            let oldest = |one: &Held| {
                let same = held.values().filter(|other| other.job == one.job);
                same.map(|other| other.version).min() == Some(one.version)
            };
            let shown = held
                .iter()
                .filter(|(id, one)| after.is_none_or(|after| **id > after) && mine(one))
                .filter(|(_, one)| match lie {
                    Lie::HidesEverything => false,
                    Lie::HidesNewVersions => oldest(one),
                    _ => true,
                });
            let record = |one: &Held| {
                let mut manifest = one.manifest.clone().unwrap_or_default();
                if lie == Lie::ForgesManifests
                    && let Some(byte) = manifest.get_mut(60)
                {
                    *byte ^= 1;
                }
                let shards = match lie {
                    Lie::ClaimsShards => (0..5).collect(),
                    _ => one.shards.keys().copied().collect(),
                };
                Record { manifest, shards }
            };
            shown.map(|(_, one)| record(one)).collect()
        })
    }

    async fn find(&mut self, job: Option<JobTag>, after: Option<CheckpointId>) -> Result<()> {
        if self.lie == Lie::AnswersTooMuch {
            let count = u32::MAX;
            write_frame(&mut self.send, &Response::Found { count, more: true }).await?;
            return self.too_much().await;
        }
        if self.lie == Lie::FloodsFind {
            return self.flood().await;
        }
        if self.lie == Lie::ListsForEver {
            return self.list_for_ever().await;
        }
        let mut records = self.records(job, after);
        if self.lie == Lie::RepeatsFind {
            let first = self.records(job, None).into_iter().next();
            let page = first.map_or_else(Vec::new, |first| vec![first; 1024]);
            let count = page.len() as u32;
            let more = !page.is_empty();
            write_frame(&mut self.send, &Response::Found { count, more }).await?;
            records = page;
        }
        let count = records.len() as u32;
        if self.lie != Lie::RepeatsFind {
            write_frame(&mut self.send, &Response::Found { count, more: false }).await?;
        }
        for record in &records {
            write_frame(&mut self.send, record).await?;
        }
        self.end().await
    }

    /// Sends a page of invalid records, and announces that another page follows, each time.
    async fn flood(&mut self) -> Result<()> {
        let count = 1024;
        write_frame(&mut self.send, &Response::Found { count, more: true }).await?;
        let record = Record {
            manifest: vec![0; 65_000],
            shards: Vec::new(),
        };
        for _ in 0..count {
            write_frame(&mut self.send, &record).await?;
        }
        self.end().await
    }

    /// Sends a page of records that a newer program is said to have written: 16 KiB a second.
    async fn list_for_ever(&mut self) -> Result<()> {
        let count = 1024;
        write_frame(&mut self.send, &Response::Found { count, more: true }).await?;
        let mut manifest = b"CKPTMAN9".to_vec();
        manifest.resize(8 << 10, 0);
        let record = Record {
            manifest,
            shards: Vec::new(),
        };
        for _ in 0..count {
            write_frame(&mut self.send, &record).await?;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        self.end().await
    }

    async fn too_much(&mut self) -> Result<()> {
        for _ in 0..1024 {
            self.send.write_all(&[0; 64 << 10]).await?;
        }
        self.end().await
    }

    async fn end(&mut self) -> Result<()> {
        let _ = self.send.finish();
        let _ = tokio::time::timeout(Duration::from_secs(1), self.send.stopped()).await;
        Ok(())
    }

    fn shard<T>(&self, name: ShardName, look: impl FnOnce(&Shard) -> T) -> Option<T> {
        let owner = self.owner;
        let lie = self.lie;
        self.with_held(|held| {
            let mut found = held
                .get(&name.checkpoint)
                .filter(|one| {
                    one.owner == owner || matches!(lie, Lie::StoresOther | Lie::ReplaysDeleted)
                })
                .and_then(|one| one.shards.get(&name.shard));
            if lie == Lie::ServesAnotherShard || (found.is_none() && lie == Lie::ClaimsShards) {
                let others = held.iter().flat_map(|(id, one)| {
                    one.shards
                        .iter()
                        .map(move |(number, shard)| (*id, *number, shard))
                });
                let other = others
                    .filter(|(id, number, _)| (*id, *number) != (name.checkpoint, name.shard))
                    .map(|(_, _, shard)| shard)
                    .next();
                found = other.or(found);
            }
            found.map(look)
        })
    }

    async fn outline(&mut self, name: ShardName) -> Result<()> {
        let Some(Some(outline)) = self.shard(name, |shard| shard.outline.clone()) else {
            return self.refuse(Code::NotFound, "").await;
        };
        let response = Response::Outline {
            rows: outline.rows,
            block_bytes: outline.block_bytes,
            pages: outline.pages.len() as u64,
        };
        write_frame(&mut self.send, &response).await?;
        for page in &outline.pages {
            self.send.write_all(&page.0).await?;
        }
        self.end().await
    }

    async fn page(&mut self, name: ShardName, page: u64) -> Result<()> {
        let found = self.shard(name, |shard| shard.pages.get(page as usize).cloned());
        let Some(Some(page)) = found else {
            return self.refuse(Code::NotFound, "").await;
        };
        let bytes = page.len() as u32;
        write_frame(&mut self.send, &Response::Page { bytes }).await?;
        self.send.write_all(&page).await?;
        self.end().await
    }

    async fn rows(&mut self, name: ShardName, runs: &[RowRun]) -> Result<()> {
        let found = self.shard(name, |shard| {
            let blocks = runs.iter().flat_map(|run| {
                let from = shard.blocks.iter().skip(run.first as usize);
                from.take(run.count as usize)
            });
            blocks.cloned().collect::<Vec<_>>()
        });
        let Some(mut blocks) = found else {
            return self.refuse(Code::NotFound, "").await;
        };
        if self.lie == Lie::SwapsBlocks {
            blocks.reverse();
            // The bytes of a single block are reversed instead.
            if let [only] = blocks.as_mut_slice() {
                only.reverse();
            }
        }
        let mut bytes = blocks.concat();
        let len = bytes.len() as u64;
        match self.lie {
            Lie::FlipsBits => {
                let middle = bytes.len() / 2;
                if let Some(byte) = bytes.get_mut(middle) {
                    *byte ^= 0x10;
                }
            }
            Lie::Truncates => bytes.truncate(bytes.len() / 2),
            Lie::AnswersTooMuch => {
                let bytes = u64::MAX;
                write_frame(&mut self.send, &Response::Rows { bytes }).await?;
                return self.too_much().await;
            }
            _ => {}
        }
        write_frame(&mut self.send, &Response::Rows { bytes: len }).await?;
        match self.lie {
            Lie::Drips => {
                for byte in bytes {
                    self.send.write_all(&[byte]).await?;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            Lie::HangsUpAt(Kind::Rows) => {
                let middle = bytes.len() / 2;
                self.send
                    .write_all(bytes.get(..middle).unwrap_or_default())
                    .await?;
                self.connection.close(1_u32.into(), b"");
            }
            _ => self.send.write_all(&bytes).await?,
        }
        self.end().await
    }
}

const fn kind(request: &Request) -> Option<Kind> {
    match request {
        Request::Status => Some(Kind::Status),
        Request::Claim(_) => Some(Kind::Claim),
        Request::Commit { .. } => Some(Kind::Commit),
        Request::Find { .. } => Some(Kind::Find),
        Request::Outline(_) => Some(Kind::Outline),
        Request::Page { .. } => Some(Kind::Page),
        _ => None,
    }
}
