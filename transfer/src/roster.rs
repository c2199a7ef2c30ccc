//! Merges the hosts of the grid file with those that registries report.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use codec::OwnerId;
use protocol::address::Address;
use protocol::grid::GridHost;
use protocol::identity::{HostId, Revocations, is_label, is_name};
use protocol::net::may_be_announced;
use protocol::wire::message::MemberRecord;

use crate::registry_answer::{HOSTS_MAX, RegistryAnswer};

/// Most addresses of one host that are taken from registries.
pub const ADDRESSES_MAX: usize = 3;

/// Most absent hosts that count.
pub const ABSENT_MAX: usize = 64;

/// What only registries report of hosts. A client checks it when it connects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// Further addresses at which hosts may be.
    pub addresses: BTreeMap<HostId, Vec<SocketAddr>>,
    /// Hosts whose names are only reported. The name of such a host is the one in its certificate.
    pub named: BTreeSet<HostId>,
}

/// The hosts of the grid, and the further addresses of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// Each host once, with the address that is tried first.
    pub hosts: Vec<GridHost>,
    /// Addresses that are tried besides that one, and names that have to be checked.
    pub reported: Reported,
    /// The last report of each host that a registry has.
    pub heard: BTreeMap<HostId, HeardOf>,
    /// Hosts that were there earlier, and of which no registry has heard lately.
    pub absent: Vec<GridHost>,
}

impl Roster {
    /// Counts the hosts that were there `before` as absent, the first [`ABSENT_MAX`] of them: those that are
    /// neither there now, with whatever address, nor revoked.
    pub fn remember<'a>(
        &mut self,
        before: impl IntoIterator<Item = &'a GridHost>,
        is_revoked: impl Fn(&OwnerId) -> bool,
    ) {
        let there = self.hosts.iter().chain(&self.absent);
        let mut ids: BTreeSet<OwnerId> = there.clone().map(|host| host.id.0).collect();
        let mut names: BTreeSet<String> = there.map(|host| host.name.clone()).collect();
        for host in before {
            if self.absent.len() >= ABSENT_MAX {
                return;
            }
            if !is_revoked(&host.id.0) && ids.insert(host.id.0) {
                self.reported.named.insert(host.id);
                self.absent.push(printable(host.clone(), &mut names));
            }
        }
    }
}

/// The last report of a host that a registry has. The sizes are the host's claim, and the time is the
/// registry's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeardOf {
    /// Bytes that the host lends.
    pub capacity_bytes: u64,
    /// Bytes that can still be stored there.
    pub free_bytes: u64,
    /// How old the report is, milliseconds.
    pub silent_ms: u64,
}

/// The hosts of the grid file in its order, followed by those that only registries know.
///
/// A host of the grid file stays, with its address, whatever a registry reports: the addresses that
/// registries report are tried besides. Another host counts while at least one registry has recently
/// heard of it. No registry outranks another, because the time of a report is only the registry's claim.
/// `answers` has the answers of the registries. If none answered, the hosts in `remembered`, which were
/// there before, are used.
pub fn merge(
    listed: &[GridHost],
    answers: &[RegistryAnswer],
    remembered: &[GridHost],
    revoked: &Revocations,
) -> Roster {
    let reports = reports(answers);
    let mut roster = Roster {
        hosts: listed.to_vec(),
        reported: Reported::default(),
        heard: heard(answers),
        absent: Vec::new(),
    };
    for host in listed {
        let mut addresses = reports
            .get(&host.id.0)
            .map_or_else(Vec::new, |reports| addresses(reports));
        addresses.retain(|addr| host.addr != Address::Ip(*addr));
        if !addresses.is_empty() {
            roster.reported.addresses.insert(host.id, addresses);
        }
    }
    let mut ids: BTreeSet<OwnerId> = listed.iter().map(|host| host.id.0).collect();
    let mut names: BTreeSet<String> = listed.iter().map(|host| host.name.clone()).collect();
    let found = reports.values().filter_map(|reports| of_records(reports));
    let kept = answers
        .is_empty()
        .then_some(remembered)
        .into_iter()
        .flatten();
    let others = found.chain(kept.map(|host| (host.clone(), Vec::new())));
    let others =
        others.filter(|(host, _)| !ids.contains(&host.id.0) && !revoked.contains(&host.id.0));
    let others: Vec<(GridHost, Vec<SocketAddr>)> = others.collect();
    // Of two hosts that are reported with one name, neither has it before a client has seen certificates.
    let mut once: BTreeSet<&str> = BTreeSet::new();
    let names_of_others = others.iter().map(|(host, _)| host.name.as_str());
    names.extend(
        names_of_others
            .filter(|name| !once.insert(name))
            .map(str::to_owned),
    );
    for (host, elsewhere) in others {
        let is_full = roster.hosts.len() >= HOSTS_MAX;
        if is_full || !ids.insert(host.id.0) {
            continue;
        }
        let host = printable(host, &mut names);
        if !elsewhere.is_empty() {
            roster.reported.addresses.insert(host.id, elsewhere);
        }
        roster.reported.named.insert(host.id);
        roster.hosts.push(host);
    }
    roster
}

