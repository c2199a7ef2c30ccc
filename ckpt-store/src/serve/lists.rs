//! Passes on the signed list of the grid.

use std::sync::Arc;
use std::time::Duration;

use codec::OwnerId;
use protocol::grid::Grid;
use protocol::identity::{Peer, Role};
use protocol::list::{Contents, GridList};
use protocol::net::{receive_list, send_list};
use protocol::wire::message::Response;
use protocol::wire::parts::Parts;
use protocol::wire::status::PART_LIST_NUMBER;
use quinn::RecvStream;
use tracing::info;

use super::pool::{Pool, Size};
use super::{Answer, Exchange, busy, too_slow, who};
use crate::clock::Clock;

/// How many lists of members are received at the same time, and how many may wait. A list may have 8 MiB,
/// and newer ones are rare. A slow one gives way.
const LISTS_OF_MEMBERS: Size = Size {
    places: 1,
    queue: 16,
};

/// The same for admins: the authority sends its list with the role of an admin, and with a new key each
/// time. No other member and no job key can take these places, so whoever is to be revoked keeps no list
/// out.
const LISTS_OF_ADMINS: Size = Size {
    places: 1,
    queue: 8,
};

/// How many lists are received at the same time.
pub(crate) const LISTS_AT_ONCE: usize = LISTS_OF_MEMBERS.places + LISTS_OF_ADMINS.places;

/// Places for lists of the grid that are being received. Hosts and registries have the same.
#[derive(Debug)]
pub(crate) struct ListPlaces {
    members: Arc<Pool<OwnerId>>,
    admins: Arc<Pool<OwnerId>>,
}

impl ListPlaces {
    /// Places that are all free. A list that moves too little in `gives_way_after` loses its place if others
    /// wait.
    pub(crate) fn new(clock: Clock, gives_way_after: Duration) -> Self {
        let pool = |size| Pool::new(size, clock, gives_way_after);
        Self {
            members: pool(LISTS_OF_MEMBERS),
            admins: pool(LISTS_OF_ADMINS),
        }
    }

    /// Waits for a place for `peer`, and receives and checks the list that it offers.
    pub(crate) async fn receive(
        &self,
        peer: &Peer,
        recv: &mut RecvStream,
        grid: &Grid,
        (number, bytes): (u64, u32),
    ) -> Result<(GridList, Contents), Answer> {
        // The authority certifies admins itself; no registry may.
        let is_admin = peer.has(Role::Admin) && peer.grant.is_none();
        let pool = if is_admin {
            &self.admins
        } else {
            &self.members
        };
        let place = pool.enter(who(peer)).await;
        let place = place.ok_or_else(|| busy("other lists are being received"))?;
        place.waits();
        let arrived = |bytes| {
            place.moved(bytes);
            place.waits();
        };
        tokio::select! {
            came = receive_list(recv, &grid.authority, number, bytes, arrived) => Ok(came?),
            () = place.gives_way() => Err(busy("too slow while another list was waiting")),
        }
    }
}

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
        place.waits();
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
            let number = known;
            let bytes = 0;
            return self.respond(&Response::List { number, bytes }).await;
        }
        let offered = (number, bytes);
        let receiving = self
            .host
            .lists
            .receive(self.peer, self.recv, &grid, offered);
        let (list, contents) = receiving.await?;
        if self.host.members.take_over(list, contents).await {
            info!(
                peer = self.peer.name,
                number, "received a newer list of the grid"
            );
        }
        self.respond(&Response::Noted).await
    }
}
