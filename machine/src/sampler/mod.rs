//! Reads the counters from `/proc`; needs no privileges.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use procfs::{DiskStats, FromRead, FromReadSI, KernelStats, Meminfo, ProcError, VmStat};

use crate::accounts::Accounts;
use crate::cgroup::{self, Hierarchy};
use crate::counters::{Counters, DiskCounters};
use crate::processes::Process;
use crate::{Guests, Machine, ProcessId, Processes};

/// Unit of the sector counts of `/proc/diskstats`, whatever the disk's own sectors are.
const SECTOR_BYTES: u64 = 512;

/// Why the counters of a machine can't be read.
pub type ReadError = ProcError;

/// Reads counters of the system, of this process, of guests and of one disk.
#[derive(Debug)]
pub struct Sampler {
    machine: Machine,
    /// Major and minor number of the disk that is watched.
    device: Option<(i32, i32)>,
    hierarchies: Vec<Hierarchy>,
    /// Time of the last reading, clock ticks since the machine started; `u64::MAX` before the first.
    read_at: u64,
    /// Time of the last reading that searched all processes for guests, in the same unit.
    searched_at: u64,
    families: BTreeMap<Root, Family>,
    /// CPU time of this process so far, clock ticks.
    own_ticks: u64,
    /// CPU time of guests so far, clock ticks.
    guest_ticks: u64,
    own_disk_bytes: u64,
    guest_disk_bytes: u64,
}

/// The processes from which a family descends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Root {
    /// A guest that was given by its process id.
    Guest(ProcessId),
    /// All processes whose command makes them guests.
    Commands,
    /// This process.
    Own,
}

/// Which processes are searched for guests that are named by their commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Search {
    /// All processes of the machine.
    All,
    /// Those that were found before, and their descendants.
    Known,
}

/// A family at the last reading: processes of one root, and their descendants.
#[derive(Debug, Default)]
struct Family {
    accounts: Accounts,
    /// CPU time, microseconds, of the control groups whose processes are all of this family, by directory.
    groups: BTreeMap<PathBuf, u64>,
    /// Bytes that the guest last stated to have moved to and from disks.
    stated_disk_bytes: Option<u64>,
}

/// What a family has done since the last reading, and the memory that it has.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    ticks: u64,
    disk_bytes: u64,
    /// Whether the system hides what some member, or the whole family, moved to and from disks.
    is_disk_hidden: bool,
    memory_bytes: u64,
}

impl Sampler {
    /// A sampler of a machine, without a disk.
    #[must_use]
    pub fn new(machine: Machine) -> Self {
        let hierarchies = cgroup::hierarchies(&machine);
        Self {
            machine,
            device: None,
            hierarchies,
            read_at: u64::MAX,
            searched_at: u64::MAX,
            families: BTreeMap::new(),
            own_ticks: 0,
            guest_ticks: 0,
            own_disk_bytes: 0,
            guest_disk_bytes: 0,
        }
    }

    /// The same sampler with the disk that holds `directory`, if the system has counts of it.
    #[must_use]
    pub fn with_disk_of(mut self, directory: &Path) -> Self {
        self.device = fs::metadata(directory).ok().map(|data| {
            let device = data.dev();
            (
                rustix::fs::major(device) as i32,
                rustix::fs::minor(device) as i32,
            )
        });
        self
    }

    /// The machine that it reads.
    #[must_use]
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The counters now. A guest's process that is seen for the first time counts from its start if it
    /// started after the reading before, and from now on otherwise.
    ///
    /// # Errors
    /// When `/proc` can't be read, or has another form than expected.
    pub fn read(&mut self, guests: &Guests) -> Result<Counters, ReadError> {
        let root = self.machine.proc();
        let system = procfs::current_system_info();
        let stats = KernelStats::from_file(root.join("stat"), system)?;
        let cpu = cpu_ticks(&stats);
        let memory = Meminfo::from_file(root.join("meminfo"))?;
        let guest_memory_bytes = self.follow(guests, Search::All);
        let available = memory.mem_available.unwrap_or(memory.mem_free);
        Ok(Counters {
            cpus: stats.cpu_time.len(),
            busy_ticks: cpu.busy,
            all_ticks: cpu.all,
            own_ticks: self.own_ticks,
            guest_ticks: self.guest_ticks,
            swapped_pages: swapped_pages(&root)?,
            available_memory_bytes: available,
            // Guests can't free more memory than is in use.
            guest_memory_bytes: guest_memory_bytes.min(memory.mem_total.saturating_sub(available)),
            disk: self.disk(),
        })
    }

