//! Guests that have registered with the daemon, and what they are sent.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use machine::local::{Leaving, Report, Uses, Why, Withheld};
use machine::{Guests, ProcessId};
use placement::contention::contended_load;
use placement::state::{HostClassifier, HostReading, Thresholds};
use protocol::wire;
use tokio::sync::watch as watched;

use super::stance::Reason;

/// Most connections at the same time.
const GUESTS_MAX: usize = 128;

/// Most connections of one process at the same time.
const GUESTS_PER_PROCESS_MAX: usize = 4;

/// Most connections of one user at the same time, so that others find a place. In the user namespace of
/// the shipped unit, all users except root and the daemon's own look like one user.
const GUESTS_PER_USER_MAX: usize = GUESTS_MAX / 2;

/// No further guest is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// There are `GUESTS_MAX` connections already.
    #[error("{GUESTS_MAX} guests are connected already")]
    Machine,
    /// This user has its share of the connections already.
    #[error(
        "this user has {GUESTS_PER_USER_MAX} connections already: the other half is for other users"
    )]
    User,
    /// This process has its share of the connections already.
    #[error("this process has {GUESTS_PER_PROCESS_MAX} connections already")]
    Process,
}

/// All guests that have registered.
#[derive(Clone, Debug, Default)]
pub struct Register {
    seats: Arc<Mutex<Seats>>,
    /// The number of connections of guests.
    count: watched::Sender<usize>,
}

#[derive(Debug, Default)]
struct Seats {
    last: u64,
    taken: BTreeMap<u64, Guest>,
}

#[derive(Debug)]
struct Guest {
    process: ProcessId,
    /// The user id, as the kernel reports it to the daemon.
    user: u32,
    uses: Uses,
}

/// A guest's place in the register. The place is given up when this is dropped.
#[derive(Debug)]
pub struct Seat {
    register: Register,
    number: u64,
}

impl Register {
    fn seats(&self) -> std::sync::MutexGuard<'_, Seats> {
        // A panic can't leave the value half changed, so a poisoned lock is used all the same.
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of guests, which changes when a guest comes or goes.
    #[must_use]
    pub fn count(&self) -> watched::Receiver<usize> {
        self.count.subscribe()
    }

    /// Registers a process of a user.
    ///
    /// # Errors
    /// When there are too many connections.
    pub fn enter(&self, process: ProcessId, user: u32) -> Result<Seat, Full> {
        let mut seats = self.seats();
        if seats.taken.len() >= GUESTS_MAX {
            return Err(Full::Machine);
        }
        let same = seats.taken.values().filter(|one| one.process == process);
        if same.count() >= GUESTS_PER_PROCESS_MAX {
            return Err(Full::Process);
        }
        let same = seats.taken.values().filter(|one| one.user == user);
        if same.count() >= GUESTS_PER_USER_MAX {
            return Err(Full::User);
        }
        seats.last += 1;
        let number = seats.last;
        let guest = Guest {
            process,
            user,
            uses: Uses::default(),
        };
        seats.taken.insert(number, guest);
        self.count.send_replace(seats.taken.len());
        drop(seats);
        Ok(Seat {
            register: self.clone(),
            number,
        })
    }

    /// All registered guests, and all processes that run one of `commands`.
    #[must_use]
    pub fn guests(&self, commands: &[String]) -> Guests {
        let mut guests = Guests::default().and_commands(commands);
        for guest in self.seats().taken.values() {
            guests.add(guest.process, guest.uses.disk_bytes);
        }
        guests
    }
}

impl Seat {
    /// Notes what the guest reports to use.
    pub fn says(&self, uses: Uses) {
        if let Some(guest) = self.register.seats().taken.get_mut(&self.number) {
            guest.uses = uses;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.register.seats();
        seats.taken.remove(&self.number);
        self.register.count.send_replace(seats.taken.len());
    }
}

/// What all guests are sent. A [`Viewpoint`] derives from it what one guest gets.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    /// The last reading of the machine.
    pub reading: Option<HostReading>,
    /// The number of CPUs that are online.
    pub cpus: usize,
    /// The thresholds of the owner's load.
    pub thresholds: Thresholds,
    /// Memory that a guest needs if it does not report how much, bytes.
    pub guest_memory_bytes: u64,
    /// Why the owner lends less than usual.
    pub withheld: Option<Reason>,
    /// How the daemon is about to end, if it is.
    pub leaving: Option<Leaving>,
}

/// How the machine looks to one guest, which depends on the cores and memory that this guest uses.
#[derive(Debug, Default)]
pub struct Viewpoint {
    classifier: Option<(Thresholds, u64, HostClassifier)>,
    /// The interval of the last reading, and the state that followed from it.
    seen: Option<(Range<u64>, machine::local::State)>,
}

