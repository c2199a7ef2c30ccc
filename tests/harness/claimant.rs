//! A registry that answers with the members that a test chose, and ignores announcements of donors.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use protocol::identity::Identity;
use protocol::net::stream::{read_frame, write_frame};
use protocol::net::{EndpointConfig, server};
use protocol::wire::message::{MemberRecord, Request, Response};
use quinn::{Connection, Endpoint};

/// Longest wait for a client.
const LIMIT: Duration = Duration::from_secs(60);

/// The registry. Dropping it stops it.
#[derive(Debug)]
pub struct Claimant {
    endpoint: Endpoint,
    addr: SocketAddr,
}

impl Drop for Claimant {
    fn drop(&mut self) {
        self.endpoint.close(0_u32.into(), b"");
    }
}

impl Claimant {
    /// Starts a registry that lists these members. Needs a tokio runtime around it.
    ///
    /// # Errors
    /// When it can't listen.
    pub fn start(
        identity: Identity,
        authority: rustls_pki_types::CertificateDer<'static>,
        mut members: Vec<MemberRecord>,
    ) -> Result<Self> {
        members.sort_by_key(|member| member.id);
        let config = EndpointConfig::new(identity, authority);
        let endpoint = server(&config, ([127, 0, 0, 1], 0).into())?;
        let addr = endpoint.local_addr()?;
        let accepting = endpoint.clone();
        tokio::spawn(async move {
            while let Some(incoming) = accepting.accept().await {
                let members = members.clone();
                tokio::spawn(async move {
                    if let Ok(connection) = incoming.await {
                        // Errors don't matter: the client has to cope with them.
                        drop(answer(connection, &members).await);
                    }
                });
            }
        });
        Ok(Self { endpoint, addr })
    }

    /// The address at which it listens.
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }
}

async fn answer(connection: Connection, members: &[MemberRecord]) -> Result<()> {
    loop {
        let (mut send, mut recv) = connection.accept_bi().await?;
        let asked: Request = read_frame(&mut recv, LIMIT).await?;
        match asked {
            Request::Members { .. } => {
                let count = u32::try_from(members.len())?;
                write_frame(&mut send, &Response::Members { count, more: false }).await?;
                for member in members {
                    write_frame(&mut send, member).await?;
                }
            }
            _ => {
                let holders = Vec::new();
                write_frame(&mut send, &Response::Holders { holders }).await?;
            }
        }
        send.finish()?;
    }
}
