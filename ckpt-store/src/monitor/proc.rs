//! Reads the counters from `/proc`; needs no privileges.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use procfs::process::{Process, Stat};
use procfs::{DiskStats, FromRead, FromReadSI, KernelStats, Meminfo, ProcError, VmStat};

use super::counters::{Counters, DiskCounters};
use super::guests::Guests;

/// Unit of the sector counts of `/proc/diskstats`, whatever the disk's own sectors are.
const SECTOR_BYTES: u64 = 512;

/// Where the system and the batteries are described.
#[derive(Clone, Debug)]
pub struct SystemPaths {
    /// Usually `/proc`.
    pub proc: PathBuf,
    /// Usually `/sys/class/power_supply`.
    pub power: PathBuf,
}

impl Default for SystemPaths {
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            power: "/sys/class/power_supply".into(),
        }
    }
}

/// Reads counters of the system, of this process, of guests and of one disk.
#[derive(Debug)]
pub struct Sampler {
    paths: SystemPaths,
    /// Major and minor number of the device that holds the shards.
    device: Option<(i32, i32)>,
}

impl Sampler {
    /// A sampler for the disk that holds `data_dir`.
    #[must_use]
    pub fn new(paths: SystemPaths, data_dir: &Path) -> Self {
        let device = fs::metadata(data_dir).ok().map(|data| {
            let device = data.dev();
            (
                rustix::fs::major(device) as i32,
                rustix::fs::minor(device) as i32,
            )
        });
        Self { paths, device }
    }

    /// The counters now.
    ///
    /// # Errors
    /// When `/proc` can't be read or says something unknown.
    pub fn read(&self, guests: &Guests) -> Result<Counters, ProcError> {
        let root = &self.paths.proc;
        let cpu = kernel_stats(root)?;
        let memory = Meminfo::from_file(root.join("meminfo"))?;
        let own = Process::new_with_root(root.join("self"))?;
        let own_ticks = own.stat().map(|stat| ticks(&stat))?;
        let available = memory.mem_available.unwrap_or(memory.mem_free);
        Ok(Counters {
            busy_ticks: cpu.busy,
            all_ticks: cpu.all,
            foreign_ticks: own_ticks + self.guest_ticks(guests),
            swapped_pages: swapped_pages(root)?,
            available_memory_bytes: available,
            disk: self.disk(&own),
        })
    }

    /// Whether the machine runs on its battery: it has one, and no mains supply that is on.
    #[must_use]
    pub fn on_battery(&self) -> bool {
        let Ok(supplies) = fs::read_dir(&self.paths.power) else {
            return false;
        };
        let (mut battery, mut mains) = (false, false);
        for supply in supplies.flatten() {
            let read = |name| fs::read_to_string(supply.path().join(name)).unwrap_or_default();
            match read("type").trim() {
                "Battery" => battery |= read("status").trim() == "Discharging",
                "Mains" | "USB" => mains |= read("online").trim() == "1",
                _ => {}
            }
        }
        battery && !mains
    }

    /// Ticks of registered guests and all their descendants. Reads every process, so only when
    /// there can be guests.
    fn guest_ticks(&self, guests: &Guests) -> u64 {
        if guests.is_empty() {
            return 0;
        }
        let Ok(entries) = fs::read_dir(&self.paths.proc) else {
            return 0;
        };
        let processes: HashMap<i32, Stat> = entries
            .flatten()
            .filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit())
            // A process that ends meanwhile can't be read any more.
            .filter_map(|entry| Stat::from_file(entry.path().join("stat")).ok())
            .map(|stat| (stat.pid, stat))
            .collect();
        let is_guest = |stat: &Stat| guests.contains(stat.pid, stat.starttime, &stat.comm);
        processes
            .values()
            .filter(|stat| ancestors(&processes, stat).any(is_guest))
            .map(ticks)
            .sum()
    }

    fn disk(&self, own: &Process) -> Option<DiskCounters> {
        let device = self.device?;
        let disks = DiskStats::from_file(self.paths.proc.join("diskstats")).ok()?;
        let disk = disks
            .0
            .iter()
            .find(|disk| (disk.major, disk.minor) == device)?;
        // Not allowed in some containers; then all the load counts as the owner's.
        let own_bytes = own.io().map_or(0, |io| io.read_bytes + io.write_bytes);
        Some(DiskCounters {
            busy_ms: disk.time_in_progress,
            bytes: (disk.sectors_read + disk.sectors_written).saturating_mul(SECTOR_BYTES),
            own_bytes,
        })
    }
}

