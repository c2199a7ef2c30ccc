//! Twenty-eight days of a host's availability in five-minute slots, two bits each: is the slot known, and
//! was the host usable in it.
//!
//! The bits of a plane are a ring: slot `s` is bit `s % SLOTS` in every host's bitmap. So AND and popcount
//! on the words count the slots in which several hosts were usable at once.

/// Length of a slot.
pub const SLOT_SECONDS: u64 = 300;
/// Slots in a bitmap: 28 days.
pub const SLOTS: usize = 8064;
/// Words of one bit plane; [`SLOTS`] is a multiple of 64.
pub const WORDS: usize = SLOTS / 64;

const RING: u64 = SLOTS as u64;
/// Tag of the bytes form that holds the two planes as they are.
const TAG_PLANES: u8 = 0;
/// Tag of the bytes form that holds runs of equal slots.
const TAG_RUNS: u8 = 1;
const HEADER_BYTES: usize = 9;

/// A five-minute slot, counted from the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u64);

impl Slot {
    /// The slot that contains this Unix time.
    #[must_use]
    pub const fn containing(unix_seconds: u64) -> Self {
        Self(unix_seconds / SLOT_SECONDS)
    }

    /// Unix time at which the slot begins; saturates.
    #[must_use]
    pub const fn start_unix_seconds(self) -> u64 {
        self.0.saturating_mul(SLOT_SECONDS)
    }

    /// Its bit in every set ([`SlotSet::words`]).
    pub(crate) const fn bit(self) -> usize {
        (self.0 % RING) as usize
    }
}

/// What is known about a host in one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Availability {
    /// The host was observed throughout, and for a part of the slot at least it could not be used.
    NotUsable,
    /// The host was not observed. This does not mean that it was down.
    Unknown,
    /// The host could be used throughout.
    Usable,
}

/// The last 28 days of one host, up to and including [`newest`](Self::newest).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AvailabilityBitmap {
    newest: Slot,
    known: [u64; WORDS],
    /// Slots in which the host was usable; each of them is also in `known`.
    usable: [u64; WORDS],
}

/// The bytes are not a bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BitmapDecodeError {
    /// Fewer bytes than the form needs, or more.
    #[error("availability bitmap of {found} bytes: its form needs another length")]
    Length {
        /// Number of bytes that were offered.
        found: usize,
    },
    /// The first byte names no form.
    #[error("availability bitmap of unknown form {0}")]
    Form(u8),
    /// A slot is marked usable and unknown at once, or a run has no length or no meaning.
    #[error("availability bitmap with contradictory contents")]
    Contents,
    /// The runs cover another number of slots than 8064.
    #[error("availability bitmap with runs over {found} slots: expected 8064")]
    Slots {
        /// Slots covered up to the point of refusal.
        found: u64,
    },
}

impl AvailabilityBitmap {
    /// A bitmap that ends at `newest` and in which nothing is known.
    #[must_use]
    pub const fn unknown(newest: Slot) -> Self {
        Self {
            newest,
            known: [0; WORDS],
            usable: [0; WORDS],
        }
    }

    /// The last slot covered.
    #[must_use]
    pub const fn newest(&self) -> Slot {
        self.newest
    }

    /// The first slot covered.
    #[must_use]
    pub const fn oldest(&self) -> Slot {
        Slot(self.newest.0.saturating_sub(RING - 1))
    }

    /// Whether `slot` is one of the 8064.
    #[must_use]
    pub fn covers(&self, slot: Slot) -> bool {
        (self.oldest()..=self.newest).contains(&slot)
    }

    /// Records what was seen in `slot`. A slot after the newest moves the window forward; the slots between
    /// become unknown. A slot before the window is ignored.
    pub fn record(&mut self, slot: Slot, availability: Availability) {
        self.advance_to(slot);
        if !self.covers(slot) {
            return;
        }
        let bit = slot.bit();
        set_bit(&mut self.known, bit, availability != Availability::Unknown);
        set_bit(&mut self.usable, bit, availability == Availability::Usable);
    }

    /// Moves the window forward so that it ends at `newest`. Slots that leave the window are forgotten, new
    /// ones are unknown. Does nothing if the window already ends there or later.
    pub fn advance_to(&mut self, newest: Slot) {
        if newest <= self.newest {
            return;
        }
        if newest.0 - self.newest.0 >= RING {
            *self = Self::unknown(newest);
            return;
        }
        for slot in self.newest.0 + 1..=newest.0 {
            let bit = Slot(slot).bit();
            set_bit(&mut self.known, bit, false);
            set_bit(&mut self.usable, bit, false);
        }
        self.newest = newest;
    }

