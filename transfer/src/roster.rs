//! Merges the hosts of the grid file with those that registries report: the ones that are there, and the
//! members of the grid that are silent.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use codec::OwnerId;
use protocol::address::Address;
use protocol::grid::{Grid, GridHost};
use protocol::identity::{CARD_PART, CardVerifier, HostId, MemberCard, is_label, is_name};
use protocol::net::may_be_announced;
use protocol::wire::message::{MemberRecord, UNREACHED_PART};

use crate::registry_answer::{HOSTS_MAX, RegistryAnswer};

/// Most addresses of one host that are taken from registries.
pub const ADDRESSES_MAX: usize = 3;

/// Most absent hosts that count: those that were seen last.
pub const ABSENT_MAX: usize = 1024;

/// Most cards of one registry that are not good. What else it reports of silent hosts is left out then: each
/// card costs three checks of signatures.
pub(crate) const BAD_CARDS_MAX: usize = 16;

/// What only registries report of hosts. A client checks it when it connects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// Further addresses at which hosts may be.
    pub addresses: BTreeMap<HostId, Vec<SocketAddr>>,
    /// Hosts whose names are only reported. The name of such a host is the one in its certificate.
    pub named: BTreeSet<HostId>,
    /// Members that are silent: no registry hears them now. Some of them are in the list of the grid.
    pub silent: BTreeMap<HostId, Silent>,
    /// Hosts that registries hear and that answer none of these registries at the address that they announce.
    pub unreached: BTreeSet<HostId>,
}

/// What is known of a member that is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silent {
    /// When it was seen last, Unix seconds by this machine's clock: by a registry, or by this machine, or as
    /// the member itself stated on its card.
    pub seen_at: u64,
    /// When its certificate ends, Unix seconds; `None` if this machine has not checked one.
    pub certified_until: Option<u64>,
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
    /// Members that are silent, those that were seen last first: their cards prove that they belong to the
    /// grid, or they have answered this machine. When each was seen is in [`Reported::silent`].
    pub absent: Vec<GridHost>,
}

impl Roster {
    /// Adds the members that this machine remembers from `before` to the absent ones, unless they are there
    /// now, with whatever address, or revoked. Of all, the [`ABSENT_MAX`] that were seen last count.
    pub fn remember<'a>(
        &mut self,
        before: impl IntoIterator<Item = (&'a GridHost, Silent)>,
        is_revoked: impl Fn(&OwnerId) -> bool,
    ) {
        let there = self.hosts.iter().chain(&self.absent);
        let mut ids: BTreeSet<OwnerId> = there.clone().map(|host| host.id.0).collect();
        let mut names: BTreeSet<String> = there.map(|host| host.name.clone()).collect();
        for (host, silent) in before {
            if !is_revoked(&host.id.0) && ids.insert(host.id.0) {
                self.reported.named.insert(host.id);
                self.reported.silent.insert(host.id, silent);
                self.absent.push(printable(host.clone(), &mut names));
            }
        }
        self.keep_seen_last();
    }

