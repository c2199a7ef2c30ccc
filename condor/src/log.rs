//! The log of the plug-ins. HTCondor shows its user little of what a plug-in prints, so the log also goes
//! to a file or to the system's log.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::settings::Surroundings;

/// The socket of the system's log.
const SYSTEM_LOG: &str = "/dev/log";

/// Facility `user` (1, times 8) and severity, as RFC 3164 numbers them.
const WARNING: u8 = 8 + 4;
const INFORMATION: u8 = 8 + 6;

/// Writes lines to standard error, which HTCondor keeps in the log of its starter. Also writes them to
/// the file that `CKPT_LOG` names or, without that variable, to the system's log.
#[derive(Debug)]
pub(super) struct Log {
    name: &'static str,
    file: Option<File>,
    system: Option<UnixDatagram>,
}

impl Log {
    pub(super) fn new(name: &'static str, surroundings: &Surroundings) -> Self {
        let named = surroundings.log_file();
        let open = |path: &PathBuf| {
            let mut options = File::options();
            options.create(true).append(true);
            // The job may have put a link here to a file that it may not write itself.
            let flags = OFlags::NOFOLLOW.bits().cast_signed();
            options.custom_flags(flags).open(path)
        };
        let file = named.as_ref().map(open);
        let mut log = Self {
            name,
            file: None,
            system: named
                .is_none()
                .then(|| connected(Path::new(SYSTEM_LOG)))
                .flatten(),
        };
        match file {
            Some(Ok(file)) => log.file = Some(file),
            Some(Err(cause)) => log.warn(&format!("CKPT_LOG: {cause}")),
            None => {}
        }
        log
    }

    pub(super) fn inform(&mut self, line: &str) {
        self.write(INFORMATION, line);
    }

    pub(super) fn warn(&mut self, line: &str) {
        self.write(WARNING, line);
    }

    /// Errors are ignored: there is no other place to report them to.
    fn write(&mut self, how_bad: u8, line: &str) {
        let line: String = line
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let name = self.name;
        let _ = writeln!(io::stderr(), "{name}: {line}");
        if let Some(file) = &mut self.file {
            let _ = writeln!(
                file,
                "{} {name}: {line}",
                jiff::Timestamp::now().strftime("%FT%TZ")
            );
        }
        if let Some(system) = &self.system {
            let _ = system
                .send(format!("<{how_bad}>{name}[{}]: {line}", std::process::id()).as_bytes());
        }
    }
}

fn connected(path: &Path) -> Option<UnixDatagram> {
    let socket = UnixDatagram::unbound().ok()?;
    socket.connect(path).ok()?;
    // A slow system log must not delay the transfer.
    socket.set_nonblocking(true).ok()?;
    Some(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_log_gets_datagrams_of_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let system = UnixDatagram::bind(&path).unwrap();
        let mut log = Log {
            name: "ckpt_plugin",
            file: Some(File::create(dir.path().join("file")).unwrap()),
            system: connected(&path),
        };
        log.warn("upload\nfailed");
        let mut buffer = [0; 200];
        let len = system.recv(&mut buffer).unwrap();
        let got = std::str::from_utf8(&buffer[..len]).unwrap();
        assert_eq!(
            got,
            format!("<12>ckpt_plugin[{}]: upload failed", std::process::id())
        );
        let written = std::fs::read_to_string(dir.path().join("file")).unwrap();
        assert!(
            written.ends_with("Z ckpt_plugin: upload failed\n"),
            "{written}"
        );
    }
}