    /// What was known when the window ended at `newest`. Returns the same if it ended there or earlier.
    #[must_use]
    pub fn until(&self, newest: Slot) -> Self {
        let mut earlier = self.clone();
        if newest >= self.newest {
            return earlier;
        }
        let first = (newest.0 + 1).max(self.oldest().0);
        for bit in (first..=self.newest.0).map(|slot| Slot(slot).bit()) {
            set_bit(&mut earlier.known, bit, false);
            set_bit(&mut earlier.usable, bit, false);
        }
        earlier.newest = newest;
        earlier
    }

    /// What is known about `slot`; unknown outside the window.
    #[must_use]
    pub fn get(&self, slot: Slot) -> Availability {
        if self.covers(slot) {
            self.at_bit(slot.bit())
        } else {
            Availability::Unknown
        }
    }

    fn at_bit(&self, bit: usize) -> Availability {
        if !test_bit(&self.known, bit) {
            Availability::Unknown
        } else if test_bit(&self.usable, bit) {
            Availability::Usable
        } else {
            Availability::NotUsable
        }
    }

    /// The slots in which the host was usable.
    #[must_use]
    pub const fn usable(&self) -> SlotSet {
        SlotSet {
            newest: self.newest,
            words: self.usable,
        }
    }

    /// The slots about which something is known.
    #[must_use]
    pub const fn known(&self) -> SlotSet {
        SlotSet {
            newest: self.newest,
            words: self.known,
        }
    }

    /// The slots in which the host was seen and not usable.
    #[must_use]
    pub fn not_usable(&self) -> SlotSet {
        let mut words = self.known;
        for (word, usable) in words.iter_mut().zip(&self.usable) {
            *word &= !usable;
        }
        SlotSet {
            newest: self.newest,
            words,
        }
    }

    /// The host's failures: the slots in which it was not usable, but was in the slot before.
    #[must_use]
    pub fn failures(&self) -> SlotSet {
        self.not_usable().and(&self.usable().later_by(1))
    }

