//! Chooses the host that gets a rebuilt shard. It must have room and hold no other shard of the
//! checkpoint. Hosts whose site and owner have fewer than `parity` holders come first, and of these the
//! steadiest.

use std::collections::BTreeMap;

use codec::ShardIndex;
use codec::manifest::Public;
use protocol::grid::GridHost;
use tokio::task::JoinSet;
use transfer::{HostIndex, Hosts};

/// At most this many hosts are asked for their status and announcement.
const ASKED_MAX: usize = 24;

/// At most this many hosts are tried.
const TRIED_MAX: usize = 3;

/// Hosts are compared by the probability that they are there this many seconds from now.
const STAY_SECONDS: f64 = 36_000.0;

/// Up to `TRIED_MAX` of the hosts in `free`, best first. `holders` are those of the checkpoint's
/// shards.
pub(super) async fn choose(
    hosts: &Hosts,
    mut free: Vec<HostIndex>,
    holders: &[(ShardIndex, HostIndex)],
    public: &Public,
) -> Vec<HostIndex> {
    let crowds = Crowds::of(hosts, holders);
    let parity = public.redundancy.parity().max(1);
    // Each job has its own pseudo-random order of the hosts, so that repairs spread over all of them, and what a version
    // builds on stays on the same hosts: each host more is one more that can fail it.
    free.sort_by_key(|host| {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&public.owner.0);
        hasher.update(&public.job_tag.0);
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
    for (host, (status, announced)) in asking.join_all().await {
        let Ok((status, _)) = status else { continue };
        let announced = announced.ok().flatten();
        let refuses = announced
            .as_ref()
            .is_some_and(|announced| announced.refuses_for_s > 0);
        if status.free_bytes < public.block_bytes || refuses {
            continue;
        }
        let stays = announced.map_or(0.5, |announced| announced.presence.at(STAY_SECONDS).value());
        let crowded = hosts
            .entry(host)
            .is_some_and(|entry| crowds.around(entry) >= parity);
        candidates.push((crowded, stays, host));
    }
    candidates.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)).then(a.2.cmp(&b.2)));
    let best = candidates.into_iter().take(TRIED_MAX);
    best.map(|(_, _, host)| host).collect()
}

/// How many holders each site and each owner has.
#[derive(Debug, Default)]
struct Crowds {
    sites: BTreeMap<String, usize>,
    owners: BTreeMap<String, usize>,
}

impl Crowds {
    fn of(hosts: &Hosts, holders: &[(ShardIndex, HostIndex)]) -> Self {
        let mut crowds = Self::default();
        for (_, host) in holders {
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

    /// How many holders would fail together with this host: those of its site or those of its owner,
    /// whichever are more.
    fn around(&self, host: &GridHost) -> usize {
        let count = |known: &BTreeMap<String, usize>, name: &Option<String>| {
            let name = name.as_ref();
            name.and_then(|name| known.get(name)).copied().unwrap_or(0)
        };
        count(&self.sites, &host.site).max(count(&self.owners, &host.owner))
    }
}
