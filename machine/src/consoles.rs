//! When a person last used the machine, found as by HTCondor: from the last use of its terminals.
//!
//! The access time of a terminal's file is when somebody last typed on it (to about eight seconds). A desktop
//! session without terminals changes no access time. Its keyboard and mouse are counted in `/proc/interrupts`
//! if they are of the PS/2 kind, as in most laptops.

use std::fs;
use std::time::SystemTime;

use crate::Machine;

/// Name in `/proc/interrupts` of the PS/2 controller for keyboard and mouse.
const KEYBOARD_CONTROLLER: &str = "i8042";

/// When somebody last typed on a terminal of the machine; `None` if it has no terminals.
#[must_use]
pub fn last_terminal_use(machine: &Machine) -> Option<SystemTime> {
    let names = |directory: &str| {
        let entries = fs::read_dir(machine.path(directory));
        entries.into_iter().flatten().flatten()
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let consoles = names("/dev").filter(|entry| {
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        // `/dev/tty` is left out: it stands for the terminal of the process that opens it.
        name == "console"
            || name
                .strip_prefix("tty")
                .is_some_and(|rest| is_number(rest) || rest.starts_with('S'))
    });
    let remote =
        names("/dev/pts").filter(|entry| entry.file_name().to_str().is_some_and(is_number));
    consoles
        .chain(remote)
        .filter_map(|entry| entry.metadata().ok()?.accessed().ok())
        .max()
}

/// Number of interrupts of keyboard and mouse since the machine started; `None` if it has no PS/2 controller.
#[must_use]
pub fn keyboard_interrupts(machine: &Machine) -> Option<u64> {
    let text = fs::read_to_string(machine.proc().join("interrupts")).ok()?;
    let lines = text
        .lines()
        .filter(|line| line.trim_end().ends_with(KEYBOARD_CONTROLLER));
    let counts = lines.map(|line| {
        let counts = line
            .split_ascii_whitespace()
            .skip(1)
            .map_while(|count| count.parse::<u64>().ok());
        counts.fold(0, u64::saturating_add)
    });
    counts.reduce(u64::saturating_add)
}

/// Follows when a person last used the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Consoles {
    /// Number of interrupts at the last call of [`look`](Self::look).
    interrupts: Option<u64>,
    /// Last use that was found.
    last: Option<SystemTime>,
}

impl Consoles {
    /// Reads terminals and keyboard at `now` and returns when the machine was last used; `None` if no use was
    /// found yet. Use of the keyboard is found by comparison with the call before.
    pub fn look(&mut self, machine: &Machine, now: SystemTime) -> Option<SystemTime> {
        let interrupts = keyboard_interrupts(machine);
        let before = std::mem::replace(&mut self.interrupts, interrupts);
        if before.is_some() && interrupts != before {
            self.last = self.last.max(Some(now));
        }
        // A time in the future is left from a clock that was set since.
        let typed = last_terminal_use(machine).map(|typed| typed.min(now));
        self.last = self.last.max(typed);
        self.last
    }
}

#[cfg(test)]
mod tests {
    use std::fs::FileTimes;
    use std::time::Duration;

    use super::*;

    fn used(machine: &Machine, path: &str, at: SystemTime) {
        let path = machine.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = fs::File::create(path).unwrap();
        file.set_times(FileTimes::new().set_accessed(at)).unwrap();
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn the_last_use_of_any_terminal_counts() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::at(dir.path());
        let mut consoles = Consoles::default();
        assert_eq!(consoles.look(&machine, at(5000)), None);
        used(&machine, "/dev/tty1", at(100));
        used(&machine, "/dev/pts/3", at(200));
        // None of these is a terminal of a person.
        used(&machine, "/dev/tty", at(900));
        used(&machine, "/dev/pts/ptmx", at(900));
        used(&machine, "/dev/sda", at(900));
        assert_eq!(consoles.look(&machine, at(5000)), Some(at(200)));
        used(&machine, "/dev/console", at(9000));
        assert_eq!(consoles.look(&machine, at(5000)), Some(at(5000)));
    }

    #[test]
    fn a_key_that_is_pressed_is_use() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::at(dir.path());
        let interrupts = |keys: u32| {
            let text = format!(
                "     CPU0 CPU1\n  1: 5 {keys} IO-APIC 1-edge i8042\n  8: 77 0 IO-APIC 8-edge rtc0\n 12: 1 1 IO-APIC 12-edge i8042\n"
            );
            fs::create_dir_all(machine.proc()).unwrap();
            fs::write(machine.proc().join("interrupts"), text).unwrap();
        };
        let mut consoles = Consoles::default();
        interrupts(10);
        assert_eq!(keyboard_interrupts(&machine), Some(17));
        assert_eq!(consoles.look(&machine, at(100)), None);
        assert_eq!(consoles.look(&machine, at(101)), None);
        interrupts(12);
        assert_eq!(consoles.look(&machine, at(102)), Some(at(102)));
        assert_eq!(consoles.look(&machine, at(103)), Some(at(102)));
    }
}
