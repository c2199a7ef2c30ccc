//! Priorities of single processes. The kernel keeps priorities by thread, so each thread of a process is set.
#![allow(unsafe_code, reason = "a system call without a safe wrapper")]

use std::fs;
use std::io;

use rustix::process::{Pid, setpriority_process};

use crate::Machine;

/// Sets nice 19 and the idle class: the process runs when no other process of its group wants the CPU.
pub(super) fn lowest(machine: &Machine, pid: i32) -> io::Result<()> {
    each_thread(machine, pid, |thread| {
        setpriority_process(Some(thread), 19)?;
        set_policy(thread, libc::SCHED_IDLE)
    })
}

/// Sets the usual class and this nice value.
pub(super) fn normal(machine: &Machine, pid: i32, nice: i32) -> io::Result<()> {
    each_thread(machine, pid, |thread| {
        setpriority_process(Some(thread), nice)?;
        set_policy(thread, libc::SCHED_OTHER)
    })
}

fn each_thread(machine: &Machine, pid: i32, set: impl Fn(Pid) -> io::Result<()>) -> io::Result<()> {
    for task in fs::read_dir(machine.process(pid).join("task"))?.flatten() {
        let thread = task.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(thread) = thread.and_then(Pid::from_raw) {
            super::gone_is_well(set(thread))?;
        }
    }
    Ok(())
}

/// The kernel's parameter of a policy (`sched_setscheduler(2)`). That of the C library has more fields in musl.
#[repr(C)]
struct PolicyParameter {
    priority: libc::c_int,
}

/// Sets the policy by the system call itself: musl's function of that name always fails.
fn set_policy(thread: Pid, policy: libc::c_int) -> io::Result<()> {
    let parameter = PolicyParameter { priority: 0 };
    let call = libc::SYS_sched_setscheduler;
    let thread = thread.as_raw_nonzero().get();
    // SAFETY: the parameter lives until the call is over, and the kernel only reads it.
    let done = unsafe { libc::syscall(call, thread, policy, &raw const parameter) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
