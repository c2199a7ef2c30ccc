//! Runs the synthetic owner alone and beside guests, as processes on one CPU.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use machine::Machine;
use machine::control::{Apart, own_name};
use machine::processes::Process;

use super::guest::{GuestKind, GuestPlace, Priority};
use super::load::{self, Resource};
use super::{Point, Thresholds, ThresholdsError, thresholds};

/// The loads of the owner that are measured.
pub const LOADS: [f64; 10] = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];

/// A guest runs longer than the owner by this margin, so that the owner is never alone.
const GUEST_MARGIN: Duration = Duration::from_secs(30);

/// Time limit for the start of a guest.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// In a shorter time a guest may not get its turn on the CPU, so no progress proves nothing then.
const PROGRESS_TIME_MIN: Duration = Duration::from_millis(500);

/// The name under which this program runs the daemon's commands.
const DAEMON: &str = "ckpt-store";

/// Why an experiment gives no thresholds.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// A process can't be started, or a file can't be written.
    #[error("measuring: {0}")]
    Io(#[from] io::Error),
    /// The guest ended while it was needed, so what was measured is not the loss beside a guest.
    #[error("the guest ended early: {0}")]
    GuestEnded(ExitStatus),
    /// The guest ran but got no CPU time, so what was measured is not the loss beside a guest.
    #[error("the guest did no work: another program keeps the CPU or the disk busy")]
    GuestIdle,
    /// The owner did not complete any work when it was alone.
    #[error("no work was done at load {0}: the measurement is too short for this machine")]
    Idle(f64),
    /// The measured thresholds are not valid.
    #[error(transparent)]
    Thresholds(#[from] ThresholdsError),
}

/// The measurements of one resource.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Losses beside a guest of equal priority in the owner's session.
    pub equal: Vec<Point>,
    /// Losses beside a guest of the lowest priority in the owner's session.
    pub lowest: Vec<Point>,
    /// Losses beside guests of the lowest priority in other places. Empty for a resource for which the
    /// place makes no difference.
    pub elsewhere: Vec<Elsewhere>,
    /// The thresholds that follow from the two guests in the owner's session.
    pub thresholds: Thresholds,
}

/// Losses beside a guest of the lowest priority outside of the owner's session or control group, where
/// its priority has no effect on the owner.
#[derive(Clone, Debug, PartialEq)]
pub struct Elsewhere {
    /// Where the guest ran.
    pub place: GuestPlace,
    /// The losses, or what this machine lacks for measuring them.
    pub losses: Result<Vec<Point>, String>,
}

/// The settings of an experiment.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The resource that is loaded.
    pub resource: Resource,
    /// Directory for scratch files, on the disk to be measured.
    pub dir: PathBuf,
    /// How long the owner works in each measurement.
    pub lasting: Duration,
    /// How often each measurement is repeated. The median counts.
    pub rounds: usize,
}

/// The losses at one load: beside an equal guest, and beside guests of the lowest priority in each place.
/// `None` where nothing could be measured.
#[derive(Clone, Debug, PartialEq)]
pub struct LossAtLoad {
    /// Share of the resource that the owner uses when alone.
    pub load: f64,
    /// One loss for each guest.
    pub losses: Vec<Option<f64>>,
}

impl Experiment {
    /// The guests beside which the owner is measured, in the order of [`LossAtLoad::losses`].
    #[must_use]
    pub fn guests(&self) -> Vec<GuestKind> {
        let lowest = |place| GuestKind {
            priority: Priority::Lowest,
            place,
        };
        let mut guests = vec![
            GuestKind {
                priority: Priority::Equal,
                place: GuestPlace::Same,
            },
            lowest(GuestPlace::Same),
        ];
        // Disks are shared among processes, so the place makes no difference there.
        if self.resource == Resource::Cpu {
            guests.extend([GuestPlace::OtherSession, GuestPlace::OtherGroup].map(lowest));
        }
        guests
    }

