//! The end of a launcher on the job's machine. Starts `ckpt run`, or finds the one that runs, and passes
//! on its output, its reports and its end.
//!
//! The supervisor, `ckpt run`, has a session of its own and writes to files. So it goes on when the
//! launcher or the process that started the launcher is gone.
//!
//! ```text
//! STATE/there/HOST/run/JOB/       the job's directory
//!   starting.lock                 held while a supervisor is found or started
//!   lock                          held by the supervisor; its process id
//!   incarnation.json              which incarnation the other files belong to
//!   grid.toml, job.key            what the supervisor needs to use the grid
//!   history.jsonl                 runs to compare with; the supervisor adds its own
//!   work/                         the working directory
//!   out, err                      the output of the job
//!   beat.json                     rewritten while the supervisor lives
//!   standing.json                 how the job stands, by the supervisor
//!   end.json                      how it ended
//! ```

use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use codec::JobId;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::own::{program, write_private};
use super::stand_by::{StandingBy, sweep};
use super::words::{
    EndReport, FORM, FromHost, Incarnation, LINE_BYTES_MAX, LOOK_PERIOD, OUTPUT_BYTES_MAX, Order,
    Shown, Start, ToHost, WINDOW_BYTES,
};
use crate::beat::{BEAT, BeatContents};
use crate::files::remove;
use crate::job_dir::{LOCK, dir_of, is_held};
use crate::json_file::write_json;
use crate::staged::END;
use crate::standing::{self, STANDING};

/// Directory of the jobs that run here for other machines, in the state directory. It has a directory for
/// each host, because machines may share their home directories.
pub(crate) const THERE: &str = "there";

/// Names of files in a job's directory.
const OUT_FILE: &str = "out";
const ERR_FILE: &str = "err";
const GRID_FILE: &str = "grid.toml";
/// The list of the grid that an earlier start has received. The grid file in the order is newer.
const MEMBERS_FILE: &str = "grid.members";
const KEY_FILE: &str = "job.key";
const HISTORY_FILE: &str = "history.jsonl";
const HISTORY_LOCK: &str = "history.jsonl.lock";
const INCARNATION_FILE: &str = "incarnation.json";
const STARTING_LOCK: &str = "starting.lock";

/// Longest wait for the first line.
const ORDER_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest wait for a supervisor to lock its job's directory.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest file of a supervisor that is read, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why an order is not carried out.
#[derive(Debug, thiserror::Error)]
enum ThereError {
    #[error("no order on standard input: ckpt run --on starts this command")]
    NoOrder,
    #[error(
        "this program uses form {FORM} of orders, the other one form {0}: install the same version on both machines"
    )]
    Form(u32),
    #[error("{0}")]
    Order(String),
    #[error("{path}: {cause}", path = path.display())]
    Io { path: PathBuf, cause: io::Error },
    #[error("job {0} runs here for another user")]
    Taken(String),
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> ThereError {
    let path = path.to_owned();
    move |cause| ThereError::Io { path, cause }
}

