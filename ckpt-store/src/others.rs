//! The cards of the other donors, which this host keeps for registries that have lost them. They are files
//! in the directory `cards` of the data directory, one for each donor, so that none of them takes memory:
//! the key and the day of a card are in its name, `<key>-<day>.card`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use codec::{OwnerId, serial};
use protocol::grid::Grid;
use protocol::identity::{CARD_BYTES_MAX, CardVerifier, MemberCard, digest_of_days};
use protocol::net::may_be_announced;
use protocol::net::stream::{ExchangeError, request};
use protocol::wire::limits::{CARD_DAYS_MAX, CARDS_MAX, REQUEST_TIMEOUT};
use protocol::wire::message::{CardDay, CardRecord, Request, Response};
use quinn::Connection;
use tracing::{debug, info, warn};

/// The directory with the cards.
const DIRECTORY: &str = "cards";

/// Most cards that a host keeps. None is dropped to make room.
const KEPT_MAX: usize = 8192;

/// Most cards that one comparison fetches, and most that it brings. The next one goes on.
const MOVED_MAX: usize = 1024;

/// Most pages of days in one comparison.
const PAGES_MAX: usize = 128;

/// Most bytes of a file: a card and an address.
const FILE_BYTES_MAX: usize = CARD_BYTES_MAX + 64;

/// A card of this age, in days, is read to find out whether its donor is still to be known.
const READ_AFTER_DAYS: u32 = 30;

/// Why cards were not compared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotCompared {
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error("an unexpected answer")]
    Answer,
    #[error("the directory of cards: {0}")]
    Io(#[from] io::Error),
}

/// The kept cards.
#[derive(Clone, Debug)]
pub(crate) struct OtherCards {
    dir: PathBuf,
    own: OwnerId,
    verifier: Option<CardVerifier>,
}

/// What a comparison moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    fetched: usize,
    brought: usize,
}

impl OtherCards {
    /// The cards in this data directory, of the grid with this authority, without the card of the host `own`.
    pub(crate) fn new(data_dir: &Path, grid: &Grid, own: OwnerId) -> Self {
        let verifier = CardVerifier::new(&grid.authority);
        let verifier = verifier
            .inspect_err(|cause| warn!(%cause, "cards of other hosts can't be checked"))
            .ok();
        Self {
            dir: data_dir.join(DIRECTORY),
            own,
            verifier,
        }
    }

    /// Compares cards with a registry: fetches those that are newer there, and brings those that the
    /// registry lacks. `own_day` is the day of this host's own card. Returns how many cards are kept here.
    pub(crate) async fn compare(
        &self,
        connection: &Connection,
        grid: Arc<Grid>,
        (own_day, now): (u32, u64),
    ) -> Result<usize, NotCompared> {
        let this = self.clone();
        let known_grid = Arc::clone(&grid);
        let known = blocking(move || this.tidied(&known_grid, now)).await?;
        let mut all = known.clone();
        all.insert(self.own, own_day);
        let digest = digest_of_days(all);
        let mut moved = Moved::default();
        let mut after: Option<OwnerId> = None;
        for _ in 0..PAGES_MAX {
            let asked = Request::CompareCards { digest, after };
            let answer = request(connection, &asked, REQUEST_TIMEOUT).await?;
            let (Response::CardDays { same, days, more }, _) = answer else {
                return Err(NotCompared::Answer);
            };
            if same {
                return Ok(known.len());
            }
            let last = days.last().map(|day| day.id);
            if !CardDay::is_page(&days, after) || (more && last.is_none()) {
                return Err(NotCompared::Answer);
            }
            let upto = last.filter(|_| more);
            let (wanted, lacking) = self.differences(&known, &days, (after, upto));
            self.fetch(connection, &grid, now, wanted, &mut moved)
                .await?;
            self.bring(connection, lacking, &mut moved).await?;
            if !more {
                break;
            }
            after = last;
        }
        let Moved { fetched, brought } = moved;
        if fetched + brought > 0 {
            debug!(
                fetched,
                brought, "compared the cards of hosts with a registry"
            );
        }
        if brought > 0 {
            info!(
                brought,
                "brought a registry the cards of hosts that it did not know"
            );
        }
        let this = self.clone();
        blocking(move || Ok(this.days()?.len())).await
    }

