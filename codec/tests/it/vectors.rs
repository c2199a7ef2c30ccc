//! The test vectors of docs/format.md: a base and a version that refers to it. Three of five
//! shards are kept of each. These files never change.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use codec::compress::Level;
use codec::decode::{Composer, RowDecoder};
use codec::encode::{CheckpointBuilder, CheckpointPlan, EncodedRow, RowEncoder};
use codec::geometry::SEGMENT_BYTES;
use codec::index::{Index, SegmentEntry};
use codec::keys::Keys;
use codec::labels::Labels;
use codec::manifest::{ImageKind, Manifest, Summary};
use codec::pieces::{BaseRef, Match, Origin, PIECE_BYTES, PieceHasher};
use codec::seal::{Cipher, DataKey, OwnerSecret};
use codec::shard_file::{Header, ShardIdentity};
use codec::{CheckpointId, PublicKey, Redundancy, Version};

use crate::checkpoint::{Restorer, Saved, Shard, ShardWriter, stream_file};
use crate::golden::expect;

/// The shards that are kept.
const KEPT: [usize; 3] = [0, 2, 4];

/// The folder of the vectors, which has the number of the manifest's format.
const FOLDER: &str = "format-2";

const JOB: &str = "lab/42";

fn keys() -> Keys {
    OwnerSecret::new([7; 32]).into()
}

/// Image number 1 or 2: 40 KiB that compress well. The second differs in some bytes of its second piece.
fn image(number: u8) -> Vec<u8> {
    let mut image = b"what was computed so far, ".repeat(1600)[..40 << 10].to_vec();
    if number == 2 {
        image[PIECE_BYTES + 100..PIECE_BYTES + 108].copy_from_slice(b"a change");
    }
    image
}

fn plan(number: u8, base: Option<BaseRef>) -> CheckpointPlan {
    let labels = vec![("step".to_owned(), number.to_string())];
    let job = JOB.parse().unwrap();
    CheckpointPlan {
        base,
        labels: Labels::new(labels).unwrap(),
        checkpoint: CheckpointId([number; 16]),
        job_tag: keys().job_tag(&job).unwrap(),
        job,
        version: Version::new(number.into()).unwrap(),
        created: 1_700_000_000 + u64::from(number),
        previous: base.map(|base| base.manifest),
        redundancy: Redundancy::DEFAULT,
        cipher: Cipher::Aes256Gcm,
        data_key: DataKey::new([number + 10; 32]),
    }
}

fn writers(plan: &CheckpointPlan) -> Vec<ShardWriter> {
    let header = |shard| Header {
        identity: ShardIdentity {
            checkpoint: plan.checkpoint,
            redundancy: plan.redundancy,
            shard,
        },
        owner: keys().owner(),
        job_tag: plan.job_tag,
        version: plan.version,
        created: plan.created + 1,
    };
    plan.redundancy
        .shards()
        .map(header)
        .map(ShardWriter::new)
        .collect()
}

fn write(base: Option<&Manifest>) -> Saved {
    let number = if base.is_some() { 2 } else { 1 };
    let reference = base.map(|base| BaseRef {
        checkpoint: base.public().checkpoint,
        manifest: base.hash(),
        created: None,
    });
    let plan = plan(number, reference);
    let mut writers = writers(&plan);
    let sealer = plan.sealer();
    let image = image(number);
    let mut encoder = RowEncoder::new(plan.redundancy, sealer.clone(), Level::DEFAULT);
    let hashing = RowEncoder::new(plan.redundancy, sealer.clone(), Level::DEFAULT);
    let mut hashing = hashing.with_pieces(&plan.data_key);
    let mut builder = CheckpointBuilder::new(plan);
    let mut push = |row: &EncodedRow| writers.iter_mut().for_each(|writer| writer.push(row));
    if let Some(base) = base {
        let key = base.open(&keys()).unwrap().data_key.clone();
        let hash = sealer.hash_pieces(&PieceHasher::new(&key).hash(&image));
        let row = encoder.encode(0, &image[PIECE_BYTES..2 * PIECE_BYTES], Vec::new());
        let origin = Origin::Base { row: 0, from: 0 };
        let found = Match {
            origin,
            changed: 0b10,
        };
        builder
            .push_patched(found, image.len() as u32, hash, Some(&row))
            .unwrap();
        push(&row);
    } else {
        let row = hashing.encode(0, &image, Vec::new());
        builder.push_row(&row).unwrap();
        push(&row);
        for raw in builder.take_pieces().chunks(SEGMENT_BYTES) {
            let row = encoder.encode(builder.rows(), raw, Vec::new());
            builder.push_piece_row(&row).unwrap();
            push(&row);
        }
    }
    let index = builder
        .finish_image(vec![stream_file(image.len())])
        .unwrap();
    let row = encoder.encode(builder.rows(), &index, Vec::new());
    builder.push_index_row(&row).unwrap();
    push(&row);
    let witnesses = vec![PublicKey([1; 32]), PublicKey([2; 32])];
    let manifest = builder.finish(ImageKind::Stream).sign(&keys(), witnesses);
    Saved {
        manifest: manifest.unwrap().bytes().to_vec(),
        shards: writers.into_iter().map(ShardWriter::finish).collect(),
    }
}

