//! A donor that passes questions for proofs on to the other hosts of the grid.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use protocol::grid::{Grid, GridHost};
use protocol::net::stream::{read_frame, write_frame};
use protocol::net::{EndpointConfig, client, connect};
use protocol::wire::Code;
use protocol::wire::message::{Refusal, Request, Response};
use quinn::Endpoint;

/// Longest wait for a host.
const LIMIT: Duration = Duration::from_secs(3);

/// The other hosts, with the key and the certificate of the host that asks them.
#[derive(Debug)]
pub(crate) struct OtherHosts {
    endpoint: Endpoint,
    hosts: Vec<GridHost>,
}

impl OtherHosts {
    pub(crate) fn of(config: &EndpointConfig, grid: &Grid) -> Result<Self> {
        let own = config.identity.secret.id();
        let hosts = grid.hosts.iter().filter(|host| host.id.0 != own);
        Ok(Self {
            endpoint: client(config, (Ipv4Addr::LOCALHOST, 0).into())?,
            hosts: hosts.cloned().collect(),
        })
    }

    async fn ask(&self, host: &GridHost, question: &Request) -> Result<Response> {
        let addr = host.addr.ip().ok_or_else(|| anyhow!("no address"))?;
        let connection = connect(&self.endpoint, addr, host.id).await?;
        let (mut send, mut recv) = connection.open_bi().await?;
        write_frame(&mut send, question).await?;
        send.finish()?;
        Ok(read_frame(&mut recv, LIMIT).await?)
    }
}

/// The first proof that one of the `others` gives, or a refusal.
pub(crate) async fn answer(
    others: &Mutex<Option<Arc<OtherHosts>>>,
    question: &Request,
) -> Result<Response> {
    let others = others.lock().map_err(|_| anyhow!("a test failed"))?.clone();
    let others = others.context("knows no grid")?;
    for host in &others.hosts {
        let asked = tokio::time::timeout(LIMIT, others.ask(host, question)).await;
        if let Ok(Ok(proof @ Response::Proof(_))) = asked {
            return Ok(proof);
        }
    }
    Ok(Response::Refused(Refusal::new(Code::NotFound, "")))
}
