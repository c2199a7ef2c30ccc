//! `restore --dry-run`: what a restore would fetch, from which hosts, and how long that would take.

use std::collections::{BTreeMap, BTreeSet};

use codec::index::StoredSegment;
use placement::bandwidth::RateForecast;

use crate::agent::Agent;
use crate::agent::read::choose::FoundOrigin;
use crate::agent::read::fetch::Unreadable;
use crate::agent::read::restore::{Attempt, Image};
use crate::core::HostIndex;
use crate::core::pick::{PiecesAtHand, WantedRows};
use crate::core::place::FIRST_RATE;
use crate::image::{Sink, Target};
use crate::inventory::KnownCheckpoint;
use crate::report::{RestoreReport, SourceBytes};
use crate::unix_time::unix_seconds;

impl Attempt<'_> {
    /// Reports what a restore would do; fails where the restore would fail because of its target.
    pub(crate) async fn plan(
        &self,
        image: &Image,
        target: &Target,
        at_hand: &PiecesAtHand,
    ) -> Result<RestoreReport, Unreadable> {
        let own = image.own().clone();
        let to = target.clone();
        let options = self.sink_options();
        tokio::task::spawn_blocking(move || Sink::check(&own, &to, options))
            .await
            .map_err(|cause| Unreadable::because(cause.to_string()))?
            .map_err(|cause| self.sink_failure(&cause))?;
        let wanted = image.wanted();
        let rates = self.agent.rates();
        let mut sources = BTreeMap::new();
        let origins = image.sources.len().saturating_sub(1);
        let rows = wanted.rows(&image.index, origins, at_hand);
        for (number, (source, rows)) in image.sources.iter().zip(&rows).enumerate() {
            // A restore reads no index but that of the image itself.
            let index = (number == 0).then_some(image.summary.index.as_slice());
            let bytes = shard_bytes(source, rows, index.unwrap_or_default());
            add(&mut sources, &rates, &source.known, bytes);
        }
        let seconds = sources.iter().map(|(host, bytes)| {
            let rate = rates.get(host).copied().unwrap_or(FIRST_RATE);
            *bytes as f64 / rate.max(1.0)
        });
        Ok(RestoreReport {
            seconds: seconds.fold(0.0, f64::max),
            fetched_bytes: sources.values().sum(),
            sources: sources
                .iter()
                .map(|(host, bytes)| SourceBytes {
                    host: self.agent.hosts.name(*host).to_owned(),
                    bytes: *bytes,
                })
                .collect(),
            ..self.report(image, target, at_hand)
        })
    }
}

impl Agent {
    /// Bytes per second that each host is expected to send: its measured rate, or the usual rate of the
    /// others.
    fn rates(&self) -> BTreeMap<HostIndex, f64> {
        let now = unix_seconds();
        let known = self.notebook.read(now);
        let measured = |host: HostIndex| {
            let id = self.hosts.entry(host)?.id;
            Some(known.host(id)?.forecast(now)?.median())
        };
        let usual = RateForecast::of_unknown(self.hosts.all().filter_map(measured));
        let usual = usual.map_or(FIRST_RATE, |rate| rate.median());
        let all = self.hosts.all();
        all.map(|host| (host, measured(host).unwrap_or(usual)))
            .collect()
    }
}

/// Bytes of one shard in these rows and in those of an index.
fn shard_bytes(source: &FoundOrigin, rows: &WantedRows, index: &[StoredSegment]) -> u64 {
    let public = source.known.manifest.public();
    let overhead = public.sealer(&source.keys.data).overhead();
    let block = |stored: &StoredSegment| {
        let sealed = stored.stored_len as usize + overhead;
        public.redundancy.block_len(sealed) as u64
    };
    let all = rows.values().map(|(stored, _)| stored);
    all.chain(index).map(block).sum()
}

/// Adds `bytes` for each of the fastest hosts that together hold enough different shards.
fn add(
    sources: &mut BTreeMap<HostIndex, u64>,
    rates: &BTreeMap<HostIndex, f64>,
    known: &KnownCheckpoint,
    bytes: u64,
) {
    let rate = |host: &HostIndex| rates.get(host).copied().unwrap_or(FIRST_RATE);
    let mut holders = known.holders.clone();
    holders.sort_by(|(_, a), (_, b)| rate(b).total_cmp(&rate(a)));
    let mut shards = BTreeSet::new();
    holders.retain(|(shard, _)| shards.insert(*shard));
    for (_, host) in holders
        .iter()
        .take(known.manifest.public().redundancy.data())
    {
        *sources.entry(*host).or_default() += bytes;
    }
}