    /// The counters of the CPU now; the other counters are those of `before`. This is cheaper than
    /// [`read`](Self::read): of the processes, only the known guests and their descendants are read.
    ///
    /// # Errors
    /// When `/proc` can't be read, or has another form than expected.
    pub fn look(&mut self, guests: &Guests, before: &Counters) -> Result<Counters, ReadError> {
        let system = procfs::current_system_info();
        let stats = KernelStats::from_file(self.machine.proc().join("stat"), system)?;
        let cpu = cpu_ticks(&stats);
        self.follow(guests, Search::Known);
        Ok(Counters {
            cpus: stats.cpu_time.len(),
            busy_ticks: cpu.busy,
            all_ticks: cpu.all,
            own_ticks: self.own_ticks,
            guest_ticks: self.guest_ticks,
            ..*before
        })
    }

    /// Makes a process a guest from now on: what it has done before is the owner's. Without this call it
    /// becomes a guest at the next reading.
    pub fn admit(&mut self, process: ProcessId) {
        let processes = Processes::below(&self.machine, [process]);
        let family = self.families.entry(Root::Guest(process)).or_default();
        if family.accounts.seen().next().is_none() {
            let moved = |one: &Process| {
                self.device?;
                one.disk_bytes(&self.machine)
            };
            let is_one = |one: &Process| one.id == process;
            family.accounts.look(&processes, u64::MAX, is_one, moved);
        }
    }

    /// Adds what this process and the guests have done since the last reading to the sums, and returns the
    /// memory of guests, bytes.
    fn follow(&mut self, guests: &Guests, search: Search) -> u64 {
        let own = self.own_process();
        let processes = self.processes(guests, own, search);
        let mut roots: BTreeSet<Root> = guests.processes().map(Root::Guest).collect();
        if guests.are_named_by_command() {
            roots.insert(Root::Commands);
        }
        roots.extend(own.map(|_| Root::Own));
        let now = uptime_ticks(&self.machine);
        let earlier = std::mem::replace(&mut self.read_at, now);
        let searched = self.searched_at;
        if search == Search::All {
            self.searched_at = now;
        }
        let mut families = std::mem::take(&mut self.families);
        families.retain(|root, _| roots.contains(root));
        let mut memory = 0_u64;
        let mut left = processes;
        // A guest that this process has started counts as a guest, so guests come first.
        for root in roots {
            let family = families.entry(root).or_default();
            let is_one = |process: &Process| match root {
                Root::Guest(id) => process.id == id,
                Root::Commands => guests.contains(process),
                Root::Own => own == Some(process.id),
            };
            // A process with the command of a guest is found only when all processes are searched, so it is
            // new if it started after the last search.
            let earlier = match root {
                Root::Commands => searched,
                Root::Guest(_) | Root::Own => earlier,
            };
            let (done, members) = self.account(family, &left, earlier, is_one, root);
            left = left.without(&members);
            match root {
                Root::Own => {
                    self.own_ticks = self.own_ticks.saturating_add(done.ticks);
                    self.own_disk_bytes = self.own_disk_bytes.saturating_add(done.disk_bytes);
                }
                Root::Guest(_) | Root::Commands => {
                    let said = match root {
                        Root::Guest(id) => family.newly_stated(guests.stated_disk_bytes(id)),
                        _ => 0,
                    };
                    // What the system reports of all members is complete: a statement adds nothing to it.
                    let said = if done.is_disk_hidden { said } else { 0 };
                    self.guest_ticks = self.guest_ticks.saturating_add(done.ticks);
                    let moved = done.disk_bytes.max(said);
                    self.guest_disk_bytes = self.guest_disk_bytes.saturating_add(moved);
                    memory = memory.saturating_add(done.memory_bytes);
                }
            }
        }
        self.families = families;
        memory
    }

    fn own_process(&self) -> Option<ProcessId> {
        let own = i32::try_from(std::process::id()).ok()?;
        ProcessId::of(&self.machine, own)
    }

    /// The processes that have to be read: all of the machine only if guests can't be found otherwise.
    fn processes(&self, guests: &Guests, own: Option<ProcessId>, search: Search) -> Processes {
        if search == Search::All && guests.are_named_by_command() {
            return Processes::all(&self.machine);
        }
        let seen = self
            .families
            .values()
            .flat_map(|family| family.accounts.seen());
        let from = guests.processes().chain(own).chain(seen);
        Processes::below(&self.machine, from)
    }