impl Viewpoint {
    /// The report for a guest that uses this much. `None` before the first reading of the machine.
    pub fn report(&mut self, conditions: &Conditions, uses: &Uses) -> Option<Report> {
        let reading = conditions.reading.as_ref()?;
        let cores = conditions.cpus.max(1) as f64;
        let taken = if uses.cores > 0.0 { uses.cores } else { cores };
        let contended = contended_load(reading.owner_cpu, cores, taken);
        let memory = conditions.guest_memory_bytes.max(uses.memory_bytes);
        let thresholds = conditions.thresholds;
        let is_same = self
            .classifier
            .as_ref()
            .is_some_and(|(before, bytes, _)| (*before, *bytes) == (thresholds, memory));
        if !is_same {
            let classifier = HostClassifier::new(thresholds, memory);
            self.classifier = Some((thresholds, memory, classifier));
            self.seen = None;
        }
        let state = match &self.seen {
            Some((interval, state)) if *interval == reading.interval => *state,
            _ => {
                let seen = HostReading {
                    owner_cpu: contended,
                    ..reading.clone()
                };
                let (_, _, classifier) = self.classifier.as_mut()?;
                let state = classifier.observe(&seen).into();
                self.seen = Some((reading.interval.clone(), state));
                state
            }
        };
        Some(Report {
            at: reading.interval.end,
            state,
            load: reading.owner_cpu,
            contended_load: contended,
            thresholds: [thresholds.first(), thresholds.second()],
            free_memory_bytes: reading.free_memory_bytes,
            withheld: conditions.withheld.map(|reason| Withheld {
                why: why(reason.what),
                for_s: reason.retry_after_s,
            }),
            leaving: conditions.leaving.clone(),
        })
    }
}

fn why(what: wire::Withheld) -> Why {
    match what {
        wire::Withheld::NetworkHours => Why::NetworkHours,
        wire::Withheld::Hours => Why::Hours,
        wire::Withheld::Battery => Why::Battery,
        wire::Withheld::Cpu => Why::Cpu,
        wire::Withheld::Memory => Why::Memory,
        wire::Withheld::Disk => Why::Disk,
        wire::Withheld::Leaving => Why::Other,
        wire::Withheld::Paused => Why::Paused,
        wire::Withheld::Program => Why::Program,
        wire::Withheld::Transfers => Why::Transfers,
    }
}

#[cfg(test)]
mod tests {
    use machine::local::State;

    use super::*;

    fn process(pid: i32) -> ProcessId {
        ProcessId { pid, started: 1 }
    }

    #[test]
    fn a_guest_is_one_until_its_seat_is_given_up() {
        let register = Register::default();
        let count = register.count();
        let seat = register.enter(process(7), 0).unwrap();
        assert_eq!(register.guests(&[]), Guests::of([process(7)]));
        let again = register.enter(process(7), 0).unwrap();
        assert_eq!(*count.borrow(), 2);
        drop(seat);
        assert!(!register.guests(&[]).is_empty());
        drop(again);
        assert!(register.guests(&[]).is_empty());
        assert_eq!(*count.borrow(), 0);
    }

    #[test]
    fn neither_a_process_nor_a_user_nor_all_can_take_more_than_their_share() {
        let register = Register::default();
        let mut seats: Vec<Seat> = (0..GUESTS_PER_PROCESS_MAX)
            .map(|_| register.enter(process(1), 1000).unwrap())
            .collect();
        let refused = |pid, user| register.enter(process(pid), user).unwrap_err();
        assert_eq!(refused(1, 1000), Full::Process);
        seats.extend((100..).map_while(|pid| register.enter(process(pid), 1000).ok()));
        assert_eq!(seats.len(), GUESTS_PER_USER_MAX);
        assert_eq!(refused(2, 1000), Full::User);
        seats.extend((500..).map_while(|pid| register.enter(process(pid), 1001).ok()));
        assert_eq!(seats.len(), GUESTS_MAX);
        assert_eq!(refused(2, 1002), Full::Machine);
        seats.clear();
        assert!(register.enter(process(2), 1000).is_ok());
    }

    fn conditions(at: u64, load: f64) -> Conditions {
        Conditions {
            reading: Some(HostReading {
                interval: at - 6..at,
                owner_cpu: load,
                free_memory_bytes: 1000,
                swapping: false,
            }),
            cpus: 4,
            guest_memory_bytes: 500,
            ..Conditions::default()
        }
    }

    #[test]
    fn the_state_is_that_of_the_cores_and_the_memory_which_a_guest_needs() {
        let uses = |cores: f64, memory_bytes: u64| Uses {
            cores,
            memory_bytes,
            disk_bytes: 0,
        };
        let look = |uses: Uses| {
            let mut viewpoint = Viewpoint::default();
            let reports = (1..20).map(|i| viewpoint.report(&conditions(6 * i, 0.8), &uses));
            reports.last().flatten().unwrap()
        };
        let all = look(uses(0.0, 0));
        assert_eq!((all.state, all.contended_load), (State::CpuTaken, 0.8));
        let one = look(uses(1.0, 0));
        assert_eq!(one.state, State::Busy);
        assert!((one.contended_load - 0.2).abs() < 1e-12, "{one:?}");
        assert_eq!(look(uses(1.0, 1001)).state, State::NoMemory);
        assert_eq!(look(uses(1.0, 999)).state, State::Busy);
    }

    #[test]
    fn no_conditions_are_sent_before_the_machine_was_read() {
        let report = Viewpoint::default().report(&Conditions::default(), &Uses::default());
        assert_eq!(report, None);
    }
}
