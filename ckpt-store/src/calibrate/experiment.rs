//! Runs the synthetic owner alone and beside guests, as processes on one CPU.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::load::{self, Resource};
use super::{Point, Thresholds, ThresholdsError, thresholds};

/// Loads of the owner.
pub const LOADS: [f64; 10] = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];

/// How much longer than the owner a guest runs, so that the owner is never alone.
const GUEST_MARGIN: Duration = Duration::from_secs(30);

/// Name under which this program knows the commands of a daemon.
const DAEMON: &str = "ckpt-store";

/// Why an experiment gives no thresholds.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// A process can't be started or a file not be written.
    #[error("measuring: {0}")]
    Io(#[from] io::Error),
    /// The guest ended while it was to hold the owner up: what was measured is no loss beside a guest.
    #[error("the guest ended early: {0}")]
    GuestEnded(ExitStatus),
    /// The owner got nothing done alone.
    #[error("no work was done at load {0}: the measurement is too short for this machine")]
    Idle(f64),
    /// The numbers are none.
    #[error(transparent)]
    Thresholds(#[from] ThresholdsError),
}

/// What was measured of one resource.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Losses beside a guest of equal priority.
    pub equal: Vec<Point>,
    /// Losses beside a guest of the lowest priority.
    pub lowest: Vec<Point>,
    /// What follows.
    pub thresholds: Thresholds,
}

/// How to measure.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// What is loaded.
    pub resource: Resource,
    /// Directory for scratch files, on the disk to be measured.
    pub dir: PathBuf,
    /// How long the owner works at each load, alone and beside each guest, each time.
    pub lasting: Duration,
    /// How often each measurement is made; the median counts.
    pub rounds: usize,
}

/// Priority of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Priority {
    Equal,
    Lowest,
}

impl Experiment {
    /// Measures; `tell` hears of every point.
    ///
    /// # Errors
    /// When a process can't be started or ends early, a file can't be written, or the owner gets nothing
    /// done.
    pub fn run(&self, mut tell: impl FnMut(f64, [f64; 2])) -> Result<Measured, ExperimentError> {
        let scratch = self.scratch("owner");
        let units = load::units_at_once(self.resource, &scratch.0)?;
        let (mut equal, mut lowest) = (Vec::new(), Vec::new());
        for load in LOADS {
            let mut losses = [Vec::new(), Vec::new()];
            for _ in 0..self.rounds.max(1) {
                let alone = self.owner(load, units, &scratch.0)? as f64;
                if alone < 1.0 {
                    return Err(ExperimentError::Idle(load));
                }
                for (i, priority) in [Priority::Equal, Priority::Lowest].into_iter().enumerate() {
                    let guest = self.guest(priority)?;
                    let beside = self.owner(load, units, &scratch.0)? as f64;
                    guest.end()?;
                    losses[i].push(1.0 - beside / alone);
                }
            }
            let losses = losses.map(median);
            tell(load, losses);
            equal.push(Point {
                load,
                loss: losses[0],
            });
            lowest.push(Point {
                load,
                loss: losses[1],
            });
        }
        let thresholds = thresholds(&equal, &lowest)?;
        Ok(Measured {
            equal,
            lowest,
            thresholds,
        })
    }

    fn owner(&self, load: f64, units: u64, scratch: &Path) -> io::Result<u64> {
        load::owner(self.resource, load, units, self.lasting, scratch)
    }

    fn guest(&self, priority: Priority) -> io::Result<Guest> {
        let scratch = self.scratch("guest");
        let resource = match self.resource {
            Resource::Cpu => "cpu",
            Resource::Disk => "disk",
        };
        let seconds = (self.lasting + GUEST_MARGIN).as_secs().to_string();
        // This program may be a link to one that goes by its name, as at `ckpt grid up`.
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0(DAEMON)
            .args(["calibrate-guest", "--resource", resource])
            .args(["--seconds", &seconds, "--scratch"])
            .arg(&scratch.0)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if priority == Priority::Lowest {
            command.arg("--lowest");
        }
        Ok(Guest {
            child: command.spawn()?,
            _scratch: scratch,
        })
    }

    fn scratch(&self, name: &str) -> Scratch {
        let process = std::process::id();
        Scratch(self.dir.join(format!("calibrate-{name}-{process}")))
    }
}

/// A guest that ends when it is dropped.
struct Guest {
    child: Child,
    _scratch: Scratch,
}

impl Guest {
    /// Ends it; fails when it was not there any more.
    fn end(mut self) -> Result<(), ExperimentError> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(ExperimentError::GuestEnded(status)),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Fails when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file that goes when it is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // Not every resource makes one.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
