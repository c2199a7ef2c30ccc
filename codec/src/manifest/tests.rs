use super::*;
use crate::compress::Method;
use crate::geometry::Redundancy;
use crate::grant::{CLOCK_SLACK_S, Rights};
use crate::hash::ShardRoot;
use crate::id::{CheckpointId, Version};
use crate::keys::{JobKeys, NewJobKeys};
use crate::labels::Labels;
use crate::pieces::BaseRef;
use crate::seal::{DataKey, OwnerSecret};
use crate::shard_file::PAGES_MAX;

fn owner() -> Keys {
    OwnerSecret::new([9; 32]).into()
}

fn other_owner() -> Keys {
    OwnerSecret::new([8; 32]).into()
}

fn new() -> NewManifest {
    NewManifest {
        checkpoint: CheckpointId([1; 16]),
        version: Version::new(3).unwrap(),
        created: 1_700_000_000,
        previous: Some(ManifestHash([4; 32])),
        redundancy: Redundancy::DEFAULT,
        cipher: Cipher::Aes256Gcm,
        rows: 300,
        block_bytes: 1 << 40,
        roots: vec![ShardRoot([5; 32]); 5],
    }
}

pub(crate) fn summary() -> Summary {
    Summary {
        job: "42".parse().unwrap(),
        data_key: DataKey::new([6; 32]),
        kind: ImageKind::Tree,
        image_bytes: 70_000,
        stream_bytes: 60_000,
        stored_bytes: 50_000,
        files: 3,
        index: vec![index_row()],
        tail: Tail::default(),
    }
}

fn index_row() -> StoredSegment {
    StoredSegment {
        raw_len: 100,
        stored_len: 90,
        method: Method::Zstd,
    }
}

fn sign_as(
    keys: &Keys,
    change: impl Fn(&mut NewManifest, &mut Summary),
) -> Result<Manifest, ManifestError> {
    let mut new = new();
    let mut summary = summary();
    change(&mut new, &mut summary);
    Manifest::sign(keys, new, &summary)
}

fn sign(change: impl Fn(&mut NewManifest, &mut Summary)) -> Result<Manifest, ManifestError> {
    sign_as(&owner(), change)
}

/// Manifests, sealed and not.
fn all() -> [Manifest; 2] {
    [Cipher::Aes256Gcm, Cipher::None].map(|cipher| sign(|new, _| new.cipher = cipher).unwrap())
}

fn number(what: &'static str) -> ManifestError {
    ManifestError::Number(what)
}

#[test]
fn a_manifest_comes_back() {
    for signed in all() {
        let parsed = Manifest::parse(signed.bytes().to_vec()).unwrap();
        assert_eq!(parsed, signed);
        assert_eq!(parsed.hash(), signed.hash());
        assert_eq!(parsed.open(&owner()), Ok(summary()));
        assert_eq!(parsed.grant(), None);
        assert_eq!(parsed.signer(), owner().signer());
        let public = parsed.public();
        assert_eq!(public.owner, owner().owner());
        assert_eq!(Some(public.job_tag), owner().job_tag(&summary().job));
        assert_eq!((public.rows, public.block_bytes), (300, 1 << 40));
    }
}

#[test]
fn only_the_owner_opens_it() {
    for signed in all() {
        let refused = signed.open(&other_owner());
        assert_eq!(refused, Err(ManifestError::Open(OpenError)));
    }
}

#[test]
fn the_summary_says_nothing_to_others() {
    let secret = "secret-job/secret".parse::<JobId>().unwrap();
    let signed = sign(|_, summary| summary.job = secret.clone()).unwrap();
    let mut windows = signed.bytes().windows(6);
    assert!(!windows.any(|bytes| bytes == b"secret" || bytes == [6; 6]));
}

#[test]
fn every_flipped_byte_is_refused() {
    for signed in all() {
        for at in 0..signed.bytes().len() {
            for change in [1, 0x80] {
                let mut bytes = signed.bytes().to_vec();
                bytes[at] ^= change;
                assert!(Manifest::parse(bytes).is_err(), "{at}");
            }
        }
    }
}

