//! Names of the files in a data directory.
//!
//! ```text
//! incoming/<number>                            files that are being written; removed at start
//! shards/<owner>/<checkpoint>-<index>.shard    complete shards (docs/inside/format.md)
//! manifests/<owner>/<checkpoint>.manifest      manifests of committed checkpoints
//! notices/<owner>/<job>.notice                 the last notice of each job
//! notices/<owner>/<job>-<number>.notice        an older notice that declares more gone than the last one
//! fences/<owner>/<checkpoint>.fence            promises about a checkpoint's successors
//! voids/<owner>.void                           which job keys of an owner are void
//! ```
//!
//! Owners, checkpoints and jobs are written in hexadecimal. Owners choose the ids of checkpoints, so each
//! owner has directories of its own.

use std::path::{Path, PathBuf};

use codec::{CheckpointId, JobTag, OwnerId, ShardIndex};

use crate::core::Key;

/// The directory of files that have no final name yet.
pub const INCOMING: &str = "incoming";

/// The directory of complete shards.
pub const SHARDS: &str = "shards";

/// The directory of manifests.
pub const MANIFESTS: &str = "manifests";

/// The directory of notices.
pub const NOTICES: &str = "notices";

/// The directory of promises about the successors of checkpoints.
pub const FENCES: &str = "fences";

/// The directory of the lists of void job keys.
pub const VOIDS: &str = "voids";

/// An owner's directory in [`SHARDS`], [`MANIFESTS`], [`NOTICES`] or [`FENCES`].
pub fn owner_dir(kind: &str, owner: OwnerId) -> PathBuf {
    Path::new(kind).join(owner.hex())
}

/// The path of a shard.
pub fn shard_path(key: Key, shard: ShardIndex) -> PathBuf {
    owner_dir(SHARDS, key.owner).join(format!("{}-{shard}.shard", key.checkpoint.hex()))
}

/// The path of a manifest.
pub fn manifest_path(key: Key) -> PathBuf {
    owner_dir(MANIFESTS, key.owner).join(format!("{}.manifest", key.checkpoint.hex()))
}

/// The path of the last notice of a job.
pub fn notice_path(owner: OwnerId, job_tag: JobTag) -> PathBuf {
    owner_dir(NOTICES, owner).join(format!("{}.notice", job_tag.hex()))
}

/// The path of an older notice, which is kept because it declares something gone that the last one does
/// not.
pub fn older_notice_path(owner: OwnerId, job_tag: JobTag, number: u64) -> PathBuf {
    owner_dir(NOTICES, owner).join(format!("{}-{number}.notice", job_tag.hex()))
}

/// The path of a file that is being written.
pub fn incoming_path(number: u64) -> PathBuf {
    Path::new(INCOMING).join(number.to_string())
}

/// The checkpoint and shard number in a name that [`shard_path`] made.
pub fn parse_shard_name(name: &str) -> Option<(CheckpointId, u8)> {
    let (checkpoint, shard) = name.strip_suffix(".shard")?.split_once('-')?;
    Some((CheckpointId::from_hex(checkpoint)?, shard.parse().ok()?))
}

/// The checkpoint in a name that [`manifest_path`] made.
pub fn parse_manifest_name(name: &str) -> Option<CheckpointId> {
    CheckpointId::from_hex(name.strip_suffix(".manifest")?)
}

/// The job in a name that [`notice_path`] or [`older_notice_path`] made.
pub fn parse_notice_name(name: &str) -> Option<JobTag> {
    let name = name.strip_suffix(".notice")?;
    match name.split_once('-') {
        Some((job, number)) => number.parse::<u64>().ok().and(JobTag::from_hex(job)),
        None => JobTag::from_hex(name),
    }
}

#[cfg(test)]
mod tests {
    use codec::Redundancy;

    use super::*;

    #[test]
    fn names_come_back() {
        let key = Key {
            owner: OwnerId([1; 32]),
            checkpoint: CheckpointId([2; 16]),
        };
        let shard = Redundancy::DEFAULT.shard(4).unwrap();
        let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        let parsed = parse_shard_name(&name(shard_path(key, shard)));
        assert_eq!(parsed, Some((key.checkpoint, 4)));
        let parsed = parse_manifest_name(&name(manifest_path(key)));
        assert_eq!(parsed, Some(key.checkpoint));
        let job = JobTag([3; 32]);
        for path in [
            notice_path(key.owner, job),
            older_notice_path(key.owner, job, 77),
        ] {
            assert_eq!(parse_notice_name(&name(path)), Some(job));
        }
        assert_eq!(parse_notice_name("00-1.notice"), None);
        assert_eq!(parse_shard_name("00-1.shard"), None);
        assert_eq!(parse_shard_name("lost+found"), None);
    }
}
