//! Restores of which a part is at hand.

use std::io;

use super::*;

/// An image on this machine.
#[derive(Debug)]
struct Here {
    image: Vec<u8>,
    pieces: PiecesAtHand,
}

impl ReadAtHand for Here {
    fn pieces(&self) -> &PiecesAtHand {
        &self.pieces
    }

    fn read(&mut self, segment: usize, begin: u64, raw: &mut [u8]) -> io::Result<()> {
        let len = raw.len();
        for place in ranges(self.pieces.of(segment), len) {
            let from = begin as usize + place.start;
            let piece = self.image.get(from..from + place.len());
            raw[place].copy_from_slice(piece.ok_or(io::ErrorKind::UnexpectedEof)?);
        }
        Ok(())
    }
}

/// What an earlier image here has of a version, in the same places, without the pieces of the map `lost`.
fn pieces_of(version: &StoredVersion, here: &[u8], lost: u64) -> PiecesAtHand {
    let base = version.base();
    let mut begin = 0;
    let segments = version.index.segments.iter().map(|segment| {
        let from = begin as usize;
        begin += segment.bytes();
        let raw = here.get(from..begin as usize);
        raw.map_or(0, |raw| base.same_pieces(from as u64, raw)) & !lost
    });
    PiecesAtHand::new(segments.collect())
}

/// Restores a version where the image `before` is, of which any pieces may be lost, and where it changes meanwhile.
pub(super) fn compare(
    version: &StoredVersion,
    others: &[&StoredVersion],
    before: &[u8],
    now: &[u8],
    rng: &mut SmallRng,
) {
    let (_, all_rows) = version.restored_with(others, None);
    for lost in [0, rng.random(), u64::MAX] {
        let pieces = pieces_of(version, before, lost);
        let bytes = pieces.bytes(&version.index);
        let here = |image: &[u8]| Here {
            image: image.to_vec(),
            pieces: pieces.clone(),
        };
        let (restored, rows) = version.restored_with(others, Some(Box::new(here(before))));
        assert!(restored.as_deref() == Some(now), "{bytes} bytes are here");
        assert!(rows <= all_rows);
        // A whole segment is at hand only if all its pieces are.
        assert!(lost != u64::MAX || (bytes, rows) == (0, all_rows));

        let mut changed = before.to_vec();
        changed.iter_mut().for_each(|byte| *byte ^= 1);
        let (restored, _) = version.restored_with(others, Some(Box::new(here(&changed))));
        assert!(restored.is_none_or(|restored| restored == now));
        changed.truncate(before.len() / 2);
        let (restored, _) = version.restored_with(others, Some(Box::new(here(&changed))));
        assert!(restored.is_none_or(|restored| restored == now));
    }
}

#[test]
fn what_is_at_hand_as_a_whole_needs_no_row() {
    let mut rng = SmallRng::seed_from_u64(3);
    let first = image(5 * SEGMENT_BYTES + 4_321, &mut rng);
    let version = StoredVersion::of(&first);
    let here = |image: &[u8]| Here {
        image: image.to_vec(),
        pieces: pieces_of(&version, image, 0),
    };
    let (restored, rows) = version.restored_with(&[], Some(Box::new(here(&first))));
    assert!(restored.unwrap() == first);
    assert_eq!(rows, 0);
    let changed = Here {
        image: vec![9; first.len()],
        ..here(&first)
    };
    let (restored, _) = version.restored_with(&[], Some(Box::new(changed)));
    assert!(restored.is_none(), "the file changed meanwhile");
    let (_, whole) = version.restored_with(&[], None);
    let mut longer = first.clone();
    longer[2 * SEGMENT_BYTES] ^= 1;
    longer.extend([7; 99]);
    let (restored, rows) = version.restored_with(&[], Some(Box::new(here(&longer))));
    assert!(restored.unwrap() == first);
    assert!((1..whole).contains(&rows), "{rows} of {whole}");
}
