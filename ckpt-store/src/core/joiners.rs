//! Who joined with tokens that a registry redeemed: under which name, with which token, when, and when each
//! was heard last. A name that a key got stays that key's for ever.
//!
//! A line of the file is `TOKEN KEY EXPIRES ROLE NAME AT UNTIL SEEN`. Earlier programs wrote only the first
//! three words: such a line says that the token was used.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Bound;

use codec::{CheckpointId, OwnerId};
use protocol::identity::{NAME_BYTES_MAX, TokenRole, is_name};
use protocol::wire::message::JoinerRecord;

/// Most members that a registry signs. None is dropped to make room, because names are for ever.
pub const JOINERS_MAX: usize = 1 << 15;

/// What a member takes, with its token.
pub const JOINER_BYTES: usize = 400;

/// Most tokens of which it is remembered, until they expire, that they were used.
const TOKENS_MAX: usize = 2 * JOINERS_MAX;

/// When a member was heard is written down again after this many seconds.
const SEEN_WRITTEN_EVERY_S: u64 = 3600;

/// A member that joined with a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joiner {
    /// Its key.
    pub key: OwnerId,
    /// The role that its token gave.
    pub role: TokenRole,
    /// The name in its certificate.
    pub name: String,
    /// The number of the token.
    pub token: [u8; 16],
    /// When the token expires, Unix seconds.
    pub token_expires: u64,
    /// When it joined, Unix seconds.
    pub at: u64,
    /// When its certificate ends, Unix seconds.
    pub until: u64,
    /// When it was heard last, Unix seconds.
    pub seen_at: u64,
}

/// Why a key can't join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPlace {
    /// Another key has redeemed the token.
    #[error("the token was used already")]
    Used,
    /// The registry signed [`JOINERS_MAX`] members.
    #[error("the registry has signed {JOINERS_MAX} members and has no room for another")]
    Full,
    /// The name is another member's, and no number may be added.
    #[error("another member has this name")]
    NameTaken,
}

/// Who joined, and which tokens were used.
#[derive(Debug, Default)]
pub struct Joiners {
    by_key: BTreeMap<OwnerId, Joiner>,
    tokens: BTreeMap<[u8; 16], (OwnerId, u64)>,
    /// When each member was heard, as it stands in the file, if that differs.
    written: BTreeMap<OwnerId, u64>,
}

/// The name that somebody would like to have, and who else has names.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// Who asks.
    pub key: OwnerId,
    /// The name.
    pub name: &'a str,
    /// Whether a number may be added.
    pub numbered: bool,
    /// Names of members that did not join here.
    pub others: &'a BTreeSet<(String, OwnerId)>,
}

