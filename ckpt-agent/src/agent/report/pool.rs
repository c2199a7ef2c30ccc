//! The week of the pool, as its hosts announce their past.

use std::time::Duration;

use placement::week::{HOURS, Week, hour_of_week};
use protocol::wire::announcement::Announced;

use crate::agent::Agent;
use crate::pool::{BestStart, PoolHour, PoolReport};
use crate::report::{ExitStatus, Failure};
use crate::unix_time::unix_seconds;

/// Hours of a day, within which a job is to start.
const DAY: usize = 24;

/// Starts of which the share of those that stayed says anything.
const STARTS_MIN: u32 = 4;

/// Most hosts whose weeks are counted. A bitmap has 8064 slots.
const HOSTS_MAX: usize = 10_000;

impl Agent {
    /// The week of the pool: when its hosts are there, when their processors are free, and when a job that takes
    /// `job` had best begin.
    ///
    /// # Errors
    /// When no host announces its past.
    pub async fn pool(&self, job: Duration) -> Result<PoolReport, Failure> {
        let announced = self.announcements().await.into_iter();
        let announced = announced.filter_map(|host| host.said.ok()?);
        let announced: Vec<Announced> = announced.take(HOSTS_MAX).collect();
        if announced.is_empty() {
            let message = "cannot show the pool: no host announces its past";
            return Err(Failure::new(ExitStatus::TooFewHosts, message).next("ckpt hosts"));
        }
        let now = unix_seconds();
        let counting = tokio::task::spawn_blocking(move || counted(&announced, job, now));
        let failed = |_| Failure::new(ExitStatus::Failed, "cannot show the pool");
        counting.await.map_err(failed)
    }
}

fn counted(announced: &[Announced], job: Duration, now: u64) -> PoolReport {
    let presence: Vec<_> = announced.iter().map(|host| &host.presence_bitmap).collect();
    let guests: Vec<_> = announced.iter().map(|host| &host.guest_bitmap).collect();
    let there = Week::of(&presence, 1);
    let free = Week::of(&guests, job.as_secs());
    let this_hour = hour_of_week(now);
    let hours = there.hours().iter().zip(free.hours());
    let hours = hours.map(|(there, free)| PoolHour {
        known: there.known,
        hosts: there.hosts,
        free: free.hosts,
        starts: free.starts,
        stayed: free.stayed,
    });
    PoolReport {
        hosts: announced.len(),
        job_s: job.as_secs(),
        hours: hours.collect(),
        now: this_hour,
        best: free
            .best(now, DAY, STARTS_MIN)
            .map(|(in_hours, _)| BestStart {
                hour: (this_hour + in_hours) % HOURS,
                in_hours,
            }),
    }
}
