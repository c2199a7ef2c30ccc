//! Chooses and reads the base of a new version: the earlier version that it is compared with. The new version uses rows
//! of the base, and of the origins of the base.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use codec::base::Base;
use codec::encode::Link;
use codec::layers::{CHAIN_BYTES_MIN, Chain, Origin};
use codec::manifest::Summary;
use codec::pieces::{BaseRef, EarlierSegments};
use codec::seal::DataKey;
use codec::segment::Cleaning;
use codec::{CheckpointId, Version};

use tokio::time::{Instant, timeout};

use crate::agent::ask::gather::Gathered;
use crate::agent::read::fetch::Unreadable;
use crate::agent::read::hashes::{MEMORY_SHARE, hash_bytes};
use crate::agent::{Agent, SaveRequest};
use crate::core::HostIndex;
use crate::core::chain::{Hurry, OriginState, plan};
use crate::core::retention;
use crate::inventory::KnownCheckpoint;
use crate::report::SaveReport;
use transfer::get::BlockReader;

/// The base is read for at most one in this many of the time that is left.
const READING_SHARE: u32 = 2;

/// How many of the newest versions a save with a deadline looks at for a base.
const LOOKED_AT_MAX: usize = 8;

/// How many segments of the new version are remembered, to find what its files have in common.
pub(crate) fn remembered(memory_bytes: u64) -> usize {
    let segments = memory_bytes / MEMORY_SHARE / EarlierSegments::SEGMENT_MEMORY;
    usize::try_from(segments).unwrap_or(usize::MAX)
}

/// The base with which a save is compared.
pub(crate) struct ChosenBase {
    /// The base, then its origins.
    pub(crate) origins: Vec<Origin>,
    pub(crate) version: Version,
    /// Sum of the file sizes of its image.
    pub(crate) image_bytes: u64,
    pub(crate) pieces: Arc<Base>,
    /// What is stored again.
    pub(crate) cleaning: Cleaning,
    /// The hosts of the base, by its shards.
    pub(crate) holders: Vec<HostIndex>,
    pieces_key: DataKey,
    /// What hosts hold of each of the origins.
    known: Vec<KnownOrigin>,
}

/// What hosts hold of an origin.
#[derive(Clone, Copy, Debug)]
struct KnownOrigin {
    reference: BaseRef,
    version: Option<Version>,
    /// How many of its shards can be lost, of those that hosts have now.
    can_lose: usize,
    /// How many of its shards no host has that answered.
    away: usize,
}

impl ChosenBase {
    /// What the encoder is given.
    pub(crate) fn link(&self) -> Link {
        Link {
            pieces_key: self.pieces_key.clone(),
            origins: self.origins.clone(),
        }
    }

    /// Notes which of the origins are versions yet, and not only kept for their rows.
    pub(crate) fn note_versions(&mut self, versions: &BTreeSet<CheckpointId>) {
        for origin in &mut self.origins {
            origin.is_version = versions.contains(&origin.reference.checkpoint);
        }
    }

    /// Enters into the report of a version what it owes to what it `needs`.
    pub(crate) fn report_to(&self, needs: &[BaseRef], report: &mut SaveReport) {
        let needed = self.known.iter();
        let needed = needed.filter(|one| needs.contains(&one.reference));
        let Some(weakest) = needed.min_by_key(|one| one.can_lose) else {
            report.new_bytes = None;
            return;
        };
        report.base = Some(self.version);
        let own = report.can_lose;
        report.can_lose = own.min(weakest.can_lose);
        if weakest.away > 0 && weakest.can_lose < own {
            let version = weakest.version.map_or_else(
                || "an older version".to_owned(),
                |version| format!("version {version}"),
            );
            report.warnings.push(format!(
                "this version builds on {version}, which lacks shards ({} away): until these are back, it \
                 survives the loss of {} instead of {own} hosts; later saves store that part of the image again",
                weakest.away, weakest.can_lose
            ));
        }
    }
}

/// A version that may be the base.
struct Candidate<'a> {
    known: &'a KnownCheckpoint,
    summary: Summary,
    chain: Chain,
}

impl Agent {
    /// The base for a new version, if there is one that can be compared with it and read: the newest version. A save
    /// that may not be late takes an older one if that can't be.
    pub(crate) async fn base_for(
        &self,
        gathered: &Gathered,
        request: &SaveRequest,
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
        let hurry = match left {
            _ if request.options.is_last => Hurry::Last,
            Some(_) => Hurry::Deadline,
            None => Hurry::None,
        };
        let looked_at = match hurry {
            Hurry::None => 1,
            Hurry::Deadline | Hurry::Last => LOOKED_AT_MAX,
        };
        for version in newest.take(looked_at) {
            let Some(candidate) = self.candidate(version, gathered, request) else {
                continue;
            };
            if let Some(base) = self.read_in_time(&candidate, gathered, hurry, left).await {
                return Some(base);
            }
        }
        None
    }

    /// A note that the image was stored whole because comparing it with the newest version takes too much memory.
    pub(crate) fn note_of_memory(&self, newest: Option<&KnownCheckpoint>) -> Option<String> {
        let newest = newest?;
        let summary = newest.manifest.open(&self.keys).ok()?;
        let needed = hash_bytes(&summary).saturating_mul(MEMORY_SHARE);
        let is_too_much = summary.tail.chain.is_some() && needed > self.resources.memory_bytes;
        is_too_much.then(|| {
            format!(
                "the image was stored whole: comparing it with version {} needs --memory {}MiB",
                newest.version(),
                needed.div_ceil(1 << 20)
            )
        })
    }

