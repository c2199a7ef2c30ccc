//! Names of files in a data directory.
//!
//! ```text
//! incoming/<number>                            being written; removed at start
//! shards/<owner>/<checkpoint>-<index>.shard    whole shards (docs/format.md)
//! manifests/<owner>/<checkpoint>.manifest      manifests of committed checkpoints
//! notices/<owner>/<job>.notice                 what owners said of their jobs
//! notices/<owner>/<job>-<number>.notice        an older one that says more is gone than the last
//! fences/<owner>/<checkpoint>.fence            what was promised about a checkpoint's successors
//! voids/<owner>.void                           which job keys owners made void
//! ```
//!
//! Owners, checkpoints and jobs are written in hexadecimal. Ids of checkpoints are chosen by owners, so
//! each owner has directories of its own.

use std::path::{Path, PathBuf};

use codec::{CheckpointId, JobTag, OwnerId, ShardIndex};

use crate::core::Key;

/// Where files are written before they get their names.
pub const INCOMING: &str = "incoming";

/// Where whole shards are.
pub const SHARDS: &str = "shards";

/// Where manifests are.
pub const MANIFESTS: &str = "manifests";

/// Where notices are.
pub const NOTICES: &str = "notices";

/// Where promises about the successors of checkpoints are.
pub const FENCES: &str = "fences";

/// The owner's directory in [`SHARDS`], [`MANIFESTS`], [`NOTICES`] or [`FENCES`].
pub fn owner_dir(kind: &str, owner: OwnerId) -> PathBuf {
    Path::new(kind).join(owner.hex())
}

/// A shard's file.
pub fn shard_path(key: Key, shard: ShardIndex) -> PathBuf {
    owner_dir(SHARDS, key.owner).join(format!("{}-{shard}.shard", key.checkpoint.hex()))
}

/// A manifest's file.
pub fn manifest_path(key: Key) -> PathBuf {
    owner_dir(MANIFESTS, key.owner).join(format!("{}.manifest", key.checkpoint.hex()))
}

/// A notice's file.
pub fn notice_path(owner: OwnerId, job_tag: JobTag) -> PathBuf {
    owner_dir(NOTICES, owner).join(format!("{}.notice", job_tag.hex()))
}

/// The file of a notice that is kept beside the last one of its job, for what it alone says is gone.
pub fn older_notice_path(owner: OwnerId, job_tag: JobTag, number: u64) -> PathBuf {
    owner_dir(NOTICES, owner).join(format!("{}-{number}.notice", job_tag.hex()))
}

/// A file that is being written.
pub fn incoming_path(number: u64) -> PathBuf {
    Path::new(INCOMING).join(number.to_string())
}

/// Checkpoint and shard number of a name that [`shard_path`] made.
pub fn parse_shard_name(name: &str) -> Option<(CheckpointId, u8)> {
    let (checkpoint, shard) = name.strip_suffix(".shard")?.split_once('-')?;
    Some((CheckpointId::from_hex(checkpoint)?, shard.parse().ok()?))
}

/// Checkpoint of a name that [`manifest_path`] made.
pub fn parse_manifest_name(name: &str) -> Option<CheckpointId> {
    CheckpointId::from_hex(name.strip_suffix(".manifest")?)
}

/// Job of a name that [`notice_path`] or [`older_notice_path`] made.
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
