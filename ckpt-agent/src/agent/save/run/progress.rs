//! Reports to the user while a save runs: how far it is, and what its hosts do.

use codec::index::StoredSegment;
use tokio::time::{Duration, Instant};

use super::{SaveShell, millis};
use crate::core::save::{SaveOutcome, Setback};
use crate::report::{Compressed, Progress, ProgressEvent};

/// If a host is asked again after a longer time than this, the user is informed.
const REPORTED_WAIT_MIN: Duration = Duration::from_secs(2);

/// How often progress is reported.
pub(super) const PROGRESS_PERIOD: Duration = Duration::from_millis(200);

/// Numbers for the progress reports.
#[derive(Debug, Default)]
pub(super) struct Tally {
    total_bytes: Option<u64>,
    /// For each row: image bytes up to its end, with the zeros before it, and stored bytes up to its end.
    pub(super) ends: Vec<(u64, u64)>,
    /// When the image was read to its end.
    pub(super) read_at: Option<Instant>,
    pub(super) read_bytes: u64,
    pub(super) same_bytes: u64,
    pub(super) stored_bytes: u64,
    pub(super) network_bytes: u64,
    /// The segments so far, by how they were compressed.
    pub(super) compressed: Vec<Compressed>,
    reported_setbacks: usize,
    /// When progress was reported last.
    reported: Option<Instant>,
}

impl Tally {
    /// Before anything of `total_bytes` was read.
    pub(super) fn of(total_bytes: Option<u64>) -> Self {
        Self {
            total_bytes,
            ..Self::default()
        }
    }

    /// Counts a segment of the image that was compressed.
    pub(super) fn count(&mut self, segment: StoredSegment) {
        let method = segment.method.name();
        let at = self.compressed.iter().position(|one| one.method == method);
        let at = at.unwrap_or_else(|| {
            self.compressed.push(Compressed {
                method,
                segments: 0,
                bytes: 0,
                stored_bytes: 0,
            });
            self.compressed.len() - 1
        });
        if let Some(one) = self.compressed.get_mut(at) {
            one.segments += 1;
            one.bytes += u64::from(segment.raw_len);
            one.stored_bytes += u64::from(segment.stored_len);
        }
    }

    /// Image bytes and stored bytes of the first `rows` rows.
    fn up_to(&self, rows: u64) -> (u64, u64) {
        let last = usize::try_from(rows).unwrap_or(usize::MAX).checked_sub(1);
        let ends = last.and_then(|row| self.ends.get(row));
        ends.copied().unwrap_or_default()
    }

    /// Image bytes and stored bytes of all that was read.
    pub(super) const fn whole(&self) -> (u64, u64) {
        (self.read_bytes, self.stored_bytes)
    }
}

impl SaveShell<'_> {
    pub(super) fn report_setbacks(&mut self) {
        let now = self.now();
        for setback in self
            .session
            .setbacks()
            .iter()
            .skip(self.tally.reported_setbacks)
        {
            if self.slept.times > 0 {
                continue;
            }
            self.agent.saw_fault(setback.host, &setback.fault);
            let note = self.agent.note(setback.host, &setback.fault);
            match setback.again {
                None => self.observer.event(ProgressEvent::HostReplaced {
                    lost: note,
                    spare: None,
                }),
                Some(at) if at.since(now) > millis(REPORTED_WAIT_MIN) => {
                    let seconds = at.since(now) as f64 / 1000.0;
                    let host = note;
                    self.observer
                        .event(ProgressEvent::Waiting { host, seconds });
                }
                Some(_) => {}
            }
        }
        self.tally.reported_setbacks = self.session.setbacks().len();
    }

    /// Reports which hosts were replaced; only a committed save knows which were not used in the end.
    pub(super) fn report_replaced(&self) {
        if !matches!(self.session.outcome(), Some(SaveOutcome::Committed { .. })) {
            return;
        }
        let setbacks = self.session.setbacks();
        for (host, fault) in self.session.troubles() {
            let given_up = |setback: &Setback| setback.host == host && setback.again.is_none();
            if !setbacks.iter().any(given_up) {
                self.observer.event(ProgressEvent::HostReplaced {
                    lost: self.agent.note(host, fault),
                    spare: None,
                });
            }
        }
    }

    pub(super) fn report_progress_if_due(&mut self) {
        let is_early = |reported: Instant| reported.elapsed() < PROGRESS_PERIOD;
        if self.tally.reported.is_some_and(is_early) {
            return;
        }
        self.tally.reported = Some(Instant::now());
        let sent = self
            .transfers
            .values()
            .map(|transfer| *transfer.sent.borrow())
            .max()
            .unwrap_or(0);
        self.report_progress(self.tally.up_to(sent));
    }

    /// Reports that this many image bytes, and the bytes in which they are stored, are done.
    pub(super) fn report_progress(&self, (done_bytes, stored_bytes): (u64, u64)) {
        self.observer.event(ProgressEvent::Progress(Progress {
            done_bytes,
            total_bytes: self.tally.total_bytes,
            stored_bytes,
            network_bytes: self.tally.network_bytes,
        }));
    }
}