    /// The donors whose cards are newer at the registry, and the cards that are newer here, of the donors
    /// with keys in the range of one page.
    fn differences(
        &self,
        known: &BTreeMap<OwnerId, u32>,
        days: &[CardDay],
        (after, upto): (Option<OwnerId>, Option<OwnerId>),
    ) -> (Vec<OwnerId>, Vec<(OwnerId, u32)>) {
        let there: BTreeMap<OwnerId, u32> = days.iter().map(|one| (one.id, one.day)).collect();
        let is_newer_there = |one: &&CardDay| {
            one.id != self.own && known.get(&one.id).is_none_or(|day| *day < one.day)
        };
        let wanted = days.iter().filter(is_newer_there).map(|one| one.id);
        let range = (
            after.map_or(Bound::Unbounded, Bound::Excluded),
            upto.map_or(Bound::Unbounded, Bound::Included),
        );
        let is_newer_here =
            |(id, day): &(&OwnerId, &u32)| there.get(*id).is_none_or(|there| *there < **day);
        let here = known.range(range).filter(is_newer_here);
        let lacking = here.map(|(id, day)| (*id, *day));
        (wanted.collect(), lacking.collect())
    }

    async fn fetch(
        &self,
        connection: &Connection,
        grid: &Arc<Grid>,
        now: u64,
        wanted: Vec<OwnerId>,
        moved: &mut Moved,
    ) -> Result<(), NotCompared> {
        for ids in wanted.chunks(CARDS_MAX) {
            if moved.fetched >= MOVED_MAX {
                return Ok(());
            }
            let ids = ids.to_vec();
            let asked = Request::Cards { ids: ids.clone() };
            let cards = match request(connection, &asked, REQUEST_TIMEOUT).await? {
                (Response::Cards { cards }, _) if cards.len() <= CARDS_MAX => cards,
                _ => return Err(NotCompared::Answer),
            };
            let this = self.clone();
            let grid = Arc::clone(grid);
            let keep = move || this.keep(&cards, &ids, &grid, now);
            moved.fetched += blocking(keep).await?;
        }
        Ok(())
    }

    async fn bring(
        &self,
        connection: &Connection,
        lacking: Vec<(OwnerId, u32)>,
        moved: &mut Moved,
    ) -> Result<(), NotCompared> {
        for some in lacking.chunks(CARDS_MAX) {
            if moved.brought >= MOVED_MAX {
                return Ok(());
            }
            let this = self.clone();
            let some = some.to_vec();
            let read = move || {
                let cards = some.iter().filter_map(|(id, day)| this.read(*id, *day));
                Ok(cards.collect::<Vec<_>>())
            };
            let cards = blocking(read).await?;
            let count = cards.len();
            let brought = Request::PutCards { cards };
            match request(connection, &brought, REQUEST_TIMEOUT).await? {
                (Response::Noted, _) => moved.brought += count,
                _ => return Err(NotCompared::Answer),
            }
        }
        Ok(())
    }

