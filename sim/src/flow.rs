//! Transfers that share links, with max-min fair rates.

use crate::jobs::JobIndex;
use crate::keeper::Keeper;

/// A transfer with at most this many bytes left counts as ended, because of errors of rounding.
const ROUNDING_BYTES: f64 = 1.0;

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All bytes were moved.
    Finished,
    /// The other host broke it off.
    Broken,
    /// The other host went away.
    Left,
}

/// A transfer between a job's compute host and what keeps a shard. Times are seconds since the start of the grid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// The job that it belongs to.
    pub(crate) job: JobIndex,
    /// Its number among the transfers of the job.
    pub(crate) number: u64,
    /// The compute host, as an index into the grid's hosts.
    pub(crate) near: usize,
    /// The other end.
    pub(crate) far: Keeper,
    /// Bytes to move.
    pub(crate) bytes: f64,
    /// Highest rate that the path between both hosts allows, bytes per second.
    pub(crate) path: f64,
    /// Whether the hosts are of different sites, so that their links to the outside are used.
    pub(crate) outside: bool,
    /// When the first byte is sent.
    pub(crate) starts: f64,
    /// Bytes that are left when the other host breaks it off; `None` if it does not.
    pub(crate) breaks_with: Option<f64>,
    /// When the other host goes away; infinite for never.
    pub(crate) leaves: f64,
}

/// A transfer that has been begun.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) plan: Plan,
    /// Indices of both ends into [`Flows::access`].
    ends: [usize; 2],
    /// Bytes still to be moved.
    remaining: f64,
    /// Present rate, bytes per second.
    rate: f64,
}

impl Flow {
    /// Bytes moved so far.
    pub(crate) const fn moved(&self) -> f64 {
        self.plan.bytes - self.remaining
    }

    /// The links that it uses: of each end the interface (link `2 * end`) and, if the transfer leaves the
    /// site, the link to the outside (link `2 * end + 1`).
    fn links(&self) -> impl Iterator<Item = usize> + use<> {
        let outside = self.plan.outside;
        self.ends
            .into_iter()
            .flat_map(move |end| [Some(2 * end), outside.then_some(2 * end + 1)])
            .flatten()
    }

    /// Bytes that are left when the transfer ends by itself.
    fn bytes_left_at_end(&self) -> f64 {
        self.plan.breaks_with.unwrap_or(0.0)
    }

    /// How the transfer has ended; `None` while it goes on.
    fn end(&self, now: f64) -> Option<End> {
        if self.plan.leaves <= now {
            return Some(End::Left);
        }
        if self.remaining > self.bytes_left_at_end() + ROUNDING_BYTES {
            return None;
        }
        Some(match self.plan.breaks_with {
            Some(_) => End::Broken,
            None => End::Finished,
        })
    }

    /// When the transfer begins or, at its present rate, ends.
    fn next_event(&self, now: f64) -> f64 {
        let own = if now < self.plan.starts {
            self.plan.starts
        } else if self.rate > 0.0 {
            now + (self.remaining - self.bytes_left_at_end()).max(0.0) / self.rate
        } else {
            f64::INFINITY
        };
        own.min(self.plan.leaves)
    }
}

/// All transfers in progress, and the links that they share.
#[derive(Clone, Debug)]
pub(crate) struct Flows {
    list: Vec<Flow>,
    /// Link of each host to the outside, and at the end that of the dedicated server, bytes per second.
    access: Vec<f64>,
    /// Network interface of every host and of the server, bytes per second.
    interface: f64,
}

impl Flows {
    /// No transfers yet. `hosts` are the links of hosts to the outside, `server` is that of the dedicated
    /// server, and `interface` the network interface of each of them, all in bytes per second.
    pub(crate) fn new(hosts: Vec<f64>, server: f64, interface: f64) -> Self {
        let mut access = hosts;
        access.push(server);
        Self {
            list: Vec::new(),
            access,
            interface,
        }
    }

    /// Begins a transfer.
    pub(crate) fn push(&mut self, plan: Plan) {
        let far = match plan.far {
            Keeper::Host(host) => host,
            Keeper::Server => self.access.len() - 1,
        };
        self.list.push(Flow {
            plan,
            ends: [plan.near, far],
            remaining: plan.bytes,
            rate: 0.0,
        });
    }

