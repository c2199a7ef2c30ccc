//! Asks donors for the cards of the members of the grid, while no registry answers, or may have lost what it knew.
//! Donors keep the cards of each other.

use std::collections::BTreeSet;
use std::time::Duration;

use codec::OwnerId;
use protocol::grid::{Grid, GridHost};
use protocol::identity::{CardVerifier, Role};
use protocol::net::Sockets;
use protocol::net::may_be_announced;
use protocol::net::stream::request;
use protocol::wire::limits::{CARDS_MAX, REQUEST_TIMEOUT};
use protocol::wire::message::{CardDay, CardRecord, Request, Response};
use quinn::Connection;
use rand::seq::IteratorRandom;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::registry_answer::NoAnswer;
use crate::roster::{ABSENT_MAX, BAD_CARDS_MAX, Roster, Silent, of_card, printable};

/// Most donors that are asked.
const ASKED_MAX: usize = 16;

/// So many answers are enough. One donor may hide members, or have been away for long.
const ANSWERS_ENOUGH: usize = 3;

/// How long donors are waited for. What has arrived by then counts.
const PATIENCE: Duration = Duration::from_secs(2);

/// Donors exchange cards that are a day newer than those that they have. Whoever has one that is not older than this,
/// in seconds, may be there.
const CARD_IS_RECENT_S: u64 = 2 * 86_400;

/// Hosts are taken from cards until there are so many: each is asked.
const HOSTS_BY_CARDS_MAX: usize = 256;

/// Asks some of these donors for the cards that they keep. The cards are not checked yet.
pub(crate) async fn of_donors(sockets: &Sockets, hosts: &[GridHost]) -> Vec<Vec<CardRecord>> {
    let until = Instant::now() + PATIENCE;
    let mut asking = JoinSet::new();
    let chosen = hosts.iter().choose_multiple(&mut rand::rng(), ASKED_MAX);
    for host in chosen.into_iter().cloned() {
        let sockets = sockets.clone();
        asking.spawn(async move {
            let asked = timeout_at(until, sockets.connect(&host.addr, host.id, Role::Donor));
            let connection = asked.await.ok()?.ok()?;
            let mut cards = Vec::new();
            // A donor that is slow, or whose program is an earlier one, has sent what it has sent.
            let _ = timeout_at(until, fetch(&connection, &mut cards)).await;
            connection.close(0_u32.into(), b"");
            (!cards.is_empty()).then_some(cards)
        });
    }
    let mut answers = Vec::new();
    while answers.len() < ANSWERS_ENOUGH
        && let Some(ended) = asking.join_next().await
    {
        answers.extend(ended.ok().flatten());
    }
    answers
}

/// Fetches the cards that a donor keeps, as many as there may be absent members.
async fn fetch(connection: &Connection, cards: &mut Vec<CardRecord>) -> Result<(), NoAnswer> {
    let digest = [0; 32];
    let mut after: Option<OwnerId> = None;
    loop {
        let asked = Request::CompareCards { digest, after };
        let (Response::CardDays { days, more, .. }, _) =
            request(connection, &asked, REQUEST_TIMEOUT).await?
        else {
            return Err(NoAnswer::Answer);
        };
        if !CardDay::is_page(&days, after) || (more && days.is_empty()) {
            return Err(NoAnswer::Answer);
        }
        let ids: Vec<OwnerId> = days.iter().map(|day| day.id).collect();
        for some in ids.chunks(CARDS_MAX) {
            if cards.len() >= ABSENT_MAX {
                return Ok(());
            }
            let ids = some.to_vec();
            match request(connection, &Request::Cards { ids }, REQUEST_TIMEOUT).await? {
                (Response::Cards { cards: more }, _) if more.len() <= some.len() => {
                    cards.extend(more);
                }
                _ => return Err(NoAnswer::Answer),
            }
        }
        after = ids.last().copied();
        if !more {
            return Ok(());
        }
    }
}

/// Adds the members whose cards donors sent, each donor as many as it keeps, and that no registry names. Those with a
/// card of the last days may be there, the others are absent.
pub fn add_cards(roster: &mut Roster, grid: &Grid, answers: &[Vec<CardRecord>], now: u64) {
    let Ok(verifier) = CardVerifier::new(&grid.authority) else {
        return;
    };
    let known = || roster.hosts.iter().chain(&roster.absent);
    let mut ids: BTreeSet<OwnerId> = known().map(|host| host.id.0).collect();
    let mut names: BTreeSet<String> = known().map(|host| host.name.clone()).collect();
    let good = |record: &CardRecord| {
        let card = verifier.read_at(&record.card, record.addr, &grid.revoked);
        let good = card.filter(|card| {
            may_be_announced(record.addr) && !card.is_early(now) && card.is_current(now)
        });
        good.map(|card| (card, record.addr))
    };
    for records in answers {
        let cards = records.iter().map(good).scan(0, |bad, card| {
            *bad += usize::from(card.is_none());
            (*bad < BAD_CARDS_MAX).then_some(card)
        });
        for (card, addr) in cards.flatten() {
            if grid.revoked.contains(&card.id()) || !ids.insert(card.id()) {
                continue;
            }
            let host = printable(of_card(&card, addr), &mut names);
            roster.reported.named.insert(host.id);
            let seen_at = card.at().min(now);
            if now - seen_at < CARD_IS_RECENT_S && roster.hosts.len() < HOSTS_BY_CARDS_MAX {
                roster.hosts.push(host);
                continue;
            }
            let silent = Silent {
                seen_at,
                certified_until: Some(card.certified_until()),
            };
            roster.reported.silent.insert(host.id, silent);
            roster.absent.push(host);
        }
    }
    roster.keep_seen_last();
}
