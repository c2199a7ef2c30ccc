//! Where a rebuilt shard goes: hosts with room that hold no other shard of the checkpoint, spread over
//! sites and owners, and among these the steadiest.

use std::collections::BTreeMap;

use codec::ShardIndex;
use codec::manifest::Public;
use protocol::grid::GridHost;
use tokio::task::JoinSet;
use transfer::{HostIndex, Hosts};

/// Hosts that are asked how they are.
const ASKED_MAX: usize = 24;

/// Hosts that are tried.
const TRIED_MAX: usize = 3;

/// Time over which a host is to stay, seconds.
const STAY_SECONDS: f64 = 36_000.0;

/// Hosts to try, best first, of those that may take the shard.
pub(super) async fn choose(
    hosts: &Hosts,
    mut free: Vec<HostIndex>,
    places: &[(ShardIndex, HostIndex)],
    public: &Public,
) -> Vec<HostIndex> {
    let crowds = Crowds::of(hosts, places);
    let parity = public.redundancy.parity().max(1);
    // Another few for each checkpoint, so that not all repairs go to the same hosts.
    free.sort_by_key(|host| {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&public.checkpoint.0);
        hasher.update(hosts.name(*host).as_bytes());
        *hasher.finalize().as_bytes()
    });
    free.truncate(ASKED_MAX);
    let mut asking = JoinSet::new();
    for host in free {
        let hosts = hosts.clone();
        asking.spawn(async move {
            let answers = tokio::join!(hosts.status(host), hosts.announcement(host));
            (host, answers)
        });
    }
    let mut candidates = Vec::new();
    for (host, (status, said)) in asking.join_all().await {
        let Ok((status, _)) = status else { continue };
        let said = said.ok().flatten();
        let refuses = said.as_ref().is_some_and(|said| said.refuses_for_s > 0);
        if status.free_bytes < public.block_bytes || refuses {
            continue;
        }
        let stays = said.map_or(0.5, |said| said.presence.at(STAY_SECONDS).value());
        let crowded = hosts
            .entry(host)
            .is_some_and(|entry| crowds.around(entry) >= parity);
        candidates.push((crowded, stays, host));
    }
    candidates.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)).then(a.2.cmp(&b.2)));
    let best = candidates.into_iter().take(TRIED_MAX);
    best.map(|(_, _, host)| host).collect()
}

/// How many holders each site and owner has.
#[derive(Debug, Default)]
struct Crowds {
    sites: BTreeMap<String, usize>,
    owners: BTreeMap<String, usize>,
}

impl Crowds {
    fn of(hosts: &Hosts, places: &[(ShardIndex, HostIndex)]) -> Self {
        let mut crowds = Self::default();
        for (_, host) in places {
            let Some(entry) = hosts.entry(*host) else {
                continue;
            };
            if let Some(site) = &entry.site {
                *crowds.sites.entry(site.clone()).or_default() += 1;
            }
            if let Some(owner) = &entry.owner {
                *crowds.owners.entry(owner.clone()).or_default() += 1;
            }
        }
        crowds
    }

    /// Holders that would fail together with this host.
    fn around(&self, host: &GridHost) -> usize {
        let count = |known: &BTreeMap<String, usize>, name: &Option<String>| {
            let name = name.as_ref();
            name.and_then(|name| known.get(name)).copied().unwrap_or(0)
        };
        count(&self.sites, &host.site).max(count(&self.owners, &host.owner))
    }
}
