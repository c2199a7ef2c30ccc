//! Programs during which the owner wants to have the machine alone.

use std::fs;

use crate::Machine;

/// Length to which the kernel cuts the name of a command, characters.
const COMM_LENGTH: usize = 15;

/// The first of these programs that is found running, by the name of its command; `None` when none runs.
#[must_use]
pub fn running(machine: &Machine, names: &[String]) -> Option<String> {
    if names.is_empty() {
        return None;
    }
    let processes = fs::read_dir(machine.proc()).ok()?.flatten();
    let mut commands = processes.filter_map(|entry| {
        let is_process = entry.file_name().to_str()?.parse::<u32>().is_ok();
        let command = is_process.then(|| fs::read_to_string(entry.path().join("comm")));
        Some(command?.ok()?.trim_end().to_owned())
    });
    commands.find_map(|command| {
        let is_named = |name: &&String| name.chars().take(COMM_LENGTH).eq(command.chars());
        names.iter().find(is_named).cloned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_its_name_as_the_kernel_cuts_it() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::at(dir.path());
        let run = |pid: &str, comm: &str| {
            let dir = machine.proc().join(pid);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("comm"), format!("{comm}\n")).unwrap();
        };
        run("1", "init");
        run("self", "game");
        run("77", "a-very-long-nam");
        let find = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            running(&machine, &names)
        };
        assert_eq!(find(&[]), None);
        assert_eq!(find(&["game"]), None);
        assert_eq!(find(&["game", "init"]), Some("init".into()));
        let long = "a-very-long-name-of-a-program";
        assert_eq!(find(&[long]), Some(long.into()));
    }
}
