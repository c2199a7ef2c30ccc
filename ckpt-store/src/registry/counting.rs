//! Finds out for metrics and page what hosts count, and keeps it up to date.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use codec::OwnerId;
use health::{Health, HostsHealth, Known, Limits, RegistryHealth, average_stay, judged};
use placement::SurvivalCurve;
use protocol::grid::Grid;
use protocol::identity::Identity;
use protocol::wire::limits::MEMBERS_MAX;
use protocol::wire::message::MemberRecord;
use tracing::warn;
use transfer::Hosts;
use transfer::census::{ask_all, hosts_health, silent_health, summed_up, with_silent};
use transfer::registry_answer::RegistryAnswer;
use transfer::roster;
use web::board::Board;

use super::Shared;
use crate::metrics::registry::Announced;

/// Least time between two rounds.
const PERIOD: Duration = Duration::from_secs(15);

/// Time between two rounds for each host that is asked: each takes a handshake.
const PERIOD_OF_A_HOST: Duration = Duration::from_millis(60);

/// Most hosts that are asked at the same time.
const ASKED_AT_ONCE: usize = 16;

/// Most hosts that are asked. Of a larger grid, the counts are too small; the number of hosts that counted
/// shows it.
const ASKED_MAX: usize = 10_000;

/// Most bytes in flight to or from each host.
const WINDOW: u32 = 64 << 10;

/// The task that asks hosts for their counts.
#[derive(Debug)]
pub(super) struct Counting {
    pub(super) shared: Arc<Shared>,
    pub(super) identity: Identity,
    /// The name of the registry.
    pub(super) name: String,
    pub(super) board: Arc<Board>,
}

impl Counting {
    /// Asks round after round; does not return.
    pub(super) async fn run(self) {
        loop {
            let members = self.members();
            let forecasts = self.announced(&members);
            let asked = members.len().min(ASKED_MAX);
            self.ask(members, &forecasts).await;
            let pause = PERIOD_OF_A_HOST * u32::try_from(asked).unwrap_or(u32::MAX);
            tokio::time::sleep(pause.max(PERIOD)).await;
        }
    }

    /// What hosts announced. The registry is locked for one page of hosts at a time.
    fn members(&self) -> Vec<MemberRecord> {
        let mut all: Vec<MemberRecord> = Vec::new();
        loop {
            let after = all.last().map(|record| record.id);
            let at = self.shared.moment();
            let most = MEMBERS_MAX as usize;
            let (page, more) = self.shared.registry().members(at, after, most);
            all.extend(page);
            if !more {
                return all;
            }
        }
    }

    /// Sums up what hosts announced, and returns what those that are there forecast of themselves.
    fn announced(&self, members: &[MemberRecord]) -> Forecasts {
        let mut sum = Announced::default();
        let mut curves = BTreeMap::new();
        for record in members {
            if !record.alive {
                sum.silent += 1;
                continue;
            }
            let presence = &record.presence;
            sum.alive += 1;
            sum.capacity_bytes = sum.capacity_bytes.saturating_add(presence.capacity_bytes);
            let Ok(said) = presence.announcement.check() else {
                continue;
            };
            if said.refuses_for_s == 0 {
                sum.free_bytes = sum.free_bytes.saturating_add(presence.free_bytes);
            }
            curves.insert(record.id, said.presence);
        }
        let all: Vec<SurvivalCurve> = curves.values().cloned().collect();
        let stay = average_stay(&all, |curve, seconds| curve.at(seconds).value());
        self.shared.metrics.know(&sum, &stay);
        Forecasts { curves, stay }
    }

    /// Asks all hosts that announced themselves or that the list of the grid names.
    async fn ask(&self, members: Vec<MemberRecord>, forecasts: &Forecasts) {
        let grid = self.shared.members.grid();
        let now = self.shared.clock.unix_seconds();
        let alive = members.iter().filter(|record| record.alive).count();
        let answer = RegistryAnswer {
            members,
            holders: BTreeSet::new(),
            list: None,
        };
        let mut roster = roster::merge(&grid, &[answer], &[], now);
        let silent = silent_health(&roster);
        roster.hosts.truncate(ASKED_MAX);
        let asked = Grid {
            hosts: roster.hosts,
            ..(*grid).clone()
        };
        let hosts = match Hosts::with_reports(&asked, roster.reported, &self.identity, WINDOW) {
            Ok(hosts) => hosts,
            Err(cause) => {
                warn!(%cause, "can't ask hosts for their counts");
                return self.board.keep(cause.to_string());
            }
        };
        let heard = ask_all(&hosts, ASKED_AT_ONCE).await;
        let summed = summed_up(&hosts, &heard);
        self.shared.metrics.count(&summed);
        let mut health = Health {
            at: self.shared.clock.unix_seconds(),
            hosts: hosts_health(&hosts, &heard, &roster.heard),
            registries: vec![RegistryHealth {
                name: self.name.clone(),
                hosts_heard: Some(Known::seen(alive)),
                why: None,
            }],
            grid: Some(summed),
            ..Health::default()
        };
        add_forecasts(&mut health.hosts, &hosts, forecasts);
        health.absent = silent.len();
        health.hosts = with_silent(health.hosts, silent);
        hosts.close().await;
        self.board.show(judged(health, &Limits::default()));
    }
}

/// What the hosts that are there forecast of themselves.
struct Forecasts {
    curves: BTreeMap<OwnerId, SurvivalCurve>,
    /// Share of them that stays for 0, 1, ... hours.
    stay: Vec<f64>,
}

fn add_forecasts(health: &mut HostsHealth, hosts: &Hosts, forecasts: &Forecasts) {
    let ids = hosts
        .all()
        .map(|host| hosts.entry(host).map(|entry| entry.id.0));
    // `hosts_health` keeps the order of `hosts`.
    for (host, id) in health.each.iter_mut().zip(ids) {
        let curve = id.and_then(|id| forecasts.curves.get(&id));
        host.stays_10h = curve.map(|curve| curve.at(36_000.0).value());
    }
    health.stay.clone_from(&forecasts.stay);
}