    /// What a family has done since the last reading, and the process ids of its members.
    fn account(
        &self,
        family: &mut Family,
        processes: &Processes,
        earlier: u64,
        is_one: impl Fn(&Process) -> bool,
        root: Root,
    ) -> (Done, BTreeSet<i32>) {
        let ticks = family.accounts.ticks();
        let bytes = family.accounts.disk_bytes();
        let is_disk_hidden = Cell::new(false);
        let moved = |process: &Process| {
            self.device?;
            let bytes = process.disk_bytes(&self.machine);
            is_disk_hidden.set(is_disk_hidden.get() || bytes.is_none());
            bytes
        };
        let members = family.accounts.look(processes, earlier, is_one, moved);
        let pids: BTreeSet<i32> = members.iter().map(|process| process.id.pid).collect();
        let mut done = Done {
            ticks: family.accounts.ticks().saturating_sub(ticks),
            disk_bytes: family.accounts.disk_bytes().saturating_sub(bytes),
            is_disk_hidden: is_disk_hidden.get() || members.is_empty(),
            memory_bytes: 0,
        };
        if root != Root::Own {
            let grouped = self.grouped_ticks(family, &pids);
            done.ticks = done.ticks.max(grouped);
            let memory = members.iter().map(|one| one.memory_bytes(&self.machine));
            done.memory_bytes = memory.fold(0, u64::saturating_add);
        }
        (done, pids)
    }

    /// CPU time in clock ticks, since the last reading, of the control groups whose processes are all of this
    /// family. It includes children for which no process waits, and which no process's counts contain.
    fn grouped_ticks(&self, family: &mut Family, members: &BTreeSet<i32>) -> u64 {
        let directory =
            |pid: &i32| cgroup::accounting_directory(&self.machine, &self.hierarchies, *pid);
        let directories: BTreeSet<PathBuf> = members.iter().filter_map(directory).collect();
        let is_foreign = |pid: &i32| !members.contains(pid) && self.is_another_s(*pid, members);
        let alone = directories.into_iter().filter(|directory| {
            cgroup::processes(directory).is_ok_and(|pids| !pids.iter().any(is_foreign))
        });
        let now: BTreeMap<PathBuf, u64> = alone
            .filter_map(|directory| {
                let used = cgroup::cpu_microseconds(&directory)?;
                Some((directory, used))
            })
            .collect();
        let used = now.iter().map(|(directory, used)| {
            let before = family.groups.get(directory).copied().unwrap_or(*used);
            used.saturating_sub(before)
        });
        let microseconds = used.fold(0, u64::saturating_add);
        family.groups = now;
        microseconds.saturating_mul(rustix::param::clock_ticks_per_second()) / 1_000_000
    }

    /// Whether a process that is not a member is foreign to the family: neither ended since, nor a child of a
    /// member that started since.
    fn is_another_s(&self, pid: i32, members: &BTreeSet<i32>) -> bool {
        Process::read(&self.machine, pid).is_some_and(|process| !members.contains(&process.parent))
    }

    fn disk(&self) -> Option<DiskCounters> {
        let device = self.device?;
        let disks = DiskStats::from_file(self.machine.proc().join("diskstats")).ok()?;
        let disk = disks
            .0
            .iter()
            .find(|disk| (disk.major, disk.minor) == device)?;
        Some(DiskCounters {
            busy_ms: disk.time_in_progress,
            bytes: (disk.sectors_read + disk.sectors_written).saturating_mul(SECTOR_BYTES),
            foreign_bytes: self.own_disk_bytes.saturating_add(self.guest_disk_bytes),
        })
    }
}

impl Family {
    /// Bytes that the guest states to have moved since its last statement; `bytes` is the statement's total.
    fn newly_stated(&mut self, bytes: u64) -> u64 {
        let before = self.stated_disk_bytes.replace(bytes).unwrap_or(0);
        bytes.saturating_sub(before)
    }
}

/// CPU time of the whole machine, clock ticks.
struct CpuTicks {
    busy: u64,
    all: u64,
}

fn cpu_ticks(stats: &KernelStats) -> CpuTicks {
    let cpu = &stats.total;
    let optional = [cpu.irq, cpu.softirq].into_iter().flatten().sum::<u64>();
    let busy = cpu.user + cpu.nice + cpu.system + optional;
    // Stolen time (used by other virtual machines) is not busy: it is neither the owner's nor free.
    let rest = [cpu.iowait, cpu.steal].into_iter().flatten().sum::<u64>();
    CpuTicks {
        busy,
        all: busy + cpu.idle + rest,
    }
}

/// Clock ticks since the machine started; `u64::MAX` if the system does not report it, so that no process
/// counts as new.
fn uptime_ticks(machine: &Machine) -> u64 {
    let text = fs::read_to_string(machine.proc().join("uptime")).unwrap_or_default();
    let seconds = text
        .split(' ')
        .next()
        .and_then(|text| text.parse::<f64>().ok());
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    seconds.map_or(u64::MAX, |seconds| (seconds * per_second) as u64)
}

/// Pages moved to and from swap since the machine started.
fn swapped_pages(root: &Path) -> Result<u64, ProcError> {
    let stats = VmStat::from_file(root.join("vmstat"))?.0;
    let count = |name| stats.get(name).map_or(0, |pages| pages.unsigned_abs());
    Ok(count("pswpin").saturating_add(count("pswpout")))
}

#[cfg(test)]
mod tests;