    /// The version, if a new one can be compared with it and may build on it.
    fn candidate<'a>(
        &self,
        version: &'a KnownCheckpoint,
        gathered: &Gathered,
        request: &SaveRequest,
    ) -> Option<Candidate<'a>> {
        let said = gathered.said.as_ref();
        let owner = self.keys.owner();
        let signed_by = version.manifest.signer();
        if !retention::admits(version.stamp(), signed_by, owner, self.keys.signer(), said) {
            return None;
        }
        let summary = version.manifest.open(&self.keys).ok()?;
        let chain = summary.tail.chain.clone()?;
        let serves = self.has_room_for_hashes(&summary)
            && summary.stream_bytes >= CHAIN_BYTES_MIN
            && version.manifest.public().cipher == request.options.cipher
            && version.can_lose().is_some();
        serves.then_some(Candidate {
            known: version,
            summary,
            chain,
        })
    }

    /// Reads a base, but only for as long as a version without it may still be in time.
    async fn read_in_time(
        &self,
        candidate: &Candidate<'_>,
        gathered: &Gathered,
        hurry: Hurry,
        left: Option<Duration>,
    ) -> Option<ChosenBase> {
        let reading = self.read_base(candidate, gathered, hurry);
        let read = match left {
            None => reading.await,
            Some(left) => timeout(left / READING_SHARE, reading)
                .await
                .unwrap_or_else(|_| Err(Unreadable::because("it takes too long"))),
        };
        match read {
            Ok(base) => Some(base),
            Err(stop) => {
                let version = candidate.known.version();
                tracing::warn!(%version, ?stop, "the earlier version can't be read, and the image is not compared with it");
                None
            }
        }
    }

    async fn read_base(
        &self,
        candidate: &Candidate<'_>,
        gathered: &Gathered,
        hurry: Hurry,
    ) -> Result<ChosenBase, Unreadable> {
        let known = candidate.known;
        let summary = &candidate.summary;
        let public = known.manifest.public();
        let reader = BlockReader::new(self.hosts.clone(), public.clone());
        let (index, hashes) = tokio::try_join!(
            self.read_index(known, summary, &reader),
            self.read_hashes(known, summary, &reader),
        )?;
        let unusable = |cause: String| Unreadable::because(cause);
        let origins = candidate.chain.origins.len();
        index
            .check_origins(origins)
            .map_err(|cause| unusable(cause.to_string()))?;
        let key = candidate.chain.pieces_key.clone();
        // Takes a while for a large image, so it runs on a thread of its own.
        let building = tokio::task::spawn_blocking(move || Base::new(&index, &hashes, &key));
        let pieces = building
            .await
            .map_err(|cause| unusable(cause.to_string()))?
            .map_err(|cause| unusable(cause.to_string()))?;
        if self.keys.grant().is_some() {
            self.try_sample(known, gathered, &pieces).await?;
        }
        let origins = candidate.origins();
        let known_origins = origins
            .iter()
            .map(|origin| known_origin(origin, gathered))
            .collect();
        let states = states(&origins, &pieces, gathered);
        Ok(ChosenBase {
            cleaning: plan(&states, candidate.chain.changed_bytes, hurry),
            version: known.version(),
            image_bytes: summary.image_bytes,
            pieces: Arc::new(pieces),
            holders: known.holders.iter().map(|(_, host)| *host).collect(),
            pieces_key: candidate.chain.pieces_key.clone(),
            known: known_origins,
            origins,
        })
    }
}

impl Candidate<'_> {
    /// The version itself, and its origins.
    fn origins(&self) -> Vec<Origin> {
        let own = Origin {
            reference: self.known.reference(),
            data_key: self.summary.data_key.clone(),
            is_version: true,
        };
        let others = self.chain.origins.iter().cloned();
        [own].into_iter().chain(others).collect()
    }
}

/// What is known of these origins of a new version, of whose base these are the pieces.
fn states(origins: &[Origin], pieces: &Base, gathered: &Gathered) -> Vec<OriginState> {
    let used = pieces.used_bytes();
    let silent = gathered.silence().silent;
    let state = |(number, origin): (usize, &Origin)| {
        let used = used.get(number).copied().unwrap_or_default();
        let state = OriginState {
            held_bytes: used.stored,
            used_bytes: used.stored,
            image_bytes: used.raw,
            found: 0,
            away: silent,
            data: 1,
        };
        let Some(known) = gathered.inventory.needed(origin.reference) else {
            return state;
        };
        let public = known.manifest.public();
        let data = public.redundancy.data();
        let found = known.shards_found();
        OriginState {
            held_bytes: public.block_bytes.saturating_mul(data as u64),
            found,
            away: silent.min(public.redundancy.total().saturating_sub(found)),
            data,
            ..state
        }
    };
    origins.iter().enumerate().map(state).collect()
}

fn known_origin(origin: &Origin, gathered: &Gathered) -> KnownOrigin {
    let known = gathered.inventory.needed(origin.reference);
    let total = known.map(|known| known.manifest.public().redundancy.total());
    let found = known.map_or(0, KnownCheckpoint::shards_found);
    KnownOrigin {
        reference: origin.reference,
        version: known.map(KnownCheckpoint::version),
        can_lose: known
            .and_then(KnownCheckpoint::can_lose)
            .unwrap_or_default(),
        away: total.unwrap_or_default().saturating_sub(found),
    }
}
