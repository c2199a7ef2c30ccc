//! Members that join, go home at night, and are forgotten by a registry.

use std::fs;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use ckpt_store::core::known_donors;
use rand::Rng;
use rand::rngs::SmallRng;
use rustix::process::Signal;

use super::{HEAL_TIMEOUT, Stage};
use crate::cluster::Node;
use crate::program::wait_until;

/// How long a night is, seconds. Registries count a silent host as there for up to 24 s.
const NIGHT_S: std::ops::Range<u64> = 20..45;

/// How long hosts and registries may take in the morning until all of them are seen.
const MORNING_TIMEOUT: Duration = Duration::from_secs(120);

impl Stage<'_> {
    /// Lets something happen to the members, or nothing.
    pub(super) fn change_members(&self, rng: &mut SmallRng) -> Result<()> {
        match rng.random_range(0..8) {
            0 => self.night(rng),
            1 => self.let_join(),
            2 => self.empty_registry(rng),
            _ => Ok(()),
        }
    }

    /// Most hosts go home for a while: they are switched off in order, lose their power, or sleep.
    fn night(&self, rng: &mut SmallRng) -> Result<()> {
        let members = self.members();
        let stay = rng.random_range(1..=members.len() / 2);
        let first = rng.random_range(0..members.len());
        let away = members.iter().cycle().skip(first);
        let away: Vec<&Node> = away.take(members.len() - stay).copied().collect();
        *self.tally().faults.entry("nights").or_default() += 1;
        let lasting = Duration::from_secs(rng.random_range(NIGHT_S));
        let starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        self.nights.fetch_add(1, Ordering::SeqCst);
        let mut asleep = Vec::new();
        for host in away {
            match rng.random_range(0..3) {
                0 => host.kill()?,
                1 => host.end(HEAL_TIMEOUT)?,
                _ => {
                    host.signal(Signal::STOP)?;
                    asleep.push(host);
                }
            }
        }
        self.wait(lasting);
        for host in asleep {
            host.signal(Signal::CONT)?;
        }
        drop(starting);
        self.restart()?;
        self.await_all()?;
        self.nights.fetch_add(1, Ordering::SeqCst);
        // Saves of the night may have fewer shards than others, and build on what was there.
        self.heal_for(HEAL_TIMEOUT)?;
        Ok(())
    }

    /// Waits until all members answer a machine.
    fn await_all(&self) -> Result<()> {
        let expected = self.members().len();
        wait_until("all are there in the morning", MORNING_TIMEOUT, || {
            let hosts = self.cluster.run(["--json", "hosts"])?;
            let Ok(hosts) = hosts.json() else {
                return Ok(false);
            };
            let up = hosts["hosts"].as_array().map(|hosts| {
                let up = hosts.iter().filter(|host| host["up"] == true);
                up.count()
            });
            Ok(self.is_over() || up == Some(expected))
        })
    }

    /// Has a host join that was not there before.
    fn let_join(&self) -> Result<()> {
        let mut later = self.cluster.hosts.iter().filter(|host| !host.has_joined());
        if let Some(host) = later.next() {
            let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
            // Registries may be away.
            if self.cluster.join(host).is_ok() {
                *self.tally().faults.entry("members joined").or_default() += 1;
            }
        }
        Ok(())
    }

    /// Has a registry forget the donors that it knows, and waits until they have announced themselves and have
    /// brought the cards of others.
    fn empty_registry(&self, rng: &mut SmallRng) -> Result<()> {
        let registries = &self.cluster.registries;
        let registry = &registries[rng.random_range(0..registries.len())];
        *self.tally().faults.entry("registries emptied").or_default() += 1;
        {
            let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
            registry.kill()?;
            let known = registry.data().join("known-donors");
            if known.exists() {
                fs::remove_file(known)?;
            }
            self.cluster.start_stopped()?;
        }
        let expected = self.members().len();
        wait_until("the registry knows all", MORNING_TIMEOUT, || {
            let known = fs::read(registry.data().join("known-donors")).unwrap_or_default();
            let known = known_donors::decode(&known).map_or(0, |known| known.len());
            Ok(self.is_over() || known >= expected)
        })
    }
}
