//! Chooses and reads the base of a new version: the earlier checkpoint that it refers to.

use std::sync::Arc;
use std::time::Duration;

use codec::Version;
use codec::base::Base;
use codec::keys::Keys;
use codec::labels::Labels;
use codec::manifest::{Manifest, Summary};
use codec::pieces::{BaseRef, EarlierSegments, PIECE_BYTES};

use tokio::time::{Instant, timeout};

use crate::agent::ask::gather::Gathered;
use crate::agent::read::fetch::Unreadable;
use crate::agent::{Agent, SaveRequest};
use crate::core::place::{FIRST_RATE, Placed};
use crate::core::retention;
use crate::inventory::KnownCheckpoint;
use crate::report::SaveReport;
use crate::unix_time::unix_seconds;
use transfer::get::BlockReader;

/// Smaller images are saved whole: comparing them with a base saves no time.
const IMAGE_BYTES_MIN: u64 = 4 << 20;

/// If the last version had to store more than one byte in this many of what its base stored, the next version
/// is saved whole: otherwise a restore would have to read too much.
const FOLD_SHARE: u64 = 5;

/// A whole version is surely in time if it is expected to take at most one in this many of the time that is
/// left. As much of that time is left when the base is read in vain.
const SURE_SHARE: u32 = 2;

/// The rate of a host that was never measured, bytes per second, when a whole version has to be surely in
/// time: 10 Mbit/s.
const UNSURE_RATE: f64 = FIRST_RATE / 10.0;

/// How many of the newest versions a save with little time looks at for a base.
const LOOKED_AT_MAX: usize = 8;

/// One in this many bytes of the memory is for hashes of the base, and as much for hashes of the image.
const MEMORY_SHARE: u64 = 8;

/// How many segments of the new version are remembered, to find what its files have in common.
pub(crate) fn remembered(memory_bytes: u64) -> usize {
    let segments = memory_bytes / MEMORY_SHARE / EarlierSegments::SEGMENT_MEMORY;
    usize::try_from(segments).unwrap_or(usize::MAX)
}

/// The base with which a save is compared.
pub(crate) struct ChosenBase {
    pub(crate) reference: BaseRef,
    pub(crate) version: Version,
    pub(crate) pieces: Arc<Base>,
    /// How many of its shards can be lost, of those that hosts have now.
    can_lose: usize,
    /// How many of its shards no host has that answered.
    away: usize,
    /// What the version before stored on the same base, bytes.
    stored_before: Option<u64>,
}

impl ChosenBase {
    /// Enters into the report of a version what it owes to its base.
    pub(crate) fn report_to(&self, report: &mut SaveReport) {
        report.base = Some(self.version);
        let before = self.stored_before;
        report.new_bytes = before.map(|before| report.stored_bytes.saturating_sub(before));
        let own = report.can_lose;
        report.can_lose = own.min(self.can_lose);
        if self.away > 0 && self.can_lose < own {
            report.warnings.push(format!(
                "this version builds on version {}, which lacks shards ({} away), because a whole one could \
                 be late: until these are back, it survives the loss of {} instead of {own} hosts; a save with \
                 more time stores the image whole",
                self.version, self.away, self.can_lose
            ));
        }
    }
}

/// Whether a new version may be stored whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Haste {
    /// There is time for that.
    None,
    /// There is time for that, but the state is lost if the save is late.
    Last,
    /// A whole version may be late.
    Pressed,
}

/// An earlier whole version, and the patches on it.
struct Candidate<'a> {
    known: &'a KnownCheckpoint,
    summary: Summary,
    /// What the version stored that led to this candidate, and builds on it.
    patch_bytes: u64,
}

/// What decides whether a version serves as a base.
#[derive(Clone, Copy, Debug)]
struct Standing {
    /// Its pieces can be compared with the new image.
    is_comparable: bool,
    can_lose: Option<usize>,
    parity: usize,
    stream_bytes: u64,
    stored_bytes: u64,
    patch_bytes: u64,
}

impl Standing {
    fn serves(&self, haste: Haste) -> bool {
        if !self.is_comparable {
            return false;
        }
        // A base that lacks shards can lose fewer hosts, and so can all that build on it. But so can the
        // version before, and a version that is late is none.
        if haste == Haste::Pressed {
            return self.can_lose.is_some();
        }
        let is_there = self.can_lose == Some(self.parity);
        let keeps_restores_short = self.patch_bytes <= self.stored_bytes / FOLD_SHARE;
        let is_large = self.stream_bytes >= IMAGE_BYTES_MIN;
        is_there && is_large && (haste == Haste::Last || keeps_restores_short)
    }
}

