//! What keeps the shards of checkpoints.

/// A place for a shard. Sorted, hosts come before the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Keeper {
    /// The host with this index into the grid's hosts.
    Host(usize),
    /// The dedicated checkpoint server.
    Server,
}