    /// The compact form: a tag, the newest slot (8 bytes, little-endian), and either runs of equal
    /// slots or the two planes (2016 bytes), whichever is shorter.
    ///
    /// A run is one LEB128 number, `length * 4 + code`, oldest first; code 0 is unknown, 1 not
    /// usable, 2 usable. A plane is [`WORDS`] little-endian words, `known` before `usable`.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut runs = self.header(TAG_RUNS);
        let planes_length = HEADER_BYTES + 2 * 8 * WORDS;
        for (availability, length) in self.runs() {
            let code = match availability {
                Availability::Unknown => 0,
                Availability::NotUsable => 1,
                Availability::Usable => 2,
            };
            push_leb128(&mut runs, u64::from(length) * 4 + code);
            if runs.len() >= planes_length {
                return self.planes_bytes();
            }
        }
        runs
    }

    /// Reads [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// [`BitmapDecodeError`] if the bytes are in neither of the two forms. No length is used before it was
    /// checked.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BitmapDecodeError> {
        let length = BitmapDecodeError::Length { found: bytes.len() };
        let (header, body) = bytes.split_at_checked(HEADER_BYTES).ok_or(length)?;
        let (&tag, newest) = header.split_first().ok_or(length)?;
        let newest = Slot(u64::from_le_bytes(newest.try_into().map_err(|_| length)?));
        match tag {
            TAG_PLANES => Self::from_planes(newest, body).ok_or(length)?,
            TAG_RUNS => Self::from_runs(newest, body),
            other => Err(BitmapDecodeError::Form(other)),
        }
    }

    fn header(&self, tag: u8) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.extend_from_slice(&self.newest.0.to_le_bytes());
        bytes
    }

    fn planes_bytes(&self) -> Vec<u8> {
        let mut bytes = self.header(TAG_PLANES);
        for word in self.known.iter().chain(&self.usable) {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// A bitmap from its two planes; `None` if the length is wrong.
    fn from_planes(newest: Slot, body: &[u8]) -> Option<Result<Self, BitmapDecodeError>> {
        let (words, rest) = body.as_chunks::<8>();
        if words.len() != 2 * WORDS || !rest.is_empty() {
            return None;
        }
        let mut bitmap = Self::unknown(newest);
        let planes = bitmap.known.iter_mut().chain(bitmap.usable.iter_mut());
        for (word, bytes) in planes.zip(words) {
            *word = u64::from_le_bytes(*bytes);
        }
        let consistent = bitmap
            .usable
            .iter()
            .zip(&bitmap.known)
            .all(|(usable, known)| usable & !known == 0);
        Some(if consistent {
            Ok(bitmap)
        } else {
            Err(BitmapDecodeError::Contents)
        })
    }

    /// A bitmap from its runs, which have to cover the whole window.
    fn from_runs(newest: Slot, mut body: &[u8]) -> Result<Self, BitmapDecodeError> {
        let mut bitmap = Self::unknown(newest);
        let mut next = 0;
        while !body.is_empty() {
            let run = take_leb128(&mut body).ok_or(BitmapDecodeError::Contents)?;
            let length = run / 4;
            let code = run % 4;
            let end = length.saturating_add(next);
            if end > RING {
                return Err(BitmapDecodeError::Slots { found: end });
            }
            if length == 0 || code == 3 {
                return Err(BitmapDecodeError::Contents);
            }
            for age in next..end {
                let bit = bitmap.ring_bit(age);
                set_bit(&mut bitmap.known, bit, code != 0);
                set_bit(&mut bitmap.usable, bit, code == 2);
            }
            next = end;
        }
        if next == RING {
            Ok(bitmap)
        } else {
            Err(BitmapDecodeError::Slots { found: next })
        }
    }

    /// Runs of equal slots with their lengths in slots, oldest first.
    pub(crate) fn runs(&self) -> Vec<(Availability, u32)> {
        let mut runs: Vec<(Availability, u32)> = Vec::new();
        for position in 0..RING {
            let found = self.at_bit(self.ring_bit(position));
            match runs.last_mut() {
                Some((last, length)) if *last == found => *length += 1,
                _ => runs.push((found, 1)),
            }
        }
        runs
    }

    /// Bit of the slot that is `position` slots after the oldest one.
    fn ring_bit(&self, position: u64) -> usize {
        ((self.newest.0 % RING + 1 + position) % RING) as usize
    }
}

/// A set of slots out of the 8064 that end at `newest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotSet {
    newest: Slot,
    words: [u64; WORDS],
}

impl SlotSet {
    /// The last slot of the window.
    #[must_use]
    pub const fn newest(&self) -> Slot {
        self.newest
    }

    /// The bits. Bit `slot % SLOTS` belongs to `slot` in every set, so sets with the same
    /// [`newest`](Self::newest) may be combined word by word.
    #[must_use]
    pub const fn words(&self) -> &[u64; WORDS] {
        &self.words
    }

    /// Number of slots in the set.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether `slot` is in the set.
    #[must_use]
    pub fn contains(&self, slot: Slot) -> bool {
        slot <= self.newest && self.newest.0 - slot.0 < RING && test_bit(&self.words, slot.bit())
    }

    /// The slots that are in both sets, in a window that ends with the later of the two.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut both = self.clone();
        both.intersect(other);
        both
    }

    /// Leaves the slots that are in both sets, in a window that ends with the later of the two.
    pub fn intersect(&mut self, other: &Self) {
        if self.newest != other.newest {
            let newest = self.newest.max(other.newest);
            *self = self.ending_at(newest);
            return self.intersect(&other.ending_at(newest));
        }
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= other;
        }
    }

    /// Number of slots that are in both sets. Allocates nothing if both windows end at the same slot.
    #[must_use]
    pub fn count_and(&self, other: &Self) -> u32 {
        if self.newest != other.newest {
            return self.and(other).count();
        }
        self.words
            .iter()
            .zip(&other.words)
            .map(|(a, b)| (a & b).count_ones())
            .sum()
    }

    /// Every slot of the set moved `slots` later; slots after the end of the window are dropped.
    #[must_use]
    pub fn later_by(&self, slots: u32) -> Self {
        let mut later = Self {
            newest: self.newest,
            words: [0; WORDS],
        };
        for slot in self.iter() {
            let moved = slot.0.saturating_add(u64::from(slots));
            if moved <= self.newest.0 {
                set_bit(&mut later.words, Slot(moved).bit(), true);
            }
        }
        later
    }

    /// The same slots in a window that ends at `newest`; slots before that window are dropped. Returns the
    /// set unchanged if its window ends at `newest` or later.
    #[must_use]
    pub fn ending_at(&self, newest: Slot) -> Self {
        if newest <= self.newest {
            return self.clone();
        }
        let mut moved = Self {
            newest,
            words: self.words,
        };
        if moved.newest.0 - self.newest.0 >= RING {
            moved.words = [0; WORDS];
            return moved;
        }
        for slot in self.newest.0 + 1..=moved.newest.0 {
            set_bit(&mut moved.words, Slot(slot).bit(), false);
        }
        moved
    }

    /// The slots of the set in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        let newest_bit = self.newest.bit() as u64;
        self.words
            .iter()
            .enumerate()
            .flat_map(move |(index, &word)| {
                BitPositions(word).map(move |position| {
                    let bit = (index * 64) as u64 + u64::from(position);
                    Slot(
                        self.newest
                            .0
                            .saturating_sub((newest_bit + RING - bit) % RING),
                    )
                })
            })
    }
}