/// A name that no other host has: of a host that shares its name.
pub fn with_key(name: &str, id: HostId) -> String {
    format!("{name}-{id}")
}

/// A host with a name of its own that is not in `names`, and with labels that can be printed.
fn printable(mut host: GridHost, names: &mut BTreeSet<String>) -> GridHost {
    // Names are for people. Two hosts with the same name are distinguished by their keys.
    if !is_name(&host.name) || !names.insert(host.name.clone()) {
        let stem = if is_name(&host.name) {
            &host.name
        } else {
            "host"
        };
        host.name = with_key(stem, host.id);
        names.insert(host.name.clone());
    }
    // Other people chose these labels, and they are printed.
    for label in [&mut host.site, &mut host.owner] {
        label.take_if(|label| !is_label(label));
    }
    host
}

/// The latest report of each host in any registry, even if the host has been silent since.
fn heard(answers: &[RegistryAnswer]) -> BTreeMap<HostId, HeardOf> {
    let mut heard: BTreeMap<HostId, HeardOf> = BTreeMap::new();
    for record in answers.iter().flat_map(|answer| &answer.members) {
        let one = HeardOf {
            capacity_bytes: record.presence.capacity_bytes,
            free_bytes: record.presence.free_bytes,
            silent_ms: record.silent_ms,
        };
        let known = heard.entry(HostId(record.id)).or_insert(one);
        if one.silent_ms < known.silent_ms {
            *known = one;
        }
    }
    heard
}

/// The reports about each host that at least one registry has recently heard of.
fn reports(answers: &[RegistryAnswer]) -> BTreeMap<OwnerId, Vec<&MemberRecord>> {
    let mut reports: BTreeMap<OwnerId, Vec<&MemberRecord>> = BTreeMap::new();
    let all = answers.iter().flat_map(|answer| &answer.members);
    for record in all.filter(|record| record.alive) {
        reports.entry(record.id).or_default().push(record);
    }
    reports
}

/// The addresses of a host: those that most registries report come first, and among these the one with
/// the latest report.
fn addresses(records: &[&MemberRecord]) -> Vec<SocketAddr> {
    let mut votes: BTreeMap<SocketAddr, (usize, u64)> = BTreeMap::new();
    for record in records {
        let addr = record.presence.addr;
        if may_be_announced(addr) {
            let (count, silent_ms) = votes.entry(addr).or_insert((0, u64::MAX));
            *count += 1;
            *silent_ms = record.silent_ms.min(*silent_ms);
        }
    }
    let mut ranked: Vec<_> = votes.into_iter().collect();
    ranked.sort_by_key(|(_, (count, silent_ms))| (Reverse(*count), *silent_ms));
    let ranked = ranked.into_iter().map(|(addr, _)| addr);
    ranked.take(ADDRESSES_MAX).collect()
}

