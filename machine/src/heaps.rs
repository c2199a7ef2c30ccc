//! The heaps from which the threads of this process get memory.
#![allow(unsafe_code, reason = "a library call without a safe wrapper")]

/// Heaps of a process that shares them: the main one and one more.
#[cfg(target_env = "gnu")]
const HEAPS_MAX: libc::c_int = 2;

/// From now on the threads of this process share two heaps. Returns whether the C library can do that.
///
/// glibc makes eight heaps for each processor, each of which keeps what its threads no longer use. That
/// was a fifth of a daemon's memory after ten minutes. Call this before there are threads: a thread that
/// has a heap keeps it.
pub fn share() -> bool {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` takes two integers, reads no memory of ours, and takes the allocator's own lock.
    let is_set = unsafe { libc::mallopt(libc::M_ARENA_MAX, HEAPS_MAX) } == 1;
    // Other C libraries share one heap anyway.
    #[cfg(not(target_env = "gnu"))]
    let is_set = true;
    is_set
}
