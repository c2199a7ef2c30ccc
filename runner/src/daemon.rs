//! The connection to the daemon of this machine, if there is one. The daemon learns from it that the job
//! is a guest, and reports what the owner lends.

use std::time::{Duration, Instant};

use machine::local::{How, Link, Report, State, Uses, usual_sockets};

/// How long a report of the daemon is valid.
const REPORT_AGE_MAX: Duration = Duration::from_secs(20);

/// Time from one attempt to connect to the next.
const RETRY_PERIOD: Duration = Duration::from_secs(10);

/// Time from one message on what the job uses to the next.
const USES_PERIOD: Duration = Duration::from_secs(5);

/// What the daemon reports of the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DaemonSays {
    /// The owner lends the machine to no guest now: not at this hour, not on battery, or paused.
    pub(super) is_withheld: bool,
    /// The memory does not suffice for guests.
    pub(super) memory_short: bool,
    /// The machine leaves the grid within this many milliseconds.
    pub(super) leaving_ms: Option<u64>,
}

/// A connection to the daemon. While it lasts, this process and its descendants count as guests.
#[derive(Debug, Default)]
pub(super) struct Daemon {
    link: Option<Link>,
    next_try: Option<Instant>,
    next_uses: Option<Instant>,
    newest: Option<(Instant, Report)>,
}

impl Daemon {
    /// The newest report, if it is still valid. `cores` is how many cores the job keeps busy.
    pub(super) fn newest_report(&mut self, cores: f64) -> Option<DaemonSays> {
        if self.link.is_none() {
            self.connect();
        }
        let link = self.link.as_mut()?;
        let mut heard = link.poll();
        if self.next_uses.is_none_or(|at| at <= Instant::now()) {
            self.next_uses = Some(Instant::now() + USES_PERIOD);
            let uses = Uses {
                cores,
                ..Uses::default()
            };
            if let Err(cause) = link.send(&uses) {
                heard = heard.and(Err(cause));
            }
        }
        match heard {
            Ok(Some(report)) => self.newest = Some((Instant::now(), report)),
            Ok(None) => {}
            // The daemon has ended: from now on only this program's own samples count.
            Err(cause) => {
                tracing::info!(%cause, "lost the connection to this machine's daemon");
                (self.link, self.newest) = (None, None);
            }
        }
        let newest = self.newest.as_ref();
        let (_, report) = newest.filter(|(at, _)| at.elapsed() < REPORT_AGE_MAX)?;
        let withheld = report.withheld.as_ref();
        let leaving = report.leaving.as_ref();
        Some(DaemonSays {
            is_withheld: withheld.is_some_and(|withheld| withheld.why.concerns_guests()),
            memory_short: report.state == State::NoMemory,
            // A daemon that ends without draining may be restarted soon.
            leaving_ms: leaving
                .filter(|leaving| leaving.how == How::Drain)
                .map(|leaving| leaving.within_s.saturating_mul(1000)),
        })
    }

    fn connect(&mut self) {
        if self.next_try.is_some_and(|at| at > Instant::now()) {
            return;
        }
        self.next_try = Some(Instant::now() + RETRY_PERIOD);
        let sockets = usual_sockets(|name| std::env::var_os(name), None);
        self.link = sockets.iter().find_map(|path| Link::connect(path).ok());
    }
}