struct CpuTicks {
    busy: u64,
    all: u64,
}

fn kernel_stats(root: &Path) -> Result<CpuTicks, ProcError> {
    let stats = KernelStats::from_file(root.join("stat"), procfs::current_system_info())?;
    let cpu = stats.total;
    let optional = [cpu.irq, cpu.softirq].into_iter().flatten().sum::<u64>();
    let busy = cpu.user + cpu.nice + cpu.system + optional;
    // What another machine took is neither the owner's nor free.
    let rest = [cpu.iowait, cpu.steal].into_iter().flatten().sum::<u64>();
    Ok(CpuTicks {
        busy,
        all: busy + cpu.idle + rest,
    })
}

fn swapped_pages(root: &Path) -> Result<u64, ProcError> {
    let stats = VmStat::from_file(root.join("vmstat"))?.0;
    let count = |name| stats.get(name).map_or(0, |pages| pages.unsigned_abs());
    Ok(count("pswpin").saturating_add(count("pswpout")))
}

fn ticks(stat: &Stat) -> u64 {
    stat.utime + stat.stime
}

/// The process, its parent, the parent's parent, and so on.
fn ancestors<'a>(
    processes: &'a HashMap<i32, Stat>,
    of: &'a Stat,
) -> impl Iterator<Item = &'a Stat> {
    // What is read while processes come and go can form a circle.
    let mut seen = HashSet::new();
    std::iter::successors(Some(of), move |stat| {
        processes
            .get(&stat.ppid)
            .filter(|parent| seen.insert(parent.pid))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let sampler = Sampler::new(SystemPaths::default(), dir.path());
        let counters = sampler.read(&Guests::default()).unwrap();
        assert!(counters.busy_ticks > 0 && counters.all_ticks >= counters.busy_ticks);
        assert!(counters.foreign_ticks < counters.busy_ticks);
        assert!(counters.available_memory_bytes > 1 << 20);
    }

    #[test]
    fn a_registered_guest_and_its_children_are_not_the_owner() {
        let dir = tempfile::tempdir().unwrap();
        let sampler = Sampler::new(SystemPaths::default(), dir.path());
        let this = Stat::from_file("/proc/self/stat").unwrap();
        let alone = sampler.read(&Guests::default()).unwrap();
        let guests = Guests::of([(this.pid, this.starttime)]);
        let with_guest = sampler.read(&guests).unwrap();
        // This process counts once as our own and once as a guest.
        assert!(with_guest.foreign_ticks >= 2 * alone.foreign_ticks);
        let reused = Guests::of([(this.pid, this.starttime + 1)]);
        assert!(sampler.read(&reused).unwrap().foreign_ticks < with_guest.foreign_ticks + 100);
    }

    #[test]
    fn a_laptop_without_mains_is_on_battery() {
        let dir = tempfile::tempdir().unwrap();
        let write = |supply: &str, name: &str, text: &str| {
            let supply = dir.path().join(supply);
            fs::create_dir_all(&supply).unwrap();
            fs::write(supply.join(name), text).unwrap();
        };
        let paths = SystemPaths {
            power: dir.path().to_owned(),
            ..SystemPaths::default()
        };
        let sampler = Sampler::new(paths, dir.path());
        assert!(!sampler.on_battery());
        write("BAT0", "type", "Battery\n");
        write("BAT0", "status", "Discharging\n");
        assert!(sampler.on_battery());
        write("AC", "type", "Mains\n");
        write("AC", "online", "1\n");
        assert!(!sampler.on_battery());
        write("AC", "online", "0\n");
        assert!(sampler.on_battery());
    }
}