    /// The days of up to [`CARD_DAYS_MAX`] cards of donors with keys above `after`, in ascending order, and whether
    /// there are more.
    pub(crate) fn page(&self, after: Option<OwnerId>) -> io::Result<(Vec<CardDay>, bool)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let days = self.days()?;
        let mut rest = days.range((from, Bound::Unbounded));
        let page = rest.by_ref().take(CARD_DAYS_MAX);
        let page = page.map(|(id, day)| CardDay { id: *id, day: *day });
        Ok((page.collect(), rest.next().is_some()))
    }

    /// The cards of these donors, as far as there are any.
    pub(crate) fn of(&self, ids: &[OwnerId]) -> io::Result<Vec<CardRecord>> {
        let days = self.days()?;
        let known = ids.iter().filter_map(|id| Some((*id, *days.get(id)?)));
        Ok(known.filter_map(|(id, day)| self.read(id, day)).collect())
    }

    /// Which cards there are, and the day of each.
    fn days(&self) -> io::Result<BTreeMap<OwnerId, u32>> {
        let mut days = BTreeMap::new();
        let entries = match fs::read_dir(&self.dir) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(days),
            found => found?,
        };
        for entry in entries {
            let name = entry?.file_name();
            let Some((id, day)) = name.to_str().and_then(parse_name) else {
                continue;
            };
            // A crash can leave two cards of one donor.
            let older = match days.insert(id, day) {
                Some(other) if other > day => {
                    days.insert(id, other);
                    Some(day)
                }
                other => other,
            };
            if let Some(older) = older {
                let _ = fs::remove_file(self.path(id, older));
            }
        }
        Ok(days)
    }

    /// As [`Self::days`], after the cards of donors that are no members any more were removed.
    fn tidied(&self, grid: &Grid, now: u64) -> io::Result<BTreeMap<OwnerId, u32>> {
        let mut days = self.days()?;
        let today = u32::try_from(now / 86_400).unwrap_or(u32::MAX);
        days.retain(|id, day| {
            let is_revoked = *id == self.own || grid.revoked.contains(id);
            let is_old = today.saturating_sub(*day) >= READ_AFTER_DAYS;
            let is_gone = is_revoked
                || (is_old && {
                    let card = self
                        .read(*id, *day)
                        .and_then(|record| self.good(&record, grid));
                    card.is_none_or(|card| !card.is_current(now))
                });
            if is_gone {
                let _ = fs::remove_file(self.path(*id, *day));
            }
            !is_gone
        });
        Ok(days)
    }

    /// Keeps those of these cards that are good and were asked for. Returns how many.
    fn keep(
        &self,
        cards: &[CardRecord],
        asked: &[OwnerId],
        grid: &Grid,
        now: u64,
    ) -> io::Result<usize> {
        fs::create_dir_all(&self.dir)?;
        let mut days = self.days()?;
        let mut kept = 0;
        for record in cards {
            let Some(card) = self.good(record, grid) else {
                continue;
            };
            let id = card.id();
            let day = card.day();
            let before = days.get(&id).copied();
            let is_news = before.is_none_or(|before| before < day);
            let has_room = before.is_some() || days.len() < KEPT_MAX;
            let counts = is_news && has_room && !card.is_early(now) && card.is_current(now);
            if !counts || !asked.contains(&id) {
                continue;
            }
            self.write(id, day, record)?;
            if let Some(before) = before {
                let _ = fs::remove_file(self.path(id, before));
            }
            days.insert(id, day);
            kept += 1;
        }
        Ok(kept)
    }

    fn good(&self, record: &CardRecord, grid: &Grid) -> Option<MemberCard> {
        let verifier = self.verifier.as_ref()?;
        let card = verifier.read_at(&record.card, record.addr, &grid.revoked)?;
        may_be_announced(record.addr).then_some(card)
    }

    /// The card of a donor. A file that is damaged counts as none, and is removed.
    fn read(&self, id: OwnerId, day: u32) -> Option<CardRecord> {
        let path = self.path(id, day);
        let is_small = fs::metadata(&path).ok()?.len() <= FILE_BYTES_MAX as u64;
        let bytes = is_small.then(|| fs::read(&path).ok()).flatten();
        let record = bytes.and_then(|bytes| serial::decode(&bytes, FILE_BYTES_MAX).ok());
        if record.is_none() {
            let _ = fs::remove_file(&path);
        }
        record
    }

    /// Writes a card in one step. A crash may lose it: it is fetched again.
    fn write(&self, id: OwnerId, day: u32, record: &CardRecord) -> io::Result<()> {
        let bytes = serial::encode(record, FILE_BYTES_MAX).map_err(io::Error::other)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.dir)?;
        file.write_all(&bytes)?;
        let persisted = file.persist(self.path(id, day));
        persisted.map(|_| ()).map_err(|persist| persist.error)
    }

    fn path(&self, id: OwnerId, day: u32) -> PathBuf {
        self.dir.join(format!("{}-{day}.card", id.hex()))
    }
}

