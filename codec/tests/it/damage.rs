//! With any byte changed, and cut to any length, a restore gives an error or the right image.

use codec::Redundancy;
use codec::seal::Cipher;
use proptest::prelude::*;

use crate::checkpoint::{Saved, restore, save};
use crate::round_trip::image;

fn small() -> (Vec<u8>, Saved) {
    let image = image(700, 3);
    let saved = save(&image, 150, Redundancy::DEFAULT, Cipher::Aes256Gcm);
    (image, saved)
}

/// Restores from the three given shards, one of them damaged, and then from all five.
fn check_shard(image: &[u8], saved: &Saved, damaged: Vec<u8>, what: &str) {
    let Saved { manifest, shards } = saved;
    let three = [damaged.clone(), shards[3].clone(), shards[2].clone()];
    if let Ok(back) = restore(manifest, &three) {
        assert_eq!(back, image, "{what}");
    }
    let all = [vec![damaged], shards[1..].to_vec()].concat();
    assert_eq!(restore(manifest, &all).unwrap(), image, "{what}");
}

#[test]
fn every_flipped_byte_of_a_shard_is_an_erasure() {
    let (image, saved) = small();
    for at in 0..saved.shards[0].len() {
        let mut shard = saved.shards[0].clone();
        shard[at] ^= 1 << (at % 8);
        check_shard(&image, &saved, shard, &format!("byte {at}"));
    }
}

#[test]
fn a_shard_cut_anywhere_is_an_erasure() {
    let (image, saved) = small();
    for len in 0..saved.shards[0].len() {
        let shard = saved.shards[0][..len].to_vec();
        check_shard(&image, &saved, shard, &format!("length {len}"));
    }
}

#[test]
fn a_flipped_or_cut_manifest_is_an_error() {
    let (_, saved) = small();
    for at in 0..saved.manifest.len() {
        let mut manifest = saved.manifest.clone();
        manifest[at] ^= 1 << (at % 8);
        assert!(restore(&manifest, &saved.shards).is_err(), "byte {at}");
        assert!(restore(&saved.manifest[..at], &saved.shards).is_err());
    }
}

#[test]
fn a_shard_of_another_checkpoint_is_an_erasure() {
    let (image, saved) = small();
    let other = save(
        b"another image",
        150,
        Redundancy::DEFAULT,
        Cipher::Aes256Gcm,
    );
    check_shard(&image, &saved, other.shards[0].clone(), "other checkpoint");
    check_shard(&image, &saved, saved.shards[1].clone(), "other shard");
}

proptest! {
    #[test]
    fn any_damage_to_all_shards_gives_an_error_or_the_image(
        damage in prop::collection::vec((any::<prop::sample::Index>(), 1..=255_u8), 5),
        cipher in prop_oneof![Just(Cipher::None), Just(Cipher::Aes256Gcm)],
    ) {
        let image = image(700, 4);
        let mut saved = save(&image, 150, Redundancy::DEFAULT, cipher);
        for (shard, (at, change)) in saved.shards.iter_mut().zip(damage) {
            let at = at.index(shard.len());
            shard[at] ^= change;
        }
        if let Ok(back) = restore(&saved.manifest, &saved.shards) {
            prop_assert_eq!(back, image);
        }
    }
}
