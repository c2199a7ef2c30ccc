//! A save and a restore in memory, with the steps of agent and daemons in their order.

use anyhow::{Context, Result, ensure};
use codec::compress::Level;
use codec::decode::RowDecoder;
use codec::encode::{CheckpointBuilder, CheckpointPlan, EncodedRow, RowEncoder};
use codec::geometry::{PAGE_ROWS, SEGMENT_BYTES, page_of, page_rows};
use codec::index::{Extent, FileEntry, FileKind, Index, SegmentEntry, StoredSegment};
use codec::keys::Keys;
use codec::labels::Labels;
use codec::manifest::{ImageKind, Manifest};
use codec::seal::{Cipher, DataKey, OwnerSecret};
use codec::segment::{Cut, Segmenter};
use codec::shard_file::{
    ENTRY_BYTES, Footer, HEADER_BYTES, Header, Page, ShardIdentity, TableBuilder,
};
use codec::{CheckpointId, JobId, Redundancy, SegmentHash, ShardIndex, Version};

/// The bytes that are on the disks of hosts after a save.
#[derive(Clone)]
pub(crate) struct Saved {
    pub(crate) manifest: Vec<u8>,
    pub(crate) shards: Vec<Vec<u8>>,
}

pub(crate) fn owner() -> OwnerSecret {
    OwnerSecret::new([9; 32])
}

pub(crate) fn keys() -> Keys {
    owner().into()
}

fn job() -> JobId {
    "job@host:1.0".parse().unwrap()
}

pub(crate) fn plan(redundancy: Redundancy, cipher: Cipher) -> CheckpointPlan {
    CheckpointPlan {
        link: None,
        labels: Labels::default(),
        checkpoint: CheckpointId([1; 16]),
        job_tag: keys().job_tag(&job()).unwrap(),
        job: job(),
        version: Version::new(7).unwrap(),
        created: 1_700_000_000,
        previous: None,
        redundancy,
        cipher,
        data_key: DataKey::new([3; 32]),
    }
}

/// The only file of an image from standard input.
pub(crate) fn stream_file(len: usize) -> FileEntry {
    let len = len as u64;
    FileEntry {
        path: Vec::new(),
        mode: 0o600,
        mtime_s: 1_600_000_000,
        mtime_ns: 5,
        kind: FileKind::Regular {
            size: len,
            extents: (len > 0)
                .then_some(Extent { offset: 0, len })
                .into_iter()
                .collect(),
        },
        attributes: None,
    }
}

/// A shard file that is being written.
pub(crate) struct ShardWriter {
    file: Vec<u8>,
    table: TableBuilder,
    groups: Vec<u64>,
    identity: ShardIdentity,
}

impl ShardWriter {
    pub(crate) fn new(header: Header) -> Self {
        Self {
            file: header.encode().to_vec(),
            table: TableBuilder::default(),
            groups: Vec::new(),
            identity: header.identity,
        }
    }

    pub(crate) fn push(&mut self, row: &EncodedRow) {
        if self.table.rows().is_multiple_of(PAGE_ROWS) {
            self.groups.push(self.file.len() as u64);
        }
        let shard = self.identity.shard;
        self.file
            .extend_from_slice(&row.blocks[row.block_range(shard)]);
        let page = self.table.push(row.table[shard.at()]);
        self.file.extend(page.unwrap_or_default());
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        let (page, outline) = self.table.finish();
        self.file.extend(page.unwrap_or_default());
        let root = outline.root(&self.identity);
        let footer = Footer {
            outline,
            groups: self.groups,
            root,
        };
        self.file.extend(footer.encode());
        self.file
    }
}

/// Saves `image` in segments of `segment_bytes`.
pub(crate) fn save(
    image: &[u8],
    segment_bytes: usize,
    redundancy: Redundancy,
    cipher: Cipher,
) -> Saved {
    let plan = plan(redundancy, cipher);
    let owner = owner();
    let mut writers: Vec<ShardWriter> = redundancy
        .shards()
        .map(|shard| {
            ShardWriter::new(Header {
                identity: ShardIdentity {
                    checkpoint: plan.checkpoint,
                    redundancy,
                    shard,
                },
                owner: owner.id(),
                job_tag: plan.job_tag,
                version: plan.version,
                created: plan.created + 1,
            })
        })
        .collect();
    let mut encoder = RowEncoder::new(redundancy, plan.sealer(), Level::DEFAULT);
    let mut builder = CheckpointBuilder::new(plan);
    let mut segmenter = Segmenter::default();
    let mut blocks = Vec::new();
    for piece in image.chunks(segment_bytes) {
        match segmenter.cut(piece.to_vec()) {
            (Some(Cut::Made(_)), _) => panic!("nothing is compared"),
            (Some(Cut::Zero { bytes }), _) => builder.push_zero(bytes),
            (Some(Cut::Stored { row, raw, .. }), _) => {
                let row = encoder.encode(row, &raw, std::mem::take(&mut blocks));
                builder.push_row(&row).unwrap();
                writers.iter_mut().for_each(|writer| writer.push(&row));
                blocks = row.blocks;
            }
            (None, _) => {}
        }
    }
    let index = builder.finish_image(vec![stream_file(image.len())], 0);
    for piece in index.unwrap().chunks(SEGMENT_BYTES) {
        let row = encoder.encode(builder.rows(), piece, Vec::new());
        builder.push_index_row(&row).unwrap();
        writers.iter_mut().for_each(|writer| writer.push(&row));
    }
    let manifest = builder.finish(ImageKind::Stream);
    let manifest = manifest.sign(&keys(), Vec::new()).unwrap();
    Saved {
        manifest: manifest.bytes().to_vec(),
        shards: writers.into_iter().map(ShardWriter::finish).collect(),
    }
}