impl Agent {
    /// The base for a new version of probably `planned_bytes` for the hosts in `placed`, if there is one
    /// worth using: all its shards are at hosts that answer, and the last version did not differ too much
    /// from it. A save that has no time for a whole version takes any base that can be read.
    pub(crate) async fn base_for(
        &self,
        gathered: &Gathered,
        request: &SaveRequest,
        placed: Option<&Placed>,
        planned_bytes: Option<u64>,
        started: Instant,
    ) -> Option<ChosenBase> {
        if request.options.full {
            return None;
        }
        let newest = gathered.inventory.newest_first().into_iter();
        let shown = newest.clone().map(KnownCheckpoint::stamp);
        if retention::is_announced(shown, gathered.said.as_ref()) {
            return None;
        }
        let left = request.options.deadline;
        let left = left.map(|limit| limit.saturating_sub(started.elapsed()));
        let rate = placed.and_then(|placed| self.sure_rate(placed));
        for (age, version) in newest.take(LOOKED_AT_MAX).enumerate() {
            let Some(candidate) = self.candidate(gathered, version) else {
                continue;
            };
            let bytes = whole_bytes(&candidate.summary, planned_bytes);
            let haste = match left {
                Some(left) if !is_surely_in_time(bytes, rate, left) => Haste::Pressed,
                _ if request.options.is_last => Haste::Last,
                _ => Haste::None,
            };
            let said = gathered.said.as_ref();
            let owner = self.keys.owner();
            let base = candidate.known;
            let signed_by = base.manifest.signer();
            if !retention::admits(base.stamp(), signed_by, owner, self.keys.signer(), said) {
                continue;
            }
            if haste == Haste::None && versions_apart(&version.manifest, &self.keys) > 0 {
                return None;
            }
            let is_near = age == 0 || haste == Haste::Pressed;
            if is_near && self.standing(&candidate, request).serves(haste) {
                let before = (age == 0).then_some(candidate.patch_bytes);
                return self.read_in_time(&candidate, left, before).await;
            }
            if haste != Haste::Pressed {
                return None;
            }
        }
        None
    }

    /// The version itself if it was stored whole, else its base.
    fn candidate<'a>(
        &self,
        gathered: &'a Gathered,
        version: &'a KnownCheckpoint,
    ) -> Option<Candidate<'a>> {
        let summary = version.manifest.open(&self.keys).ok()?;
        let Some(base) = summary.tail.base else {
            return Some(Candidate {
                known: version,
                summary,
                patch_bytes: 0,
            });
        };
        let known = gathered.inventory.needed(base)?;
        Some(Candidate {
            known,
            summary: known.manifest.open(&self.keys).ok()?,
            patch_bytes: summary.stored_bytes,
        })
    }

    fn standing(&self, candidate: &Candidate<'_>, request: &SaveRequest) -> Standing {
        let public = candidate.known.manifest.public();
        let summary = &candidate.summary;
        let hash_bytes = summary.stream_bytes / PIECE_BYTES as u64 * Base::PIECE_MEMORY;
        Standing {
            is_comparable: hash_bytes <= self.resources.memory_bytes / MEMORY_SHARE
                && !summary.tail.pieces.is_empty()
                && public.cipher == request.options.cipher,
            can_lose: candidate.known.can_lose(),
            parity: public.redundancy.parity(),
            stream_bytes: summary.stream_bytes,
            stored_bytes: summary.stored_bytes,
            patch_bytes: candidate.patch_bytes,
        }
    }

    /// Bytes of an image per second that the chosen hosts are sure to take.
    fn sure_rate(&self, placed: &Placed) -> Option<f64> {
        let known = self.notebook.read(unix_seconds());
        let chosen = placed.order.iter().take(placed.width.total());
        let rates: Vec<Option<f64>> = chosen
            .map(|host| Some(self.measured(&known, *host)?.median()))
            .collect();
        let limit = self.resources.bytes_per_second.map(|rate| rate as f64);
        let uplink = known.uplink(unix_seconds());
        sure_rate(&rates, uplink, limit, placed.code.data())
    }

    /// Reads a base, but only for as long as a whole version would still be in time.
    async fn read_in_time(
        &self,
        candidate: &Candidate<'_>,
        left: Option<Duration>,
        stored_before: Option<u64>,
    ) -> Option<ChosenBase> {
        let reading = self.read_base(candidate, stored_before);
        let read = match left {
            None => reading.await,
            Some(left) => timeout(left / SURE_SHARE, reading)
                .await
                .unwrap_or_else(|_| Err(Unreadable::because("it takes too long"))),
        };
        match read {
            Ok(base) => Some(base),
            Err(stop) => {
                let version = candidate.known.version();
                tracing::warn!(%version, ?stop, "the image is saved whole, because the earlier version can't be read");
                None
            }
        }
    }

    async fn read_base(
        &self,
        candidate: &Candidate<'_>,
        stored_before: Option<u64>,
    ) -> Result<ChosenBase, Unreadable> {
        let known = candidate.known;
        let summary = &candidate.summary;
        let public = known.manifest.public();
        let reader = BlockReader::new(self.hosts.clone(), public.clone());
        let first = public.rows - summary.other_rows();
        let (index, hashes) = tokio::try_join!(
            self.read_index(known, summary, &reader),
            self.read_rows(known, summary, &reader, first, &summary.tail.pieces),
        )?;
        let key = summary.data_key.clone();
        // Takes a while for a large image, so it runs on a thread of its own.
        let building = tokio::task::spawn_blocking(move || Base::new(&index, &hashes, &key));
        let unusable = |cause: String| Unreadable::because(cause);
        let pieces = building
            .await
            .map_err(|cause| unusable(cause.to_string()))?
            .map_err(|cause| unusable(cause.to_string()))?;
        Ok(ChosenBase {
            reference: BaseRef {
                checkpoint: public.checkpoint,
                manifest: known.manifest.hash(),
                created: Some(public.created),
            },
            version: known.version(),
            pieces: Arc::new(pieces),
            can_lose: known.can_lose().unwrap_or_default(),
            away: public
                .redundancy
                .total()
                .saturating_sub(known.shards_found()),
            stored_before,
        })
    }
}

