//! Limits that the user's shell or batch system sets for this process.

use machine::Machine;
use machine::cgroup::{MemoryLimit, memory_limit};
use rustix::process::{Resource, Signal, getrlimit};
use tokio::signal::unix::{self, SignalKind};

use super::render::bytes;
use ckpt_agent::agent::MEMORY_USUAL;
use ckpt_agent::report::{ExitStatus, Failure};

/// Least useful memory for data in flight, bytes.
const MEMORY_LEAST: u64 = 16 << 20;

/// Address space that is needed beside the data in flight, bytes. The program itself takes 256 MiB with
/// two processors (measured, with half as much again as a reserve). Each processor needs more for stacks
/// and heaps of threads, which take much more address space than memory.
const PROGRAM_BYTES: u64 = 256 << 20;
const PROGRAM_BYTES_PER_CPU: u64 = 96 << 20;

/// Memory that is needed beside the data in flight, bytes: what the program takes with `--memory 16MiB` and two
/// processors in a control group, and what each further one adds.
const RESIDENT_BYTES: u64 = 32 << 20;
const RESIDENT_BYTES_PER_CPU: u64 = 8 << 20;

/// Memory to use for data in flight: the wanted amount or, if the address space (`ulimit -v`) or the memory of the
/// control group is limited, as much as the limits allow.
///
/// # Errors
/// When a limit leaves too little: an allocation that fails later could only abort the program, and in a control
/// group the system kills it, or the job beside it.
pub(super) fn memory(wanted: Option<u64>) -> Result<u64, Failure> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    let beside = PROGRAM_BYTES + PROGRAM_BYTES_PER_CPU * cpus;
    let memory = memory_within(wanted, getrlimit(Resource::As).current, beside)?;
    let beside = RESIDENT_BYTES + RESIDENT_BYTES_PER_CPU * cpus;
    memory_in_group(wanted, memory, memory_limit(&Machine::here()), beside)
}

/// As much of `memory` as the control group has room for, but never less than is useful: what others of the group
/// use now, they may give back.
fn memory_in_group(
    wanted: Option<u64>,
    memory: u64,
    group: Option<MemoryLimit>,
    beside: u64,
) -> Result<u64, Failure> {
    let Some(MemoryLimit { limit, room }) = group else {
        return Ok(memory);
    };
    // The system needs some for connections and files, and freed buffers are not returned at once.
    let fits = |bytes: u64| bytes.saturating_sub(beside) / 3 * 2;
    let least = wanted.unwrap_or(MEMORY_LEAST);
    if fits(limit) < least.min(MEMORY_LEAST)
        || wanted.is_some_and(|wanted| wanted > limit.saturating_sub(beside))
    {
        let message = format!(
            "the control group has {} of memory; {} are needed for --memory {}",
            bytes(limit),
            bytes(beside + least.saturating_mul(3) / 2),
            bytes(least),
        );
        let failure = Failure::new(ExitStatus::LocalIo, message);
        return Err(failure.next(match fits(limit) {
            most @ MEMORY_LEAST.. => format!("--memory {}MiB, or a larger limit", most >> 20),
            _ => "a larger limit".to_owned(),
        }));
    }
    Ok(wanted.unwrap_or_else(|| memory.min(fits(room).max(MEMORY_LEAST))))
}

fn memory_within(wanted: Option<u64>, limit: Option<u64>, beside: u64) -> Result<u64, Failure> {
    let Some(limit) = limit else {
        return Ok(wanted.unwrap_or(MEMORY_USUAL));
    };
    // Freed buffers are not returned to the system at once, so a third is kept in reserve.
    let room = limit.saturating_sub(beside) / 3 * 2;
    let fits = |memory: &u64| *memory <= room;
    match wanted.filter(fits) {
        Some(wanted) => Ok(wanted),
        None if wanted.is_none() && room >= MEMORY_LEAST => Ok(room.min(MEMORY_USUAL)),
        None => {
            let least = wanted.unwrap_or(MEMORY_LEAST);
            let message = format!(
                "the address space is limited to {} (ulimit -v); {} are needed for --memory {}",
                bytes(limit),
                bytes(beside + least.saturating_mul(3) / 2),
                bytes(least),
            );
            let failure = Failure::new(ExitStatus::LocalIo, message);
            Err(failure.next(match room {
                MEMORY_LEAST.. => format!("--memory {}MiB, or a larger limit", room >> 20),
                _ => "a larger limit".to_owned(),
            }))
        }
    }
}

/// Turns writes beyond the limit for the size of files (`ulimit -f`) into errors instead of a fatal
/// signal, for as long as the result is kept.
pub(super) fn report_long_files() -> Option<unix::Signal> {
    unix::signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_a_control_group_has_room_for() {
        const MIB: u64 = 1 << 20;
        let beside = 48 * MIB;
        let within = |wanted: Option<u64>, limit, room| {
            let group = Some(MemoryLimit { limit, room });
            let memory = wanted.unwrap_or(MEMORY_USUAL);
            memory_in_group(wanted, memory, group, beside)
        };
        assert_eq!(memory_in_group(None, 7, None, beside).unwrap(), 7);
        assert_eq!(within(None, 8 << 30, 8 << 30).unwrap(), MEMORY_USUAL);
        assert_eq!(within(None, 168 * MIB, 168 * MIB).unwrap(), 80 * MIB);
        // The job beside it uses nearly all.
        assert_eq!(within(None, 168 * MIB, 9 * MIB).unwrap(), MEMORY_LEAST);
        assert_eq!(
            within(Some(90 * MIB), 168 * MIB, 9 * MIB).unwrap(),
            90 * MIB
        );
        let refused = within(Some(200 * MIB), 168 * MIB, 168 * MIB).unwrap_err();
        assert!(
            refused.message.contains("control group"),
            "{}",
            refused.message
        );
        let next = "--memory 80MiB, or a larger limit";
        assert_eq!(refused.next.as_deref(), Some(next));
        assert!(within(None, 60 * MIB, 60 * MIB).is_err());
    }

    #[test]
    fn memory_is_what_a_limit_leaves_room_for() {
        let within = |wanted, limit| memory_within(wanted, limit, 400 << 20);
        assert_eq!(within(None, None).unwrap(), MEMORY_USUAL);
        assert_eq!(within(Some(7), None).unwrap(), 7);
        assert_eq!(within(None, Some(8 << 30)).unwrap(), MEMORY_USUAL);
        let limit = Some(475 << 20);
        assert_eq!(within(None, limit).unwrap(), 50 << 20);
        assert_eq!(within(Some(20 << 20), limit).unwrap(), 20 << 20);
        let refused = within(Some(200 << 20), limit).unwrap_err();
        assert_eq!(refused.status, ExitStatus::LocalIo);
        assert!(refused.message.contains("--memory"), "{}", refused.message);
        assert_eq!(
            refused.next.as_deref(),
            Some("--memory 50MiB, or a larger limit")
        );
        assert!(within(None, Some(200 << 20)).is_err());
    }
}
