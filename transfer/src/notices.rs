//! Asks a host for its notices about some jobs. The notices arrive one by one, and each is passed on
//! before the next one is read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use codec::notice::Notice;
use codec::{JobTag, OwnerId};
use protocol::net::stream::{Exchange, read_frame};
use protocol::wire::limits::{NOTICES_ASKED_MAX, NOTICES_PER_JOB_MAX, REQUEST_TIMEOUT};
use protocol::wire::message::{NoticeRecord, Request, Response};
use tokio::time::Instant;

use crate::find::time_left;
use crate::hosts::unexpected;
use crate::{Fault, HostIndex, Hosts};

/// A job of an owner.
type OwnedJob = (OwnerId, JobTag);

/// A request for a host's notices about some jobs, and its answers. Of the notices only their numbers are
/// kept, so a host can't fill the memory, however much it sends.
#[derive(Debug)]
pub struct Hearing {
    hosts: Hosts,
    host: HostIndex,
    jobs: Arc<Vec<OwnedJob>>,
    /// About how many of the jobs the host was asked.
    asked: usize,
    clock: Option<u64>,
    answer: Option<Answer>,
}

/// The rest of an answer about some of the jobs.
#[derive(Debug)]
struct Answer {
    exchange: Exchange,
    left: u32,
    numbers: NoticeNumbers,
    bytes: u64,
    /// How long this client has waited for the host.
    waited: Duration,
}

/// The numbers of the notices that have arrived so far of each job.
#[derive(Debug, Default)]
struct NoticeNumbers(BTreeMap<OwnedJob, BTreeSet<u64>>);

impl NoticeNumbers {
    fn of(jobs: &[OwnedJob]) -> Self {
        Self(jobs.iter().map(|job| (*job, BTreeSet::new())).collect())
    }

    fn most(&self) -> usize {
        self.0.len() * NOTICES_PER_JOB_MAX
    }

    /// Whether a notice was asked for: it is about one of the jobs, its number is new, and the job has
    /// not too many notices yet. A notice that a job key signed is refused, because hosts pass on only
    /// those of owners.
    fn is_wanted(&mut self, notice: &Notice) -> bool {
        let words = notice.words();
        let numbers = self.0.get_mut(&(words.owner, words.job_tag));
        let is_new = numbers.is_some_and(|numbers| {
            numbers.len() < NOTICES_PER_JOB_MAX && numbers.insert(words.number)
        });
        is_new && notice.grant().is_none()
    }
}

impl Hosts {
    /// Asks a host for its notices about some jobs.
    pub fn fetch_notices(&self, host: HostIndex, jobs: Arc<Vec<OwnedJob>>) -> Hearing {
        Hearing {
            hosts: self.clone(),
            host,
            jobs,
            asked: 0,
            clock: None,
            answer: None,
        }
    }
}

impl Hearing {
    /// The clock of the host, in Unix seconds; `None` before its first answer.
    pub const fn clock(&self) -> Option<u64> {
        self.clock
    }

    /// The next notice, whose owner's signature was checked; `None` after the last one. A job may have
    /// several.
    ///
    /// # Errors
    /// When the host does not answer as it should, or sends less than 64 KiB in 10 s.
    pub async fn next(&mut self) -> Result<Option<Notice>, Fault> {
        loop {
            if let Some(answer) = &mut self.answer
                && answer.left > 0
            {
                return answer.next().await.map(Some);
            }
            let rest = self.jobs.get(self.asked..).unwrap_or_default();
            let some = rest.get(..NOTICES_ASKED_MAX).unwrap_or(rest).to_vec();
            // A request about no job at all is sent, too, because its answer has the clock.
            if some.is_empty() && self.clock.is_some() {
                return Ok(None);
            }
            self.ask(some).await?;
        }
    }

    async fn ask(&mut self, some: Vec<OwnedJob>) -> Result<(), Fault> {
        let numbers = NoticeNumbers::of(&some);
        self.asked += some.len();
        let asked = Request::Notices { jobs: some };
        let asking = self.hosts.request(self.host, &asked, REQUEST_TIMEOUT);
        let (response, exchange) = asking.await?;
        let Response::Notices { clock, count } = response else {
            return Err(unexpected("notices"));
        };
        if count as usize > numbers.most() {
            return Err(unexpected("notices"));
        }
        self.clock = Some(clock);
        self.answer = Some(Answer {
            exchange,
            left: count,
            numbers,
            bytes: 0,
            waited: Duration::ZERO,
        });
        Ok(())
    }
}

impl Answer {
    async fn next(&mut self) -> Result<Notice, Fault> {
        let limit = time_left(self.waited, self.bytes)
            .ok_or_else(|| Fault::Gone("its notices arrive too slowly".into()))?;
        let asked = Instant::now();
        let record: NoticeRecord = read_frame(&mut self.exchange.recv, limit).await?;
        self.waited += asked.elapsed();
        self.left -= 1;
        self.bytes += record.notice.len() as u64;
        let parsed = Notice::parse(record.notice);
        let notice = parsed.map_err(|cause| Fault::Lied(cause.to_string()))?;
        if !self.numbers.is_wanted(&notice) {
            return Err(unexpected("notices"));
        }
        Ok(notice)
    }
}

#[cfg(test)]
mod tests {
    use codec::keys::Keys;
    use codec::notice::{Intervals, Words};
    use codec::scope::Blinded;
    use codec::seal::OwnerSecret;

    use super::*;

    fn notice(job: u8, number: u64) -> Notice {
        let keys = Keys::from(OwnerSecret::new([1; 32]));
        let job = (keys.owner(), JobTag([job; 32]));
        let words = Words::following(None, job, number, None, &[], &Intervals::default());
        Notice::sign(&keys, &[Blinded([0; 32])], &words).unwrap()
    }

    #[test]
    fn a_job_may_have_several_notices_and_none_twice() {
        let owner = Keys::from(OwnerSecret::new([1; 32])).owner();
        let mut numbers = NoticeNumbers::of(&[(owner, JobTag([7; 32])), (owner, JobTag([8; 32]))]);
        assert_eq!(numbers.most(), 2 * NOTICES_PER_JOB_MAX);
        assert!(numbers.is_wanted(&notice(7, 1)));
        assert!(!numbers.is_wanted(&notice(7, 1)), "the same again");
        for number in 2..=NOTICES_PER_JOB_MAX as u64 {
            assert!(numbers.is_wanted(&notice(7, number)), "{number}");
        }
        assert!(!numbers.is_wanted(&notice(7, 100)), "more than there are");
        assert!(numbers.is_wanted(&notice(8, 100)));
        assert!(!numbers.is_wanted(&notice(9, 1)), "nobody asked for it");
    }
}
