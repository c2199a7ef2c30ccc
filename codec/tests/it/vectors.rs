//! The test vectors of docs/inside/format.md: a base and a version that refers to it, as programs wrote them that knew no
//! chains, three versions of a chain, and a remnant with the version that uses it. Three of five shards are kept of each.
//! These files never change.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use codec::base::Base;
use codec::compress::Level;
use codec::decode::{Composer, RowDecoder};
use codec::encode::{CheckpointBuilder, CheckpointPlan, EncodedRow, Link, RowEncoder};
use codec::geometry::SEGMENT_BYTES;
use codec::index::{Index, SegmentEntry};
use codec::journal::{Journal, JournalHead, JournalWriter, NotedSegment};
use codec::keys::Keys;
use codec::labels::Labels;
use codec::layers::Origin;
use codec::manifest::{ImageKind, Manifest, Summary};
use codec::pieces::{BaseRef, PIECE_BYTES};
use codec::seal::{Cipher, DataKey, OwnerSecret};
use codec::segment::{Cut, Segmenter};
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

/// Image number 1, 2 or 3: 40 KiB that compress well. The second differs from the first in some bytes of its second
/// piece, the third from the second in some bytes of its third piece.
fn image(number: u8) -> Vec<u8> {
    let mut image = b"what was computed so far, ".repeat(1600)[..40 << 10].to_vec();
    for piece in 1..usize::from(number) {
        let at = piece * PIECE_BYTES + 100;
        image[at..at + 8].copy_from_slice(b"a change");
    }
    image
}

