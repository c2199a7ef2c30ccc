//! The host on which a job is to go on: it fetches each version ahead (`ckpt run --on --standby`).

use ckpt_agent::agent::FetchedAhead;
use ckpt_agent::report::Failure;

use super::front::{Front, NextHost};
use super::link::{Link, News};
use super::words::{FORM, FromHost, Incarnation, Order, Shown, StandBy, ToHost};
use crate::journal::JournalEvent;

impl Front<'_> {
    /// Has the host stand by on which the job would go on now, and no other one.
    pub(super) fn prepare_next(&mut self) {
        // While the job moves, the host to which it goes keeps what it has fetched.
        if !self.orders.stands_by || self.link.is_none() {
            return;
        }
        let wanted = self.mover.next_host();
        let now = self.next.as_ref().map(|next| next.host.as_str());
        if now == wanted {
            return;
        }
        let wanted = wanted.map(str::to_owned);
        self.leave_next(None);
        if let Some(host) = wanted
            && let Err(failure) = self.stand_by(host)
        {
            self.complain(format!("no host stands by: {failure}"));
        }
    }

    fn stand_by(&mut self, host: String) -> Result<(), Failure> {
        let letter = self.away.sealed_letter(&self.orders.job)?;
        let order = Order {
            form: FORM,
            host: host.clone(),
            job: self.orders.job.to_string(),
            incarnation: Incarnation {
                run: self.kept.run.clone(),
                number: 0,
            },
            shown: Shown::default(),
            report_ms: self.orders.settings.report_ms,
            start: None,
            stand_by: Some(StandBy {
                grid: letter.grid,
                key: letter.key,
            }),
        };
        self.links += 1;
        let launcher = &self.orders.launcher;
        let link = Link::start(launcher, &order, self.links, self.sender.clone())
            .map_err(|cause| Failure::local("the launcher", &cause))?;
        self.next = Some(NextHost {
            link,
            host,
            version: None,
            is_ready: false,
            is_paused: false,
        });
        Ok(())
    }

    /// No host stands by any more. What it fetched stays there if it is the one on which the job `goes_on`.
    pub(super) fn leave_next(&mut self, goes_on: Option<&str>) {
        self.mover.prepared(None);
        if let Some(next) = self.next.take() {
            if goes_on == Some(next.host.as_str()) {
                next.link.say(ToHost::Comes);
            }
            self.closing.spawn(next.link.close());
        }
    }

    /// The job that is to be started on `host` finds there what that fetched.
    pub(super) fn hand_over_to(&mut self, host: &str) {
        if self.next.as_ref().is_some_and(|next| next.host == host) {
            self.leave_next(Some(host));
        }
    }

    /// While the job runs, the host that stands by fetches a version that is new to it. While the job is being saved
    /// before it leaves, or restored, it needs its hosts and the network for itself.
    pub(super) fn inform_next(&mut self, runs: bool) {
        let version = self.standing.as_ref().and_then(|standing| standing.version);
        let Some(next) = &mut self.next else {
            return;
        };
        let was_paused = std::mem::replace(&mut next.is_paused, !runs);
        if runs && (was_paused || version > next.version) {
            next.is_ready &= version <= next.version;
            next.version = version.max(next.version);
            next.link.say(ToHost::Saved);
        } else if !runs && !was_paused {
            next.link.say(ToHost::Pause);
        }
    }

    /// Takes news of the host that stands by.
    pub(super) fn hear_next(&mut self, news: News) {
        let Some(host) = self.next.as_ref().map(|next| next.host.clone()) else {
            return;
        };
        match news {
            News::Message(FromHost::StandsBy(fetched)) => self.stands_by(host, fetched),
            News::Message(FromHost::Refused { message }) => {
                self.complain(format!("{host} does not stand by: {message}"));
            }
            // A program that is older than this order.
            News::Message(FromHost::Vanished) | News::Ended => self.leave_next(None),
            News::Message(_) | News::Out(_) | News::Err(_) | News::Noise(_) => {}
        }
    }

    /// The host that has the newest version.
    pub(super) fn ready_host(&self) -> Option<String> {
        let ready = self.next.as_ref().filter(|next| next.is_ready);
        ready.map(|next| next.host.clone())
    }

    fn stands_by(&mut self, host: String, fetched: FetchedAhead) {
        if let Some(next) = &mut self.next {
            next.is_ready = fetched.is_complete && fetched.version >= next.version;
        }
        self.mover
            .prepared(Some(host.clone()).filter(|_| fetched.is_complete));
        self.log.enter(JournalEvent::StandsBy {
            host,
            version: fetched.version,
            fetched_bytes: fetched.fetched_bytes,
            held_bytes: fetched.held_bytes,
            is_complete: fetched.is_complete,
        });
    }
}