#[test]
fn what_was_checked_once_is_read_again_by_its_hash() {
    for signed in all() {
        let bytes = signed.bytes().to_vec();
        let id = signed.public().checkpoint;
        assert_eq!(Manifest::named_in(&bytes), Some(id));
        let again = Manifest::parse_again(bytes.clone(), signed.hash()).unwrap();
        assert_eq!(again, signed);
        let mut other = bytes;
        *other.last_mut().unwrap() ^= 1;
        let again = Manifest::parse_again(other, signed.hash());
        assert_eq!(again, Err(ManifestError::Frame));
    }
    assert_eq!(Manifest::named_in(b"CKPTMAN2"), None);
}

#[test]
fn cut_or_longer_manifests_are_refused() {
    for signed in all() {
        for len in 0..signed.bytes().len() {
            assert!(Manifest::parse(signed.bytes()[..len].to_vec()).is_err());
        }
        let mut longer = signed.bytes().to_vec();
        longer.push(0);
        assert_eq!(Manifest::parse(longer), Err(ManifestError::Frame));
    }
    let too_long = Manifest::parse(vec![0; MANIFEST_BYTES_MAX + 1]);
    assert!(matches!(too_long, Err(ManifestError::Serial(_))));
}

#[test]
fn another_owners_signature_is_refused() {
    for signed in all() {
        let mut bytes = signed.bytes().to_vec();
        let start = bytes.len() - SIGNATURE_BYTES;
        let other = other_owner().sign(&bytes[..start]);
        bytes[start..].copy_from_slice(&other);
        let refused = Manifest::parse(bytes);
        assert_eq!(refused, Err(ManifestError::Signature(owner().owner())));
    }
}

#[test]
fn impossible_numbers_are_not_signed() {
    for roots in [0, 4, 6] {
        let refused = sign(|new, _| new.roots = vec![ShardRoot([5; 32]); roots]);
        assert_eq!(refused.err(), Some(number("number of roots")));
    }
    for rows in [0, PAGES_MAX * 1024 + 1, u64::MAX] {
        let refused = sign(|new, _| new.rows = rows);
        assert_eq!(refused.err(), Some(number("number of rows")));
    }
}

#[test]
fn impossible_index_rows_are_refused() {
    for rows in [0, 301] {
        let signed = sign(|_, summary| summary.index = vec![index_row(); rows]);
        let refused = signed.unwrap().open(&owner());
        assert_eq!(refused, Err(number("number of index rows")));
    }
    for (raw_len, stored_len) in [(100, 101), (100, 0), (u32::MAX, 5)] {
        let row = StoredSegment {
            raw_len,
            stored_len,
            method: Method::Zstd,
        };
        let signed = sign(|_, summary| summary.index = vec![row]);
        let refused = signed.unwrap().open(&owner());
        assert_eq!(refused, Err(number("length of an index row")));
    }
}

#[test]
fn too_long_a_manifest_is_not_signed() {
    let refused = sign(|new, summary| {
        new.rows = 100_000;
        summary.index = vec![index_row(); 30_000];
    });
    assert!(matches!(refused, Err(ManifestError::Serial(_))));
}

fn with_base(new: &mut NewManifest, summary: &mut Summary) {
    new.rows += 1;
    summary.tail.base = Some(BaseRef {
        checkpoint: CheckpointId([8; 16]),
        manifest: ManifestHash([7; 32]),
        created: None,
    });
    summary.tail.pieces = vec![StoredSegment {
        raw_len: 2,
        stored_len: 2,
        method: Method::Raw,
    }];
}

#[test]
fn a_base_comes_back() {
    let signed = sign(with_base).unwrap();
    let mut big = new();
    let mut more = summary();
    with_base(&mut big, &mut more);
    assert_eq!(signed.open(&owner()).unwrap(), more);
}

fn with_labels(_: &mut NewManifest, summary: &mut Summary) {
    let pairs = vec![("step".to_owned(), "9".to_owned())];
    summary.tail.labels = Labels::new(pairs).unwrap();
    summary.tail.witnesses = vec![PublicKey([3; 32]), PublicKey([4; 32])];
}

