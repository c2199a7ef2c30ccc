//! A job for tests of `ckpt run`. Each step hashes the step before; the arguments say when and how the job
//! writes its state.
//!
//! ```text
//! hash-job STATE WORD...
//!   end=N        end after step N (default: never)
//!   status=N     exit status (default: 0)
//!   step=MS      time of a step in milliseconds (default: 10)
//!   every=N      steps from one state to the next (default: 5; 0: only when a signal asks)
//!   bytes=N      size of the state (default: 1000)
//!   like=memory  fill the state with bytes like those of a process; else with bytes that don't compress
//!   write=HOW    replace: write a new file and rename it into place (the default);
//!                place: write in place, with a pause in the middle
//!   usr2         write the state at SIGUSR2, too
//!   term         write the state at SIGTERM and end with the exit status
//!   count        write the number of steps done to STATE.count after each step, in 8 bytes
//!   notify       report SAVED=1 and STEP to CKPT_NOTIFY after each state
//! ```
//!
//! At each start, the job appends the number of the step at which it begins to STATE.began, on a line of
//! its own.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tests::hash_job::{Filler, Steps};
use tokio::signal::unix::{SignalKind, signal};

struct Job {
    state: PathBuf,
    end: u64,
    status: u8,
    step: Duration,
    every: u64,
    bytes: usize,
    filler: Filler,
    in_place: bool,
    usr2: bool,
    term: bool,
    notify: bool,
    count: bool,
}

impl Job {
    fn of(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut job = Self {
            state: args.nth(1).context("no state")?.into(),
            end: u64::MAX,
            status: 0,
            step: Duration::from_millis(10),
            every: 5,
            bytes: 1000,
            filler: Filler::Noise,
            in_place: false,
            usr2: false,
            term: false,
            notify: false,
            count: false,
        };
        for word in args {
            match word.split_once('=').unwrap_or((&word, "")) {
                ("end", number) => job.end = number.parse()?,
                ("status", number) => job.status = number.parse()?,
                ("step", ms) => job.step = Duration::from_millis(ms.parse()?),
                ("every", number) => job.every = number.parse()?,
                ("bytes", number) => job.bytes = number.parse()?,
                ("like", "memory") => job.filler = Filler::Memory,
                ("write", "place") => job.in_place = true,
                ("write", "replace") => job.in_place = false,
                ("usr2", "") => job.usr2 = true,
                ("term", "") => job.term = true,
                ("count", "") => job.count = true,
                ("notify", "") => job.notify = true,
                _ => bail!("{word:?}?"),
            }
        }
        Ok(job)
    }

    async fn run(&self) -> Result<()> {
        let mut steps = match self.state.exists() {
            true => Steps::read(&self.state)?,
            false => Steps::START,
        };
        let began = PathBuf::from(format!("{}.began", self.state.display()));
        let mut began = File::options().create(true).append(true).open(began)?;
        writeln!(began, "{}", steps.number)?;
        let mut usr2 = signal(SignalKind::user_defined2())?;
        let mut term = match self.term {
            true => Some(signal(SignalKind::terminate())?),
            false => None,
        };
        let count = match self.count {
            true => Some(File::create(format!("{}.count", self.state.display()))?),
            false => None,
        };
        while steps.number < self.end {
            tokio::select! {
                biased;
                _ = usr2.recv(), if self.usr2 => self.write(steps)?,
                _ = received(&mut term) => {
                    self.write(steps)?;
                    return Ok(());
                }
                () = tokio::time::sleep(self.step) => {
                    steps = steps.next();
                    if let Some(count) = &count {
                        count.write_all_at(&steps.number.to_le_bytes(), 0)?;
                    }
                    if self.every > 0 && steps.number % self.every == 0 {
                        self.write(steps)?;
                    }
                }
            }
        }
        self.write(steps)
    }

    fn write(&self, steps: Steps) -> Result<()> {
        let state = steps.state(self.bytes, self.filler);
        if self.in_place {
            let mut file = File::create(&self.state)?;
            let (first, rest) = state.split_at(state.len() / 2);
            file.write_all(first)?;
            std::thread::sleep(self.step);
            file.write_all(rest)?;
        } else {
            let next = PathBuf::from(format!("{}.next", self.state.display()));
            fs::write(&next, state)?;
            fs::rename(next, &self.state)?;
        }
        if self.notify {
            let socket = std::env::var_os("CKPT_NOTIFY").context("no CKPT_NOTIFY")?;
            let text = format!("SAVED=1\nSTEP={}\n", steps.number);
            let from = std::os::unix::net::UnixDatagram::unbound()?;
            from.send_to(text.as_bytes(), Path::new(&socket))?;
        }
        Ok(())
    }
}

async fn received(signal: &mut Option<tokio::signal::unix::Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

fn main() -> Result<ExitCode> {
    let job = Job::of(std::env::args())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(job.run())?;
    Ok(ExitCode::from(job.status))
}
