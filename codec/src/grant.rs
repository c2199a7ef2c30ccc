//! Grants: what an owner allows another key to do with some jobs; and lists of those that are void.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{JobTag, OwnerId, PublicKey};
use crate::scope::{Blinded, rest_below, tag_of};
use crate::seal::OwnerSecret;
use crate::serial::SerialError;
use crate::signed::{self, FrameError};

/// Most bytes of a grant.
pub const GRANT_BYTES_MAX: usize = 512;

/// Most bytes of a list of void grants.
pub const VOID_BYTES_MAX: usize = 256;

/// Seconds by which the clocks of owner, job and hosts may differ. What was signed with a key counts from
/// this long before the time of its grant until this long after.
pub const CLOCK_SLACK_S: u64 = 86_400;

/// A host refuses a key this many seconds after its end by the host's own clock. What was signed with the key
/// has [`CLOCK_SLACK_S`], because the clock of the job stamped it.
pub const END_SLACK_S: u64 = 300;

const MAGIC: &[u8; 8] = b"CKPTGRA1";
const VOID_MAGIC: &[u8; 8] = b"CKPTVOI1";
const FORMAT: u16 = 1;

/// What may be done with the jobs of a grant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Rights(u8);

/// A number that stands for no rights, or for rights that this version does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown rights {0}: a newer version of ckpt made them")]
pub struct UnknownRights(u8);

/// Text that names no rights.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a right: use save, restore, remove, separated by commas")]
pub struct RightsText(String);

impl Rights {
    /// The right to store new versions.
    pub const SAVE: Self = Self(1);
    /// The right to find and read versions.
    pub const RESTORE: Self = Self(2);
    /// The right to remove versions and change the lease.
    pub const REMOVE: Self = Self(4);

    const NAMES: [(Self, &'static str); 3] = [
        (Self::SAVE, "save"),
        (Self::RESTORE, "restore"),
        (Self::REMOVE, "remove"),
    ];

    /// These rights and the others.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Whether all of `wanted` are among these rights.
    pub const fn has(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

impl TryFrom<u8> for Rights {
    type Error = UnknownRights;

    fn try_from(bits: u8) -> Result<Self, UnknownRights> {
        match bits {
            1..=7 => Ok(Self(bits)),
            other => Err(UnknownRights(other)),
        }
    }
}

impl From<Rights> for u8 {
    fn from(rights: Rights) -> Self {
        rights.0
    }
}

impl std::str::FromStr for Rights {
    type Err = RightsText;

    fn from_str(text: &str) -> Result<Self, RightsText> {
        let one = |name: &str| {
            let mut names = Self::NAMES.iter();
            let found = names.find(|(_, have)| *have == name);
            found
                .map(|(right, _)| *right)
                .ok_or_else(|| RightsText(name.to_owned()))
        };
        let mut all = text.split(',').map(one);
        let first = all.next().ok_or_else(|| RightsText(text.to_owned()))??;
        all.try_fold(first, |rights, right| Ok(rights.and(right?)))
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let have = Self::NAMES.iter().filter(|(right, _)| self.has(*right));
        let names: Vec<&str> = have.map(|(_, name)| *name).collect();
        f.write_str(&names.join(","))
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rights({self})")
    }
}

/// The jobs that a grant is for, by their tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GrantScope {
    /// The job with this tag.
    Job(JobTag),
    /// All jobs strictly below the prefix with this tag.
    Below(JobTag),
}

/// The content of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    format: u16,
    /// The grid: the hash of its authority's certificate.
    pub grid: [u8; 32],
    /// The owner who gives it.
    pub owner: OwnerId,
    /// The key that it is given to.
    pub key: PublicKey,
    /// The jobs that it is for.
    pub scope: GrantScope,
    /// What the key may do with these jobs.
    pub rights: Rights,
    /// Number of the grant, by which its owner can make it void.
    pub serial: u64,
    /// When it begins, Unix seconds.
    pub not_before: u64,
    /// When it ends, Unix seconds; not before it begins.
    pub not_after: u64,
}

/// Fields of a new grant. See [`Terms`].
#[derive(Clone, Copy, Debug)]
pub struct NewGrant {
    /// The grid: the hash of its authority's certificate.
    pub grid: [u8; 32],
    /// The key that it is given to.
    pub key: PublicKey,
    /// The jobs that it is for.
    pub scope: GrantScope,
    /// What the key may do with these jobs.
    pub rights: Rights,
    /// Number of the grant.
    pub serial: u64,
    /// When it begins, Unix seconds.
    pub not_before: u64,
    /// When it ends, Unix seconds.
    pub not_after: u64,
}

/// Why bytes are refused as a grant, or as a list of void grants.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// The body is malformed.
    #[error("grant: {0}")]
    Serial(#[from] SerialError),
    /// The bytes do not begin as a grant does, or encode the body in an unusual way.
    #[error("not a grant")]
    Frame,
    /// The signature is not the owner's.
    #[error("grant of owner {0}: bad signature")]
    Signature(OwnerId),
    /// A format that this version does not read.
    #[error("grant format {0} is not known to this version")]
    Format(u16),
    /// The grant ends before it begins.
    #[error("grant: the time from {0} to {1} is impossible")]
    Times(u64, u64),
    /// The grant is for the owner's own key.
    #[error("a grant for the owner's own key")]
    Own,
}

impl From<FrameError> for GrantError {
    fn from(cause: FrameError) -> Self {
        match cause {
            FrameError::Serial(cause) => Self::Serial(cause),
            FrameError::Frame => Self::Frame,
        }
    }
}

/// A grant whose signature was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    terms: Terms,
    bytes: Vec<u8>,
}