/// Version `number` after `before`; with a `link` if it belongs to a chain.
fn plan(number: u8, before: Option<&Manifest>, link: Option<Link>) -> CheckpointPlan {
    let labels = vec![("step".to_owned(), number.to_string())];
    let job = JOB.parse().unwrap();
    let id = if link.is_some() { number + 2 } else { number };
    CheckpointPlan {
        link,
        labels: Labels::new(labels).unwrap(),
        checkpoint: CheckpointId([id; 16]),
        job_tag: keys().job_tag(&job).unwrap(),
        job,
        version: Version::new(number.into()).unwrap(),
        created: 1_700_000_000 + u64::from(number),
        previous: before.map(Manifest::hash),
        redundancy: Redundancy::DEFAULT,
        cipher: Cipher::Aes256Gcm,
        data_key: DataKey::new([id + 10; 32]),
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

/// Writes an image, the parts of which are new that `base` does not have.
fn write(number: u8, plan: CheckpointPlan, base: Option<Base>) -> Saved {
    let mut writers = writers(&plan);
    let image = image(number);
    let encoder = RowEncoder::new(plan.redundancy, plan.sealer(), Level::DEFAULT);
    let mut hashing = encoder.with_pieces(plan.pieces_key());
    let mut encoder = RowEncoder::new(plan.redundancy, plan.sealer(), Level::DEFAULT);
    let mut builder = CheckpointBuilder::new(plan);
    let mut push = |row: &EncodedRow| writers.iter_mut().for_each(|writer| writer.push(row));
    let mut segmenter = Segmenter::with_base(base.map(Arc::new));
    match segmenter.cut(image.clone()).0 {
        Some(Cut::Stored { row, raw, .. }) => {
            let row = hashing.encode(row, &raw, Vec::new());
            builder.push_row(&row).unwrap();
            push(&row);
        }
        Some(Cut::Made(made)) => {
            let (row, raw) = made.patch.as_ref().unwrap();
            let row = hashing.encode(*row, raw, Vec::new());
            builder.push_made(&made, Some(&row)).unwrap();
            push(&row);
        }
        other => panic!("{other:?}"),
    }
    for raw in builder.take_pieces().chunks(SEGMENT_BYTES) {
        let row = encoder.encode(builder.rows(), raw, Vec::new());
        builder.push_piece_row(&row).unwrap();
        push(&row);
    }
    let index = builder
        .finish_image(vec![stream_file(image.len())], segmenter.changed_bytes())
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

/// The version of the chain after `before`.
fn write_next(number: u8, before: Option<&Saved>) -> Saved {
    let Some(before) = before else {
        let link = Link {
            pieces_key: DataKey::new([13; 32]),
            origins: Vec::new(),
        };
        return write(number, plan(number, None, Some(link)), None);
    };
    let mut reading = open(&before.manifest, &before.shards).unwrap();
    let pieces = reading.summary.tail.pieces.clone();
    let chain = reading.summary.tail.chain.clone().unwrap();
    let first = reading.manifest.public().rows - reading.summary.other_rows();
    let hashes = reading.rows.row(first, &pieces[0], None).unwrap();
    let base = Base::new(&reading.index, &hashes, &chain.pieces_key).unwrap();
    let public = reading.manifest.public();
    let own = Origin {
        reference: BaseRef {
            checkpoint: public.checkpoint,
            manifest: reading.manifest.hash(),
            created: Some(public.created),
        },
        data_key: reading.summary.data_key.clone(),
        is_version: number == 3,
    };
    let link = Link {
        pieces_key: chain.pieces_key,
        origins: [own].into_iter().chain(chain.origins).collect(),
    };
    let plan = plan(number, Some(&reading.manifest), Some(link));
    write(number, plan, Some(base))
}

/// What an interrupted save of image 1 left: its only row, and the bytes of its journal.
fn write_remnant() -> (Saved, Journal) {
    let job = JOB.parse().unwrap();
    let head = JournalHead {
        checkpoint: CheckpointId([6; 16]),
        version: Version::FIRST,
        redundancy: Redundancy::DEFAULT,
        cipher: Cipher::Aes256Gcm,
        data_key: DataKey::new([16; 32]),
        origins: Vec::new(),
    };
    let plan = CheckpointPlan {
        checkpoint: head.checkpoint,
        data_key: head.data_key.clone(),
        ..plan(1, None, None)
    };
    let encoder = RowEncoder::new(plan.redundancy, plan.sealer(), Level::DEFAULT);
    let mut encoder = encoder.with_pieces(&head.data_key);
    let row = encoder.encode(0, &image(1), Vec::new());
    let mut writers = writers(&plan);
    writers.iter_mut().for_each(|writer| writer.push(&row));
    let entry = SegmentEntry::Stored {
        stored: row.stored,
        hash: row.hash,
    };
    let noted = NotedSegment::new(entry, &row.pieces, &row.anchors, &row.table);
    let sealer = || keys().journal_sealer(&job, head.checkpoint).unwrap();
    let (mut journal, mut bytes) = JournalWriter::begin(sealer(), &head);
    bytes.extend(journal.segments(vec![noted]));
    let journal = Journal::read(&bytes, &sealer()).unwrap();
    let draft = journal.remnant(&job, Labels::default(), 1, plan.created);
    let manifest = draft.sign(&keys(), Vec::new()).unwrap();
    let remnant = Saved {
        manifest: manifest.bytes().to_vec(),
        shards: writers.into_iter().map(ShardWriter::finish).collect(),
    };
    (remnant, journal)
}

/// The version after the remnant: image 2, of which one piece is new.
fn write_resumed() -> (Saved, Saved) {
    let (remnant, journal) = write_remnant();
    let manifest = Manifest::parse(remnant.manifest.clone()).unwrap();
    let data_key = journal.head.data_key.clone();
    let (index, hashes) = journal.content(1).into_parts();
    let base = Base::new(&index, &hashes, &data_key).unwrap();
    let link = Link {
        pieces_key: data_key.clone(),
        origins: vec![Origin {
            reference: BaseRef {
                checkpoint: journal.head.checkpoint,
                manifest: manifest.hash(),
                created: Some(manifest.public().created),
            },
            data_key,
            is_version: false,
        }],
    };
    let plan = CheckpointPlan {
        checkpoint: CheckpointId([7; 16]),
        data_key: DataKey::new([17; 32]),
        ..plan(2, None, Some(link))
    };
    (remnant, write(2, plan, Some(base)))
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
    let index = match &summary.index[..] {
        [index] => Index::decode(&rows.row(public.rows - 1, index, None)?)?,
        _ if summary.tail.is_remnant => Index::default(),
        _ => bail!("no index"),
    };
    if let Some(key) = summary.pieces_key() {
        rows.decoder = rows.decoder.with_pieces(key);
    }
    Ok(Reading {
        index,
        summary,
        rows,
        manifest,
    })
}

impl Reading<'_> {
    /// The image, which is one segment. `origins` are those of this checkpoint, in their order.
    fn image(&mut self, origins: &mut [&mut Reading<'_>]) -> Result<Vec<u8>> {
        let mut index = self.index.clone();
        let mut pieces_key = self.summary.data_key.clone();
        if let (Some(base), [origin]) = (self.summary.tail.base, &*origins) {
            assert_eq!(base.manifest, origin.manifest.hash());
            pieces_key = origin.summary.data_key.clone();
            index = index.over(&origin.index)?;
        }
        if let Some(chain) = &self.summary.tail.chain {
            pieces_key = chain.pieces_key.clone();
            for (named, origin) in chain.origins.iter().zip(&*origins) {
                assert_eq!(named.reference.manifest, origin.manifest.hash());
                assert_eq!(named.data_key, origin.summary.data_key);
            }
        }
        let layered = match &index.segments[..] {
            [SegmentEntry::Stored { stored, hash }] => {
                return self.rows.row(0, stored, Some(hash));
            }
            [SegmentEntry::Layered(layered)] => layered,
            other => bail!("{other:?}"),
        };
        let new = self.rows.row(0, &layered.row.context("no row")?, None)?;
        let mut rows = Vec::new();
        for layer in &layered.layers {
            let origin = &mut origins[usize::from(layer.origin)];
            rows.push(origin.rows.row(layer.row, &layer.stored, None)?);
        }
        let mut raw = Vec::new();
        let sealer = self.manifest.public().sealer(&self.summary.data_key);
        let row = |layer: &codec::layers::Layer| {
            let at = layered.layers.iter().position(|one| one == layer)?;
            rows.get(at).map(Vec::as_slice)
        };
        Composer::new(sealer, &pieces_key).compose(0, &mut raw, layered, 0, row, &new)?;
        Ok(raw)
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
    let names = [
        "base", "patch", "first", "second", "third", "remnant", "resumed",
    ];
    let files = names.map(load);
    let [
        mut base,
        mut patch,
        mut first,
        mut second,
        mut third,
        mut remnant,
        mut resumed,
    ] = files
        .each_ref()
        .map(|(manifest, shards)| open(manifest, shards).unwrap());
    assert_eq!(base.summary.job.as_str(), JOB);
    assert_eq!(base.image(&mut []).unwrap(), read("image-1"));
    assert_eq!(patch.image(&mut [&mut base]).unwrap(), read("image-2"));
    let step = patch.summary.tail.labels.get("step");
    assert_eq!(step, Some("2"));
    assert_eq!(first.image(&mut []).unwrap(), read("image-1"));
    assert_eq!(second.image(&mut [&mut first]).unwrap(), read("image-2"));
    let image = third.image(&mut [&mut second, &mut first]);
    assert_eq!(image.unwrap(), read("image-3"));
    assert!(remnant.summary.tail.is_remnant);
    assert_eq!(resumed.image(&mut [&mut remnant]).unwrap(), read("image-2"));
}

/// If only this test fails after an update of zstd, then zstd's output changed and the formats did not. No program writes
/// a patch any more.
#[test]
fn the_vectors_are_written_as_they_are() {
    expect(
        &path("key"),
        b"0707070707070707070707070707070707070707070707070707070707070707\n",
    );
    for number in 1..=3 {
        expect(&path(&format!("image-{number}")), &image(number));
    }
    let base = write(1, plan(1, None, None), None);
    let first = write_next(1, None);
    let second = write_next(2, Some(&first));
    let third = write_next(3, Some(&second));
    let (remnant, resumed) = write_resumed();
    let all = [
        ("base", &base),
        ("first", &first),
        ("second", &second),
        ("third", &third),
        ("remnant", &remnant),
        ("resumed", &resumed),
    ];
    for (which, saved) in all {
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
