//! The daemon of this machine, if it is a donor: it learns that the job is a guest, and says what its owner
//! lends.

use std::time::{Duration, Instant};

use machine::local::{How, Link, Report, State, Uses, usual_sockets};

/// How long a report holds.
const REPORT_AGE_MAX: Duration = Duration::from_secs(20);

/// How often a daemon is looked for that is not there.
const RETRY_PERIOD: Duration = Duration::from_secs(10);

/// How often it is said what the job uses.
const USES_PERIOD: Duration = Duration::from_secs(5);

/// What it says of the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DaemonSays {
    /// The owner lends the machine to nobody now: not at this hour, not on the battery, or paused.
    pub(super) is_withheld: bool,
    /// The memory does not suffice for guests.
    pub(super) memory_short: bool,
    /// The machine leaves the grid within so many milliseconds.
    pub(super) leaving_ms: Option<u64>,
}

/// The connection to it: as long as it lasts, this process and all that it starts are guests.
#[derive(Debug, Default)]
pub(super) struct Daemon {
    link: Option<Link>,
    next_try: Option<Instant>,
    next_uses: Option<Instant>,
    newest: Option<(Instant, Report)>,
}

impl Daemon {
    /// What it says now, if it says anything. `cores` are those that the job keeps busy.
    pub(super) fn look(&mut self, cores: f64) -> Option<DaemonSays> {
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
            // It has ended: from now on this program looks for itself.
            Err(cause) => {
                tracing::info!(%cause, "the daemon of this machine is not heard any more");
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
            // A daemon that only ends may be followed by another one.
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