#[test]
fn labels_and_witnesses_come_back() {
    let tail = sign(with_labels).unwrap().open(&owner()).unwrap().tail;
    assert_eq!(tail.labels.get("step"), Some("9"));
    assert_eq!(tail.witnesses, [PublicKey([3; 32]), PublicKey([4; 32])]);
}

#[test]
fn another_format_is_refused_and_says_what_to_do() {
    let good = sign(|_, _| ()).unwrap();
    for (digit, remedy) in [(b'1', "ckpt 0.1.0 wrote it"), (b'3', "upgrade ckpt")] {
        let mut bytes = good.bytes().to_vec();
        bytes[MAGIC.len() - 1] = digit;
        let refused = Manifest::parse(bytes).unwrap_err();
        assert!(matches!(refused, ManifestError::Format(_)));
        assert!(refused.to_string().contains(remedy), "{refused}");
    }
}

const SINCE: u64 = 1_700_000_000;

fn granted(scope: &str, rights: Rights) -> Keys {
    let new = NewJobKeys {
        grid: [1; 32],
        scope: scope.parse().unwrap(),
        rights,
        serial: 7,
        not_before: SINCE,
        not_after: SINCE + 100,
    };
    let Keys::Owner(owner) = owner() else {
        panic!("an owner's keys")
    };
    JobKeys::issue(&owner, [2; 32], new).unwrap().into()
}

fn named(name: &str) -> impl Fn(&mut NewManifest, &mut Summary) {
    move |_, summary| summary.job = name.parse().unwrap()
}

#[test]
fn a_job_key_signs_for_its_jobs_and_its_owner_reads_them() {
    for (scope, mine) in [
        ("42", vec!["42"]),
        ("a/b", vec!["a/b"]),
        ("a/", vec!["a/b", "a/b/c"]),
        ("a/b/", vec!["a/b/c"]),
    ] {
        let keys = granted(scope, Rights::SAVE.and(Rights::RESTORE));
        for name in ["42", "43", "a", "a/b", "a/b/c", "b/c"] {
            let signed = sign_as(&keys, named(name));
            let owners = sign_as(&owner(), named(name)).unwrap();
            if mine.contains(&name) {
                let signed = signed.unwrap();
                assert_eq!(signed.grant(), keys.grant());
                assert_eq!(signed.signer(), keys.signer());
                assert_eq!(signed.public().job_tag, owners.public().job_tag);
                assert_eq!(signed.path(), owners.path());
                for reader in [&owner(), &keys] {
                    assert_eq!(signed.open(reader).unwrap().job.as_str(), name);
                    assert_eq!(owners.open(reader).unwrap().job.as_str(), name);
                }
                let read = signed.open(&other_owner());
                assert_eq!(read, Err(ManifestError::Open(OpenError)));
            } else {
                assert_eq!(signed, Err(ManifestError::OtherJob(name.parse().unwrap())));
                assert_eq!(owners.open(&keys), Err(ManifestError::Open(OpenError)));
            }
        }
    }
}

#[test]
fn a_job_key_signs_at_its_time_and_with_the_right_to_save_only() {
    let keys = granted("42", Rights::SAVE);
    for (created, is_taken) in [
        (SINCE - CLOCK_SLACK_S - 1, false),
        (SINCE - CLOCK_SLACK_S, true),
        (SINCE + 100 + CLOCK_SLACK_S, true),
        (SINCE + 101 + CLOCK_SLACK_S, false),
    ] {
        let signed = sign_as(&keys, |new, _| new.created = created);
        let expected = (!is_taken).then_some(ManifestError::NotGranted(Refused::Time));
        assert_eq!(signed.err(), expected);
    }
    let reader = granted("42", Rights::RESTORE.and(Rights::REMOVE));
    let refused = sign_as(&reader, |_, _| ());
    assert_eq!(
        refused,
        Err(ManifestError::NotGranted(Refused::Right(Rights::SAVE)))
    );
}

