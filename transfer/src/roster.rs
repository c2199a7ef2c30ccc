//! Which hosts there are: those of the grid file, and those that registries tell of.

use std::collections::{BTreeMap, BTreeSet};

use codec::OwnerId;
use protocol::grid::GridHost;
use protocol::identity::{HostId, Revocations, is_name};
use protocol::wire::message::MemberRecord;

use crate::registry::Told;

/// Most hosts that registries are believed to know.
pub const HOSTS_MAX: usize = 100_000;

/// The hosts of the grid file, in its order, and then those that are only known to registries.
///
/// A host of the grid file stays whatever a registry says; a fresher address of it is taken over,
/// since TLS shows who is really there. Others count while at least one registry has heard of them
/// lately. `told` is what each registry said that answered; when none did, `remembered` are the hosts
/// that were there before.
pub fn merge(
    listed: &[GridHost],
    told: &[Told],
    remembered: &[GridHost],
    revoked: &Revocations,
) -> Vec<GridHost> {
    let freshest = freshest(told);
    let mut hosts = listed.to_vec();
    for host in &mut hosts {
        if let Some(record) = freshest.get(&host.id.0).filter(|record| record.alive) {
            host.addr = record.presence.addr;
        }
    }
    let mut ids: BTreeSet<OwnerId> = hosts.iter().map(|host| host.id.0).collect();
    let mut names: BTreeSet<String> = hosts.iter().map(|host| host.name.clone()).collect();
    let found = freshest
        .values()
        .filter(|record| record.alive)
        .map(|record| of_record(record));
    let others = found.chain(
        told.is_empty()
            .then_some(remembered)
            .into_iter()
            .flatten()
            .cloned(),
    );
    for mut host in others {
        let is_full = hosts.len() >= HOSTS_MAX;
        if is_full || revoked.contains(&host.id.0) || !ids.insert(host.id.0) {
            continue;
        }
        // Names are for people; two hosts that chose the same are told apart by their keys.
        if !is_name(&host.name) || !names.insert(host.name.clone()) {
            let stem = if is_name(&host.name) {
                &host.name
            } else {
                "host"
            };
            host.name = format!("{stem}-{}", host.id);
            names.insert(host.name.clone());
        }
        hosts.push(host);
    }
    hosts
}

/// What was said last of each host.
fn freshest(told: &[Told]) -> BTreeMap<OwnerId, &MemberRecord> {
    let mut freshest: BTreeMap<OwnerId, &MemberRecord> = BTreeMap::new();
    for record in told.iter().flat_map(|told| &told.members) {
        let known = freshest.entry(record.id).or_insert(record);
        if record.silent_ms < known.silent_ms {
            *known = record;
        }
    }
    freshest
}

fn of_record(record: &MemberRecord) -> GridHost {
    let presence = &record.presence;
    GridHost {
        name: presence.name.clone(),
        addr: presence.addr,
        id: HostId(record.id),
        site: presence.site.clone(),
        owner: presence.owner.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use protocol::wire::announcement::Announcement;
    use protocol::wire::message::Presence;
    use protocol::wire::parts::Parts;

    use super::*;

    fn host(number: u8, name: &str, port: u16) -> GridHost {
        GridHost {
            name: name.into(),
            addr: ([10, 0, 0, 1], port).into(),
            id: HostId(OwnerId([number; 32])),
            site: None,
            owner: None,
        }
    }

    fn record(number: u8, name: &str, port: u16, silent_ms: u64, alive: bool) -> MemberRecord {
        MemberRecord {
            id: OwnerId([number; 32]),
            silent_ms,
            alive,
            presence: Presence {
                name: name.into(),
                addr: ([10, 0, 0, 1], port).into(),
                site: Some("lab".into()),
                owner: None,
                capacity_bytes: 1,
                free_bytes: 1,
                epoch: 1,
                announcement: Announcement::default(),
                parts: Parts::default(),
            },
        }
    }

    fn told(members: Vec<MemberRecord>) -> Told {
        Told {
            members,
            holders: BTreeSet::new(),
        }
    }

    fn seen(hosts: &[GridHost]) -> Vec<(&str, u16)> {
        hosts
            .iter()
            .map(|host| (host.name.as_str(), host.addr.port()))
            .collect()
    }

    #[test]
    fn registries_add_hosts_and_addresses_and_take_none_away() {
        let listed = [host(1, "h1", 1), host(2, "h2", 2)];
        let told = [
            told(vec![
                record(1, "h1", 11, 5_000, true),
                record(3, "h3", 3, 9_000, true),
            ]),
            told(vec![
                record(1, "h1", 12, 50, true),
                record(2, "h2", 22, 900_000, false),
                record(3, "h3", 33, 100, true),
                record(4, "h4", 4, 900_000, false),
            ]),
        ];
        let none = Revocations::default();
        let merged = merge(&listed, &told, &[host(9, "h9", 9)], &none);
        assert_eq!(seen(&merged), [("h1", 12), ("h2", 2), ("h3", 33)]);
    }

    #[test]
    fn without_registries_those_remembered_count() {
        let listed = [host(1, "h1", 1)];
        let remembered = [host(1, "old", 7), host(9, "h9", 9)];
        let merged = merge(&listed, &[], &remembered, &Revocations::default());
        assert_eq!(seen(&merged), [("h1", 1), ("h9", 9)]);
    }

    #[test]
    fn names_that_are_none_or_taken_are_made_up() {
        let told = [told(vec![
            record(2, "h1", 2, 0, true),
            record(3, "../x", 3, 0, true),
        ])];
        let merged = merge(&[host(1, "h1", 1)], &told, &[], &Revocations::default());
        let names: Vec<_> = merged.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(names, ["h1", "h1-02020202", "host-03030303"]);
    }
}
