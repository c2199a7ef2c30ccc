//! Images through real directories, with an encoder and decoder that only hand bytes on.

mod commands;
mod roundtrip;
mod sinks;
mod sources;
mod states;
mod writers;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use codec::SegmentHash;
use codec::compress::Method;
use codec::geometry::SEGMENT_BYTES;
use codec::index::{Index, SegmentEntry, StoredSegment};
use codec::manifest::ImageKind;
use codec::segment::{Cut, Segmenter};

use super::source::Emptiness;
use super::{Remark, Sink, SinkError, SinkOptions, Source, SourceError, SourceOptions, Target};
use crate::pipeline::decode::StreamSink;
use crate::pipeline::encode::SegmentSource;

/// An image in memory.
#[derive(Debug)]
struct Saved {
    index: Index,
    kind: ImageKind,
    warnings: Vec<Remark>,
    /// Stored segments.
    segments: Vec<Vec<u8>>,
}

const STRICT: SourceOptions = SourceOptions {
    skip_unreadable: false,
    accept_changed: false,
    allow_empty: false,
    extended_attributes: false,
    owners: false,
};

const ACCEPT_CHANGED: SourceOptions = SourceOptions {
    skip_unreadable: false,
    accept_changed: true,
    allow_empty: false,
    extended_attributes: false,
    owners: false,
};

const ALLOW_EMPTY: SourceOptions = SourceOptions {
    skip_unreadable: false,
    accept_changed: false,
    allow_empty: true,
    extended_attributes: false,
    owners: false,
};

/// Reads a source to its end.
fn drain(source: Source) -> Result<Saved, SourceError> {
    drain_with(source, |_| {})
}

/// Reads a source to its end, and calls `between` with the number of each segment before the segment is read.
fn drain_with(mut source: Source, mut between: impl FnMut(usize)) -> Result<Saved, SourceError> {
    let mut segmenter = Segmenter::default();
    let mut index = Index::default();
    let mut segments = Vec::new();
    let mut spare = Vec::with_capacity(SEGMENT_BYTES);
    for number in 0.. {
        between(number);
        let Some(raw) = source.next_segment(spare, 0)? else {
            break;
        };
        assert!((1..=SEGMENT_BYTES).contains(&raw.len()));
        let (cut, back) = segmenter.cut(raw);
        match cut {
            Some(Cut::Made(_)) => panic!("nothing is compared"),
            Some(Cut::Zero { bytes }) => index.push_segment(SegmentEntry::Zero { bytes }),
            Some(Cut::Stored { raw, .. }) => {
                let len = u32::try_from(raw.len()).unwrap();
                index.push_segment(SegmentEntry::Stored {
                    stored: StoredSegment {
                        raw_len: len,
                        stored_len: len,
                        method: Method::Raw,
                    },
                    hash: SegmentHash([0; 32]),
                });
                segments.push(raw);
            }
            None => {}
        }
        spare = back.unwrap_or_default();
    }
    let (files, kind, warnings) = source.finish()?;
    index.files = files;
    let index = Index::decode(&index.encode().unwrap()).unwrap();
    Ok(Saved {
        index,
        kind,
        warnings,
        segments,
    })
}

fn save(paths: &[PathBuf]) -> Saved {
    drain(Source::from_paths(paths, STRICT).unwrap()).unwrap()
}

impl Saved {
    fn write_all(&self, sink: &mut impl StreamSink<Error = SinkError>) -> Result<(), SinkError> {
        let mut segments = self.segments.iter();
        for entry in &self.index.segments {
            match entry {
                SegmentEntry::Patched { .. }
                | SegmentEntry::Shared { .. }
                | SegmentEntry::Layered(_)
                | SegmentEntry::Part { .. } => {
                    panic!("nothing is compared")
                }
                SegmentEntry::Zero { bytes } => sink.zeros(*bytes)?,
                SegmentEntry::Stored { .. } => sink.write(segments.next().unwrap())?,
            }
        }
        Ok(())
    }

    fn restore(&self, target: &Path, options: SinkOptions) -> Result<(), SinkError> {
        let target = Target::Path(target.to_owned());
        let mut sink = Sink::create(&self.index, &target, options)?;
        self.write_all(&mut sink)?;
        sink.finish()
    }
}

const PLAIN: SinkOptions = SinkOptions {
    force: false,
    set_id_bits: false,
};

const FORCE: SinkOptions = SinkOptions {
    force: true,
    set_id_bits: false,
};

/// All properties of a file that an image keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileProperties {
    kind: String,
    mode: u32,
    mtime: (i64, i64),
    content: Vec<u8>,
    names: u64,
}

/// Everything below a path, by relative name. Contents only of files up to 64 MiB.
fn see(path: &Path) -> BTreeMap<Vec<u8>, FileProperties> {
    let mut seen = BTreeMap::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(name) = pending.pop() {
        let full = if name.as_os_str().is_empty() {
            path.to_owned()
        } else {
            path.join(&name)
        };
        let meta = fs::symlink_metadata(&full).unwrap();
        let kind = meta.file_type();
        let content = if kind.is_symlink() {
            fs::read_link(&full)
                .unwrap()
                .into_os_string()
                .as_bytes()
                .to_vec()
        } else if kind.is_file() && meta.len() <= 64 << 20 {
            fs::read(&full).unwrap()
        } else {
            Vec::new()
        };
        if kind.is_dir() {
            pending.extend(
                fs::read_dir(&full)
                    .unwrap()
                    .map(|entry| name.join(entry.unwrap().file_name())),
            );
        }
        let what = if kind.is_dir() {
            "directory"
        } else if kind.is_symlink() {
            "link"
        } else if kind.is_fifo() {
            "fifo"
        } else {
            "file"
        };
        seen.insert(
            name.as_os_str().as_bytes().to_vec(),
            FileProperties {
                kind: format!(
                    "{what} of {} bytes",
                    if kind.is_dir() { 0 } else { meta.len() }
                ),
                mode: meta.mode() & 0o7777,
                mtime: (meta.mtime(), meta.mtime_nsec()),
                content,
                names: if kind.is_dir() { 1 } else { meta.nlink() },
            },
        );
    }
    seen
}

/// Names in a directory, hidden ones included.
fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Bytes that cannot be compressed or confused.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    use rand::{RngCore, SeedableRng};
    let mut bytes = vec![0; len];
    rand::rngs::SmallRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}