/// A shard file whose footer agrees with the manifest; blocks are checked when they are read.
pub(crate) struct Shard<'a> {
    identity: ShardIdentity,
    file: &'a [u8],
    footer: Footer,
}

impl<'a> Shard<'a> {
    pub(crate) fn open(file: &'a [u8], manifest: &Manifest) -> Result<Self> {
        let header = Header::parse(file.first_chunk::<HEADER_BYTES>().context("no header")?)?;
        let number = header.identity.shard;
        let (identity, root) = manifest.public().shard(number).context("no such shard")?;
        ensure!(header.identity == identity, "of another checkpoint");
        let tail = file.last_chunk().context("no tail")?;
        let at = file.len().checked_sub(Footer::len_from_tail(tail)?);
        let at = at.context("no footer")?;
        let footer = Footer::parse(&file[at..], file.len() as u64, &identity)?;
        footer.outline.verify(&identity, root)?;
        Ok(Self {
            identity,
            file,
            footer,
        })
    }

    /// The block of `row`, checked against the table.
    fn block(&self, row: u64) -> Result<(ShardIndex, &'a [u8])> {
        let (page, place) = page_of(row);
        let footer_len = self.footer.encoded_len();
        let table = self
            .footer
            .page_offset(page, self.file.len() as u64, footer_len);
        let table = table.context("no page")? as usize;
        let rows = page_rows(self.footer.outline.rows, page);
        let bytes = self.file.get(table..table + rows as usize * ENTRY_BYTES);
        let hash = self.footer.outline.pages[page as usize];
        let entries = Page::parse(bytes.context("no page")?, rows, hash)?;
        let before = entries.entries()[..place].iter();
        let begin =
            self.footer.groups[page as usize] + before.map(|e| u64::from(e.len)).sum::<u64>();
        let entry = entries.entries().get(place).context("no such row")?;
        let block = self
            .file
            .get(begin as usize..begin as usize + entry.len as usize);
        let block = block.context("no block")?;
        ensure!(entry.matches(block), "damaged block");
        Ok((self.identity.shard, block))
    }
}

pub(crate) struct Restorer<'a> {
    pub(crate) shards: Vec<Shard<'a>>,
    pub(crate) decoder: RowDecoder,
}

impl Restorer<'_> {
    pub(crate) fn row(
        &mut self,
        row: u64,
        stored: &StoredSegment,
        hash: Option<&SegmentHash>,
    ) -> Result<Vec<u8>> {
        let blocks = self.shards.iter().filter_map(|shard| shard.block(row).ok());
        let blocks: Vec<_> = blocks.collect();
        let mut raw = Vec::new();
        self.decoder.decode(row, stored, hash, &blocks, &mut raw)?;
        Ok(raw)
    }
}

/// Restores the image from these shards. Damaged shards and blocks are left out.
pub(crate) fn restore(manifest: &[u8], shards: &[Vec<u8>]) -> Result<Vec<u8>> {
    let manifest = Manifest::parse(manifest.to_vec())?;
    let summary = manifest.open(&keys())?;
    let public = manifest.public();
    let shards = shards.iter();
    let mut restorer = Restorer {
        shards: shards
            .filter_map(|file| Shard::open(file, &manifest).ok())
            .collect(),
        decoder: RowDecoder::new(public.redundancy, public.sealer(&summary.data_key)),
    };
    let first = public.rows - summary.index.len() as u64;
    let mut index = Vec::new();
    for (row, stored) in (first..).zip(&summary.index) {
        index.extend(restorer.row(row, stored, None)?);
    }
    let index = Index::decode(&index)?;
    let mut image = Vec::new();
    let mut row = 0;
    for entry in &index.segments {
        match entry {
            SegmentEntry::Layered(_)
            | SegmentEntry::Patched { .. }
            | SegmentEntry::Shared { .. }
            | SegmentEntry::Part { .. } => {
                panic!("nothing is compared")
            }
            SegmentEntry::Zero { bytes } => image.resize(image.len() + *bytes as usize, 0),
            SegmentEntry::Stored { stored, hash } => {
                image.extend(restorer.row(row, stored, Some(hash))?);
                row += 1;
            }
        }
    }
    ensure!(row == first && image.len() as u64 == summary.stream_bytes);
    Ok(image)
}