    /// Sets the rates of all transfers that have begun, by max-min fairness: all rates rise together. When a
    /// transfer reaches what its path allows, its rate stays; when a link is full, the rates of its transfers
    /// stay; the other rates rise further.
    pub(crate) fn share(&mut self, now: f64) {
        let mut left: Vec<f64> = Vec::with_capacity(2 * self.access.len());
        for access in &self.access {
            left.extend([self.interface, *access]);
        }
        let mut users = vec![0_u32; left.len()];
        let mut open: Vec<usize> = Vec::new();
        for (index, flow) in self.list.iter_mut().enumerate() {
            flow.rate = 0.0;
            if flow.plan.starts <= now {
                open.push(index);
                flow.links().for_each(|link| users[link] += 1);
            }
        }
        while !open.is_empty() {
            let fair = |flow: &Flow| {
                let shares = flow.links().map(|link| left[link] / f64::from(users[link]));
                shares.fold(flow.plan.path, f64::min)
            };
            let rates: Vec<f64> = open.iter().map(|index| fair(&self.list[*index])).collect();
            let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
            let full = |rate: f64| rate <= least * (1.0 + 1e-9);
            for (index, _) in open.iter().zip(&rates).filter(|(_, rate)| full(**rate)) {
                let flow = &mut self.list[*index];
                flow.rate = least;
                for link in flow.links() {
                    left[link] = (left[link] - least).max(0.0);
                    users[link] -= 1;
                }
            }
            let mut rates = rates.into_iter();
            open.retain(|_| !rates.next().is_some_and(full));
        }
    }

    /// When the next transfer begins or ends at the present rates.
    pub(crate) fn next_event(&self, now: f64) -> f64 {
        let times = self.list.iter().map(|flow| flow.next_event(now));
        times.fold(f64::INFINITY, f64::min)
    }

    /// Lets time pass at the present rates.
    pub(crate) fn advance(&mut self, seconds: f64) {
        for flow in &mut self.list {
            flow.remaining = (flow.remaining - flow.rate * seconds).max(0.0);
        }
    }

    /// Removes a transfer that has ended, if there is one.
    pub(crate) fn take_ended(&mut self, now: f64) -> Option<(Flow, End)> {
        let found = self.list.iter().enumerate();
        let (place, end) = found
            .map(|(i, flow)| (i, flow.end(now)))
            .find(|(_, end)| end.is_some())?;
        Some((self.list.remove(place), end?))
    }

    /// Removes the transfers of a job and returns the bytes that they had moved.
    pub(crate) fn cancel(&mut self, job: JobIndex) -> f64 {
        let mine = self.list.iter().filter(|flow| flow.plan.job == job);
        let moved = mine.map(Flow::moved).sum();
        self.list.retain(|flow| flow.plan.job != job);
        moved
    }

    /// Number of transfers of a job that are in progress.
    pub(crate) fn count(&self, job: JobIndex) -> usize {
        self.list.iter().filter(|flow| flow.plan.job == job).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(number: usize) -> JobIndex {
        JobIndex::first(number + 1).last().unwrap()
    }

    fn plan(job: JobIndex, far: usize, bytes: f64) -> Plan {
        Plan {
            job,
            number: 1,
            near: 0,
            far: Keeper::Host(far),
            bytes,
            path: 10.0,
            outside: true,
            starts: 0.0,
            breaks_with: None,
            leaves: f64::INFINITY,
        }
    }

    #[test]
    fn links_are_shared_and_freed_again() {
        let mut flows = Flows::new(vec![12.0, 100.0, 3.0], 1000.0, 1000.0);
        flows.push(plan(job(0), 1, 60.0));
        flows.push(plan(job(0), 2, 60.0));
        flows.share(0.0);
        // The second transfer gets 3 of the 12, all that its host's link allows; the first gets the other 9.
        assert!((flows.next_event(0.0) - 60.0 / 9.0).abs() < 1e-9);
        flows.advance(7.0);
        let (ended, end) = flows.take_ended(7.0).unwrap();
        assert_eq!((ended.plan.far, end), (Keeper::Host(1), End::Finished));
        assert!(flows.take_ended(7.0).is_none());
        flows.share(7.0);
        assert_eq!(flows.next_event(7.0), 20.0);
        assert_eq!(flows.cancel(job(0)), 21.0);
        assert_eq!(flows.next_event(7.0), f64::INFINITY);
    }

    #[test]
    fn a_transfer_ends_early_when_it_breaks_or_its_host_leaves() {
        let mut flows = Flows::new(vec![100.0; 3], 1000.0, 1000.0);
        let mut breaking = plan(job(0), 1, 60.0);
        breaking.breaks_with = Some(40.0);
        let mut leaving = plan(job(1), 2, 60.0);
        leaving.leaves = 3.0;
        flows.push(breaking);
        flows.push(leaving);
        flows.share(0.0);
        assert_eq!(flows.next_event(0.0), 2.0);
        flows.advance(2.0);
        assert_eq!(flows.take_ended(2.0).unwrap().1, End::Broken);
        assert_eq!(flows.next_event(2.0), 3.0);
        flows.advance(1.0);
        assert_eq!(flows.take_ended(3.0).unwrap().1, End::Left);
    }
}
