//! Reads the list of an owner's checkpoints from a host, record by record, and adds to it. Each record is
//! checked before the next one is read.

use std::time::Duration;

use codec::hash::ManifestHash;
use codec::manifest::{Manifest, ManifestError};
use codec::{CheckpointId, JobTag, OwnerId, Redundancy, ShardIndex};
use protocol::net::stream::read_frame;
use protocol::wire::limits::{RECORDS_MAX, REQUEST_TIMEOUT};
use protocol::wire::message::{Record, Request, Response};
use tokio::time::Instant;

use crate::hosts::unexpected;
use crate::{Fault, HostIndex, Hosts};

/// In each [`REQUEST_TIMEOUT`] this many bytes have to arrive, on the average. A slower host would delay
/// everything that waits for its list.
const PACE_BYTES: u64 = 64 << 10;

/// Most checkpoints of one owner in the list of a host: four times as many as a host keeps of one owner. Whoever
/// lists more lies, and would keep this client busy for as long as it likes.
const LISTED_MAX: u32 = 1 << 17;

/// A checkpoint in the list of one host. Signature, owner and job were checked. That the host holds the
/// shards is only its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Its manifest.
    pub manifest: ShownManifest,
    /// Shards that the host claims to hold.
    pub shards: Vec<ShardIndex>,
}

/// The manifest of a checkpoint in the list of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShownManifest {
    /// One with a checked signature.
    New(Box<Manifest>),
    /// The one that the client has already.
    Known,
}

/// What the client has already of a checkpoint: another host has shown it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlreadyShown {
    /// Hash of its manifest.
    pub hash: ManifestHash,
    /// The tag of its job.
    pub job_tag: JobTag,
    /// Numbers of its shards.
    pub redundancy: Redundancy,
}

impl Hosts {
    /// Asks for the committed checkpoints of `owner`, or only those of one job, and passes each of them
    /// to `take` when it arrives. `take` returns whether it wants more. Nothing else is kept, however
    /// much the host sends. Of a checkpoint that is `known` already, the signature is not checked again.
    ///
    /// # Errors
    /// When the host does not answer, sends less than 64 KiB in 10 s, lists more than any host keeps, or sends a
    /// manifest that is not valid, belongs to another owner or job, or is out of order.
    pub async fn find(
        &self,
        host: HostIndex,
        owner: OwnerId,
        job_tag: Option<JobTag>,
        known: impl Fn(CheckpointId) -> Option<AlreadyShown>,
        mut take: impl FnMut(Shown) -> bool,
    ) -> Result<(), Fault> {
        let mut answer = Answer::of(owner, job_tag);
        loop {
            let before = answer.last;
            let asked = Request::Find {
                job_tag,
                after: before,
            };
            let (response, mut exchange) = self.request(host, &asked, REQUEST_TIMEOUT).await?;
            let Response::Found { count, more } = response else {
                return Err(unexpected("find"));
            };
            if count > RECORDS_MAX {
                return Err(unexpected("find"));
            }
            for _ in 0..count {
                let limit = answer.time_left()?;
                let record = read_frame(&mut exchange.recv, limit).await?;
                if let Some(shown) = answer.check(record, &known)?
                    && !take(shown)
                {
                    return Ok(());
                }
            }
            if !more {
                return Ok(());
            }
            if answer.last == before {
                return Err(unexpected("find"));
            }
        }
    }

    /// Has a host show a checkpoint of which it need not hold a shard.
    ///
    /// # Errors
    /// When the host does not confirm it.
    pub async fn keep_manifest(&self, host: HostIndex, manifest: Vec<u8>) -> Result<(), Fault> {
        let message = Request::KeepManifest { manifest };
        match self.request(host, &message, REQUEST_TIMEOUT).await? {
            (Response::Committed, _) => Ok(()),
            _ => Err(unexpected("keep manifest")),
        }
    }
}

/// The state of an answer that is being read.
struct Answer {
    owner: OwnerId,
    job_tag: Option<JobTag>,
    last: Option<CheckpointId>,
    /// How many checkpoints were listed.
    listed: u32,
    bytes: u64,
    began: Instant,
}

impl Answer {
    fn of(owner: OwnerId, job_tag: Option<JobTag>) -> Self {
        Self {
            owner,
            job_tag,
            last: None,
            listed: 0,
            bytes: 0,
            began: Instant::now(),
        }
    }