fn parse_name(name: &str) -> Option<(OwnerId, u32)> {
    let (id, day) = name.strip_suffix(".card")?.split_once('-')?;
    Some((OwnerId::from_hex(id)?, day.parse().ok()?))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, NotCompared> {
    let done = tokio::task::spawn_blocking(work).await;
    Ok(done.unwrap_or_else(|panicked| Err(io::Error::other(panicked)))?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use codec::seal::OwnerSecret;
    use protocol::identity::{Authority, Identity, Revocations, Role, Validity, Whereabouts};

    use super::*;

    const DAY: u64 = 86_400;

    fn lab() -> Authority {
        let validity = Validity {
            from: 0,
            lasting: Duration::from_secs(1 << 32),
        };
        Authority::create(OwnerSecret::new([1; 32]), "lab", validity).unwrap()
    }

    /// A certificate of 100 days from day 1,000 on.
    fn card(seed: u8, day: u64, port: u16) -> CardRecord {
        let donor = OwnerSecret::new([seed; 32]);
        let validity = Validity {
            from: 1000 * DAY,
            lasting: Duration::from_secs(100 * DAY),
        };
        let certificate = lab().sign(&[Role::Donor], "h", donor.id(), validity);
        let identity = Identity::new(donor, certificate.unwrap()).unwrap();
        let addr = ([10, 0, 0, 1], port).into();
        let whereabouts = Whereabouts {
            addr,
            site: None,
            owner: None,
        };
        let card = MemberCard::sign(&identity, whereabouts, day * DAY).unwrap();
        CardRecord {
            card: card.bytes().to_vec(),
            addr,
        }
    }

    fn id(seed: u8) -> OwnerId {
        OwnerSecret::new([seed; 32]).id()
    }

    fn grid() -> Grid {
        Grid::new("lab", lab().certificate().clone())
    }

    #[test]
    fn cards_that_are_good_and_newer_are_kept_one_of_each_donor() {
        let dir = tempfile::tempdir().unwrap();
        let grid = grid();
        let others = OtherCards::new(dir.path(), &grid, id(9));
        let now = 1010 * DAY;
        let all = [id(2), id(3), id(4)];
        let keep = |cards: &[CardRecord]| others.keep(cards, &all, &grid, now).unwrap();
        assert!(others.days().unwrap().is_empty());
        let mut moved = card(4, 1009, 7600);
        moved.addr = ([10, 0, 0, 2], 7600).into();
        let early = card(4, 1012, 7600);
        assert_eq!(
            keep(&[card(2, 1009, 7600), card(3, 1009, 7600), moved, early]),
            2
        );
        assert_eq!(keep(&[card(5, 1009, 7600)]), 0, "nobody asked for it");
        assert_eq!(keep(&[card(2, 1008, 7601), card(2, 1010, 7602)]), 1);
        let days = BTreeMap::from([(id(2), 1010), (id(3), 1009)]);
        assert_eq!(others.days().unwrap(), days);
        assert_eq!(others.read(id(2), 1010), Some(card(2, 1010, 7602)));
        // A crash left two; another one left half a file.
        others.write(id(3), 1007, &card(3, 1007, 7600)).unwrap();
        assert_eq!(others.days().unwrap(), days);
        fs::write(others.path(id(3), 1009), b"half").unwrap();
        assert_eq!(others.read(id(3), 1009), None);
        assert_eq!(others.days().unwrap(), BTreeMap::from([(id(2), 1010)]));
    }

    #[test]
    fn cards_of_those_that_are_no_members_any_more_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut grid = grid();
        let others = OtherCards::new(dir.path(), &grid, id(9));
        let all = [id(2), id(3)];
        let cards = [card(2, 1009, 7600), card(3, 1009, 7600)];
        others.keep(&cards, &all, &grid, 1009 * DAY).unwrap();
        let tidied = |grid: &Grid, day: u64| others.tidied(grid, day * DAY).unwrap().len();
        assert_eq!(tidied(&grid, 1009), 2);
        assert_eq!(
            tidied(&grid, 1190),
            2,
            "90 days after the end of the certificates"
        );
        grid.revoked = lab()
            .revoke(&Revocations::default(), BTreeSet::from([id(3)]))
            .unwrap();
        assert_eq!(tidied(&grid, 1190), 1);
        assert_eq!(tidied(&grid, 1191), 0);
        assert!(others.days().unwrap().is_empty());
    }

    #[test]
    fn both_sides_of_a_difference_are_found_page_by_page() {
        let dir = tempfile::tempdir().unwrap();
        let key = |number: u8| OwnerId([number; 32]);
        let others = OtherCards::new(dir.path(), &grid(), key(9));
        let known = BTreeMap::from([(key(1), 5), (key(3), 5), (key(5), 5), (key(7), 5)]);
        let day = |number: u8, day| CardDay {
            id: key(number),
            day,
        };
        // The first page: 1 is the same, 2 is new, 3 is older there.
        let page = [day(1, 5), day(2, 5), day(3, 4)];
        let found = others.differences(&known, &page, (None, Some(key(3))));
        assert_eq!(found, (vec![key(2)], vec![(key(3), 5)]));
        // The last page: 5 is missing there, 7 newer there, 9 is this host.
        let page = [day(7, 6), day(9, 6)];
        let found = others.differences(&known, &page, (Some(key(3)), None));
        assert_eq!(found, (vec![key(7)], vec![(key(5), 5)]));
        assert!(!CardDay::is_page(&page, Some(key(7))));
        assert!(CardDay::is_page(&page, Some(key(3))));
    }
}