    pub(crate) fn keep_seen_last(&mut self) {
        let silent = &self.reported.silent;
        let seen_at = |host: &GridHost| silent.get(&host.id).map_or(0, |silent| silent.seen_at);
        self.absent.sort_by_key(|host| Reverse(seen_at(host)));
        for left_out in self.absent.drain(ABSENT_MAX.min(self.absent.len())..) {
            self.reported.silent.remove(&left_out.id);
            self.reported.named.remove(&left_out.id);
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
/// A host that no registry hears is absent if its card is good. So no registry can invent members, and one
/// that hides some is of no effect if another names them.
///
/// `now` is this machine's clock, Unix seconds. For the rest see [`present`].
pub fn merge(grid: &Grid, answers: &[RegistryAnswer], remembered: &[GridHost], now: u64) -> Roster {
    let mut roster = present(grid, answers, remembered);
    add_silent(&mut roster, grid, answers, now);
    roster
}

/// As [`merge`], without the hosts that are silent.
///
/// `answers` has the answers of the registries. If none answered, the hosts in `remembered`, which were
/// there before, are used.
pub fn present(grid: &Grid, answers: &[RegistryAnswer], remembered: &[GridHost]) -> Roster {
    let listed = &grid.hosts;
    let reports = reports(answers);
    let mut roster = Roster {
        hosts: listed.clone(),
        heard: heard(answers),
        ..Roster::default()
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
    let of_unreached = |records: &&Vec<&MemberRecord>| records.iter().all(|one| is_unreached(one));
    let unreached = reports.iter().filter(|(_, records)| of_unreached(records));
    roster.reported.unreached = unreached.map(|(id, _)| HostId(*id)).collect();
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
        others.filter(|(host, _)| !ids.contains(&host.id.0) && !grid.revoked.contains(&host.id.0));
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

/// Whether a registry gets no answer from a donor that it hears.
fn is_unreached(record: &MemberRecord) -> bool {
    record.presence.parts.get(UNREACHED_PART).is_some()
}

/// A report of a host that no registry hears, and of which registry it is.
#[derive(Clone, Copy)]
struct SilentReport<'a> {
    seen_at: u64,
    registry: usize,
    record: &'a MemberRecord,
}

/// Adds the members that no registry hears, if their cards are good, and when hosts of the grid file were
/// heard last that no registry hears.
fn add_silent(roster: &mut Roster, grid: &Grid, answers: &[RegistryAnswer], now: u64) {
    let mut reports = silent_reports(answers, &reports(answers), now);
    let listed: BTreeSet<OwnerId> = grid.hosts.iter().map(|host| host.id.0).collect();
    for report in reports.iter().filter(|one| listed.contains(&one.record.id)) {
        let silent = Silent {
            seen_at: report.seen_at,
            certified_until: None,
        };
        // The latest report comes first.
        let id = HostId(report.record.id);
        roster.reported.silent.entry(id).or_insert(silent);
    }
    reports.retain(|one| !listed.contains(&one.record.id));
    let mut names: BTreeSet<String> = roster.hosts.iter().map(|host| host.name.clone()).collect();
    let Ok(verifier) = CardVerifier::new(&grid.authority) else {
        return;
    };
    let mut bad = vec![0_usize; answers.len()];
    for report in reports {
        let id = HostId(report.record.id);
        if roster.absent.len() >= ABSENT_MAX {
            return;
        }
        let bad = bad.get_mut(report.registry);
        let Some(bad) = bad.filter(|bad| **bad < BAD_CARDS_MAX) else {
            continue;
        };
        if grid.revoked.contains(&id.0) || roster.reported.silent.contains_key(&id) {
            continue;
        }
        match member(report.record, &verifier, grid, now) {
            Card::Good(card) => {
                let silent = Silent {
                    seen_at: report.seen_at.max(card.at().min(now)),
                    certified_until: Some(card.certified_until()),
                };
                let host = of_card(&card, report.record.presence.addr);
                roster.reported.silent.insert(id, silent);
                roster.reported.named.insert(id);
                roster.absent.push(printable(host, &mut names));
            }
            Card::Missing => {}
            Card::Bad => *bad += 1,
        }
    }
    roster.keep_seen_last();
}

/// The reports of hosts that no registry hears, the latest first.
fn silent_reports<'a>(
    answers: &'a [RegistryAnswer],
    alive: &BTreeMap<OwnerId, Vec<&MemberRecord>>,
    now: u64,
) -> Vec<SilentReport<'a>> {
    let all = answers.iter().enumerate().flat_map(|(registry, answer)| {
        let records = answer.members.iter();
        records.map(move |record| SilentReport {
            seen_at: now.saturating_sub(record.silent_ms / 1000),
            registry,
            record,
        })
    });
    let silent = all.filter(|one| !alive.contains_key(&one.record.id));
    let mut silent: Vec<_> = silent.collect();
    silent.sort_by_key(|one| Reverse(one.seen_at));
    silent
}

/// The card in the report of a silent host.
enum Card {
    Good(Box<MemberCard>),
    /// The host's program is an earlier one.
    Missing,
    Bad,
}

fn member(record: &MemberRecord, verifier: &CardVerifier, grid: &Grid, now: u64) -> Card {
    let presence = &record.presence;
    let Some(bytes) = presence.parts.get(CARD_PART) else {
        return Card::Missing;
    };
    let Ok(card) = verifier.read(bytes) else {
        return Card::Bad;
    };
    let is_good = card.id() == record.id
        && card.is_at(presence.addr)
        && may_be_announced(presence.addr)
        && !card.is_early(now);
    match is_good {
        false => Card::Bad,
        true if card.is_revoked(&grid.revoked) || !card.is_current(now) => Card::Missing,
        true => Card::Good(Box::new(card)),
    }
}

pub(crate) fn of_card(card: &MemberCard, addr: SocketAddr) -> GridHost {
    let whereabouts = card.whereabouts();
    GridHost {
        name: card.name().to_owned(),
        addr: addr.into(),
        id: HostId(card.id()),
        site: whereabouts.site.clone(),
        owner: whereabouts.owner.clone(),
    }
}

/// A name that no other host has: of a host that shares its name.
pub fn with_key(name: &str, id: HostId) -> String {
    format!("{name}-{id}")
}

/// A host with a name of its own that is not in `names`, and with labels that can be printed.
pub(crate) fn printable(mut host: GridHost, names: &mut BTreeSet<String>) -> GridHost {
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
    use std::time::Duration;

    use codec::seal::OwnerSecret;
    use protocol::identity::{Authority, Identity, Revocations, Role, Validity, Whereabouts};
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

    const DAY: u64 = 86_400;

    const NOW: u64 = 1000 * DAY;

    fn lab() -> Authority {
        let validity = Validity {
            from: 0,
            lasting: Duration::from_secs(1 << 32),
        };
        Authority::create(OwnerSecret::new([1; 32]), "lab", validity).unwrap()
    }

    fn merged(
        listed: &[GridHost],
        answers: &[RegistryAnswer],
        remembered: &[GridHost],
        revoked: &Revocations,
    ) -> Roster {
        let grid = Grid {
            hosts: listed.to_vec(),
            revoked: revoked.clone(),
            ..Grid::new("lab", lab().certificate().clone())
        };
        merge(&grid, answers, remembered, NOW)
    }

    fn key(seed: u8) -> OwnerId {
        OwnerSecret::new([seed; 32]).id()
    }

    /// The record of a silent member with its card, which is from the day before.
    fn silent(lab: &Authority, seed: u8, port: u16, silent_ms: u64) -> MemberRecord {
        let donor = OwnerSecret::new([seed; 32]);
        let validity = Validity {
            from: NOW - 10 * DAY,
            lasting: Duration::from_secs(100 * DAY),
        };
        let name = format!("h{seed}");
        let certificate = lab.sign(&[Role::Donor], &name, donor.id(), validity);
        let identity = Identity::new(donor, certificate.unwrap()).unwrap();
        let whereabouts = Whereabouts {
            addr: ([0, 0, 0, 0], port).into(),
            site: Some("lab".into()),
            owner: None,
        };
        let card = MemberCard::sign(&identity, whereabouts, NOW - DAY).unwrap();
        let mut record = record(0, "any", port, silent_ms, false);
        record.id = key(seed);
        record.presence.parts = Parts::default().with(CARD_PART, card.bytes().to_vec());
        record
    }

    fn absent(roster: &Roster) -> Vec<(&str, u64)> {
        let seen = |host: &GridHost| NOW - roster.reported.silent[&host.id].seen_at;
        let hosts = roster.absent.iter();
        hosts.map(|host| (host.name.as_str(), seen(host))).collect()
    }

    #[test]
    fn silent_members_are_absent_if_their_cards_are_good() {
        let (lab, other) = (
            lab(),
            Authority::create(
                OwnerSecret::new([8; 32]),
                "lab",
                Validity {
                    from: 0,
                    lasting: Duration::from_secs(1 << 32),
                },
            )
            .unwrap(),
        );
        let mut moved = silent(&lab, 6, 7006, 5_000);
        moved.presence.addr = ([10, 0, 0, 1], 9999).into();
        let mut stolen = silent(&lab, 7, 7007, 5_000);
        stolen.id = key(70);
        let first = answered(vec![
            silent(&lab, 2, 7002, 60_000),
            silent(&lab, 3, 7003, 9 * DAY * 1000),
            silent(&lab, 4, 7004, 7_000),
            silent(&other, 5, 7005, 5_000),
            moved,
            stolen,
            record(9, "old", 7009, 5_000, false),
        ]);
        // Another registry hears one of them, and knows of another one more recent word.
        let second = answered(vec![
            record(0, "h4", 7004, 0, true),
            silent(&lab, 2, 7002, 30_000),
        ]);
        let mut second = second;
        second.members[0].id = key(4);
        let roster = merged(&[], &[first, second], &[], &Revocations::default());
        assert_eq!(seen(&roster), [("h4", 7004)]);
        // Host 3 was seen nine days ago by the registry, but signed its card yesterday.
        assert_eq!(absent(&roster), [("h2", 30), ("h3", DAY)]);
        assert_eq!(roster.absent[0].addr.port(), 7002);
        let known = roster.reported.silent[&HostId(key(2))];
        assert_eq!(known.certified_until, Some(NOW + 90 * DAY));
        assert!(roster.reported.named.contains(&HostId(key(2))));
        let revoked = lab
            .revoke(&Revocations::default(), BTreeSet::from([key(2)]))
            .unwrap();
        let roster = merged(
            &[],
            &[answered(vec![silent(&lab, 2, 7002, 0)])],
            &[],
            &revoked,
        );
        assert!(roster.absent.is_empty());
    }

    #[test]
    fn of_a_silent_host_in_the_list_it_is_known_since_when() {
        let at = |silent_ms, alive| answered(vec![record(1, "h1", 7001, silent_ms, alive)]);
        let listed = [host(1, "h1", 7001)];
        let none = Revocations::default();
        let roster = merged(&listed, &[at(90_000, false), at(40_000, false)], &[], &none);
        let since = roster.reported.silent[&listed[0].id].seen_at;
        assert_eq!((since, roster.absent.len()), (NOW - 40, 0));
        let roster = merged(&listed, &[at(90_000, false), at(40_000, true)], &[], &none);
        assert!(roster.reported.silent.is_empty());
        // Months and more do not overflow.
        let roster = merged(&listed, &[at(u64::MAX, false)], &[], &none);
        assert_eq!(roster.reported.silent[&listed[0].id].seen_at, 0);
    }

    #[test]
    fn a_registry_that_reports_false_cards_does_not_make_a_client_check_them_all() {
        let lab = lab();
        let mut false_ones: Vec<MemberRecord> = (0..BAD_CARDS_MAX as u8)
            .map(|number| {
                let mut record = silent(&lab, 2, 7002, 1_000);
                record.id = OwnerId([number; 32]);
                record
            })
            .collect();
        let good = silent(&lab, 3, 7003, 2_000);
        false_ones.push(good.clone());
        let liar = answered(false_ones);
        let none = Revocations::default();
        assert!(merged(&[], &[liar], &[], &none).absent.is_empty());
        assert_eq!(
            absent(&merged(&[], &[answered(vec![good])], &[], &none)),
            [("h3", 2)]
        );
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
        let found = merged(&listed, &[honest, liar], &[host(9, "h9", 7009)], &none);
        assert_eq!(
            seen(&found),
            [("h1", 7001), ("h2", 7002), ("h3", 7003)],
            "the address of the grid file stays the first one"
        );
        assert_eq!(also(&found, 1), [9999, 7011]);
        let heard = |number| found.heard[&HostId(OwnerId([number; 32]))].silent_ms;
        assert_eq!((heard(1), heard(4)), (0, 900_000), "the last word of each");
        assert_eq!(also(&found, 2), [9999]);
        assert!(also(&found, 3).is_empty());
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
        let found = merged(&[], &all, &[], &Revocations::default());
        assert_eq!(seen(&found), [("h3", 7003)]);
        assert_eq!(also(&found, 3), [9001, 9002]);
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
            let found = merged(
                &[host(1, "h1", 7001)],
                &answers,
                &[],
                &Revocations::default(),
            );
            assert_eq!(seen(&found), [("h1", 7001)], "{addr}");
            assert!(found.reported.addresses.is_empty(), "{addr}");
        }
    }

    #[test]
    fn without_registries_those_remembered_count() {
        let listed = [host(1, "h1", 7001)];
        let remembered = [host(1, "old", 7007), host(9, "h9", 7009)];
        let found = merged(&listed, &[], &remembered, &Revocations::default());
        assert_eq!(seen(&found), [("h1", 7001), ("h9", 7009)]);
    }

    #[test]
    fn absent_are_hosts_of_before_that_are_neither_there_nor_revoked() {
        let answers = [answered(vec![record(2, "h2", 7002, 0, true)])];
        let mut found = merged(
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
        let remember = |roster: &mut Roster, before: &[GridHost]| {
            let silent = |seen_at| Silent {
                seen_at,
                certified_until: None,
            };
            let before = before.iter().zip((1..NOW).rev());
            roster.remember(before.map(|(host, at)| (host, silent(at))), is_revoked);
        };
        remember(&mut found, &before);
        let absent = |roster: &Roster| -> Vec<String> {
            roster.absent.iter().map(|host| host.name.clone()).collect()
        };
        assert_eq!(absent(&found), ["h1-04040404", "host-05050505"]);
        let other = |at: u16| {
            let mut other = host(0, "old", 7000);
            other.id.0.0[..2].copy_from_slice(&at.to_le_bytes());
            other
        };
        let many: Vec<GridHost> = (1000..2500).map(other).collect();
        remember(&mut found, &many);
        remember(&mut found, &many);
        assert_eq!(found.absent.len(), ABSENT_MAX);
        let names: Vec<&str> = found.absent.iter().map(|host| host.name.as_str()).collect();
        assert!(
            names.contains(&"h1-04040404"),
            "those that were seen last stay"
        );
        assert_eq!(found.reported.silent.len(), ABSENT_MAX);
    }

    #[test]
    fn names_that_are_none_or_taken_are_made_up() {
        let answers = [answered(vec![
            record(2, "h1", 7002, 0, true),
            record(3, "../x", 7003, 0, true),
        ])];
        let listed = [host(1, "h1", 7001)];
        let found = merged(&listed, &answers, &[], &Revocations::default());
        let names = found.hosts.iter().map(|host| host.name.as_str());
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
        let found = merged(&listed, &answers, &[], &Revocations::default());
        let names: Vec<_> = found.hosts.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(names, ["h1", "h2-02020202", "h2-03030303", "h4"]);
        let checked: Vec<u8> = found.reported.named.iter().map(|id| id.0.0[0]).collect();
        assert_eq!(checked, [2, 3, 4], "the list is the authority's word");
    }

    #[test]
    fn labels_that_a_terminal_would_obey_are_left_out() {
        let trick = "\u{1b}]0;owned\u{7}\u{1b}[2J\nh09  10.0.0.9:7600  lab  up";
        let mut record = record(2, "h2", 7002, 0, true);
        record.presence.site = Some(trick.into());
        record.presence.owner = Some("Zoë".into());
        let found = merged(&[], &[answered(vec![record])], &[], &Revocations::default());
        assert_eq!(found.hosts[0].site, None);
        assert_eq!(found.hosts[0].owner.as_deref(), Some("Zoë"));
        // Labels that an earlier version of the program wrote down are checked, too.
        let mut known = host(9, "h9", 7009);
        known.owner = Some(trick.into());
        let found = merged(&[], &[], &[known], &Revocations::default());
        assert_eq!(found.hosts[0].owner, None);
    }
}