    fn time_left(&self) -> Result<Duration, Fault> {
        let took = self.began.elapsed();
        time_left(took, self.bytes).ok_or_else(|| {
            let bytes = self.bytes;
            let seconds = took.as_secs();
            Fault::Gone(format!("{bytes} bytes of its list came in {seconds} s"))
        })
    }

    /// Checks a record. `None` if its manifest has a later format.
    fn check(
        &mut self,
        record: Record,
        known: impl Fn(CheckpointId) -> Option<AlreadyShown>,
    ) -> Result<Option<Shown>, Fault> {
        self.bytes += record.manifest.len() as u64;
        self.listed += 1;
        if self.listed > LISTED_MAX {
            let what = format!("a list of more than {LISTED_MAX} checkpoints");
            return Err(Fault::Lied(what));
        }
        let named = Manifest::named_in(&record.manifest);
        let already = named.and_then(|id| Some((id, known(id)?)));
        let same = already.filter(|(_, it)| it.hash == Manifest::hash_of(&record.manifest));
        if let Some((checkpoint, it)) = same {
            let manifest = ShownManifest::Known;
            return self.shown((checkpoint, manifest), &it, &record.shards);
        }
        let manifest = match Manifest::parse(record.manifest) {
            Ok(manifest) => manifest,
            // A later version of the owner's program made it, so the host is not at fault.
            Err(ManifestError::Format(_)) => return Ok(None),
            Err(cause) => return Err(Fault::Lied(cause.to_string())),
        };
        let public = manifest.public();
        if public.owner != self.owner {
            return Err(Fault::Lied("a manifest of another owner".into()));
        }
        let it = AlreadyShown {
            hash: manifest.hash(),
            job_tag: public.job_tag,
            redundancy: public.redundancy,
        };
        let checkpoint = public.checkpoint;
        let manifest = ShownManifest::New(Box::new(manifest));
        self.shown((checkpoint, manifest), &it, &record.shards)
    }

    fn shown(
        &mut self,
        (checkpoint, manifest): (CheckpointId, ShownManifest),
        it: &AlreadyShown,
        shards: &[u8],
    ) -> Result<Option<Shown>, Fault> {
        if self.job_tag.is_some_and(|tag| tag != it.job_tag) {
            return Err(Fault::Lied("a manifest of another job".into()));
        }
        // The order must be ascending, so that a host can't send the same record for ever.
        if self.last.is_some_and(|last| last >= checkpoint) {
            return Err(Fault::Lied("manifests out of order".into()));
        }
        if shards.len() > it.redundancy.total() {
            return Err(Fault::Lied("more shards than there are".into()));
        }
        self.last = Some(checkpoint);
        let shards = shards.iter();
        let shards = shards.filter_map(|&number| it.redundancy.shard(number));
        Ok(Some(Shown {
            checkpoint,
            manifest,
            shards: shards.collect(),
        }))
    }
}

/// Time limit for the next record, if `bytes` arrived in the time `took`. `None` if that was too slow.
pub(crate) fn time_left(took: Duration, bytes: u64) -> Option<Duration> {
    let periods = u32::try_from(1 + bytes / PACE_BYTES).unwrap_or(u32::MAX);
    let left = REQUEST_TIMEOUT.saturating_mul(periods).checked_sub(took)?;
    (!left.is_zero()).then_some(left.min(REQUEST_TIMEOUT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_lists_more_than_a_host_keeps_lies() {
        let mut answer = Answer::of(OwnerId([1; 32]), None);
        // Passed over, since a later program may have written it, but counted.
        let record = || Record {
            manifest: b"CKPTMAN9".to_vec(),
            shards: Vec::new(),
        };
        for _ in 0..LISTED_MAX {
            assert_eq!(answer.check(record(), |_| None), Ok(None));
        }
        let more = answer.check(record(), |_| None);
        assert!(matches!(more, Err(Fault::Lied(_))), "{more:?}");
    }

    #[test]
    fn a_list_that_drips_ends_and_one_that_flows_goes_on() {
        let seconds = Duration::from_secs;
        assert_eq!(time_left(seconds(0), 0), Some(seconds(10)));
        // Records that arrive now and then are too slow, even if each arrives within its own time limit.
        assert_eq!(time_left(seconds(9), 600), Some(seconds(1)));
        assert_eq!(time_left(seconds(10), 1_200), None);
        let hour = seconds(3600);
        assert_eq!(time_left(hour, 360 * PACE_BYTES), Some(seconds(10)));
        assert_eq!(time_left(hour, 358 * PACE_BYTES), None);
    }
}