/// A checkpoint that is being read.
struct Reading<'a> {
    manifest: Manifest,
    summary: Summary,
    index: Index,
    rows: Restorer<'a>,
}

fn open<'a>(manifest: &[u8], shards: &'a [Vec<u8>]) -> Result<Reading<'a>> {
    let manifest = Manifest::parse(manifest.to_vec())?;
    let summary = manifest.open(&keys())?;
    let public = manifest.public();
    let decoder = RowDecoder::new(public.redundancy, public.sealer(&summary.data_key));
    let shards = shards.iter().map(|file| Shard::open(file, &manifest));
    let mut rows = Restorer {
        shards: shards.collect::<Result<_>>()?,
        decoder,
    };
    let index = rows.row(public.rows - 1, &summary.index[0], None)?;
    if !summary.tail.pieces.is_empty() {
        rows.decoder = rows.decoder.with_pieces(&summary.data_key);
    }
    Ok(Reading {
        index: Index::decode(&index)?,
        summary,
        rows,
        manifest,
    })
}

impl Reading<'_> {
    fn image(&mut self, base: Option<&mut Reading<'_>>) -> Result<Vec<u8>> {
        match (&self.index.segments[..], base) {
            ([SegmentEntry::Stored { stored, hash }], None) => self.rows.row(0, stored, Some(hash)),
            ([SegmentEntry::Patched { base_row: 0, patch }], Some(base)) => {
                let wanted = self.summary.tail.base.context("no base")?;
                assert_eq!(wanted.manifest, base.manifest.hash());
                let (stored, hash) = patch.row.as_ref().context("no patch")?;
                let changed = self.rows.row(0, stored, Some(hash))?;
                let mut raw = base.image(None)?;
                let sealer = self.manifest.public().sealer(&self.summary.data_key);
                let composer = Composer::new(sealer, &base.summary.data_key);
                composer.compose(0, &mut raw, Vec::new(), patch, &changed)?;
                Ok(raw)
            }
            other => bail!("{other:?}", other = other.0),
        }
    }
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/vectors")
        .join(name)
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap_or_else(|cause| panic!("{name}: {cause}"))
}

#[test]
fn the_vectors_are_read() {
    let load = |which: &str| {
        let shards = KEPT.map(|number| read(&format!("{FOLDER}/{which}/shard{number}")));
        (read(&format!("{FOLDER}/{which}/manifest")), shards)
    };
    let (base, base_shards) = load("base");
    let (patch, patch_shards) = load("patch");
    let mut base = open(&base, &base_shards).unwrap();
    let mut patch = open(&patch, &patch_shards).unwrap();
    assert_eq!(base.summary.job.as_str(), JOB);
    assert_eq!(base.image(None).unwrap(), read("image-1"));
    assert_eq!(patch.image(Some(&mut base)).unwrap(), read("image-2"));
    let step = patch.summary.tail.labels.get("step");
    assert_eq!(step, Some("2"));
}

/// If only this test fails after an update of zstd, then zstd's output changed and the formats did not.
#[test]
fn the_vectors_are_written_as_they_are() {
    expect(
        &path("key"),
        b"0707070707070707070707070707070707070707070707070707070707070707\n",
    );
    expect(&path("image-1"), &image(1));
    expect(&path("image-2"), &image(2));
    let base = write(None);
    let manifest = Manifest::parse(base.manifest.clone()).unwrap();
    let patch = write(Some(&manifest));
    for (which, saved) in [("base", &base), ("patch", &patch)] {
        expect(
            &path(&format!("{FOLDER}/{which}/manifest")),
            &saved.manifest,
        );
        for number in KEPT {
            let name = format!("{FOLDER}/{which}/shard{number}");
            expect(&path(&name), &saved.shards[number]);
        }
    }
}
