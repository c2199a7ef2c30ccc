//! Faults that do not count as bad hosts: in networks, full disks, clocks and registries.

use std::time::Duration;

use anyhow::Result;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::process::Signal;

use super::Stage;
use crate::cluster::Node;

/// How far clocks are set wrong where hosts are listed, seconds; their certificates were made for that.
const CLOCKS_OFF_LISTED_S: i64 = 300_000;

/// How far clocks are set wrong otherwise, seconds: certificates are valid from an hour before they are made.
const CLOCKS_OFF_S: i64 = 2_000;

impl Stage<'_> {
    /// Injects faults that do not count as bad hosts: in networks, full disks, clocks and registries.
    pub(super) fn weather(&self, seed: u64) -> Result<()> {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x5eed);
        while !self.is_over() {
            let lasting = Duration::from_millis(rng.random_range(500..10_000));
            let mut hosts: Vec<&Node> = self.cluster.hosts.iter().collect();
            let count = rng.random_range(1..=3);
            hosts.rotate_left(rng.random_range(0..self.cluster.hosts.len()));
            hosts.truncate(count);
            let kind = self.draw_fault(&mut rng);
            if !kind.is_empty() {
                let many = if kind.starts_with("registry") {
                    1
                } else {
                    count
                };
                *self.tally().faults.entry(kind).or_default() += many as u64;
            }
            self.change(kind, &hosts, &mut rng, true)?;
            self.wait(lasting);
            self.change(kind, &hosts, &mut rng, false)?;
        }
        Ok(())
    }

    fn draw_fault(&self, rng: &mut SmallRng) -> &'static str {
        let kinds = [
            "packets lost",
            "packets delayed",
            "slowed",
            "disk full",
            "clock set",
            "registry killed",
            "registry stopped",
            "registry cut off",
        ];
        let powers = self.cluster.powers;
        match kinds[rng.random_range(0..kinds.len())] {
            "disk full" if !powers.disks => "",
            "clock set" if !powers.clocks => "",
            kind if kind.starts_with("registry") && self.cluster.registries.is_empty() => "",
            kind => kind,
        }
    }

    /// Begins or ends a fault of this kind.
    fn change(&self, kind: &str, hosts: &[&Node], rng: &mut SmallRng, begin: bool) -> Result<()> {
        let registries = &self.cluster.registries;
        for host in hosts {
            match (kind, begin) {
                ("packets lost", true) => host.relay.weather(rng.random_range(5..80), 0, 0),
                ("packets delayed", true) => host.relay.weather(0, rng.random_range(5..100), 0),
                ("slowed", true) => {
                    let rate = rng.random_range(200_000..2_000_000);
                    host.relay.weather(0, 2, rate);
                }
                ("packets lost" | "packets delayed" | "slowed", false) => {
                    host.relay.weather(0, 0, 0)
                }
                ("disk full", begin) => host.fill_disk(begin)?,
                ("clock set", true) => {
                    let most = match self.is_listed {
                        true => CLOCKS_OFF_LISTED_S,
                        false => CLOCKS_OFF_S,
                    };
                    host.set_clock(rng.random_range(-most..most))?;
                }
                ("clock set", false) => host.set_clock(0)?,
                _ => {}
            }
        }
        if !kind.starts_with("registry") {
            return Ok(());
        }
        // One registry, or all of them.
        let one = rng.random_range(0..=registries.len());
        for (at, registry) in registries.iter().enumerate() {
            if begin && one < registries.len() && at != one {
                continue;
            }
            match (kind, begin) {
                ("registry killed", true) => registry.kill()?,
                ("registry stopped", true) => registry.signal(Signal::STOP)?,
                ("registry stopped", false) => registry.signal(Signal::CONT)?,
                ("registry cut off", begin) => registry.relay.cut(begin),
                _ => {}
            }
        }
        if kind == "registry killed" && !begin {
            self.restart()?;
        }
        Ok(())
    }
}
