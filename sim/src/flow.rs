//! Transfers that share links.

/// Bytes below which nothing is left, for rounding.
const NOTHING: f64 = 1.0;

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All bytes are there.
    Finished,
    /// The other side broke it off.
    Broken,
    /// The other side went away.
    Left,
}

/// A transfer between a job's compute host and another.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    /// Whose.
    pub(crate) job: usize,
    /// The job's side.
    pub(crate) near: usize,
    /// The other side.
    pub(crate) far: usize,
    /// Bytes in all.
    pub(crate) bytes: f64,
    /// Bytes still to be moved.
    pub(crate) remaining: f64,
    /// Most that the path allows, bytes per second.
    pub(crate) path: f64,
    /// Whether it leaves the site.
    pub(crate) outside: bool,
    /// When the first byte is sent.
    pub(crate) starts: f64,
    /// The bytes that are left when the other side breaks it off.
    pub(crate) breaks_with: Option<f64>,
    /// When the other side goes away.
    pub(crate) leaves: f64,
    rate: f64,
}

/// What a transfer is, before it begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) job: usize,
    pub(crate) near: usize,
    pub(crate) far: usize,
    pub(crate) bytes: f64,
    pub(crate) path: f64,
    pub(crate) outside: bool,
    pub(crate) starts: f64,
    pub(crate) breaks_with: Option<f64>,
    pub(crate) leaves: f64,
}

impl Flow {
    pub(crate) const fn new(plan: Plan) -> Self {
        Self {
            job: plan.job,
            near: plan.near,
            far: plan.far,
            bytes: plan.bytes,
            remaining: plan.bytes,
            path: plan.path,
            outside: plan.outside,
            starts: plan.starts,
            breaks_with: plan.breaks_with,
            leaves: plan.leaves,
            rate: 0.0,
        }
    }

    /// Bytes moved so far.
    pub(crate) const fn moved(&self) -> f64 {
        self.bytes - self.remaining
    }

    fn until(&self) -> f64 {
        self.breaks_with.unwrap_or(0.0)
    }

    fn end(&self, now: f64) -> Option<End> {
        if self.leaves <= now {
            return Some(End::Left);
        }
        if self.remaining > self.until() + NOTHING {
            return None;
        }
        Some(match self.breaks_with {
            Some(_) => End::Broken,
            None => End::Finished,
        })
    }

    fn next_event(&self, now: f64) -> f64 {
        let own = if now < self.starts {
            self.starts
        } else if self.rate > 0.0 {
            now + (self.remaining - self.until()).max(0.0) / self.rate
        } else {
            f64::INFINITY
        };
        own.min(self.leaves)
    }
}

/// All transfers under way and the links they share.
#[derive(Clone, Debug)]
pub(crate) struct Flows {
    list: Vec<Flow>,
    /// Link of each host to the outside, bytes per second.
    access: Vec<f64>,
    interface: f64,
}

impl Flows {
    pub(crate) const fn new(access: Vec<f64>, interface: f64) -> Self {
        Self {
            list: Vec::new(),
            access,
            interface,
        }
    }

    pub(crate) fn push(&mut self, flow: Flow) {
        self.list.push(flow);
    }

    /// Each link is divided evenly among the transfers on it.
    pub(crate) fn share(&mut self, now: f64) {
        let mut all = vec![0.0; self.access.len()];
        let mut outside = vec![0.0; self.access.len()];
        for flow in self.list.iter().filter(|flow| flow.starts <= now) {
            for host in [flow.near, flow.far] {
                all[host] += 1.0;
                outside[host] += f64::from(u8::from(flow.outside));
            }
        }
        for flow in &mut self.list {
            if flow.starts > now {
                flow.rate = 0.0;
                continue;
            }
            flow.rate = flow.path;
            for host in [flow.near, flow.far] {
                flow.rate = flow.rate.min(self.interface / all[host]);
                if flow.outside {
                    flow.rate = flow.rate.min(self.access[host] / outside[host]);
                }
            }
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

    /// Removes a transfer that has ended.
    pub(crate) fn take_ended(&mut self, now: f64) -> Option<(Flow, End)> {
        let found = self.list.iter().enumerate();
        let (place, end) = found
            .map(|(i, flow)| (i, flow.end(now)))
            .find(|(_, end)| end.is_some())?;
        Some((self.list.remove(place), end?))
    }

    /// Removes the transfers of a job; the bytes they had moved.
    pub(crate) fn cancel(&mut self, job: usize) -> f64 {
        let mine = self.list.iter().filter(|flow| flow.job == job);
        let moved = mine.map(Flow::moved).sum();
        self.list.retain(|flow| flow.job != job);
        moved
    }

    /// Number of transfers of a job.
    pub(crate) fn count(&self, job: usize) -> usize {
        self.list.iter().filter(|flow| flow.job == job).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(job: usize, far: usize, bytes: f64) -> Flow {
        Flow::new(Plan {
            job,
            near: 0,
            far,
            bytes,
            path: 10.0,
            outside: true,
            starts: 0.0,
            breaks_with: None,
            leaves: f64::INFINITY,
        })
    }

    #[test]
    fn links_are_shared_and_freed_again() {
        let mut flows = Flows::new(vec![12.0, 100.0, 3.0], 1000.0);
        flows.push(flow(0, 1, 60.0));
        flows.push(flow(0, 2, 60.0));
        flows.share(0.0);
        // 12 / 2 = 6 for the first; the second is held up by its host.
        assert_eq!(flows.next_event(0.0), 10.0);
        flows.advance(10.0);
        let (ended, end) = flows.take_ended(10.0).unwrap();
        assert_eq!((ended.far, end), (1, End::Finished));
        assert!(flows.take_ended(10.0).is_none());
        flows.share(10.0);
        assert_eq!(flows.next_event(10.0), 20.0);
        assert_eq!(flows.cancel(0), 30.0);
        assert_eq!(flows.next_event(10.0), f64::INFINITY);
    }

    #[test]
    fn a_transfer_ends_early_when_it_breaks_or_its_host_leaves() {
        let mut flows = Flows::new(vec![100.0; 3], 1000.0);
        let mut breaking = flow(0, 1, 60.0);
        breaking.breaks_with = Some(40.0);
        let mut leaving = flow(1, 2, 60.0);
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
