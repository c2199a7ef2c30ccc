//! The file in which a registry keeps which donors it knows: a head, one record for each donor with its length
//! in front, a length of 0, and a hash of all of it.

use codec::serial;
use protocol::identity::CARD_BYTES_MAX;

use super::registry::{DONORS_MAX, KnownDonor};

/// The first bytes of the file. Another form of records gets another number at the end.
const HEAD: &[u8; 8] = b"ckptdon1";

/// Most bytes of one record: a card, and texts, address and numbers beside it.
const RECORD_BYTES_MAX: usize = CARD_BYTES_MAX + 512;

const HASH_BYTES: usize = 32;

/// Most bytes of the file.
pub const FILE_BYTES_MAX: u64 =
    (HEAD.len() + DONORS_MAX * (RECORD_BYTES_MAX + 4) + 4 + HASH_BYTES) as u64;

/// Why a file is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KnownDonorsError {
    /// The file does not begin as a file of this kind does, or ends early.
    #[error("not a file of known donors, or one that was cut off")]
    Malformed,
    /// The hash at the end is not that of the content.
    #[error("damaged: the content does not fit its hash")]
    Hash,
    /// A record can't be read.
    #[error("a record: {0}")]
    Record(#[from] serial::SerialError),
}

/// The bytes of the file for these donors. A donor whose record would be too long is left out; none is.
pub fn encode(donors: &[KnownDonor]) -> Vec<u8> {
    let mut bytes = HEAD.to_vec();
    for donor in donors {
        let Ok(record) = serial::encode(donor, RECORD_BYTES_MAX) else {
            continue;
        };
        let length = u32::try_from(record.len()).unwrap_or(u32::MAX);
        bytes.extend(length.to_le_bytes());
        bytes.extend(record);
    }
    bytes.extend(0_u32.to_le_bytes());
    hashed(bytes)
}

/// `content`, followed by its hash.
pub fn hashed(mut content: Vec<u8>) -> Vec<u8> {
    let hash = blake3::hash(&content);
    content.extend(hash.as_bytes());
    content
}

/// Reads what [`encode`] wrote.
///
/// # Errors
/// When the bytes are not those of such a file.
pub fn decode(bytes: &[u8]) -> Result<Vec<KnownDonor>, KnownDonorsError> {
    let (content, hash) = bytes
        .split_last_chunk::<HASH_BYTES>()
        .ok_or(KnownDonorsError::Malformed)?;
    if blake3::hash(content).as_bytes() != hash {
        return Err(KnownDonorsError::Hash);
    }
    let mut rest = content
        .strip_prefix(HEAD)
        .ok_or(KnownDonorsError::Malformed)?;
    let mut donors = Vec::new();
    loop {
        let (length, after) = rest
            .split_first_chunk::<4>()
            .ok_or(KnownDonorsError::Malformed)?;
        let length = u32::from_le_bytes(*length);
        if length == 0 {
            let is_end = after.is_empty();
            return is_end.then_some(donors).ok_or(KnownDonorsError::Malformed);
        }
        let length = usize::try_from(length).map_err(|_| KnownDonorsError::Malformed)?;
        let (record, after) = after
            .split_at_checked(length)
            .ok_or(KnownDonorsError::Malformed)?;
        donors.push(serial::decode(record, RECORD_BYTES_MAX)?);
        rest = after;
        if donors.len() > DONORS_MAX {
            return Err(KnownDonorsError::Malformed);
        }
    }
}

#[cfg(test)]
mod tests {
    use codec::OwnerId;
    use proptest::prelude::*;

    use super::*;

    fn donor(number: u8, card: usize) -> KnownDonor {
        KnownDonor {
            id: OwnerId([number; 32]),
            seen_at: u64::from(number) << 40,
            name: "n".repeat(63),
            addr: "[2001:db8::1]:65535".parse().unwrap(),
            site: Some("s".repeat(63)),
            owner: Some("o".repeat(63)),
            capacity_bytes: u64::MAX,
            free_bytes: u64::MAX,
            card: vec![number; card],
        }
    }

    #[test]
    fn the_longest_records_come_back() {
        let all: Vec<_> = (0..9).map(|number| donor(number, CARD_BYTES_MAX)).collect();
        assert_eq!(decode(&encode(&all)), Ok(all));
        assert_eq!(decode(&encode(&[])), Ok(Vec::new()));
        assert_eq!(decode(b""), Err(KnownDonorsError::Malformed));
    }

    proptest! {
        #[test]
        fn no_damage_is_read_as_donors(at in any::<prop::sample::Index>(), bit in 0..8_u8, cut in any::<bool>()) {
            let mut bytes = encode(&[donor(1, 30), donor(2, 0)]);
            let at = at.index(bytes.len());
            if cut {
                bytes.truncate(at);
            } else {
                bytes[at] ^= 1 << bit;
            }
            prop_assert!(decode(&bytes).is_err());
        }

        #[test]
        fn any_content_behind_its_hash_is_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let content = [HEAD.as_slice(), &bytes].concat();
            bytes = [content.as_slice(), blake3::hash(&content).as_bytes()].concat();
            let _ = decode(&bytes);
        }
    }
}
