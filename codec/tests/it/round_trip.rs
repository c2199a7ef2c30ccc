//! Any image comes back identical, with any redundancy and any loss up to its parity.

use codec::Redundancy;
use codec::geometry::{DATA_MAX, PARITY_MAX, SEGMENT_BYTES};
use codec::seal::Cipher;
use proptest::prelude::*;
use proptest::sample::subsequence;

use crate::checkpoint::{restore, save};

/// An image of compressible bytes, noise and zeros, in runs of any length.
pub(crate) fn image(len: usize, seed: u64) -> Vec<u8> {
    let mut noise = blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof();
    let mut image = Vec::with_capacity(len);
    while image.len() < len {
        let mut dice = [0; 8];
        noise.fill(&mut dice);
        let run = usize::from(u16::from_le_bytes([dice[1], dice[2]])) << (dice[3] % 6);
        let run = run.clamp(1, len - image.len());
        let start = image.len();
        match dice[0] % 3 {
            0 => image.resize(start + run, 0),
            1 => image.resize(start + run, dice[4]),
            _ => {
                image.resize(start + run, 0);
                noise.fill(&mut image[start..]);
            }
        }
    }
    image
}

fn check(
    image: &[u8],
    segment_bytes: usize,
    redundancy: Redundancy,
    cipher: Cipher,
    lost: &[usize],
) {
    let mut saved = save(image, segment_bytes, redundancy, cipher);
    for &shard in lost {
        saved.shards[shard].clear();
    }
    let back = restore(&saved.manifest, &saved.shards).unwrap();
    assert!(
        back == image,
        "{redundancy} {} bytes, lost {lost:?}",
        image.len()
    );
}

fn redundancies_and_losses() -> impl Strategy<Value = (Redundancy, Vec<usize>)> {
    (1..=DATA_MAX, 0..=PARITY_MAX).prop_flat_map(|(data, parity)| {
        let redundancy = Redundancy::new(data, parity).unwrap();
        let all: Vec<usize> = (0..redundancy.total()).collect();
        (Just(redundancy), subsequence(all, 0..=redundancy.parity()))
    })
}

fn ciphers() -> impl Strategy<Value = Cipher> {
    prop_oneof![Just(Cipher::None), Just(Cipher::Aes256Gcm)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_image_comes_back_after_any_loss_up_to_the_parity(
        (redundancy, lost) in redundancies_and_losses(),
        cipher in ciphers(),
        len in 0..300_000_usize,
        segment_bytes in prop_oneof![Just(SEGMENT_BYTES), 1_000..60_000_usize],
        seed: u64,
    ) {
        check(&image(len, seed), segment_bytes, redundancy, cipher, &lost);
    }

    #[test]
    fn small_images_come_back(
        (redundancy, lost) in redundancies_and_losses(),
        cipher in ciphers(),
        image in prop::collection::vec(any::<u8>(), 0..200),
        segment_bytes in 1..80_usize,
    ) {
        check(&image, segment_bytes, redundancy, cipher, &lost);
    }
}

#[test]
fn sizes_around_a_segment_come_back() {
    for len in [
        0,
        1,
        SEGMENT_BYTES - 1,
        SEGMENT_BYTES,
        SEGMENT_BYTES + 1,
        3 * SEGMENT_BYTES + 7,
    ] {
        for content in [image(len, 5), vec![0; len], vec![255; len]] {
            let redundancy = Redundancy::DEFAULT;
            check(
                &content,
                SEGMENT_BYTES,
                redundancy,
                Cipher::Aes256Gcm,
                &[0, 3],
            );
        }
    }
}

#[test]
fn images_of_several_pages_come_back() {
    let image = image(2100 * 40, 6)
        .iter()
        .map(|byte| byte | 1)
        .collect::<Vec<_>>();
    check(&image, 40, Redundancy::DEFAULT, Cipher::Aes256Gcm, &[1, 2]);
}

#[test]
fn one_loss_too_many_is_an_error() {
    let mut saved = save(b"image", 5, Redundancy::DEFAULT, Cipher::Aes256Gcm);
    saved.shards.truncate(2);
    let refused = restore(&saved.manifest, &saved.shards).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "row 1: not enough blocks: 2 present < 3 data"
    );
}
