//! Guests that have made themselves known, and what they are told.

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

/// Connections at once.
const GUESTS_MAX: usize = 128;

/// Connections of one process at once.
const GUESTS_PER_PROCESS_MAX: usize = 4;

/// Connections of one user at once: others find a place. Within the user namespace of the shipped unit all
/// users but root and the daemon's own look like one.
const GUESTS_PER_USER_MAX: usize = GUESTS_MAX / 2;

/// No more guests are let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// There are as many as may be.
    #[error("{GUESTS_MAX} guests are here already")]
    Machine,
    /// There are as many of this user as may be.
    #[error(
        "this user has {GUESTS_PER_USER_MAX} connections already: the other half is for other users"
    )]
    User,
    /// There are as many of this process as may be.
    #[error("this process has {GUESTS_PER_PROCESS_MAX} connections already")]
    Process,
}

/// Who is here.
#[derive(Clone, Debug, Default)]
pub struct Register {
    seats: Arc<Mutex<Seats>>,
    /// How many are here.
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
    /// User id, as the kernel says it to the daemon.
    user: u32,
    uses: Uses,
}

/// A guest's place in the register, until it is dropped.
#[derive(Debug)]
pub struct Seat {
    register: Register,
    number: u64,
}

impl Register {
    fn seats(&self) -> std::sync::MutexGuard<'_, Seats> {
        // What is inside is whole between any two statements.
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many are here: anew whenever one comes or goes.
    #[must_use]
    pub fn count(&self) -> watched::Receiver<usize> {
        self.count.subscribe()
    }

    /// Enters a process of a user.
    ///
    /// # Errors
    /// When there are too many.
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

    /// All that are here, and all processes that run one of `commands`.
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
    /// Takes down what the guest says that it uses.
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

/// What guests are told, before it is looked at from where one of them stands.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    /// The last reading of the machine.
    pub reading: Option<HostReading>,
    /// CPUs that are on.
    pub cpus: usize,
    /// Thresholds of the owner's load.
    pub thresholds: Thresholds,
    /// Memory that a guest needs if it does not say how much.
    pub guest_memory_bytes: u64,
    /// Why the owner lends less than usual.
    pub withheld: Option<Reason>,
    /// That the daemon is about to end.
    pub leaving: Option<Leaving>,
}

/// How the machine looks to one guest: its own cores and memory count.
#[derive(Debug, Default)]
pub struct Viewpoint {
    classifier: Option<(Thresholds, u64, HostClassifier)>,
    /// The reading that was seen last, and what followed from it.
    seen: Option<(Range<u64>, machine::local::State)>,
}

impl Viewpoint {
    /// What a guest is told that uses this much; nothing before the machine was read.
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
    fn nothing_is_said_before_the_machine_was_read() {
        let report = Viewpoint::default().report(&Conditions::default(), &Uses::default());
        assert_eq!(report, None);
    }
}
