//! Asks hosts for what they have of a save that was interrupted.

use codec::hash::ShardRoot;
use protocol::wire::limits::{REQUEST_TIMEOUT, SHARDS_MAX, SYNC_TIMEOUT};
use protocol::wire::message::{Claim, PutShard, Request, Response, ShardRows};

use crate::hosts::{Hosts, unexpected};
use crate::{Fault, HostIndex};

impl Hosts {
    /// Asks a host what it has of the shards of a checkpoint that is not committed. Ends transfers of these.
    ///
    /// # Errors
    /// When the host does not answer as it should, or its program does not know the question.
    pub async fn rows_held(&self, host: HostIndex, claim: Claim) -> Result<Vec<ShardRows>, Fault> {
        let asked = Request::RowsHeld(claim);
        match self.request(host, &asked, REQUEST_TIMEOUT).await? {
            (Response::RowsHeld { shards }, _) if shards.len() <= SHARDS_MAX => Ok(shards),
            _ => Err(unexpected("rows held")),
        }
    }

    /// Has a host end a shard whose transfer broke off, after its first `rows` rows, whose root is `root`.
    ///
    /// # Errors
    /// When the host does not confirm it.
    pub async fn end_early(
        &self,
        host: HostIndex,
        put: PutShard,
        rows: u64,
        root: ShardRoot,
    ) -> Result<(), Fault> {
        let asked = Request::EndEarly { put, rows, root };
        match self.request(host, &asked, SYNC_TIMEOUT).await? {
            (Response::Stored(stored), _) if (stored.rows, stored.root) == (rows, root) => Ok(()),
            _ => Err(unexpected("end early")),
        }
    }
}
