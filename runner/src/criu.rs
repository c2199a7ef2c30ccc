//! Images of processes by CRIU (`--via criu`), with the script from `packaging/` that also works without
//! this program.

use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};

use super::orders::{Script, Way};
use ckpt_agent::report::{ExitStatus, Failure};

const SCRIPT: &str = include_str!("../../packaging/ckpt-criu.sh");

/// Variable with the path of CRIU, also for the script.
const CRIU: &str = "CRIU";

/// Oldest usable version. Older ones fail on Linux 6, such as 3.17 of Debian 12.
const MAJOR_MIN: u32 = 4;

/// How CRIU writes and restores images of processes, if this machine allows it.
///
/// # Errors
/// When CRIU is missing or too old, or when this process does not run as root.
pub fn way() -> Result<Way, Failure> {
    let program = std::env::var_os(CRIU).unwrap_or_else(|| "criu".into());
    check(&program)?;
    let script = |act: &str| Script {
        name: format!("{} {act}", program.to_string_lossy()),
        text: format!("set -- {act}\n{SCRIPT}"),
    };
    Ok(Way::Command {
        checkpoint: script("dump"),
        restart: script("restore"),
    })
}

fn check(program: &OsString) -> Result<(), Failure> {
    let lacking = |what: String| {
        Failure::new(ExitStatus::Usage, format!("--via criu: {what}"))
            .next("install CRIU 4 (Debian 13: apt-get install criu), or name it in CRIU=PATH")
    };
    let said = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .map_err(|cause| lacking(format!("{}: {cause}", program.to_string_lossy())))?;
    let said = String::from_utf8_lossy(&said.stdout);
    match major(&said) {
        Some(major) if major >= MAJOR_MIN => {}
        Some(_) => {
            let line = said.lines().next().unwrap_or_default();
            return Err(lacking(format!(
                "CRIU reports {line:?}, but version {MAJOR_MIN} is needed"
            )));
        }
        None => {
            let name = OsStr::new(program).to_string_lossy();
            return Err(lacking(format!("{name} does not report its version")));
        }
    }
    if !rustix::process::geteuid().is_root() {
        let message = "--via criu: only root may dump processes";
        return Err(Failure::new(ExitStatus::Denied, message).next("run it as root"));
    }
    Ok(())
}

/// The major version in a line such as `Version: 4.2`.
fn major(said: &str) -> Option<u32> {
    let version = said
        .lines()
        .find_map(|line| line.strip_prefix("Version:"))?;
    version.trim().split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_version_is_read() {
        assert_eq!(major("Version: 4.2\nGitID: v4.2\n"), Some(4));
        assert_eq!(major("Version: 3.17.1\n"), Some(3));
        assert_eq!(major("criu\n"), None);
    }

    #[test]
    fn a_machine_without_it_says_how_to_get_it() {
        let failure = check(&"/nonexistent/criu".into()).unwrap_err();
        assert_eq!(failure.status, ExitStatus::Usage);
        assert!(failure.message.contains("/nonexistent/criu"));
        let failure = check(&"true".into()).unwrap_err();
        assert!(failure.message.contains("does not report its version"));
    }
}
