//! Limits that the user's shell or batch system sets for this process.

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

/// Memory to use for data in flight: the wanted amount or, if the address space is limited (`ulimit -v`),
/// as much as the limit allows.
///
/// # Errors
/// When the limit leaves too little: an allocation that fails later could only abort the program.
pub(super) fn memory(wanted: Option<u64>) -> Result<u64, Failure> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let beside = PROGRAM_BYTES + PROGRAM_BYTES_PER_CPU * cpus as u64;
    memory_within(wanted, getrlimit(Resource::As).current, beside)
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