/// Label of a whole version whose job changes too much from version to version: for how many versions more no base is
/// tried. A base that saves next to nothing keeps a whole old version on the hosts.
const APART: &str = "ckpt.apart";

/// For how many versions no base is tried after one that saved next to nothing.
const APART_VERSIONS: u64 = 8;

/// A base that saves less than one in this many bytes saves next to nothing.
const SAVED_SHARE: u64 = 10;

fn versions_apart(version: &Manifest, keys: &Keys) -> u64 {
    let summary = version.open(keys).ok();
    let label = summary.and_then(|summary| summary.tail.labels.get(APART)?.parse().ok());
    label.unwrap_or(0)
}

impl Agent {
    /// `labels` of a whole version after `newest`, with for how many versions more no base is tried.
    pub(crate) fn with_apart(
        &self,
        labels: Labels,
        gathered: &Gathered,
        newest: Option<&KnownCheckpoint>,
    ) -> Labels {
        let Some(newest) = newest else {
            return labels;
        };
        let left = match self.candidate(gathered, newest) {
            Some(candidate) if candidate.saved_nothing() => APART_VERSIONS,
            _ => versions_apart(&newest.manifest, &self.keys).saturating_sub(1),
        };
        let mut pairs: Vec<(String, String)> = labels.clone().into();
        pairs.retain(|(key, _)| key != APART);
        pairs.extend((left > 0).then(|| (APART.to_owned(), left.to_string())));
        // If there are too many labels for one more, a base is tried in vain.
        Labels::new(pairs).unwrap_or(labels)
    }
}

impl Candidate<'_> {
    /// Whether the version that builds on this base has next to nothing in common with it.
    fn saved_nothing(&self) -> bool {
        saves_nothing(self.patch_bytes, self.summary.stored_bytes)
    }
}

const fn saves_nothing(patch_bytes: u64, whole_bytes: u64) -> bool {
    patch_bytes > whole_bytes - whole_bytes / SAVED_SHARE
}

/// Bytes that a whole version of `planned` image bytes probably stores: no fewer than the base, and as
/// compressible.
fn whole_bytes(base: &Summary, planned: Option<u64>) -> u64 {
    let ratio = base.stored_bytes as f64 / base.stream_bytes.max(1) as f64;
    let planned = planned.map_or(0, |planned| (planned as f64 * ratio) as u64);
    planned.max(base.stored_bytes)
}