/// A manifest that a changed program could sign with these keys.
fn forged(
    keys: &Keys,
    grant: Option<&Grant>,
    change: impl Fn(&mut Public, &mut PublicKey),
    path: &Path,
) -> Result<Manifest, ManifestError> {
    let mut public = new().public(
        owner().owner(),
        owner().job_tag(&"42".parse().unwrap()).unwrap(),
    );
    let mut signer = keys.signer();
    change(&mut public, &mut signer);
    let body = Body {
        public: PublicBody::new(&public, signer, grant, path.clone()),
        summary: serde_bytes::ByteBuf::from(vec![1, 2, 3]),
    };
    let body = serial::encode(&body, MANIFEST_BYTES_MAX).unwrap();
    let len = u32::try_from(body.len()).unwrap().to_le_bytes();
    let mut bytes = [MAGIC.as_slice(), &len, &body].concat();
    let signature = keys.sign(&bytes);
    bytes.extend(signature);
    Manifest::parse(bytes)
}

#[test]
fn a_manifest_that_a_grant_does_not_cover_is_refused_however_it_is_signed() {
    let refused = |what| Err(ManifestError::NotGranted(what));
    let path = |name: &str| owner().tag_and_path(&name.parse().unwrap()).unwrap();
    let (_, plain) = path("42");
    let keys = granted("42", Rights::SAVE);
    let grant = keys.grant();
    assert!(forged(&keys, grant, |_, _| (), &plain).is_ok());
    let (tag, _) = path("43");
    assert_eq!(
        forged(&keys, grant, |public, _| public.job_tag = tag, &plain),
        refused(Refused::Job)
    );
    assert_eq!(
        forged(&keys, None, |_, _| (), &plain),
        refused(Refused::NoGrant)
    );
    let others = forged(
        &keys,
        grant,
        |public, _| public.owner = other_owner().owner(),
        &plain,
    );
    assert_eq!(others, refused(Refused::Owner));
    let thief = Keys::from(OwnerSecret::new([77; 32]));
    assert_eq!(
        forged(&thief, grant, |_, _| (), &plain),
        refused(Refused::Key)
    );
    let named = forged(&thief, grant, |_, signer| *signer = keys.signer(), &plain);
    assert_eq!(named, Err(ManifestError::Signature(owner().owner())));
    assert_eq!(
        forged(&owner(), grant, |_, _| (), &plain),
        refused(Refused::Needless)
    );

    // A grant for a prefix covers jobs by their paths, which have to belong to their tags.
    let keys = granted("a/", Rights::SAVE);
    let grant = keys.grant();
    let other = || Err(ManifestError::NotGranted(Refused::Job));
    for (name, of, expected) in [
        ("a/b", "a/b", Ok(())),
        ("a/b", "a/c", Err(ManifestError::Path)),
        ("b/c", "a/c", Err(ManifestError::Path)),
        ("b/c", "b/c", other()),
        ("a", "a", other()),
        ("42", "42", other()),
    ] {
        let (tag, _) = path(name);
        let (_, path) = path(of);
        let made = forged(&keys, grant, |public, _| public.job_tag = tag, &path);
        assert_eq!(made.map(|_| ()), expected, "{name} {of}");
    }
}

#[test]
fn a_job_keys_summary_can_t_name_another_job() {
    let keys = granted("42", Rights::SAVE);
    let mut lie = summary();
    lie.job = "43".parse().unwrap();
    let (tag, path) = keys.tag_and_path(&"42".parse().unwrap()).unwrap();
    let mut fields = new();
    fields.cipher = Cipher::None;
    let public = fields.public(owner().owner(), tag);
    let body = Body {
        public: PublicBody::new(&public, keys.signer(), keys.grant(), path),
        summary: serde_bytes::ByteBuf::from(lie.encode().unwrap()),
    };
    let body = serial::encode(&body, MANIFEST_BYTES_MAX).unwrap();
    let len = u32::try_from(body.len()).unwrap().to_le_bytes();
    let mut bytes = [MAGIC.as_slice(), &len, &body].concat();
    let signature = keys.sign(&bytes);
    bytes.extend(signature);
    let manifest = Manifest::parse(bytes).unwrap();
    assert_eq!(manifest.open(&owner()), Err(ManifestError::Job));
}
