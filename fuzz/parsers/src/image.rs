//! Parsers of what owners sign and read: manifests, notices, proposals, grants, job keys, indices,
//! compressed segments.

use codec::compress::{Decompressor, Method};
use codec::geometry::SEGMENT_BYTES;
use codec::grant::{Grant, VoidList};
use codec::index::{FileKind, Index, SegmentEntry};
use codec::keys::{JobKeys, Keys};
use codec::layers::{Chain, Layer, Layered};
use codec::manifest::Manifest;
use codec::notice::{GONE_MAX, INTERVALS_MAX, Notice};
use codec::proposal::Proposal;
use codec::seal::OwnerSecret;

/// Owner of the manifests in `seeds`.
fn owner() -> OwnerSecret {
    OwnerSecret::new([9; 32])
}

pub(crate) fn manifest(input: &[u8]) -> bool {
    let Ok(manifest) = Manifest::parse(input.to_vec()) else {
        return false;
    };
    assert_eq!(manifest.bytes(), input);
    let public = manifest.public();
    assert_eq!(public.roots.len(), public.redundancy.total());
    assert!(public.rows > 0);
    for shard in public.redundancy.shards() {
        assert!(public.shard(shard).is_some());
    }
    if let Ok(summary) = manifest.open(&owner().into()) {
        assert!(!summary.index.is_empty() && summary.index.len() as u64 <= public.rows);
        for row in &summary.index {
            assert!(row.raw_len as usize <= SEGMENT_BYTES && row.stored_len <= row.raw_len);
        }
        let chain = summary.tail.chain.iter();
        assert!(chain.clone().all(Chain::is_possible));
        let named = chain.map(|chain| chain.origins.len()).sum::<usize>();
        assert_eq!(
            summary.needs().count(),
            named + usize::from(summary.tail.base.is_some())
        );
    }
    true
}

/// Takes the input for a notice, and then for a notice without its signature, which is added.
pub(crate) fn notice(input: &[u8]) -> bool {
    let mut signed = input.to_vec();
    signed.extend(owner().sign(input));
    let mut accepted = false;
    for bytes in [input.to_vec(), signed] {
        if let Ok(notice) = Notice::parse(bytes.clone()) {
            assert_eq!(notice.bytes(), bytes);
            let words = notice.words();
            assert!(words.gone.len() <= GONE_MAX && words.intervals.len() <= INTERVALS_MAX);
            for interval in words.intervals.iter() {
                assert!(words.is_gone(interval.from) && words.is_gone(interval.to));
            }
            accepted = true;
        }
    }
    accepted
}

/// Takes the input for a proposal, and then for a proposal without its signature, which is added.
pub(crate) fn proposal(input: &[u8]) -> bool {
    let mut signed = input.to_vec();
    signed.extend(owner().sign(input));
    let mut accepted = false;
    for bytes in [input.to_vec(), signed] {
        if let Ok(proposal) = Proposal::parse(bytes.clone()) {
            assert_eq!(proposal.bytes(), bytes);
            let proposed = proposal.proposed();
            let keys = owner().into();
            let job = "42".parse();
            if let Some(Ok(manifest)) = job.ok().map(|job| proposal.manifest(&keys, &job)) {
                let public = manifest.public();
                assert_eq!(manifest.hash(), proposed.successor.manifest);
                assert_eq!(public.checkpoint, proposed.successor.checkpoint);
                assert_eq!(public.job_tag, proposed.job_tag);
            }
            accepted = true;
        }
    }
    accepted
}

/// Takes the input for the body of a manifest, which is then signed, as a faulty program of this owner could
/// do.
pub(crate) fn manifest_body(input: &[u8]) -> bool {
    let Ok(len) = u32::try_from(input.len()) else {
        return false;
    };
    let mut bytes = [b"CKPTMAN2".as_slice(), &len.to_le_bytes(), input].concat();
    bytes.extend(owner().sign(&bytes));
    manifest(&bytes)
}

