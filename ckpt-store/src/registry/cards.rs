//! Compares cards with donors. Donors keep the cards of the others, and bring them to a registry that was
//! installed anew, or that never heard a donor which another registry heard.

use std::sync::Arc;

use codec::OwnerId;
use protocol::identity::Peer;
use protocol::net::may_be_announced;
use protocol::net::stream::write_frame;
use protocol::wire::Code;
use protocol::wire::limits::{CARD_DAYS_MAX, CARDS_MAX};
use protocol::wire::message::{CardRecord, Response};
use quinn::SendStream;
use tracing::{debug, info, warn};

use super::Shared;
use crate::core::places::Who;
use crate::core::registry::Learnt;
use crate::serve::exchange::Answer;
use crate::serve::pool::Size;

/// How many members' cards are checked at the same time, and how many may wait. A card costs three checks
/// of signatures. One member has one of the places.
pub(super) const CARDS_OF_MEMBERS: Size = Size {
    places: 2,
    queue: 16,
};

impl Shared {
    /// Answers a `CompareCards` request.
    pub(super) async fn compare(
        &self,
        send: &mut SendStream,
        digest: [u8; 32],
        after: Option<OwnerId>,
    ) -> Result<(), Answer> {
        let answer = {
            let registry = self.registry();
            let same = after.is_none() && registry.digest_of_cards() == digest;
            let (days, more) = match same {
                true => (Vec::new(), false),
                false => registry.card_days(after, CARD_DAYS_MAX),
            };
            Response::CardDays { same, days, more }
        };
        Ok(write_frame(send, &answer).await?)
    }

    /// Answers a `Cards` request.
    pub(super) async fn cards(&self, send: &mut SendStream, ids: &[OwnerId]) -> Result<(), Answer> {
        if ids.len() > CARDS_MAX {
            return Err(too_many());
        }
        let cards = self.registry().cards(ids);
        Ok(write_frame(send, &Response::Cards { cards }).await?)
    }

    /// Answers a `PutCards` request. Whoever brings a card, the donor has signed it and the authority has
    /// certified the donor; so a false member can't be brought, and a card that is not good is passed over.
    pub(super) async fn put_cards(
        self: &Arc<Self>,
        peer: &Peer,
        send: &mut SendStream,
        cards: Vec<CardRecord>,
    ) -> Result<(), Answer> {
        if cards.len() > CARDS_MAX {
            return Err(too_many());
        }
        let place = self.card_places.enter(Who::itself(peer.id)).await;
        let busy = || Answer::refuse(Code::Busy, "the cards of other members are being checked");
        let _place = place.ok_or_else(busy)?;
        let shared = Arc::clone(self);
        let entering = tokio::task::spawn_blocking(move || shared.enter_cards(&cards));
        let entered = entering
            .await
            .map_err(|panicked| Answer::refuse(Code::Internal, panicked.to_string()))?;
        let name = &peer.name;
        let Entered { new, bad, full } = entered;
        if new > 0 {
            info!(
                from = name,
                new, "learnt of silent donors from another donor"
            );
        }
        if bad > 0 {
            debug!(from = name, bad, "passed over cards that are not good");
        }
        self.metrics.learnt(new);
        if full {
            warn!("knows no further donor: the registry is full");
            return Err(crate::core::registry::NotHeard::Full.into());
        }
        Ok(write_frame(send, &Response::Noted).await?)
    }

    fn enter_cards(&self, cards: &[CardRecord]) -> Entered {
        let grid = self.members.grid();
        let mut entered = Entered::default();
        for record in cards {
            let at = self.moment();
            let card = self
                .verifier
                .read_at(&record.card, record.addr, &grid.revoked);
            let good = card.filter(|card| {
                may_be_announced(record.addr) && !card.is_early(at.unix) && card.is_current(at.unix)
            });
            let Some(card) = good else {
                entered.bad += 1;
                continue;
            };
            match self.registry().learn(at, &card, record.addr) {
                Learnt::News => entered.new += 1,
                Learnt::Known => {}
                Learnt::Full => entered.full = true,
            }
        }
        entered
    }
}

/// What became of cards.
#[derive(Clone, Copy, Debug, Default)]
struct Entered {
    new: u64,
    bad: u64,
    full: bool,
}

fn too_many() -> Answer {
    Answer::refuse(Code::BadRequest, "too many cards")
}