impl Grant {
    /// Makes and signs a grant.
    ///
    /// # Errors
    /// When the grant ends before it begins, or is for the owner's own key.
    pub fn sign(owner: &OwnerSecret, new: NewGrant) -> Result<Self, GrantError> {
        let terms = Terms {
            format: FORMAT,
            grid: new.grid,
            owner: owner.id(),
            key: new.key,
            scope: new.scope,
            rights: new.rights,
            serial: new.serial,
            not_before: new.not_before,
            not_after: new.not_after,
        };
        let bytes = signed::write(MAGIC, &terms, GRANT_BYTES_MAX, |bytes| owner.sign(bytes))?;
        Self::parse(&bytes)
    }

    /// Reads a grant and checks its signature. The caller has to check that it is current, of this grid and
    /// not void.
    ///
    /// # Errors
    /// When it is malformed, changed, or contradicts itself.
    pub fn parse(bytes: &[u8]) -> Result<Self, GrantError> {
        let record = signed::read::<Terms>(MAGIC, bytes, GRANT_BYTES_MAX)?;
        let terms = record.body;
        if !terms.owner.verify(record.signed, record.signature) {
            return Err(GrantError::Signature(terms.owner));
        }
        if terms.format != FORMAT {
            return Err(GrantError::Format(terms.format));
        }
        if terms.not_after < terms.not_before {
            return Err(GrantError::Times(terms.not_before, terms.not_after));
        }
        if terms.key == terms.owner.into() {
            return Err(GrantError::Own);
        }
        let bytes = bytes.to_vec();
        Ok(Self { terms, bytes })
    }

    /// The content of the grant.
    pub const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The bytes of the grant, with its signature.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// What somebody signed, and when: what a grant has to permit.
#[derive(Clone, Copy, Debug)]
pub struct Act<'a> {
    /// Owner of the job.
    pub owner: OwnerId,
    /// The key that signed.
    pub signer: PublicKey,
    /// Tag of the job.
    pub job_tag: JobTag,
    /// Path of the job; it was checked that it is that of the tag.
    pub path: &'a [Blinded],
    /// The right that the signer needs.
    pub right: Rights,
    /// The time that has to be that of the grant.
    pub moment: Moment,
}

