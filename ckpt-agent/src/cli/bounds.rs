//! Limits that the user's shell or batch system has set for this process.

use rustix::process::{Resource, Signal, getrlimit};
use tokio::signal::unix::{self, SignalKind};

use super::render::bytes;
use crate::agent::MEMORY_USUAL;
use crate::report::{ExitStatus, Failure};

/// Least memory for data in flight with which something can be done.
const MEMORY_LEAST: u64 = 16 << 20;

/// Address space that is needed beside the data in flight: the program itself (256 MiB is what it takes
/// with two processors, measured, and half as much again) and, for each processor, stacks and heaps of
/// threads, which take much more address space than memory.
const BESIDE: u64 = 256 << 20;
const BESIDE_PER_CPU: u64 = 96 << 20;

/// Memory to use for data in flight: as much as is wanted or, when the address space is limited
/// (`ulimit -v`), as it leaves room for.
///
/// # Errors
/// When there is no room for that, or for anything: an allocation that fails later can only abort.
pub(super) fn memory(wanted: Option<u64>) -> Result<u64, Failure> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let beside = BESIDE + BESIDE_PER_CPU * cpus as u64;
    memory_within(wanted, getrlimit(Resource::As).current, beside)
}

fn memory_within(wanted: Option<u64>, limit: Option<u64>, beside: u64) -> Result<u64, Failure> {
    let Some(limit) = limit else {
        return Ok(wanted.unwrap_or(MEMORY_USUAL));
    };
    // Buffers that are freed are not given back at once.
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

/// Makes writing beyond the limit for the length of files (`ulimit -f`) an error instead of the end of
/// this process, as long as the answer is kept.
pub(super) fn report_long_files() -> Option<unix::Signal> {
    unix::signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

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