/// A host that only registries know, and its further addresses. `None` if none of its addresses may be
/// used.
fn of_records(records: &[&MemberRecord]) -> Option<(GridHost, Vec<SocketAddr>)> {
    let mut addresses = addresses(records).into_iter();
    let addr = addresses.next()?;
    let of_addr = records.iter().find(|record| record.presence.addr == addr)?;
    let presence = &of_addr.presence;
    let host = GridHost {
        name: presence.name.clone(),
        addr: addr.into(),
        id: HostId(of_addr.id),
        site: presence.site.clone(),
        owner: presence.owner.clone(),
    };
    Some((host, addresses.collect()))
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
            addr: Address::Ip(([10, 0, 0, 1], port).into()),
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

    fn answered(members: Vec<MemberRecord>) -> RegistryAnswer {
        RegistryAnswer {
            members,
            holders: BTreeSet::new(),
            list: None,
        }
    }

    fn seen(roster: &Roster) -> Vec<(&str, u16)> {
        let hosts = roster.hosts.iter();
        hosts
            .map(|host| (host.name.as_str(), host.addr.port()))
            .collect()
    }

    fn also(roster: &Roster, number: u8) -> Vec<u16> {
        let id = HostId(OwnerId([number; 32]));
        let ports = roster.reported.addresses.get(&id).into_iter().flatten();
        ports.map(SocketAddr::port).collect()
    }

    #[test]
    fn registries_add_hosts_and_addresses_and_take_none_away() {
        let listed = [host(1, "h1", 7001), host(2, "h2", 7002)];
        let honest = answered(vec![
            record(1, "h1", 7011, 5_000, true),
            record(2, "h2", 7002, 5_000, true),
            record(3, "h3", 7003, 9_000, true),
        ]);
        // This registry claims that it has just heard of all hosts at other addresses, and that one is
        // gone.
        let liar = answered(vec![
            record(1, "h1", 9999, 0, true),
            record(2, "h2", 9999, 0, true),
            record(3, "h3", 9999, 0, false),
            record(4, "h4", 7004, 900_000, false),
        ]);
        let none = Revocations::default();
        let merged = merge(&listed, &[honest, liar], &[host(9, "h9", 7009)], &none);
        assert_eq!(
            seen(&merged),
            [("h1", 7001), ("h2", 7002), ("h3", 7003)],
            "the address of the grid file stays the first one"
        );
        assert_eq!(also(&merged, 1), [9999, 7011]);
        let heard = |number| merged.heard[&HostId(OwnerId([number; 32]))].silent_ms;
        assert_eq!((heard(1), heard(4)), (0, 900_000), "the last word of each");
        assert_eq!(also(&merged, 2), [9999]);
        assert!(also(&merged, 3).is_empty());
    }

    #[test]
    fn the_address_that_most_registries_report_comes_first_and_three_are_enough() {
        let says = |port, silent_ms| answered(vec![record(3, "h3", port, silent_ms, true)]);
        let all = [
            says(9001, 0),
            says(9002, 1),
            says(7003, 500),
            says(9003, 2),
            says(7003, 700),
        ];
        let merged = merge(&[], &all, &[], &Revocations::default());
        assert_eq!(seen(&merged), [("h3", 7003)]);
        assert_eq!(also(&merged, 3), [9001, 9002]);
    }

    #[test]
    fn addresses_at_which_no_host_can_be_are_left_out() {
        let at = |number, addr: &str| {
            let mut record = record(number, "h", 0, 0, true);
            record.presence.addr = addr.parse().unwrap();
            record
        };
        let bad = [
            "10.0.0.1:53",
            "224.0.0.1:7600",
            "255.255.255.255:7600",
            "0.0.0.0:7600",
            "[ff02::1]:7600",
            "[::]:7600",
        ];
        for addr in bad {
            let answers = [answered(vec![at(1, addr), at(3, addr)])];
            let merged = merge(
                &[host(1, "h1", 7001)],
                &answers,
                &[],
                &Revocations::default(),
            );
            assert_eq!(seen(&merged), [("h1", 7001)], "{addr}");
            assert!(merged.reported.addresses.is_empty(), "{addr}");
        }
    }

    #[test]
    fn without_registries_those_remembered_count() {
        let listed = [host(1, "h1", 7001)];
        let remembered = [host(1, "old", 7007), host(9, "h9", 7009)];
        let merged = merge(&listed, &[], &remembered, &Revocations::default());
        assert_eq!(seen(&merged), [("h1", 7001), ("h9", 7009)]);
    }

    #[test]
    fn absent_are_hosts_of_before_that_are_neither_there_nor_revoked() {
        let answers = [answered(vec![record(2, "h2", 7002, 0, true)])];
        let mut merged = merge(
            &[host(1, "h1", 7001)],
            &answers,
            &[],
            &Revocations::default(),
        );
        // Host 2 is there at another address, 3 was revoked, and 4 and 5 have names that are taken.
        let before = [
            host(1, "h1", 7001),
            host(2, "h2", 7999),
            host(3, "h3", 7003),
            host(4, "h1", 7004),
            host(4, "h1", 7005),
            host(5, "../x", 7006),
        ];
        let is_revoked = |id: &OwnerId| *id == OwnerId([3; 32]);
        merged.remember(&before, is_revoked);
        let absent = |roster: &Roster| -> Vec<String> {
            roster.absent.iter().map(|host| host.name.clone()).collect()
        };
        assert_eq!(absent(&merged), ["h1-04040404", "host-05050505"]);
        let many: Vec<GridHost> = (10..250).map(|at| host(at, "old", 7000)).collect();
        merged.remember(&many, is_revoked);
        merged.remember(&many, is_revoked);
        assert_eq!(merged.absent.len(), ABSENT_MAX);
    }

    #[test]
    fn names_that_are_none_or_taken_are_made_up() {
        let answers = [answered(vec![
            record(2, "h1", 7002, 0, true),
            record(3, "../x", 7003, 0, true),
        ])];
        let listed = [host(1, "h1", 7001)];
        let merged = merge(&listed, &answers, &[], &Revocations::default());
        let names = merged.hosts.iter().map(|host| host.name.as_str());
        let names: Vec<_> = names.collect();
        assert_eq!(names, ["h1", "h1-02020202", "host-03030303"]);
    }

    #[test]
    fn of_two_hosts_that_are_reported_with_one_name_neither_has_it() {
        let answers = [answered(vec![
            record(1, "h1", 7001, 0, true),
            record(2, "h2", 7002, 0, true),
            record(3, "h2", 7003, 0, true),
            record(4, "h4", 7004, 0, true),
        ])];
        let listed = [host(1, "h1", 7001)];
        let merged = merge(&listed, &answers, &[], &Revocations::default());
        let names: Vec<_> = merged.hosts.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(names, ["h1", "h2-02020202", "h2-03030303", "h4"]);
        let checked: Vec<u8> = merged.reported.named.iter().map(|id| id.0.0[0]).collect();
        assert_eq!(checked, [2, 3, 4], "the list is the authority's word");
    }

    #[test]
    fn labels_that_a_terminal_would_obey_are_left_out() {
        let trick = "\u{1b}]0;owned\u{7}\u{1b}[2J\nh09  10.0.0.9:7600  lab  up";
        let mut record = record(2, "h2", 7002, 0, true);
        record.presence.site = Some(trick.into());
        record.presence.owner = Some("Zoë".into());
        let merged = merge(&[], &[answered(vec![record])], &[], &Revocations::default());
        assert_eq!(merged.hosts[0].site, None);
        assert_eq!(merged.hosts[0].owner.as_deref(), Some("Zoë"));
        // Labels that an earlier version of the program wrote down are checked, too.
        let mut known = host(9, "h9", 7009);
        known.owner = Some(trick.into());
        let merged = merge(&[], &[], &[known], &Revocations::default());
        assert_eq!(merged.hosts[0].owner, None);
    }
}
