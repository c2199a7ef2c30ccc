//! Passes on the signed list of the grid.

use protocol::net::{receive_list, send_list};
use protocol::wire::message::Response;
use protocol::wire::parts::Parts;
use protocol::wire::status::PART_LIST_NUMBER;
use tracing::info;

use super::{Answer, Exchange, too_slow};

impl Exchange<'_> {
    /// The number of the list that is known here, as a part of a status answer.
    pub(super) fn list_number(&self) -> Parts {
        let number = self.host.members.grid().number();
        let part = (PART_LIST_NUMBER, number.to_le_bytes().to_vec());
        // Has no error: one part of eight bytes is below every limit.
        Parts::new([part]).unwrap_or_default()
    }

    /// Answers a `List` request. A client that has the newest list already takes no place for the answer.
    pub(super) async fn list(&mut self, asked: u64) -> Result<(), Answer> {
        let grid = self.host.members.grid();
        if grid.number() <= asked {
            return Ok(send_list(self.send, asked, grid.list.as_ref()).await?);
        }
        let place = self.place(&self.host.questions, "answers").await?;
        tokio::select! {
            sent = send_list(self.send, asked, grid.list.as_ref()) => Ok(sent?),
            () = place.gives_way() => Err(too_slow()),
        }
    }

    /// Answers a `PutList` request. The authority has signed the list, so any member may bring it.
    pub(super) async fn put_list(&mut self, number: u64, bytes: u32) -> Result<(), Answer> {
        let grid = self.host.members.grid();
        let known = grid.number();
        if number <= known {
            let (number, bytes) = (known, 0);
            return self.respond(&Response::List { number, bytes }).await;
        }
        let place = self.place(&self.host.changes, "small changes").await?;
        let (list, contents) = tokio::select! {
            came = receive_list(self.recv, &grid.authority, number, bytes) => came?,
            () = place.gives_way() => return Err(too_slow()),
        };
        if self.host.members.take_over(list, contents).await {
            info!(
                peer = self.peer.name,
                number, "received a newer list of the grid"
            );
        }
        self.respond(&Response::Noted).await
    }
}
