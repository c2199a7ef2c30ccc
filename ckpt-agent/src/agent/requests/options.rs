//! How an image is saved. The program, `ckpt run`, the library, Python and HTCondor's plug-ins all fill in this
//! one list.

use std::time::Duration;

use codec::Redundancy;
use codec::geometry::{DATA_USUAL, PARITY_USUAL, RedundancyError};
use codec::labels::Labels;
use codec::seal::Cipher;

use super::{After, PlacementWish, Tenure};
use crate::core::effort::Effort;
use crate::image::Exclude;

/// How an image is saved. The default is that of `ckpt save` without options.
#[derive(Clone, Debug)]
pub struct SaveOptions {
    /// How many data and parity shards. `None`: by forecast, at least 2 parity shards, where enough is known
    /// of the hosts; else 3 and 2, and where fewer than five hosts take a shard, 2 and 2, or 1 and 2.
    pub redundancy: Option<Redundancy>,
    /// Fewest parity shards with which to commit, when hosts for all can't be had. `None`: all are needed.
    pub allow_degraded: Option<u8>,
    /// Versions to keep, this one included; 0 counts as 1.
    pub keep: u32,
    /// Store everything, also what an earlier version has stored already. No other version then has to stay for
    /// this one.
    pub full: bool,
    /// For how long the job's checkpoints are to be kept. `None`: as the job's last notice says.
    pub tenure: Option<Tenure>,
    /// Finish within this time, or fail and leave the older versions as they are.
    pub deadline: Option<Duration>,
    /// The state is lost if this save is not in time: where a patch on an earlier version can be stored, the
    /// image is not stored whole.
    pub is_last: bool,
    /// How much processor time compression may take.
    pub effort: Effort,
    /// How the image is encrypted, or that hosts may read it.
    pub cipher: Cipher,
    /// Which files below directories are left out.
    pub exclude: Exclude,
    /// Skip unreadable files with a warning instead of failing.
    pub skip_unreadable: bool,
    /// Accept files that change while they are read, with a warning, instead of failing.
    pub accept_changed: bool,
    /// Save a stream without bytes, or an image without files and directories, instead of failing: it takes the
    /// place of an earlier version. A file without bytes that is named is always saved.
    pub allow_empty: bool,
    /// The files may be half written: the version is marked.
    pub is_torn: bool,
    /// Keep extended attributes and access control lists.
    pub extended_attributes: bool,
    /// Keep the numbers of user and group; root restores them.
    pub owners: bool,
    /// How hosts are to be chosen.
    pub placement: PlacementWish,
    /// The user's labels of the checkpoint; hosts can't read them.
    pub labels: Labels,
    /// Commit only as the one checkpoint that follows this one. If another checkpoint follows it, or may, the
    /// save fails with the status `AnotherSuccessor`, and [`Failure::successor`](crate::report::Failure::successor)
    /// names the other one. With any other status, it is this save's own checkpoint, which is half done.
    pub after: Option<After>,
}

impl Default for SaveOptions {
    fn default() -> Self {
        Self {
            redundancy: None,
            allow_degraded: None,
            keep: 2,
            full: false,
            tenure: None,
            deadline: None,
            is_last: false,
            effort: Effort::Auto,
            cipher: Cipher::Aes256Gcm,
            exclude: Exclude::default(),
            skip_unreadable: false,
            accept_changed: false,
            allow_empty: false,
            is_torn: false,
            extended_attributes: false,
            owners: false,
            placement: PlacementWish::default(),
            labels: Labels::default(),
            after: None,
        }
    }
}

/// The numbers of data and parity shards, if the user gave at least one of them.
///
/// # Errors
/// When there is no such code.
pub fn given_code(
    data: Option<u8>,
    parity: Option<u8>,
) -> Result<Option<Redundancy>, RedundancyError> {
    if data.is_none() && parity.is_none() {
        return Ok(None);
    }
    Redundancy::new(data.unwrap_or(DATA_USUAL), parity.unwrap_or(PARITY_USUAL)).map(Some)
}
