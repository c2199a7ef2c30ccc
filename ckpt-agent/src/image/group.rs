//! Signals to the processes of a group that was started some time ago, and to no others that got its number since.
//!
//! A number is free for other processes once all of the group have ended. So a group is known by its number and the
//! time at which its leader was started, and each signal goes to a process that is held by a file descriptor
//! (pidfd) while it is looked at.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use procfs::process::{Process, Stat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// A process that is held while it is looked at.
pub(super) enum Held {
    Process(OwnedFd),
    /// Where the kernel has no such descriptors (before Linux 5.3), or they are forbidden.
    Number(Pid),
}

impl Held {
    pub(super) fn signal(&self, signal: Signal) {
        // Fails when the process has just ended.
        let _ = match self {
            Self::Process(held) => pidfd_send_signal(held, signal),
            Self::Number(pid) => kill_process(*pid, signal),
        };
    }
}

/// A process group, and when its leader was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    number: Pid,
    /// In ticks since the machine was booted.
    started: u64,
}

impl Group {
    /// The group of this leader, which is a child of this process and was not waited for.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn of_leader(number: Pid) -> io::Result<Self> {
        let started = stat_of(number).map(|stat| stat.starttime);
        let started = started.ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { number, started })
    }

    /// As a text of two numbers.
    pub(super) fn to_text(self) -> String {
        format!("{} {}", self.number.as_raw_nonzero(), self.started)
    }

    /// The group of such a text.
    pub(super) fn from_text(text: &str) -> Option<Self> {
        let (number, started) = text.split_once(' ')?;
        // The group of number 1 is that of the first process of all.
        let number = number.parse().ok().filter(|number| *number > 1)?;
        Some(Self {
            number: Pid::from_raw(number)?,
            started: started.parse().ok()?,
        })
    }

    /// Sends a signal to all processes of the group, and returns how many there are.
    pub(super) fn signal(self, signal: Signal) -> usize {
        let members = self.members();
        for member in &members {
            member.signal(signal);
        }
        members.len()
    }

    /// The processes of the group that have not ended.
    fn members(self) -> Vec<Held> {
        let all = processes().filter_map(|pid| held_if(pid, |pid| self.has(pid)));
        let members: Vec<Held> = all.collect();
        // While one of them was there, no other process could get the leader's number.
        let leader = stat_of(self.number);
        match leader {
            Some(leader) if leader.starttime != self.started => Vec::new(),
            _ => members,
        }
    }

    fn has(self, pid: Pid) -> bool {
        let number = self.number.as_raw_nonzero().get();
        let stat = stat_of(pid);
        stat.is_some_and(|stat| {
            stat.pgrp == number && stat.starttime >= self.started && stat.state != 'Z'
        })
    }
}

/// The process if `is_it` holds for it: looked at after it was opened, so that this is about the same process.
pub(super) fn held_if(pid: Pid, is_it: impl Fn(Pid) -> bool) -> Option<Held> {
    if !is_it(pid) {
        return None;
    }
    let held = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(held) => Held::Process(held),
        Err(Errno::NOSYS | Errno::PERM) => Held::Number(pid),
        Err(_) => return None,
    };
    is_it(pid).then_some(held)
}

/// The numbers of all processes.
pub(super) fn processes() -> impl Iterator<Item = Pid> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers.filter_map(Pid::from_raw)
}

fn stat_of(pid: Pid) -> Option<Stat> {
    let process = Process::new(pid.as_raw_nonzero().get()).ok()?;
    process.stat().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Command;

    use super::*;

    #[test]
    fn a_signal_reaches_the_group_and_no_other_that_got_its_number() {
        let mut leader = Command::new("sleep")
            .arg("600")
            .process_group(0)
            .spawn()
            .unwrap();
        let number = Pid::from_child(&leader);
        let group = Group::of_leader(number).unwrap();
        assert_eq!(Group::from_text(&group.to_text()), Some(group));
        // As if the leader of another group had the number now.
        let earlier = Group {
            started: group.started - 1,
            ..group
        };
        assert_eq!(earlier.signal(Signal::KILL), 0);
        let later = Group {
            started: group.started + 1,
            ..group
        };
        assert_eq!(later.signal(Signal::KILL), 0);
        assert!(leader.try_wait().unwrap().is_none());
        let mut member = Command::new("sleep")
            .arg("600")
            .process_group(number.as_raw_nonzero().get())
            .spawn()
            .unwrap();
        assert_eq!(group.signal(Signal::KILL), 2);
        for child in [&mut leader, &mut member] {
            assert_eq!(child.wait().unwrap().signal(), Some(9));
        }
        assert_eq!(group.signal(Signal::KILL), 0);
    }

    #[test]
    fn only_texts_of_two_numbers_are_groups() {
        for text in ["", "7", "7 ", "1 5", "0 5", "-7 5", "7 5 5", "7 -5"] {
            assert_eq!(Group::from_text(text), None, "{text:?}");
        }
    }
}
