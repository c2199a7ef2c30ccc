//! `ckpt-store guest`: runs a command as a guest of this machine's daemon.
//!
//! The process that connects to the daemon becomes the command by `exec`. So signals, exit status and
//! process id are the command's own. A small process, which is no child of the command, keeps the
//! connection open and reports what the command moves on disks: the daemon can't read that of other
//! users' processes.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use command_line::size;
use machine::accounts::Accounts;
use machine::local::{self, Link, LinkError, Uses};
use machine::{Machine, ProcessId, Processes};
use protocol::places::UsualDir;

use super::joining;
use super::refusal::Refusal;

/// Time between two reports of what a guest uses.
const PERIOD: Duration = Duration::from_secs(2);

/// The name under which this program runs the daemon's commands.
const DAEMON: &str = "ckpt-store";

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  ckpt-store guest --cores 2 -- ./sim --steps 1000000\n\nExit status: the command's own; 1 when no daemon answers or the command can't be run."
)]
pub(super) struct Guest {
    /// Data directory of the daemon.
    #[arg(long)]
    data: Option<PathBuf>,
    /// The daemon's socket [default: CKPT_GUEST_SOCKET, then /run/ckpt-store/guests.sock, then
    /// $XDG_RUNTIME_DIR/ckpt-store/guests.sock, then the one in the data directory of `ckpt-store join`].
    #[arg(long, value_name = "PATH", conflicts_with = "data")]
    socket: Option<PathBuf>,
    /// Cores that the command keeps busy when it can [default: all].
    #[arg(long, value_name = "N", value_parser = cores)]
    cores: Option<f64>,
    /// Memory that the command needs, such as 2GiB.
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    memory: Option<u64>,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Reporter {
    #[arg(long)]
    pid: i32,
    #[arg(long)]
    started: u64,
    #[arg(long)]
    cores: f64,
    #[arg(long)]
    memory: u64,
    /// Start another one and end: that one is nobody's child.
    #[arg(long)]
    detach: bool,
}

fn cores(text: &str) -> Result<f64, String> {
    let cores = text.parse::<f64>().ok();
    let cores = cores.filter(|cores| *cores > 0.0 && *cores <= 65_536.0);
    cores.ok_or_else(|| "not a number of cores such as 2".to_owned())
}

impl Guest {
    /// The sockets on which the daemon may listen.
    fn sockets(&self) -> Vec<PathBuf> {
        if let Some(path) = &self.socket {
            return vec![path.clone()];
        }
        if let Some(data) = &self.data {
            return vec![local::socket_in(data)];
        }
        let usual = joining::data_dir(None, UsualDir::Store).ok();
        local::usual_sockets(|name| std::env::var_os(name), usual.as_deref())
    }

    fn connect(&self) -> Result<UnixStream> {
        let mut reasons = Vec::new();
        for path in self.sockets() {
            let connected =
                local::Shortened::of(&path).and_then(|short| UnixStream::connect(short.path()));
            match connected {
                Ok(stream) => return Ok(stream),
                Err(cause) => reasons.push(format!("{}: {cause}", path.display())),
            }
        }
        let reasons = reasons.join("; ");
        bail!(Refusal::new(
            format!("no daemon answers on this machine ({reasons})"),
            "--socket PATH of its socket, or --data DIR of the daemon",
        ))
    }
}

/// Becomes the command, as a guest. Returns only if that fails.
pub(super) fn guest(args: &Guest) -> Result<ExitCode> {
    let Some((program, rest)) = args.command.split_first() else {
        bail!(Refusal::new("no command", "ckpt-store guest -- COMMAND"));
    };
    if rest.is_empty()
        && program
            .to_str()
            .is_some_and(|text| text.parse::<i32>().is_ok())
    {
        bail!(Refusal::new(
            format!("{program:?} is not a command: a running process can't become a guest"),
            "ckpt-store guest -- COMMAND",
        ));
    }
    let stream = args.connect()?;
    let own = i32::try_from(std::process::id())?;
    let own = ProcessId::of(&Machine::here(), own).context("/proc can't be read")?;
    report_for(args, own, stream).context("starting the process that keeps the connection")?;
    let failed = Command::new(program).args(rest).exec();
    Err(failed).with_context(|| format!("running {}", program.to_string_lossy()))
}

/// Starts the process that keeps the connection open.
fn report_for(args: &Guest, guest: ProcessId, stream: UnixStream) -> Result<()> {
    let reporter = Reporter {
        pid: guest.pid,
        started: guest.started,
        cores: args.cores.unwrap_or(0.0),
        memory: args.memory.unwrap_or(0),
        detach: true,
    };
    let status = reporter.command(OwnedFd::from(stream)).status()?;
    if !status.success() {
        bail!("{status}");
    }
    Ok(())
}

impl Reporter {
    fn command(&self, connection: OwnedFd) -> Command {
        // This program may have been started through a link whose name selects the program, as `ckpt grid
        // up` does.
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0(DAEMON)
            .args(["guest-reporter", "--pid", &self.pid.to_string()])
            .args(["--started", &self.started.to_string()])
            .args(["--cores", &self.cores.to_string()])
            .args(["--memory", &self.memory.to_string()])
            .stdin(connection)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            // Signals from the terminal are for the command only.
            .process_group(0);
        if self.detach {
            command.arg("--detach");
        }
        command
    }
}

/// Keeps the connection on standard input open for as long as a process of the guest runs.
pub(super) fn reporter(args: Reporter) -> Result<ExitCode> {
    let connection = std::io::stdin().as_fd().try_clone_to_owned()?;
    if args.detach {
        let next = Reporter {
            detach: false,
            ..args
        };
        next.command(connection).spawn()?;
        return Ok(ExitCode::SUCCESS);
    }
    let guest = ProcessId {
        pid: args.pid,
        started: args.started,
    };
    let uses = Uses {
        cores: args.cores,
        memory_bytes: args.memory,
        disk_bytes: 0,
    };
    let link = Link::over(UnixStream::from(connection))?;
    match keep(link, guest, uses) {
        // The daemon has ended, so this process is not needed any more.
        Ok(()) | Err(LinkError::Closed | LinkError::Io(_)) => Ok(ExitCode::SUCCESS),
        Err(cause) => Err(cause.into()),
    }
}

fn keep(mut link: Link, guest: ProcessId, mut uses: Uses) -> Result<(), LinkError> {
    let here = Machine::here();
    let mut accounts = Accounts::default();
    let mut earlier = u64::MAX;
    let own = i32::try_from(std::process::id()).ok();
    loop {
        let from: Vec<ProcessId> = accounts.seen().chain([guest]).collect();
        let processes = Processes::below(&here, from);
        let is_guest = |one: &machine::processes::Process| one.id == guest;
        let moved = |one: &machine::processes::Process| one.disk_bytes(&here);
        let guests = accounts.look(&processes, earlier, is_guest, moved);
        if !guests
            .iter()
            .any(|one| one.state != 'Z' && Some(one.id.pid) != own)
        {
            return Ok(());
        }
        earlier = earlier.min(guest.started);
        uses.disk_bytes = accounts.disk_bytes();
        link.send(&uses)?;
        // The report is for guests that adapt to it. It is read so that the daemon can go on writing.
        link.poll()?;
        std::thread::sleep(PERIOD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_a_number() {
        assert_eq!(cores("2.5"), Ok(2.5));
        for wrong in ["0", "-1", "many", "nan", "1e9"] {
            assert!(cores(wrong).is_err(), "{wrong}");
        }
    }
}
