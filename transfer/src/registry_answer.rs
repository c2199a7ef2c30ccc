//! What a registry answers, how much of it is taken, and why there is no answer.

use std::collections::BTreeSet;
use std::time::Duration;

use codec::OwnerId;
use protocol::list::{Contents, GridList};
use protocol::net::ConnectError;
use protocol::net::stream::ExchangeError;
use protocol::wire::message::MemberRecord;

/// Most hosts that are taken from registries.
pub const HOSTS_MAX: usize = 100_000;

/// The answer of a registry.
#[derive(Debug)]
pub struct RegistryAnswer {
    /// The donors that the registry knows.
    pub members: Vec<MemberRecord>,
    /// Donors that hold shards of any of the checkpoints that were asked about.
    pub holders: BTreeSet<OwnerId>,
    /// The registry's list of the grid, if it is newer than that of this client.
    pub list: Option<(GridList, Contents)>,
}

/// Why a registry gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoAnswer {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error("unexpected answer")]
    Answer,
    #[error("no answer within {} s", .0.as_secs())]
    Late(Duration),
}
