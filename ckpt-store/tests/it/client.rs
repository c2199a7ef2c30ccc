//! A client that sends requests as they are on the wire.

use std::net::SocketAddr;
use std::time::Duration;

use codec::CheckpointId;
use codec::manifest::Manifest;
use protocol::identity::{HostId, Identity, Role};
use protocol::net::stream::{Exchange, ExchangeError, request};
use protocol::net::{EndpointConfig, client, connect, connect_as, read_exact, read_frame};
use protocol::wire::Code;
use protocol::wire::message::{HostStatus, PutEnd, PutShard, Record, Request, Response, RowRun};
use quinn::Connection;

use crate::lab::Lab;
use crate::sample::Sample;

pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// A connection of a member to the host.
pub(crate) struct Client {
    pub(crate) connection: Connection,
}

/// The transfer of a shard that the host has accepted.
pub(crate) struct Put {
    pub(crate) exchange: Exchange,
}

impl Client {
    pub(crate) async fn connect(lab: &Lab, who: &Identity, addr: SocketAddr) -> Self {
        let config = EndpointConfig::new(who.clone(), lab.grid.authority.clone());
        let endpoint = client(&config, ([127, 0, 0, 1], 0).into()).unwrap();
        let connection = connect(&endpoint, addr, lab.host_id()).await.unwrap();
        Self { connection }
    }

    /// A connection to a registry instead.
    pub(crate) async fn connect_to_registry(
        lab: &Lab,
        who: &Identity,
        registry: HostId,
        addr: SocketAddr,
    ) -> Self {
        let config = EndpointConfig::new(who.clone(), lab.grid.authority.clone());
        let endpoint = client(&config, ([127, 0, 0, 1], 0).into()).unwrap();
        let connection = connect_as(&endpoint, addr, registry, Role::Registry).await;
        let connection = connection.unwrap();
        Self { connection }
    }

    pub(crate) async fn ask(&self, asked: &Request) -> Result<(Response, Exchange), ExchangeError> {
        request(&self.connection, asked, LIMIT).await
    }

    pub(crate) async fn status(&self) -> HostStatus {
        match self.ask(&Request::Status).await.unwrap() {
            (Response::Status(status), _) => *status,
            (other, _) => panic!("{other:?}"),
        }
    }

    pub(crate) async fn begin(&self, put: PutShard) -> Result<Put, ExchangeError> {
        let (response, exchange) = self.ask(&Request::PutShard(put)).await?;
        assert_eq!(response, Response::Accepted);
        Ok(Put { exchange })
    }

    /// Stores a whole shard.
    pub(crate) async fn put(&self, sample: &Sample, shard: u8) -> Result<(), ExchangeError> {
        let mut put = self.begin(sample.put(shard)).await?;
        put.blocks(sample, shard).await?;
        put.end(sample, shard).await
    }

    pub(crate) async fn commit(&self, sample: &Sample) -> Result<(), ExchangeError> {
        let manifest = sample.manifest.bytes().to_vec();
        let (response, _) = self.ask(&Request::Commit { manifest }).await?;
        assert_eq!(response, Response::Committed);
        Ok(())
    }

    pub(crate) async fn forget(&self, checkpoint: CheckpointId) -> Result<bool, ExchangeError> {
        match self.ask(&Request::Forget { checkpoint }).await? {
            (Response::Forgotten { existed }, _) => Ok(existed),
            (other, _) => panic!("{other:?}"),
        }
    }

    /// All manifests that are found, each with the shards that the host holds.
    pub(crate) async fn find(&self) -> Result<Vec<(Manifest, Vec<u8>)>, ExchangeError> {
        let asked = Request::Find {
            job_tag: None,
            after: None,
        };
        let (Response::Found { count, more }, mut exchange) = self.ask(&asked).await? else {
            panic!("another answer");
        };
        assert!(!more);
        let mut found = Vec::new();
        for _ in 0..count {
            let record: Record = read_frame(&mut exchange.recv, LIMIT).await?;
            found.push((Manifest::parse(record.manifest).unwrap(), record.shards));
        }
        Ok(found)
    }

    /// The bytes of the rows from `first` on.
    pub(crate) async fn rows(
        &self,
        sample: &Sample,
        shard: u8,
        first: u64,
        count: u32,
    ) -> Result<Vec<u8>, ExchangeError> {
        let asked = Request::Rows {
            shard: sample.name(shard),
            first,
            count,
        };
        self.blocks(&asked).await
    }

    /// The bytes of these runs of rows of shard 0, each with its first row and its number of rows.
    pub(crate) async fn row_runs(
        &self,
        sample: &Sample,
        runs: &[(u64, u32)],
    ) -> Result<Vec<u8>, ExchangeError> {
        let runs = runs.iter().map(|(first, count)| RowRun {
            first: *first,
            count: *count,
        });
        let asked = Request::RowRuns {
            shard: sample.name(0),
            runs: runs.collect(),
        };
        self.blocks(&asked).await
    }

    async fn blocks(&self, asked: &Request) -> Result<Vec<u8>, ExchangeError> {
        let (Response::Rows { bytes }, mut exchange) = self.ask(asked).await? else {
            panic!("another answer");
        };
        let bytes = usize::try_from(bytes).unwrap();
        Ok(read_exact(&mut exchange.recv, bytes).await?.to_vec())
    }

    /// Whether the host holds the whole shard, and it is right.
    pub(crate) async fn holds(&self, sample: &Sample, shard: u8) -> Result<bool, ExchangeError> {
        let blocks = &sample.blocks[usize::from(shard)];
        let bytes = self.rows(sample, shard, 0, blocks.len() as u32).await?;
        Ok(bytes == blocks.concat())
    }
}

impl Put {
    pub(crate) async fn blocks(&mut self, sample: &Sample, shard: u8) -> Result<(), ExchangeError> {
        for block in &sample.blocks[usize::from(shard)] {
            self.block(block).await?;
        }
        Ok(())
    }

    pub(crate) async fn block(&mut self, block: &[u8]) -> Result<(), ExchangeError> {
        let send = &mut self.exchange.send;
        send.write_all(&(block.len() as u32).to_le_bytes()).await?;
        Ok(send.write_all(block).await?)
    }

    /// Ends the transfer and waits for the answer.
    pub(crate) async fn end(&mut self, sample: &Sample, shard: u8) -> Result<(), ExchangeError> {
        self.end_as(&sample.end(shard)).await
    }

    /// Ends the transfer with this end and waits for the answer.
    pub(crate) async fn end_as(&mut self, said: &PutEnd) -> Result<(), ExchangeError> {
        let end = [[0; 4].as_slice(), &said.encode()].concat();
        self.exchange.send.write_all(&end).await?;
        match self.answer().await? {
            Response::Stored(stored) => {
                assert_eq!(stored.root, said.root);
                Ok(())
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn answer(&mut self) -> Result<Response, ExchangeError> {
        match read_frame(&mut self.exchange.recv, LIMIT).await? {
            Response::Refused(refusal) => Err(ExchangeError::Refused(refusal)),
            response => Ok(response),
        }
    }
}

/// The code with which the host refused.
pub(crate) fn code<T>(result: Result<T, ExchangeError>) -> Code {
    match result {
        Err(ExchangeError::Refused(refusal)) => refusal.code,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("not refused"),
    }
}