/// Carries out the order on standard input. Returns whether that succeeded.
pub fn serve(state: Option<PathBuf>) -> bool {
    let hello = FromHost::Hello {
        form: FORM,
        program: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let mut out = io::stdout().lock();
    if hello.send(&mut out).is_err() {
        return false;
    }
    match begin(state) {
        // Fails if nobody reads at the other end any more.
        Ok(Serves::Runs(mut relay)) => relay.pass_on(&mut out).is_ok(),
        Ok(Serves::StandsBy(mut standing_by)) => standing_by.pass_on(&mut out).is_ok(),
        Err(cause) => {
            let message = cause.to_string();
            let _ = FromHost::Refused { message }.send(&mut out);
            false
        }
    }
}

/// What this process does for the job.
enum Serves {
    Runs(Box<Relay>),
    StandsBy(StandingBy),
}

/// Reads the order and begins to carry it out.
fn begin(state: Option<PathBuf>) -> Result<Serves, ThereError> {
    let (order, lines) = listen()?;
    if order.form != FORM {
        return Err(ThereError::Form(order.form));
    }
    let job: JobId = named(&order.job)?;
    let host: JobId = named(&order.host)?;
    let state = state.map(|state| state.join(THERE).join(host.file_name()));
    let dir = dir_of(state.clone(), &job).map_err(|cause| ThereError::Order(cause.to_string()))?;
    if let Some(state) = &state {
        // The next start tries it again.
        let _ = sweep(state);
    }
    match &order.stand_by {
        Some(wish) => {
            let begun = StandingBy::begin(wish, order.job.clone(), dir.clone(), state, lines);
            begun.map(Serves::StandsBy).map_err(at(&dir))
        }
        None => Relay::begin(order, lines, dir, state).map(|relay| Serves::Runs(Box::new(relay))),
    }
}

/// A supervisor that runs, or has run.
#[derive(Debug)]
struct Supervisor {
    handle: OwnedFd,
    /// Its file `stat` in `/proc`. An open one can't be read any more when the process is gone, even if
    /// another process gets its number.
    state: File,
    /// The child, if this process has started the supervisor.
    child: Option<Child>,
}

impl Supervisor {
    fn of(pid: Pid, child: Option<Child>) -> io::Result<Self> {
        Ok(Self {
            handle: pidfd_open(pid, PidfdFlags::empty())?,
            state: File::open(format!("/proc/{}/stat", pid.as_raw_nonzero()))?,
            child,
        })
    }

    fn has_ended(&mut self) -> bool {
        let mut text = String::new();
        let read = self
            .state
            .rewind()
            .and_then(|()| self.state.read_to_string(&mut text));
        let state = text
            .rsplit_once(')')
            .map(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']));
        read.is_err() || state.unwrap_or(true)
    }

    fn signal(&self, number: u8) {
        if let Some(signal) = Signal::from_named_raw(i32::from(number)) {
            // Fails if it has just ended.
            let _ = pidfd_send_signal(&self.handle, signal);
        }
    }

    /// Its exit status, if this process has started it.
    fn status(&mut self) -> Option<u8> {
        let status = self.child.as_mut()?.wait().ok()?;
        u8::try_from(status.code()?).ok()
    }
}

struct Relay {
    lines: Receiver<ToHost>,
    order: Order,
    dir: PathBuf,
    supervisor: Option<Supervisor>,
    sent: Shown,
    shown: Shown,
    /// Number of the last reported beat, and whether the job ran at that time.
    beat: Option<(u64, bool)>,
    report_at: Instant,
    end_sent: bool,
}

impl Relay {
    fn begin(
        order: Order,
        lines: Receiver<ToHost>,
        dir: PathBuf,
        state: Option<PathBuf>,
    ) -> Result<Self, ThereError> {
        let supervisor = find_or_start(&order, &dir, state)?;
        Ok(Self {
            lines,
            sent: order.shown,
            shown: order.shown,
            order,
            dir,
            supervisor,
            beat: None,
            report_at: Instant::now(),
            end_sent: false,
        })
    }

    /// Passes messages on until the other end is gone or needs nothing any more.
    fn pass_on(&mut self, out: &mut impl Write) -> io::Result<()> {
        loop {
            match self.lines.recv_timeout(LOOK_PERIOD) {
                Ok(ToHost::Signal(number)) => {
                    if let Some(supervisor) = &self.supervisor {
                        supervisor.signal(number);
                    }
                }
                Ok(ToHost::Shown(shown)) => self.shown = shown,
                Ok(ToHost::Saved | ToHost::Pause | ToHost::Comes) => {}
                Ok(ToHost::Forget) => {
                    self.forget();
                    return Ok(());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            // Checked before the output is read: if it has ended, its output is complete by then.
            let has_ended = self.supervisor.as_mut().is_none_or(Supervisor::has_ended);
            let more = self.send_output(out)?;
            if !has_ended {
                self.report(out)?;
            } else if !more && !self.end_sent {
                self.end_sent = true;
                let end = self.end_message();
                end.send(out)?;
            }
        }
    }

    /// Sends output of the job. Returns whether there is more.
    fn send_output(&mut self, out: &mut impl Write) -> io::Result<bool> {
        let sent = self.sent;
        let shown = self.shown;
        let path = |name| self.dir.join(name);
        let of_out = |bytes| FromHost::Out { bytes };
        let of_err = |bytes| FromHost::Err { bytes };
        let wrote = tail(out, &path(OUT_FILE), sent.out, shown.out, of_out)?;
        let complained = tail(out, &path(ERR_FILE), sent.err, shown.err, of_err)?;
        self.sent.out += wrote.sent;
        self.sent.err += complained.sent;
        Ok(wrote.is_more || complained.is_more)
    }

    /// Reports that the supervisor lives, if it has written its beat since the last report.
    fn report(&mut self, out: &mut impl Write) -> io::Result<()> {
        let beat = read_json::<BeatContents>(&self.dir.join(BEAT));
        let Some(beat) = beat else {
            return Ok(());
        };
        let is_new = self.beat.is_none_or(|(number, _)| number != beat.number);
        let has_changed = self.beat.is_none_or(|(_, runs)| runs != beat.runs);
        let is_due = self.report_at <= Instant::now();
        if !is_new || !(is_due || has_changed) {
            return Ok(());
        }
        self.beat = Some((beat.number, beat.runs));
        self.report_at = Instant::now() + Duration::from_millis(self.order.report_ms / 2);
        let runs = beat.runs;
        let rest = beat.rest;
        let standing = standing::read(&self.dir.join(STANDING)).ok().flatten();
        let standing = standing.map(|read| Box::new(read.standing));
        let alive = FromHost::Alive {
            runs,
            rest,
            standing,
        };
        alive.send(out)
    }

    fn end_message(&mut self) -> FromHost {
        let is_it = read_incarnation(&self.dir).as_ref() == Some(&self.order.incarnation);
        let end = read_json::<EndReport>(&self.dir.join(END)).filter(|_| is_it);
        let status = self.supervisor.as_mut().and_then(Supervisor::status);
        match (end, status) {
            (Some(end), _) => FromHost::Ended {
                end,
                noted: last_line(&self.dir.join(HISTORY_FILE)),
            },
            // The supervisor failed before it locked the job's directory. The reason is in its standard
            // error.
            (None, Some(exit_code)) => FromHost::Ended {
                end: EndReport {
                    exit_code,
                    by_job: false,
                    why: "it could not start".to_owned(),
                    version: None,
                    work_seconds: 0.0,
                    lost_seconds: 0.0,
                },
                noted: None,
            },
            (None, None) => FromHost::Vanished,
        }
    }

    /// Removes the files that are not needed any more, above all the key.
    fn forget(&self) {
        for name in [
            KEY_FILE,
            GRID_FILE,
            OUT_FILE,
            ERR_FILE,
            HISTORY_FILE,
            HISTORY_LOCK,
            INCARNATION_FILE,
            END,
            BEAT,
        ] {
            // A file that stays is replaced by the next start.
            let _ = remove(&self.dir.join(name));
        }
    }
}

fn named(text: &str) -> Result<JobId, ThereError> {
    text.parse()
        .map_err(|cause| ThereError::Order(format!("{text:?}: {cause}")))
}

/// Receives the order, and starts a thread that receives later messages. The thread ends with standard
/// input.
fn listen() -> Result<(Order, Receiver<ToHost>), ThereError> {
    let (first, order) = channel();
    let (later, lines) = channel();
    std::thread::spawn(move || {
        let mut input = io::BufReader::new(io::stdin());
        let mut line = String::new();
        if matches!(
            (&mut input).take(LINE_BYTES_MAX).read_line(&mut line),
            Ok(1..)
        ) {
            let _ = first.send(serde_json::from_str::<Order>(&line));
        }
        loop {
            line.clear();
            match (&mut input).take(LINE_BYTES_MAX).read_line(&mut line) {
                Ok(1..) => {}
                _ => return,
            }
            if let Ok(message) = serde_json::from_str::<ToHost>(&line)
                && later.send(message).is_err()
            {
                return;
            }
        }
    });
    let order = order.recv_timeout(ORDER_TIMEOUT);
    let order = order.map_err(|_| ThereError::NoOrder)?;
    let order = order.map_err(|cause| ThereError::Order(cause.to_string()))?;
    Ok((order, lines))
}

/// What was sent of a file.
struct Tailed {
    sent: u64,
    is_more: bool,
}

/// Sends a part of a file from offset `from` on, within the window after what was shown.
fn tail(
    out: &mut impl Write,
    path: &Path,
    from: u64,
    shown: u64,
    message: impl FnOnce(u64) -> FromHost,
) -> io::Result<Tailed> {
    let none_sent = Tailed {
        sent: 0,
        is_more: false,
    };
    let Ok(mut file) = File::open(path) else {
        return Ok(none_sent);
    };
    let there = file.metadata()?.len().saturating_sub(from);
    let room = (shown + WINDOW_BYTES).saturating_sub(from);
    let bytes = there.min(room).min(OUTPUT_BYTES_MAX);
    if bytes == 0 {
        return Ok(Tailed {
            is_more: there > 0,
            ..none_sent
        });
    }
    file.seek(SeekFrom::Start(from))?;
    let mut part = Vec::new();
    file.take(bytes).read_to_end(&mut part)?;
    let sent = part.len() as u64;
    message(sent).send(out)?;
    out.write_all(&part)?;
    out.flush()?;
    Ok(Tailed {
        sent,
        is_more: there > sent,
    })
}

/// The supervisor of this incarnation: the running one, or a new one. `None` if it has ended, or if it
/// does not run and the order is not to start one.
fn find_or_start(
    order: &Order,
    dir: &Path,
    state: Option<PathBuf>,
) -> Result<Option<Supervisor>, ThereError> {
    fs::create_dir_all(dir).map_err(at(dir))?;
    fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(at(dir))?;
    // With two launchers for one job, the second one finds what the first one has started.
    let starting = dir.join(STARTING_LOCK);
    let lock = open(&starting)?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|cause| at(&starting)(cause.into()))?;
    let is_it = read_incarnation(dir).as_ref() == Some(&order.incarnation);
    if let Some(pid) = holder(&dir.join(LOCK))? {
        if !is_it {
            return Err(ThereError::Taken(order.job.clone()));
        }
        let found = Supervisor::of(pid, None);
        return found.map(Some).map_err(at(dir));
    }
    match &order.start {
        // It has run here, and its end may be recorded.
        Some(_) if is_it => Ok(None),
        None => Ok(None),
        Some(start) => start_one(order, start, dir, state).map(Some),
    }
}

fn open(path: &Path) -> Result<File, ThereError> {
    let mut options = File::options();
    let opened = options
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path);
    opened.map_err(at(path))
}

/// The process that holds the lock of a job's directory.
fn holder(path: &Path) -> Result<Option<Pid>, ThereError> {
    if !is_held(path).map_err(at(path))? {
        return Ok(None);
    }
    let text = fs::read_to_string(path).map_err(at(path))?;
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    let unknown = || ThereError::Order(format!("{}: locked by an unknown process", path.display()));
    pid.map(Some).ok_or_else(unknown)
}

fn start_one(
    order: &Order,
    start: &Start,
    dir: &Path,
    state: Option<PathBuf>,
) -> Result<Supervisor, ThereError> {
    for name in [OUT_FILE, ERR_FILE, END, BEAT, MEMBERS_FILE] {
        let path = dir.join(name);
        remove(&path).map_err(at(&path))?;
    }
    let private = |name: &str, text: &str| -> Result<PathBuf, ThereError> {
        let path = dir.join(name);
        write_private(&path, text).map_err(at(&path))?;
        Ok(path)
    };
    let grid = private(GRID_FILE, &start.grid)?;
    let key = private(KEY_FILE, &start.key)?;
    let history = match &start.history {
        Some(lines) => {
            let past: String = lines.iter().map(|line| format!("{line}\n")).collect();
            private(HISTORY_FILE, &past)?
        }
        None => PathBuf::from("none"),
    };
    let path = dir.join(INCARNATION_FILE);
    write_json(&path, &order.incarnation).map_err(at(&path))?;
    let output = |name: &str| -> Result<Stdio, ThereError> {
        let path = dir.join(name);
        let file = File::options().create(true).append(true).open(&path);
        file.map(Stdio::from).map_err(at(&path))
    };
    let mut command = program(dir, &grid, &key, state.as_deref());
    command
        .args(["run", "--staged", "--job", &order.job, "--history"])
        .arg(history)
        .args(start.options.iter().cloned().map(std::ffi::OsString::from))
        .arg("--")
        .args(start.command.iter().cloned().map(std::ffi::OsString::from))
        .stdout(output(OUT_FILE)?)
        .stderr(output(ERR_FILE)?);
    let mut child = command.spawn().map_err(at(Path::new("ckpt run")))?;
    wait_for_lock(&mut child, dir)?;
    let pid = Pid::from_child(&child);
    Supervisor::of(pid, Some(child)).map_err(at(dir))
}

/// Waits until the supervisor has locked its job's directory or has ended. Ends a supervisor that does neither.
fn wait_for_lock(child: &mut Child, dir: &Path) -> Result<(), ThereError> {
    let began = Instant::now();
    let own = child.id().to_string();
    while fs::read_to_string(dir.join(LOCK)).map_or(true, |text| text.trim() != own) {
        if matches!(child.try_wait(), Ok(Some(_))) {
            return Ok(());
        }
        if began.elapsed() > LOCK_TIMEOUT {
            // It has no lock, so it has no job yet.
            child.kill().map_err(at(dir))?;
            return Err(at(dir)(io::Error::new(
                io::ErrorKind::TimedOut,
                format!(
                    "ckpt run did not take its lock within {} s",
                    LOCK_TIMEOUT.as_secs()
                ),
            )));
        }
        std::thread::sleep(LOOK_PERIOD);
    }
    Ok(())
}

fn read_incarnation(dir: &Path) -> Option<Incarnation> {
    read_json(&dir.join(INCARNATION_FILE))
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    let mut text = Vec::new();
    let file = File::open(path).ok()?;
    file.take(FILE_BYTES_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// The last line of a history.
fn last_line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next_back().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_sent_in_parts_and_no_further_than_was_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let length = WINDOW_BYTES + OUTPUT_BYTES_MAX;
        fs::write(&path, vec![b'x'; length as usize]).unwrap();
        let mut sink = Vec::new();
        let mut from = 0;
        let mut is_more = true;
        while let Ok(tailed) = tail(&mut sink, &path, from, 0, |bytes| FromHost::Out { bytes })
            && tailed.sent > 0
        {
            from += tailed.sent;
            is_more = tailed.is_more;
        }
        assert_eq!((from, is_more), (WINDOW_BYTES, true));
        let rest = tail(&mut sink, &path, from, 1 << 19, |bytes| FromHost::Out {
            bytes,
        });
        let rest = rest.unwrap();
        assert_eq!((rest.sent, rest.is_more), (OUTPUT_BYTES_MAX, false));
        let text = String::from_utf8(sink).unwrap();
        assert!(text.starts_with("{\"ckpt\":\"out\",\"bytes\":65536}\nxxx"));
    }

    #[test]
    fn a_lock_names_its_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert!(holder(&path).unwrap().is_none());
        let file = open(&path).unwrap();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        assert!(holder(&path).is_err());
        fs::write(&path, "77\n").unwrap();
        assert_eq!(holder(&path).unwrap(), Pid::from_raw(77));
    }
}
