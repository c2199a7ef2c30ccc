//! Answers with the cards of the other donors, for clients that no registry answers.

use codec::OwnerId;
use protocol::wire::Code;
use protocol::wire::limits::CARDS_MAX;
use protocol::wire::message::{Refusal, Response};

use super::exchange::Answer;
use super::{Exchange, blocking};
use crate::shards::StoreError;

impl Exchange<'_> {
    /// Answers a `CompareCards` request with the days of all cards that are kept here. A client has none.
    pub(super) async fn compare_cards(&mut self, after: Option<OwnerId>) -> Result<(), Answer> {
        let _place = self.place(&self.host.questions, "answers").await?;
        let cards = self.host.cards.clone();
        let (days, more) = blocking(move || cards.page(after).map_err(unread)).await?;
        let same = false;
        self.respond(&Response::CardDays { same, days, more }).await
    }

    /// Answers a `Cards` request.
    pub(super) async fn cards(&mut self, ids: Vec<OwnerId>) -> Result<(), Answer> {
        if ids.len() > CARDS_MAX {
            let refusal = Refusal::new(Code::BadRequest, "too many cards");
            return Err(Answer::Refused(refusal));
        }
        let _place = self.place(&self.host.questions, "answers").await?;
        let kept = self.host.cards.clone();
        let cards = blocking(move || kept.of(&ids).map_err(unread)).await?;
        self.respond(&Response::Cards { cards }).await
    }
}

fn unread(cause: std::io::Error) -> StoreError {
    StoreError::disk("reading the cards")(cause)
}