/// Bytes of an image per second that hosts take which were measured at these rates. This machine's link
/// carries no more than `uplink`, nor than the user's `limit`. If the link was never measured, it carries
/// what the fastest host alone took. `None` without hosts.
fn sure_rate(
    rates: &[Option<f64>],
    uplink: Option<f64>,
    limit: Option<f64>,
    data: usize,
) -> Option<f64> {
    let rates = rates.iter().map(|rate| rate.unwrap_or(UNSURE_RATE));
    let rates: Vec<f64> = rates.collect();
    let slowest = rates.iter().copied().reduce(f64::min)?;
    let fastest = rates.iter().copied().reduce(f64::max)?;
    let link = uplink
        .unwrap_or(fastest)
        .min(limit.unwrap_or(f64::INFINITY));
    Some(slowest.min(link / rates.len() as f64) * data as f64).filter(|rate| *rate > 0.0)
}

fn is_surely_in_time(bytes: u64, rate: Option<f64>, left: Duration) -> bool {
    let takes = rate.map(|rate| bytes as f64 / rate);
    takes.is_some_and(|takes| takes * f64::from(SURE_SHARE) <= left.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A base of 512 MiB with all its shards, and a small patch on it.
    const GOOD: Standing = Standing {
        is_comparable: true,
        can_lose: Some(2),
        parity: 2,
        stream_bytes: 512 << 20,
        stored_bytes: 360 << 20,
        patch_bytes: 4 << 20,
    };

    const HASTES: [Haste; 3] = [Haste::None, Haste::Last, Haste::Pressed];

    #[track_caller]
    fn serves(standing: Standing, expected: [bool; 3]) {
        assert_eq!(HASTES.map(|haste| standing.serves(haste)), expected);
    }

    #[test]
    fn large_patches_are_ended_by_a_whole_version_only_if_that_loses_nothing() {
        serves(GOOD, [true; 3]);
        let grown = Standing {
            patch_bytes: 113 << 20,
            ..GOOD
        };
        serves(grown, [false, true, true]);
    }

    #[test]
    fn a_base_that_saves_a_few_percent_saves_nothing() {
        assert!(!saves_nothing(0, 100));
        assert!(!saves_nothing(90, 100));
        assert!(saves_nothing(91, 100));
        assert!(saves_nothing(120, 100));
    }

    #[test]
    fn a_base_that_lacks_shards_serves_where_a_whole_version_may_be_late() {
        let with = |can_lose| Standing { can_lose, ..GOOD };
        serves(with(Some(1)), [false, false, true]);
        serves(with(Some(0)), [false, false, true]);
        // It can't be restored, and what builds on it neither.
        serves(with(None), [false; 3]);
    }

    #[test]
    fn a_small_base_serves_only_where_the_image_may_be_late() {
        let small = Standing {
            stream_bytes: 1 << 20,
            stored_bytes: 1 << 20,
            patch_bytes: 0,
            ..GOOD
        };
        serves(small, [false, false, true]);
    }

    #[test]
    fn a_base_that_can_not_be_compared_never_serves() {
        let other = Standing {
            is_comparable: false,
            ..GOOD
        };
        serves(other, [false; 3]);
    }

    #[test]
    fn a_whole_version_is_sure_to_be_in_time_at_half_of_the_measured_rates() {
        let five = [30e6, 40e6, 30e6, 50e6, 20e6].map(Some);
        assert_eq!(sure_rate(&five, Some(1e9), None, 3), Some(60e6));
        assert_eq!(sure_rate(&five, Some(25e6), None, 3), Some(15e6));
        assert_eq!(sure_rate(&five, Some(25e6), Some(5e6), 3), Some(3e6));
        // Of the link nothing is known but that it carried 50 MB/s.
        assert_eq!(sure_rate(&five, None, None, 3), Some(30e6));
        assert_eq!(sure_rate(&[], None, None, 3), None);
        let one_unknown = [Some(30e6), None, Some(40e6), Some(50e6), Some(20e6)];
        let unsure = sure_rate(&one_unknown, Some(1e9), None, 3);
        assert_eq!(unsure, Some(3.0 * UNSURE_RATE));
        assert_eq!(
            sure_rate(&[None; 5], None, None, 3),
            Some(0.6 * UNSURE_RATE)
        );
        let left = Duration::from_secs(30);
        let bytes = 360 << 20;
        assert!(!is_surely_in_time(bytes, None, left));
        // 100 Mbit/s, as three fifths of which carry the image: 50 s.
        assert!(!is_surely_in_time(bytes, Some(7.5e6), left));
        assert!(!is_surely_in_time(bytes, Some(20e6), left));
        assert!(is_surely_in_time(bytes, Some(30e6), left));
        assert!(!is_surely_in_time(bytes, unsure, left));
        assert!(is_surely_in_time(bytes, unsure, 20 * left));
    }
}