/// Takes the input for a grant or a list of void grants, and then for one without its signature, which is
/// added.
pub(crate) fn grant(input: &[u8]) -> bool {
    let mut signed = input.to_vec();
    signed.extend(owner().sign(input));
    let mut accepted = false;
    for bytes in [input, &signed] {
        if let Ok(grant) = Grant::parse(bytes) {
            assert_eq!(grant.bytes(), bytes);
            let terms = grant.terms();
            assert!(terms.is_current(terms.not_before) && terms.is_current(terms.not_after));
            accepted = true;
        }
        if let Ok(list) = VoidList::parse(bytes) {
            assert_eq!(list.bytes(), bytes);
            accepted = true;
        }
    }
    accepted
}

pub(crate) fn job_keys(input: &[u8]) -> bool {
    let Ok(keys) = JobKeys::decode(input) else {
        return false;
    };
    let Ok(bytes) = keys.encode() else {
        panic!("it was short enough to be read")
    };
    assert!(JobKeys::decode(&bytes).is_ok());
    let job = keys.scope().name().clone();
    let all = Keys::from(keys);
    assert!(all.tag_and_path(&job).is_none_or(|(tag, path)| {
        let terms = all.grant().map(|grant| *grant.terms());
        terms.is_some_and(|terms| terms.covers(tag, &path.blinded()))
    }));
    true
}

pub(crate) fn index(input: &[u8]) -> bool {
    let Ok(index) = Index::decode(input) else {
        return false;
    };
    let Ok(encoded) = index.encode() else {
        panic!("it was short enough to be decoded")
    };
    assert_eq!(Index::decode(&encoded).as_ref(), Ok(&index));
    let mut stream_bytes = 0;
    for (number, file) in index.files.iter().enumerate() {
        let mut parts = file.path.split(|&byte| byte == b'/');
        let is_plain = parts.all(|part| !matches!(part, b"" | b"." | b"..") && !part.contains(&0));
        assert!(is_plain || (file.path.is_empty() && index.files.len() == 1));
        match &file.kind {
            FileKind::Regular { size, extents } => {
                let mut end = 0;
                for extent in extents {
                    assert!(extent.offset >= end && extent.len > 0);
                    end = extent.offset + extent.len;
                    stream_bytes += extent.len;
                }
                assert!(end <= *size);
            }
            FileKind::HardLink { file } => assert!((*file as usize) < number),
            _ => {}
        }
    }
    assert_eq!(stream_bytes, index.stream_bytes());
    for (stored, _) in index.rows() {
        assert!(stored.is_possible());
    }
    for segment in &index.segments {
        if let SegmentEntry::Layered(layered) = segment {
            make(layered);
        }
    }
    if let Ok(over) = index.clone().over(&index) {
        assert_eq!(over.stream_bytes(), stream_bytes);
        assert!(over.check().is_ok() && over.check_origins(1).is_ok());
    }
    true
}

/// Makes a segment of rows that have as many bytes as its index states.
fn make(layered: &Layered) {
    let zeros = vec![0; SEGMENT_BYTES];
    let row = |layer: &Layer| zeros.get(..layer.stored.raw_len as usize);
    let new = layered.row.map_or(0, |row| row.raw_len as usize);
    let mut raw = vec![1; layered.len as usize];
    assert!(layered.compose(&mut raw, 0, row, &zeros[..new]).is_some());
    assert!(raw.iter().all(|byte| *byte == 0));
}

/// Takes the first 4 bytes for the length of the segment, and the others for its compressed bytes.
pub(crate) fn decompress(input: &[u8]) -> bool {
    let Some((len, stored)) = input.split_first_chunk() else {
        return false;
    };
    let raw_len = u32::from_le_bytes(*len) as usize % (SEGMENT_BYTES + 1);
    let mut accepted = false;
    for method in Method::ALL {
        let mut raw = Vec::new();
        let done = Decompressor::new().decompress(method, stored, raw_len, &mut raw);
        assert!(raw.len() <= raw_len.max(stored.len()));
        if done.is_ok() {
            assert_eq!(raw.len(), raw_len);
            accepted = true;
        }
    }
    accepted
}