impl Joiners {
    /// Reads the lines of the file. Of two lines about one key the last counts; what is no line is left out.
    pub fn read(text: &str) -> Self {
        let mut joiners = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            if let Some((token, key, expires)) = read_token(&words) {
                joiners.tokens.insert(token, (key, expires));
            }
            if let Some(joiner) = read_joiner(&words) {
                joiners.by_key.insert(joiner.key, joiner);
            }
        }
        joiners
    }

    /// All lines of the file. From here on, everybody counts as written down.
    pub fn to_text(&mut self) -> String {
        self.written.clear();
        let mut text = String::new();
        for joiner in self.by_key.values() {
            text.push_str(&joiner.line());
        }
        for (token, (key, expires)) in &self.tokens {
            let is_written = self.by_key.get(key).is_some_and(|one| one.token == *token);
            if !is_written {
                // Writing to a string has no error.
                let _ = writeln!(text, "{}", token_words(*token, *key, *expires));
            }
        }
        text
    }

    /// Checks that the key may redeem the token.
    ///
    /// # Errors
    /// When another key has redeemed it, or the registry has no room.
    pub fn check(&self, token: [u8; 16], key: OwnerId) -> Result<(), NoPlace> {
        match self.tokens.get(&token) {
            Some((by, _)) if *by == key => Ok(()),
            Some(_) => Err(NoPlace::Used),
            None if self.tokens.len() >= TOKENS_MAX => Err(NoPlace::Full),
            None if self.by_key.contains_key(&key) => Ok(()),
            None if self.by_key.len() >= JOINERS_MAX => Err(NoPlace::Full),
            None => Ok(()),
        }
    }

    /// The name that the asker gets: the one that its key has already, the one that it would like to have, or
    /// that one with the first number that nobody has. A name is another's if that other's key ever had it,
    /// except that a name that is asked for exactly may be one of revoked keys: of machines that are replaced.
    ///
    /// # Errors
    /// When the name is another's and no number may be added.
    pub fn name_for(
        &self,
        wish: Wish<'_>,
        is_revoked: impl Fn(&OwnerId) -> bool,
    ) -> Result<String, NoPlace> {
        let own = self.by_key.get(&wish.key);
        if let Some(own) = own.filter(|own| wish.numbered || own.name == wish.name) {
            return Ok(own.name.clone());
        }
        let here = self.by_key.values().map(|one| (one.name.as_str(), one.key));
        let elsewhere = wish.others.iter().map(|(name, key)| (name.as_str(), *key));
        let all = here.chain(elsewhere).filter(|(_, key)| *key != wish.key);
        if !wish.numbered {
            let mut holders = all.filter(|(name, _)| *name == wish.name);
            let is_free = holders.all(|(_, key)| is_revoked(&key));
            return is_free
                .then(|| wish.name.to_owned())
                .ok_or(NoPlace::NameTaken);
        }
        let taken: BTreeSet<&str> = all.map(|(name, _)| name).collect();
        let mut names = std::iter::once(wish.name.to_owned())
            .chain((2_u32..).map(|number| numbered(wish.name, number)));
        // Ends: the set of taken names is finite.
        names
            .find(|name| !taken.contains(name.as_str()))
            .ok_or(NoPlace::NameTaken)
    }

    /// Enters a member that joined at `now`.
    pub fn enter(&mut self, joiner: Joiner, now: u64) {
        // Expired tokens are refused anyway, so they are forgotten here.
        self.tokens.retain(|_, (_, expires)| *expires >= now);
        self.tokens
            .insert(joiner.token, (joiner.key, joiner.token_expires));
        self.by_key.insert(joiner.key, joiner);
    }

    /// Notes that a member was heard.
    pub fn hear(&mut self, key: &OwnerId, now: u64) {
        if let Some(joiner) = self.by_key.get_mut(key) {
            self.written.entry(*key).or_insert(joiner.seen_at);
            joiner.seen_at = joiner.seen_at.max(now);
        }
    }

    /// Whether the file is so far behind that it should be written anew.
    pub fn is_behind(&self) -> bool {
        let mut written = self.written.iter();
        written.any(|(key, then)| {
            let seen_at = self.by_key.get(key).map_or(0, |one| one.seen_at);
            seen_at.saturating_sub(*then) >= SEEN_WRITTEN_EVERY_S
        })
    }

    /// Up to `most` members with keys above `after`, in ascending order, and whether there are more.
    pub fn page(&self, after: Option<OwnerId>, most: usize) -> (Vec<JoinerRecord>, bool) {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = self.by_key.range((from, Bound::Unbounded));
        let records = rest.by_ref().take(most).map(|(_, one)| one.record());
        let records = records.collect();
        (records, rest.next().is_some())
    }
}

impl Joiner {
    /// Its line in the file, with the end of the line.
    pub fn line(&self) -> String {
        let token = token_words(self.token, self.key, self.token_expires);
        let role = self.role.role().name();
        let Self {
            name,
            at,
            until,
            seen_at,
            ..
        } = self;
        format!("{token} {role} {name} {at} {until} {seen_at}\n")
    }

    fn record(&self) -> JoinerRecord {
        JoinerRecord {
            id: self.key,
            name: self.name.clone(),
            submitter: self.role == TokenRole::Submitter,
            token: self.token,
            at: self.at,
            until: self.until,
            seen_at: self.seen_at,
        }
    }
}

fn token_words(token: [u8; 16], key: OwnerId, expires: u64) -> String {
    format!("{} {} {expires}", CheckpointId(token).hex(), key.hex())
}

fn read_token(words: &[&str]) -> Option<([u8; 16], OwnerId, u64)> {
    let token = CheckpointId::from_hex(words.first()?)?.0;
    let key = OwnerId::from_hex(words.get(1)?)?;
    Some((token, key, words.get(2)?.parse().ok()?))
}

