//! Chooses and reads the base of a new version: the earlier version that it is compared with. The new version uses rows
//! of the base, and of the origins of the base.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use codec::base::Base;
use codec::chain::{Hurry, OriginState, plan};
use codec::encode::Link;
use codec::index::Index;
use codec::journal::{Content, Journal};
use codec::layers::{CHAIN_BYTES_MIN, Chain, Origin};
use codec::manifest::Summary;
use codec::pieces::{BaseRef, EarlierSegments};
use codec::seal::DataKey;
use codec::segment::{Again, Cleaning};
use codec::{CheckpointId, Version};

use placement::absence::RepairWaits;
use placement::renewal::OlderRows;
use tokio::time::{Instant, timeout};

use crate::agent::ask::gather::Gathered;
use crate::agent::read::fetch::Unreadable;
use crate::agent::read::hashes::{NoBase, base_of, pieces};
use crate::agent::save::remnants::{Asking, Left, Remnant};
use crate::agent::{Agent, SaveRequest};
use crate::core::HostIndex;

use crate::core::compared::memory_needed;
use crate::core::retention;
use crate::inventory::KnownCheckpoint;
use crate::report::SaveReport;
use crate::unix_time::unix_seconds;
use transfer::get::BlockReader;

/// The base is read for at most one in this many of the time that is left.
const READING_SHARE: u32 = 2;

/// How many of the newest versions a save with a deadline looks at for a base.
const LOOKED_AT_MAX: usize = 8;

/// One in this many bytes of the memory is for segments of the new version that are remembered.
const MEMORY_SHARE: u64 = 8;

/// How many segments of the new version are remembered, to find what its files have in common.
pub(crate) fn remembered(memory_bytes: u64) -> usize {
    let segments = memory_bytes / MEMORY_SHARE / EarlierSegments::SEGMENT_MEMORY;
    usize::try_from(segments).unwrap_or(usize::MAX)
}

/// The base with which a save is compared.
pub(crate) struct ChosenBase {
    /// The remnants of interrupted saves, then the base, then its origins.
    pub(crate) origins: Vec<Origin>,
    /// The base; `None` if there are only remnants.
    pub(crate) version: Option<Version>,
    /// Sum of the file sizes of its image.
    pub(crate) image_bytes: u64,
    pub(crate) pieces: Arc<Base>,
    /// What is known of each of the origins.
    states: Vec<OriginState>,
    /// Bytes of the image that will probably be new.
    changed_bytes: u64,
    hurry: Hurry,
    /// The hosts of the base, by its shards.
    pub(crate) holders: Vec<HostIndex>,
    pieces_key: DataKey,
    /// What hosts hold of each of the origins.
    known: Vec<KnownOrigin>,
    /// The first so many of the origins are remnants.
    pub(crate) remnants: usize,
}

/// A version with which a new one is compared.
struct Start {
    origins: Vec<Origin>,
    version: Option<Version>,
    image_bytes: u64,
    /// Its index, and the hashes of its pieces.
    index: Index,
    hashes: Vec<u8>,
    /// Where its hashes are put if memory would not hold them.
    hashes_dir: Option<PathBuf>,
    holders: Vec<HostIndex>,
    /// `None` if it is no version: then the key of the first remnant.
    pieces_key: Option<DataKey>,
    changed_bytes: u64,
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

    /// What is stored again.
    pub(super) fn cleaning(&self) -> Cleaning {
        plan(&self.states, self.changed_bytes, self.hurry)
    }

    /// Whether the save has time to store origins again that are at risk on their hosts.
    pub(super) fn has_time(&self) -> bool {
        self.hurry == Hurry::None
    }