/// Which time of a signed record has to lie in the time of its grant. All times are Unix seconds, and clocks
/// may differ by [`CLOCK_SLACK_S`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The record states when it was made: not before the grant begins, and not after it ends.
    Within(u64),
    /// The record states a time that has to lie before the end of the grant, and may lie before its beginning.
    Until(u64),
    /// The record states no time. Hosts take it only over a connection of the key that signed it, and refuse
    /// such a connection outside of the grant's time (`propose` in `ckpt-store/src/serve/fences.rs`).
    HostsDecide,
}

/// Why somebody may not sign something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The owner needs no grant, so there must be none.
    #[error("a grant for the owner")]
    Needless,
    /// The signer is not the owner, and there is no grant.
    #[error("no grant")]
    NoGrant,
    /// Another owner gave the grant.
    #[error("another owner's grant")]
    Owner,
    /// The grant was given to another key.
    #[error("another key's grant")]
    Key,
    /// The grant does not give this right.
    #[error("no right to {0}")]
    Right(Rights),
    /// The grant is not for the job.
    #[error("another job")]
    Job,
    /// The grant does not hold at the time of the record.
    #[error("another time")]
    Time,
}

impl Grant {
    /// Checks that the signer of something may sign it: the owner without a grant, another key with one that
    /// covers it. The caller has to check that the grant is of this grid and not void.
    ///
    /// # Errors
    /// When the signer may not.
    pub fn permits(grant: Option<&Self>, act: Act<'_>) -> Result<(), Refused> {
        let terms = match (act.signer == act.owner.into(), grant) {
            (true, None) => return Ok(()),
            (true, Some(_)) => return Err(Refused::Needless),
            (false, None) => return Err(Refused::NoGrant),
            (false, Some(grant)) => grant.terms(),
        };
        if terms.owner != act.owner {
            return Err(Refused::Owner);
        }
        if terms.key != act.signer {
            return Err(Refused::Key);
        }
        if !terms.rights.has(act.right) {
            return Err(Refused::Right(act.right));
        }
        if !terms.covers(act.job_tag, act.path) {
            return Err(Refused::Job);
        }
        let is_in_time = match act.moment {
            Moment::Within(time) => terms.is_current(time),
            Moment::Until(time) => time <= terms.not_after.saturating_add(CLOCK_SLACK_S),
            Moment::HostsDecide => true,
        };
        if is_in_time {
            Ok(())
        } else {
            Err(Refused::Time)
        }
    }
}

impl Terms {
    /// Whether the grant is for the job with this tag and path. A grant for one job ignores the path.
    pub fn covers(&self, tag: JobTag, path: &[Blinded]) -> bool {
        match self.scope {
            GrantScope::Job(only) => only == tag,
            GrantScope::Below(prefix) => {
                rest_below(self.owner, prefix, path).is_some() && tag_of(self.owner, path) == tag
            }
        }
    }

    /// Whether a host may let the key in at `now` by its own clock, Unix seconds: until [`END_SLACK_S`] after
    /// the end.
    pub const fn is_let_in(&self, now: u64) -> bool {
        self.is_current(now) && now <= self.not_after.saturating_add(END_SLACK_S)
    }

    /// Whether a time that was stamped on what the key signed, Unix seconds, is within the grant's time;
    /// clocks may differ by [`CLOCK_SLACK_S`].
    pub const fn is_current(&self, now: u64) -> bool {
        self.not_before <= now.saturating_add(CLOCK_SLACK_S)
            && now <= self.not_after.saturating_add(CLOCK_SLACK_S)
    }
}

/// The signed record by which an owner makes all grants void whose serial is below a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoidList {
    words: VoidWords,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct VoidWords {
    format: u16,
    owner: OwnerId,
    serials_below: u64,
}

impl VoidList {
    /// Makes and signs a list.
    ///
    /// # Errors
    /// Never: a list is shorter than [`VOID_BYTES_MAX`].
    pub fn sign(owner: &OwnerSecret, serials_below: u64) -> Result<Self, GrantError> {
        let words = VoidWords {
            format: FORMAT,
            owner: owner.id(),
            serials_below,
        };
        let bytes = signed::write(VOID_MAGIC, &words, VOID_BYTES_MAX, |bytes| {
            owner.sign(bytes)
        })?;
        Self::parse(&bytes)
    }