fn read_joiner(words: &[&str]) -> Option<Joiner> {
    let (token, key, token_expires) = read_token(words)?;
    let time = |at: usize| words.get(at)?.parse().ok();
    let name = words.get(4).filter(|name| is_name(name))?;
    Some(Joiner {
        key,
        role: TokenRole::from_name(words.get(3)?)?,
        name: (*name).to_owned(),
        token,
        token_expires,
        at: time(5)?,
        until: time(6)?,
        seen_at: time(7)?,
    })
}

/// The name with a number, within the length of names.
fn numbered(name: &str, number: u32) -> String {
    let number = format!("-{number}");
    let mut stem = name.to_owned();
    // Names are ASCII.
    stem.truncate(NAME_BYTES_MAX.saturating_sub(number.len()));
    stem + &number
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(of: u8) -> OwnerId {
        OwnerId([of; 32])
    }

    fn joiner(of: u8, name: &str) -> Joiner {
        Joiner {
            key: key(of),
            role: TokenRole::Donor,
            name: name.to_owned(),
            token: [of; 16],
            token_expires: 100,
            at: 10,
            until: 1000,
            seen_at: 10,
        }
    }

    fn ask(joiners: &Joiners, of: u8, name: &str, numbered: bool) -> Result<String, NoPlace> {
        let others = BTreeSet::from([("listed".to_owned(), key(99))]);
        let wish = Wish {
            key: key(of),
            name,
            numbered,
            others: &others,
        };
        joiners.name_for(wish, |key| *key == OwnerId([50; 32]))
    }

    #[test]
    fn machines_of_one_image_get_names_that_stay_theirs() {
        let mut joiners = Joiners::default();
        for (of, name) in [(1, "vm"), (2, "vm-2"), (3, "vm-3")] {
            assert_eq!(ask(&joiners, of, "vm", true).as_deref(), Ok(name));
            joiners.enter(joiner(of, name), 20);
        }
        // The same key asks again, also by another name.
        assert_eq!(ask(&joiners, 2, "vm", true).as_deref(), Ok("vm-2"));
        // A member that another registry or the authority knows has its name, too.
        assert_eq!(ask(&joiners, 4, "listed", true).as_deref(), Ok("listed-2"));
        assert_eq!(ask(&joiners, 4, "vm", false), Err(NoPlace::NameTaken));
        let long = "n".repeat(NAME_BYTES_MAX);
        joiners.enter(joiner(5, &long), 20);
        let other = ask(&joiners, 6, &long, true).unwrap();
        assert!(is_name(&other) && other.ends_with("n-2"), "{other}");
    }

    #[test]
    fn the_name_of_a_revoked_key_is_given_only_to_who_asks_for_it_exactly() {
        let mut joiners = Joiners::default();
        joiners.enter(joiner(50, "vm"), 20);
        assert_eq!(ask(&joiners, 1, "vm", true).as_deref(), Ok("vm-2"));
        assert_eq!(ask(&joiners, 1, "vm", false).as_deref(), Ok("vm"));
        joiners.enter(joiner(1, "vm"), 20);
        assert_eq!(ask(&joiners, 2, "vm", false), Err(NoPlace::NameTaken));
    }

    #[test]
    fn a_token_is_used_once_and_everything_is_read_back() {
        let mut joiners = Joiners::default();
        joiners.enter(joiner(1, "vm"), 20);
        joiners.hear(&key(1), 30);
        assert!(!joiners.is_behind());
        joiners.hear(&key(1), 10 + SEEN_WRITTEN_EVERY_S);
        assert!(joiners.is_behind());
        let text = joiners.to_text();
        assert!(!joiners.is_behind());
        let read = Joiners::read(&format!("{text}0202"));
        assert_eq!(read.check([1; 16], key(1)), Ok(()));
        assert_eq!(read.check([1; 16], key(2)), Err(NoPlace::Used));
        assert_eq!(read.page(None, 5), joiners.page(None, 5));
        assert_eq!(read.page(Some(key(1)), 5), (Vec::new(), false));
        // A line of an earlier program: the token was used, and nobody knows by whom.
        let token = format!("{} {} 100\n", "02".repeat(16), "03".repeat(32));
        let mut read = Joiners::read(&token);
        assert_eq!(read.check([2; 16], key(4)), Err(NoPlace::Used));
        assert_eq!(read.to_text(), token);
    }
}