    /// The rows of the origins, and the hosts that have them.
    pub(super) fn older_rows(&self, gathered: &Gathered) -> Vec<OlderRows<HostIndex>> {
        let of = |(origin, state): (&Origin, &OriginState)| OlderRows {
            hosts: gathered
                .inventory
                .needed(origin.reference)
                .map(KnownCheckpoint::one_holder_of_each)
                .unwrap_or_default(),
            data: state.data,
            stored_bytes: state.used_bytes,
        };
        self.origins.iter().zip(&self.states).map(of).collect()
    }

    /// Whether rows of origins are used, as far as they have not changed.
    pub(super) fn uses_origins(&self) -> bool {
        let origins = self.cleaning().origins;
        origins.iter().any(|again| *again != Again::All)
    }

    /// Notes which of the origins are at risk on their hosts.
    pub(super) fn note_risks(&mut self, is_at_risk: &[bool]) {
        for (state, is_at_risk) in self.states.iter_mut().zip(is_at_risk) {
            state.is_at_risk = *is_at_risk;
        }
    }

    /// Enters into the report of a version what it owes to what it `needs`.
    pub(crate) fn report_to(&self, needs: &[BaseRef], report: &mut SaveReport) {
        if self.states.iter().any(|state| state.is_at_risk) {
            let note = "parts of older versions were stored again, because their hosts are less likely to be there \
                        when the job needs them";
            report.notes.push(note.to_owned());
        }
        let needed = self.known.iter();
        let needed = needed.filter(|one| needs.contains(&one.reference));
        let Some(weakest) = needed.min_by_key(|one| one.can_lose) else {
            report.new_bytes = None;
            return;
        };
        report.base = self.version;
        if self.version.is_none() {
            report.new_bytes = None;
        }
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
    /// Where its hashes are put if memory would not hold them.
    hashes_dir: Option<PathBuf>,
    summary: Summary,
    chain: Chain,
}

impl Agent {
    /// The base for a new version, if there is one that can be compared with it and read: the newest version. A save
    /// that may not be late takes an older one if that can't be.
    pub(super) async fn base_for(
        &self,
        asking: Asking<'_>,
        started: Instant,
    ) -> (Option<ChosenBase>, Left) {
        let Asking {
            gathered, request, ..
        } = asking;
        let nothing = || (None, Left::default());
        if request.options.full {
            return nothing();
        }
        let newest = gathered.inventory.newest_first().into_iter();
        let shown = newest.clone().map(KnownCheckpoint::stamp);
        if retention::is_announced(shown, gathered.said.as_ref()) {
            return nothing();
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
        let mut start = None;
        for version in newest.take(looked_at) {
            let Some(candidate) = self.candidate(version, gathered, request) else {
                continue;
            };
            start = self.read_in_time(&candidate, gathered, left).await;
            if start.is_some() {
                break;
            }
        }
        let origins = start.as_ref().map_or(&[][..], |start| &start.origins);
        let looking = self.left_of_saves(asking, origins);
        let looked = match left {
            None => looking.await,
            Some(left) => timeout(left / READING_SHARE, looking)
                .await
                .unwrap_or_default(),
        };
        let chosen = self.compared_with(start, &looked, gathered, hurry).await;
        (chosen, looked)
    }

    /// What a version is compared with that starts from an earlier version, from what interrupted saves left, or from
    /// both.
    async fn compared_with(
        &self,
        start: Option<Start>,
        left: &Left,
        gathered: &Gathered,
        hurry: Hurry,
    ) -> Option<ChosenBase> {
        let first = left.remnants.last();
        let first = first.map(|first| first.left.journal.head.data_key.clone());
        let start = start.unwrap_or_else(Start::nothing);
        let journals: Vec<(Journal, u64)> = left.remnants.iter().map(Remnant::part).collect();
        let pieces_key = start.pieces_key.or(first)?;
        let key = pieces_key.clone();
        let index = start.index;
        let hashes = start.hashes;
        let dir = start.hashes_dir;
        // Takes a while for a large image, so it runs on a thread of its own.
        let building =
            tokio::task::spawn_blocking(move || build(index, hashes, &key, &journals, dir));
        let pieces = building.await.map_err(|cause| cause.to_string());
        let pieces = pieces.and_then(|built| built.map_err(|cause| cause.to_string()));
        let pieces = pieces
            .inspect_err(|cause| {
                tracing::warn!(cause, "the image is not compared with what is stored")
            })
            .ok()?;
        let remnants = left.remnants.iter();
        let origins: Vec<Origin> = remnants
            .clone()
            .map(Remnant::origin)
            .chain(start.origins.iter().cloned())
            .collect();
        let known = remnants.clone().map(KnownOrigin::of_remnant);
        let others = start.origins.iter();
        let known = known.chain(others.map(|origin| known_origin(origin, gathered)));
        let expected = self.expected_back(gathered);
        let mut states = states(&origins, &pieces, gathered, expected);
        for (state, remnant) in states.iter_mut().zip(remnants.clone()) {
            *state = remnant.state(*state);
        }
        // The interrupted save has stored again what was to be, and this one is to be short.
        let hurry = match hurry {
            Hurry::None if !left.remnants.is_empty() => Hurry::Deadline,
            hurry => hurry,
        };
        let of_remnants = remnants.flat_map(|one| one.holders.iter().map(|(_, host)| *host));
        let holders = of_remnants.chain(start.holders).collect();
        Some(ChosenBase {
            states,
            changed_bytes: start.changed_bytes,
            hurry,
            version: start.version,
            image_bytes: start.image_bytes,
            pieces: Arc::new(pieces),
            holders,
            pieces_key,
            known: known.collect(),
            origins,
            remnants: left.remnants.len(),
        })
    }

    /// How many silent hosts are expected back, as repair expects it at the most: which of them have the shards that are
    /// missing is not known, nor how long they were away before.
    fn expected_back(&self, gathered: &Gathered) -> usize {
        let silent = gathered.silent.iter().chain(&gathered.absent);
        let since = silent.map(|(host, _)| self.hosts.silent_since(*host));
        expected(since, RepairWaits::default().most, unix_seconds())
    }

    /// A note that the image was stored whole because comparing it with the newest version takes too much memory.
    pub(crate) fn note_of_memory(&self, newest: Option<&KnownCheckpoint>) -> Option<String> {
        let newest = newest?;
        let summary = newest.manifest.open(&self.keys).ok()?;
        let has_file = self.notebook.dir().is_some();
        let needed = memory_needed(pieces(&summary), has_file);
        let is_too_much = summary.tail.chain.is_some() && self.hash_place(&summary).is_none();
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
        let place = self.hash_place(&summary)?;
        let serves = summary.stream_bytes >= CHAIN_BYTES_MIN
            && version.manifest.public().cipher == request.options.cipher
            && version.can_lose().is_some();
        serves.then(|| Candidate {
            known: version,
            hashes_dir: self.hashes_dir(place),
            summary,
            chain,
        })
    }

    /// Reads a base, but only for as long as a version without it may still be in time.
    async fn read_in_time(
        &self,
        candidate: &Candidate<'_>,
        gathered: &Gathered,
        left: Option<Duration>,
    ) -> Option<Start> {
        let reading = self.read_base(candidate, gathered);
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
    ) -> Result<Start, Unreadable> {
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
        if self.keys.grant().is_some() {
            let pieces = base_of(&index, &hashes, &key, candidate.hashes_dir.clone());
            let pieces = pieces.map_err(|cause| unusable(cause.to_string()))?;
            self.try_sample(known, gathered, &pieces).await?;
        }
        Ok(Start {
            version: Some(known.version()),
            image_bytes: summary.image_bytes,
            index,
            hashes,
            hashes_dir: candidate.hashes_dir.clone(),
            holders: known.holders.iter().map(|(_, host)| *host).collect(),
            pieces_key: Some(key),
            changed_bytes: candidate.chain.changed_bytes,
            origins: candidate.origins(),
        })
    }
}

impl Start {
    /// That of a version that is compared with no earlier one.
    fn nothing() -> Self {
        Self {
            origins: Vec::new(),
            version: None,
            image_bytes: 0,
            index: Index::default(),
            hashes: Vec::new(),
            hashes_dir: None,
            holders: Vec::new(),
            pieces_key: None,
            changed_bytes: 0,
        }
    }
}

/// What a version is compared with: an earlier one, and before it the first rows of interrupted saves, the last save
/// first.
fn build(
    index: Index,
    hashes: Vec<u8>,
    key: &DataKey,
    remnants: &[(Journal, u64)],
    hashes_dir: Option<PathBuf>,
) -> Result<Base, NoBase> {
    if remnants.is_empty() {
        return base_of(&index, &hashes, key, hashes_dir);
    }
    let version = Content::of_version(index, &hashes)?;
    drop(hashes);
    let oldest_first = remnants.iter().rev();
    let content = { oldest_first }.fold(version, |before, (journal, rows)| {
        journal.content(*rows).followed_by(before)
    });
    let (index, hashes) = content.into_parts();
    base_of(&index, &hashes, key, hashes_dir)
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

/// How many hosts are expected back `now` that are silent `since` these times (Unix seconds; `None` where nobody has seen
/// them silent before), if each is expected for as long as `wait`.
fn expected(since: impl Iterator<Item = Option<u64>>, wait: Duration, now: u64) -> usize {
    let is_expected =
        |since: Option<u64>| since.is_none_or(|since| now.saturating_sub(since) <= wait.as_secs());
    since.filter(|since| is_expected(*since)).count()
}

/// What is known of these origins of a new version, of whose base these are the pieces. So many silent hosts are
/// `expected` back.
fn states(
    origins: &[Origin],
    pieces: &Base,
    gathered: &Gathered,
    expected: usize,
) -> Vec<OriginState> {
    let used = pieces.used_bytes();
    let state = |(number, origin): (usize, &Origin)| {
        let used = used.get(number).copied().unwrap_or_default();
        let state = OriginState {
            held_bytes: used.stored,
            used_bytes: used.stored,
            image_bytes: used.raw,
            found: 0,
            away: expected,
            data: 1,
            is_at_risk: false,
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
            away: expected.min(public.redundancy.total().saturating_sub(found)),
            data,
            ..state
        }
    };
    origins.iter().enumerate().map(state).collect()
}

impl KnownOrigin {
    fn of_remnant(remnant: &Remnant) -> Self {
        let public = remnant.manifest.public();
        let found = remnant.holders.len();
        Self {
            reference: remnant.reference(),
            version: None,
            can_lose: found.saturating_sub(public.redundancy.data()),
            away: public.redundancy.total().saturating_sub(found),
        }
    }
}

impl Remnant {
    /// The journal of the save, and how many of its rows there are.
    fn part(&self) -> (Journal, u64) {
        (self.left.journal.clone(), self.manifest.public().rows)
    }

    /// What is known of it as an origin of which a version uses as much as `used` states.
    fn state(&self, used: OriginState) -> OriginState {
        let public = self.manifest.public();
        let data = public.redundancy.data();
        OriginState {
            held_bytes: public.block_bytes.saturating_mul(data as u64),
            found: self.holders.len(),
            away: 0,
            data,
            ..used
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_expected_back_for_as_long_as_repair_waits() {
        let now = 1_000_000;
        let since = [None, Some(now), Some(now - 3600), Some(now - 3601), Some(0)];
        let expected = |wait| expected(since.into_iter(), Duration::from_secs(wait), now);
        assert_eq!(expected(3600), 3);
        assert_eq!(expected(900), 2);
        assert_eq!(expected(3601), 4);
    }

    #[test]
    fn a_clock_that_was_set_back_makes_no_host_lost() {
        assert_eq!(
            expected([Some(20)].into_iter(), Duration::from_secs(900), 10),
            1
        );
    }
}