    /// Measures all loads. `report` is called after each load.
    ///
    /// # Errors
    /// When a process can't be started, ends early or makes no progress, a file can't be written, or the
    /// owner makes no progress.
    pub fn run(&self, mut report: impl FnMut(&LossAtLoad)) -> Result<Measured, ExperimentError> {
        let machine = Machine::here();
        let guests = self.guests();
        let lacking: Vec<Option<String>> = guests
            .iter()
            .map(|guest| guest.place.lacks(&machine))
            .collect();
        let scratch = self.scratch("owner");
        let units = load::units_at_once(self.resource, &scratch.0)?;
        let mut points = vec![Vec::new(); guests.len()];
        for load in LOADS {
            let mut losses = vec![Vec::new(); guests.len()];
            for _ in 0..self.rounds.max(1) {
                let alone = self.owner(load, units, &scratch.0)? as f64;
                if alone < 1.0 {
                    return Err(ExperimentError::Idle(load));
                }
                let measurable = guests.iter().zip(&lacking).zip(&mut losses);
                for ((guest, _), losses) in measurable.filter(|((_, lacks), _)| lacks.is_none()) {
                    let guest = self.guest(*guest)?;
                    let beside = self.owner(load, units, &scratch.0)? as f64;
                    guest.end(&machine, self.lasting)?;
                    losses.push(1.0 - beside / alone);
                }
            }
            let losses: Vec<Option<f64>> = losses.into_iter().map(median).collect();
            for (points, loss) in points.iter_mut().zip(&losses) {
                points.extend(loss.map(|loss| Point { load, loss }));
            }
            report(&LossAtLoad { load, losses });
        }
        let mut points = points.into_iter();
        let equal = points.next().unwrap_or_default();
        let lowest = points.next().unwrap_or_default();
        let elsewhere = guests.iter().zip(lacking).skip(2).zip(points);
        let elsewhere = elsewhere.map(|((guest, lacks), points)| Elsewhere {
            place: guest.place,
            losses: lacks.map_or(Ok(points), Err),
        });
        Ok(Measured {
            elsewhere: elsewhere.collect(),
            thresholds: thresholds(&equal, &lowest)?,
            equal,
            lowest,
        })
    }

    fn owner(&self, load: f64, units: u64, scratch: &Path) -> io::Result<u64> {
        load::owner(self.resource, load, units, self.lasting, scratch)
    }

    /// Starts a guest, and waits until it works.
    fn guest(&self, kind: GuestKind) -> Result<Guest, ExperimentError> {
        let scratch = self.scratch("guest");
        let resource = match self.resource {
            Resource::Cpu => "cpu",
            Resource::Disk => "disk",
        };
        let seconds = (self.lasting + GUEST_MARGIN).as_secs().to_string();
        // This program may have been started through a link whose name selects the program, as `ckpt grid
        // up` does.
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0(DAEMON)
            .args(["calibrate-guest", "--resource", resource])
            .args(["--seconds", &seconds, "--scratch"])
            .arg(&scratch.0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if kind.priority == Priority::Lowest {
            command.arg("--lowest");
        }
        if kind.place == GuestPlace::OtherSession {
            command.arg("--own-session");
        }
        let mut child = command.spawn()?;
        let ready = child.stdout.take();
        let mut guest = Guest {
            child,
            group: None,
            worked_ticks: 0,
            _scratch: scratch,
        };
        if kind.place == GuestPlace::OtherGroup {
            let group = Apart::make(&Machine::here(), &own_name())?;
            group.add(guest.child.id().cast_signed())?;
            guest.group = Some(group);
        }
        guest.wait_until_it_works(ready)?;
        Ok(guest)
    }

    fn scratch(&self, name: &str) -> Scratch {
        let process = std::process::id();
        Scratch(self.dir.join(format!("calibrate-{name}-{process}")))
    }
}

/// A guest process. It is killed when this is dropped.
struct Guest {
    child: Child,
    /// The control group of the guest. It is removed after the child was waited for.
    group: Option<Apart>,
    worked_ticks: u64,
    _scratch: Scratch,
}

impl Guest {
    /// Waits until the guest works. The guest reports that by writing a byte.
    fn wait_until_it_works(&mut self, ready: Option<ChildStdout>) -> Result<(), ExperimentError> {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut byte = [0];
            let read = ready.map(|mut ready| ready.read_exact(&mut byte));
            // An error means that nothing waits for it any more.
            let _ = sender.send(matches!(read, Some(Ok(()))));
        });
        match receiver.recv_timeout(START_TIMEOUT) {
            Ok(true) => {
                self.worked_ticks = self.ticks(&Machine::here()).unwrap_or(0);
                Ok(())
            }
            Ok(false) => Err(ExperimentError::GuestEnded(self.child.wait()?)),
            Err(_) => Err(ExperimentError::GuestIdle),
        }
    }

    fn ticks(&self, machine: &Machine) -> Option<u64> {
        Some(Process::read(machine, self.child.id().cast_signed())?.own_ticks)
    }

    /// Ends the guest. Fails if the guest had ended already, or made no progress in `lasting`: the owner
    /// was alone then.
    fn end(mut self, machine: &Machine, lasting: Duration) -> Result<(), ExperimentError> {
        if let Some(status) = self.child.try_wait()? {
            return Err(ExperimentError::GuestEnded(status));
        }
        let has_worked = self
            .ticks(machine)
            .is_some_and(|now| now > self.worked_ticks);
        if has_worked || lasting < PROGRESS_TIME_MIN {
            Ok(())
        } else {
            Err(ExperimentError::GuestIdle)
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // An error means that the guest has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The control group is empty now and can be removed.
        self.group = None;
    }
}

/// A file that is removed when this is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // An error is usual, because not every resource creates the file.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
