//! Stands in for etcd in programs that were built without it. Every request fails with that reason.

use std::collections::BTreeSet;
use std::time::Duration;

use codec::{CheckpointId, OwnerId};
use protocol::grid::Grid;
use protocol::wire::message::{MemberRecord, Presence, ShardName};

/// Why a request to etcd failed: the program was built without it.
#[derive(Debug, thiserror::Error)]
#[error("etcd: this program was built without it; build it with --features etcd")]
pub struct EtcdError;

/// Stands in for a client of the grid's etcd.
#[derive(Debug)]
pub struct Etcd;

impl Etcd {
    /// Stands in for the etcd that the grid file names; `None` if it names none.
    pub fn of(grid: &Grid) -> Option<Self> {
        (!grid.etcd.is_empty()).then_some(Self)
    }

    /// Fails.
    ///
    /// # Errors
    /// Always.
    #[expect(clippy::unused_async, reason = "as the real one")]
    pub async fn members(&self) -> Result<Vec<MemberRecord>, EtcdError> {
        Err(EtcdError)
    }

    /// Fails.
    ///
    /// # Errors
    /// Always.
    #[expect(clippy::unused_async, reason = "as the real one")]
    pub async fn holders(&self, _: &[CheckpointId]) -> Result<BTreeSet<OwnerId>, EtcdError> {
        Err(EtcdError)
    }

    /// Fails.
    ///
    /// # Errors
    /// Always.
    #[expect(clippy::unused_async, reason = "as the real one")]
    pub async fn beat(
        &self,
        _: OwnerId,
        _: u64,
        _: impl FnOnce() -> Presence,
        _: &[ShardName],
        _: Duration,
    ) -> Result<(), EtcdError> {
        Err(EtcdError)
    }
}
