//! What a registry answers, and how much of it is taken.

use std::collections::BTreeSet;

use codec::OwnerId;
use protocol::list::{Contents, GridList};
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