    /// Reads a list and checks its signature.
    ///
    /// # Errors
    /// When it is malformed or changed.
    pub fn parse(bytes: &[u8]) -> Result<Self, GrantError> {
        let record = signed::read::<VoidWords>(VOID_MAGIC, bytes, VOID_BYTES_MAX)?;
        let words = record.body;
        if !words.owner.verify(record.signed, record.signature) {
            return Err(GrantError::Signature(words.owner));
        }
        if words.format != FORMAT {
            return Err(GrantError::Format(words.format));
        }
        let bytes = bytes.to_vec();
        Ok(Self { words, bytes })
    }

    /// The owner of the grants.
    pub const fn owner(&self) -> OwnerId {
        self.words.owner
    }

    /// Grants with smaller serials are void. A list with a larger number replaces one with a smaller.
    pub const fn serials_below(&self) -> u64 {
        self.words.serials_below
    }

    /// Whether this list makes a grant void; the grant may be of any owner.
    pub fn voids(&self, grant: &Terms) -> bool {
        grant.owner == self.words.owner && grant.serial < self.words.serials_below
    }

    /// The bytes of the list, with its signature.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn owner() -> OwnerSecret {
        OwnerSecret::new([9; 32])
    }

    fn new() -> NewGrant {
        NewGrant {
            grid: [1; 32],
            key: PublicKey(OwnerSecret::new([2; 32]).id().0),
            scope: GrantScope::Job(JobTag([3; 32])),
            rights: Rights::SAVE.and(Rights::RESTORE),
            serial: 7,
            not_before: 1_000_000,
            not_after: 2_000_000,
        }
    }

    #[test]
    fn a_grant_comes_back_and_is_short() {
        for scope in [
            GrantScope::Job(JobTag([3; 32])),
            GrantScope::Below(JobTag([4; 32])),
        ] {
            let longest = NewGrant {
                scope,
                serial: u64::MAX,
                not_before: u64::MAX,
                not_after: u64::MAX,
                ..new()
            };
            let grant = Grant::sign(&owner(), longest).unwrap();
            assert!(grant.bytes().len() < 300, "{}", grant.bytes().len());
            assert_eq!(Grant::parse(grant.bytes()), Ok(grant.clone()));
            assert_eq!(grant.terms().scope, scope);
        }
    }

    #[test]
    fn one_that_was_changed_is_not_believed() {
        let good = Grant::sign(&owner(), new()).unwrap();
        let void = VoidList::sign(&owner(), 8).unwrap();
        for at in 0..good.bytes().len() {
            let mut bad = good.bytes().to_vec();
            bad[at] ^= 1;
            assert!(Grant::parse(&bad).is_err(), "byte {at}");
            assert!(Grant::parse(&good.bytes()[..at]).is_err());
        }
        for at in 0..void.bytes().len() {
            let mut bad = void.bytes().to_vec();
            bad[at] ^= 1;
            assert!(VoidList::parse(&bad).is_err(), "byte {at}");
        }
        assert!(VoidList::parse(good.bytes()).is_err() && Grant::parse(void.bytes()).is_err());
    }

    #[test]
    fn a_grant_that_contradicts_itself_is_not_made() {
        let backwards = NewGrant {
            not_after: 999_999,
            ..new()
        };
        let refused = Grant::sign(&owner(), backwards);
        assert_eq!(refused, Err(GrantError::Times(1_000_000, 999_999)));
        let own = NewGrant {
            key: owner().id().into(),
            ..new()
        };
        assert_eq!(Grant::sign(&owner(), own), Err(GrantError::Own));
    }

    #[test]
    fn a_grant_holds_for_its_time_and_until_its_serial_is_void() {
        let grant = Grant::sign(&owner(), new()).unwrap();
        let terms = grant.terms();
        for (now, is_current) in [
            (1_000_000 - CLOCK_SLACK_S - 1, false),
            (1_000_000 - CLOCK_SLACK_S, true),
            (2_000_000 + CLOCK_SLACK_S, true),
            (2_000_001 + CLOCK_SLACK_S, false),
        ] {
            assert_eq!(terms.is_current(now), is_current, "{now}");
        }
        for (below, is_void) in [(0, false), (7, false), (8, true)] {
            let list = VoidList::sign(&owner(), below).unwrap();
            assert_eq!(list.voids(terms), is_void, "{below}");
        }
        let others = VoidList::sign(&OwnerSecret::new([8; 32]), 100).unwrap();
        assert!(!others.voids(terms));
    }

    #[test]
    fn what_a_grant_does_not_cover_is_refused_with_the_reason() {
        let grant = Grant::sign(&owner(), new()).unwrap();
        let act = Act {
            owner: owner().id(),
            signer: new().key,
            job_tag: JobTag([3; 32]),
            path: &[],
            right: Rights::SAVE,
            moment: Moment::Within(1_500_000),
        };
        let permits = |act| Grant::permits(Some(&grant), act);
        assert_eq!(permits(act), Ok(()));
        let owners = Act {
            signer: owner().id().into(),
            ..act
        };
        assert_eq!(Grant::permits(None, owners), Ok(()));
        assert_eq!(permits(owners), Err(Refused::Needless));
        assert_eq!(Grant::permits(None, act), Err(Refused::NoGrant));
        let other = OwnerSecret::new([8; 32]).id();
        type Change<'a> = &'a dyn Fn(&mut Act<'_>);
        let refusals: [(Change<'_>, Refused); 6] = [
            (&|act| act.owner = other, Refused::Owner),
            (&|act| act.signer = other.into(), Refused::Key),
            (
                &|act| act.right = Rights::REMOVE,
                Refused::Right(Rights::REMOVE),
            ),
            (&|act| act.job_tag = JobTag([4; 32]), Refused::Job),
            (
                &|act| act.moment = Moment::Within(999_999 - CLOCK_SLACK_S),
                Refused::Time,
            ),
            (
                &|act| act.moment = Moment::Until(2_000_001 + CLOCK_SLACK_S),
                Refused::Time,
            ),
        ];
        for (change, refused) in refusals {
            let mut changed = act;
            change(&mut changed);
            assert_eq!(permits(changed), Err(refused));
        }
    }

    #[test]
    fn which_time_counts_is_the_callers_choice() {
        let grant = Grant::sign(&owner(), new()).unwrap();
        let at = |moment| {
            let act = Act {
                owner: owner().id(),
                signer: new().key,
                job_tag: JobTag([3; 32]),
                path: &[],
                right: Rights::SAVE,
                moment,
            };
            Grant::permits(Some(&grant), act).is_ok()
        };
        let early = 999_999 - CLOCK_SLACK_S;
        let late = 2_000_001 + CLOCK_SLACK_S;
        for (time, within, until) in [
            (early, false, true),
            (early + 1, true, true),
            (late - 1, true, true),
            (late, false, false),
        ] {
            assert_eq!(at(Moment::Within(time)), within, "{time}");
            assert_eq!(at(Moment::Until(time)), until, "{time}");
        }
        assert!(at(Moment::HostsDecide));
    }

    #[test]
    fn rights_are_named() {
        let all: Rights = "save,restore,remove".parse().unwrap();
        assert_eq!(all.to_string(), "save,restore,remove");
        assert!(all.has(Rights::SAVE.and(Rights::REMOVE)));
        let one: Rights = "restore".parse().unwrap();
        assert!(one.has(Rights::RESTORE) && !one.has(all));
        for bad in ["", "save,", "read"] {
            assert!(bad.parse::<Rights>().is_err());
        }
        assert!(Rights::try_from(0).is_err() && Rights::try_from(8).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = (Grant::parse(&bytes), VoidList::parse(&bytes));
            let both = [MAGIC.as_slice(), &bytes].concat();
            let _ = Grant::parse(&both);
        }
    }
}