/// Positions of the set bits of a word, lowest first.
struct BitPositions(u64);

impl Iterator for BitPositions {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        if self.0 == 0 {
            return None;
        }
        let position = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        Some(position)
    }
}

fn test_bit(words: &[u64; WORDS], bit: usize) -> bool {
    words[bit / 64] >> (bit % 64) & 1 == 1
}

fn set_bit(words: &mut [u64; WORDS], bit: usize, value: bool) {
    let mask = 1 << (bit % 64);
    if value {
        words[bit / 64] |= mask;
    } else {
        words[bit / 64] &= !mask;
    }
}

fn push_leb128(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Takes a number of at most four bytes off the beginning; the longest run needs three.
fn take_leb128(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in [0, 7, 14, 21] {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const NOW: Slot = Slot(5_800_000);

    fn availability() -> impl Strategy<Value = Availability> {
        prop::sample::select(vec![
            Availability::NotUsable,
            Availability::Unknown,
            Availability::Usable,
        ])
    }

    fn bitmap(records: &[(u64, Availability)]) -> AvailabilityBitmap {
        let mut bitmap = AvailabilityBitmap::unknown(NOW);
        for &(age, availability) in records {
            bitmap.record(Slot(NOW.0 - age), availability);
        }
        bitmap
    }

    #[test]
    fn a_new_bitmap_knows_nothing() {
        let bitmap = AvailabilityBitmap::unknown(NOW);
        assert_eq!(bitmap.known().count(), 0);
        assert_eq!(bitmap.get(NOW), Availability::Unknown);
        assert_eq!(bitmap.to_bytes().len(), HEADER_BYTES + 3);
    }

    #[test]
    fn slots_that_leave_the_window_are_forgotten() {
        let mut bitmap = bitmap(&[
            (0, Availability::Usable),
            (SLOTS as u64 - 1, Availability::Usable),
        ]);
        assert_eq!(bitmap.usable().count(), 2);
        bitmap.record(Slot(NOW.0 + 1), Availability::NotUsable);
        assert_eq!(bitmap.usable().count(), 1);
        assert_eq!(bitmap.not_usable().count(), 1);
        bitmap.advance_to(Slot(NOW.0 + RING));
        assert_eq!(bitmap.get(NOW), Availability::Unknown);
        bitmap.advance_to(Slot(u64::MAX));
        assert_eq!(bitmap.known().count(), 0);
    }

    #[test]
    fn a_slot_older_than_the_window_is_dropped() {
        let bitmap = bitmap(&[(RING, Availability::Usable)]);
        assert_eq!(bitmap.known().count(), 0);
    }

    #[test]
    fn a_failure_is_a_fall_from_usable_and_not_the_end_of_ignorance() {
        let bitmap = bitmap(&[
            (5, Availability::Usable),
            (4, Availability::NotUsable),
            (3, Availability::NotUsable),
            (1, Availability::Unknown),
            (0, Availability::NotUsable),
        ]);
        let failures: Vec<Slot> = bitmap.failures().iter().collect();
        assert_eq!(failures, [Slot(NOW.0 - 4)]);
    }

    #[test]
    fn sets_with_different_ends_meet_on_the_common_slots() {
        let early = bitmap(&[(0, Availability::Usable), (RING - 1, Availability::Usable)]);
        let mut late = AvailabilityBitmap::unknown(Slot(NOW.0 + 1));
        late.record(NOW, Availability::Usable);
        // The same bit of the ring as the oldest slot of `early`, but 28 days later.
        late.record(Slot(NOW.0 + 1), Availability::Usable);
        assert_eq!(early.usable().count_and(&late.usable()), 1);
        assert!(early.usable().and(&late.usable()).contains(NOW));
    }

    #[test]
    fn bytes_that_are_no_bitmap_are_refused() {
        use BitmapDecodeError as E;
        let decode = AvailabilityBitmap::from_bytes;
        assert_eq!(decode(&[]), Err(E::Length { found: 0 }));
        assert_eq!(decode(&[7, 0, 0, 0, 0, 0, 0, 0, 0]), Err(E::Form(7)));
        assert_eq!(
            decode(&[TAG_PLANES, 0, 0, 0, 0, 0, 0, 0, 0]),
            Err(E::Length { found: 9 })
        );
        let mut runs = vec![TAG_RUNS, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(decode(&runs), Err(E::Slots { found: 0 }));
        push_leb128(&mut runs, (RING + 1) * 4);
        assert_eq!(decode(&runs), Err(E::Slots { found: RING + 1 }));
        runs.truncate(HEADER_BYTES);
        push_leb128(&mut runs, RING * 4 + 3);
        assert_eq!(decode(&runs), Err(E::Contents));
        let mut planes = bitmap(&[(3, Availability::NotUsable)]).planes_bytes();
        planes[HEADER_BYTES + 8 * WORDS] |= 1;
        assert_eq!(decode(&planes), Err(E::Contents));
    }

    proptest! {
        #[test]
        fn the_window_behaves_like_a_map_of_slots(
            records in prop::collection::vec((0u64..3 * RING, availability()), 0..200),
        ) {
            let mut bitmap = AvailabilityBitmap::unknown(NOW);
            let mut model = BTreeMap::new();
            let mut newest = NOW;
            for (offset, availability) in records {
                let slot = Slot(NOW.0 - RING + offset);
                bitmap.record(slot, availability);
                newest = newest.max(slot);
                if newest.0 - slot.0 < RING {
                    model.insert(slot, availability);
                }
            }
            model.retain(|slot, _| newest.0 - slot.0 < RING);
            prop_assert_eq!(bitmap.newest(), newest);
            for (slot, availability) in &model {
                prop_assert_eq!(bitmap.get(*slot), *availability);
            }
            let known = model.values().filter(|a| **a != Availability::Unknown).count();
            prop_assert_eq!(bitmap.known().count() as usize, known);
            let mut listed: Vec<Slot> = bitmap.known().iter().collect();
            listed.sort();
            prop_assert!(listed.iter().all(|slot| model.contains_key(slot)));
            prop_assert_eq!(listed.len(), known);
        }

        #[test]
        fn bytes_and_back_is_the_same(
            newest in any::<u64>(),
            words in prop::collection::vec((any::<u64>(), any::<u64>()), 0..WORDS),
        ) {
            let mut bitmap = AvailabilityBitmap::unknown(Slot(newest));
            for (i, (known, usable)) in words.into_iter().enumerate() {
                bitmap.known[i] = known;
                bitmap.usable[i] = usable & known;
            }
            let bytes = bitmap.to_bytes();
            prop_assert!(bytes.len() <= HEADER_BYTES + 16 * WORDS);
            prop_assert_eq!(AvailabilityBitmap::from_bytes(&bytes), Ok(bitmap.clone()));
            // The newest slot comes from the wire: no value of it may break the operations.
            let failures = bitmap.failures();
            let at_the_end = bitmap.known().ending_at(Slot(u64::MAX));
            prop_assert!(failures.and(&at_the_end).count() <= failures.count());
        }

        #[test]
        fn random_bytes_never_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..64),
            tag in 0u8..3,
        ) {
            if let Some(first) = bytes.first_mut() {
                *first = tag;
            }
            let _ = AvailabilityBitmap::from_bytes(&bytes);
        }

        #[test]
        fn moving_a_set_later_keeps_what_stays_inside(
            ages in prop::collection::btree_set(0u64..RING, 0..100), by in 0u32..9000,
        ) {
            let records: Vec<_> = ages.iter().map(|&age| (age, Availability::Usable)).collect();
            let set = bitmap(&records).usable();
            let later = set.later_by(by);
            let expected: Vec<u64> =
                ages.iter().filter_map(|age| age.checked_sub(u64::from(by))).collect();
            prop_assert_eq!(later.count() as usize, expected.len());
            for age in expected {
                prop_assert!(later.contains(Slot(NOW.0 - age)));
            }
        }
    }
}
