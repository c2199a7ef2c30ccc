//! Asks registries which hosts there are.

use std::net::SocketAddr;
use std::time::Duration;

use protocol::grid::{Grid, GridRegistry};
use protocol::identity::{Identity, Role};
use protocol::net::endpoint::{EndpointConfig, EndpointError};
use protocol::net::stream::{ExchangeError, read_frame, request};
use protocol::net::{ConnectError, client, connect_as};
use protocol::wire::limits::{MEMBERS_MAX, REQUEST_TIMEOUT};
use protocol::wire::message::{MemberRecord, Request, Response};
use tokio::task::JoinSet;

use crate::roster::HOSTS_MAX;

/// How long registries are waited for: those that answer later are not needed.
const PATIENCE: Duration = Duration::from_secs(3);

/// What a registry may have in flight to here.
const WINDOW: u32 = 1 << 20;

/// Why a registry told nothing.
#[derive(Debug, thiserror::Error)]
enum Silent {
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error("wrong answer")]
    Answer,
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Late,
}

/// What each registry of the grid says that answers.
pub async fn members(grid: &Grid, identity: &Identity) -> Vec<Vec<MemberRecord>> {
    let mut asking = JoinSet::new();
    for registry in &grid.registries {
        let config = EndpointConfig {
            receive_window: WINDOW,
            stream_window: WINDOW,
            ..EndpointConfig::new(identity.clone(), grid.authority.clone())
        };
        let registry = registry.clone();
        asking.spawn(async move {
            let asked = tokio::time::timeout(PATIENCE, ask(&config, &registry)).await;
            (registry.name, asked.unwrap_or(Err(Silent::Late)))
        });
    }
    let mut told = Vec::new();
    for (registry, answer) in asking.join_all().await {
        match answer {
            Ok(records) => told.push(records),
            Err(cause) => tracing::warn!(registry, %cause, "registry left out"),
        }
    }
    told
}

async fn ask(
    config: &EndpointConfig,
    registry: &GridRegistry,
) -> Result<Vec<MemberRecord>, Silent> {
    let any: SocketAddr = match registry.addr {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0; 8], 0).into(),
    };
    let endpoint = client(config, any)?;
    let connection = connect_as(&endpoint, registry.addr, registry.id, Role::Registry).await?;
    let mut records: Vec<MemberRecord> = Vec::new();
    loop {
        let after = records.last().map(|record| record.id);
        let asked = request(&connection, &Request::Members { after }, REQUEST_TIMEOUT).await?;
        let (Response::Members { count, more }, mut exchange) = asked else {
            return Err(Silent::Answer);
        };
        let too_many = records.len() + count as usize > HOSTS_MAX;
        if count > MEMBERS_MAX || too_many || (more && count == 0) {
            return Err(Silent::Answer);
        }
        for _ in 0..count {
            let record: MemberRecord = read_frame(&mut exchange.recv, REQUEST_TIMEOUT).await?;
            // Ascending: a registry can't make us ask for ever.
            if records.last().is_some_and(|last| last.id >= record.id) {
                return Err(Silent::Answer);
            }
            records.push(record);
        }
        if !more {
            connection.close(0_u32.into(), b"");
            return Ok(records);
        }
    }
}
