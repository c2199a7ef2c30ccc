//! The orders for a run: what the command line asks for.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use codec::JobId;
use machine::Machine;
use machine::control::{Control, Wishes, choose, own_name};
use protocol::wire::announcement::Announced;
use supervision::patience::{Needs, Past};
use supervision::{
    Asking, Costs, LeaveAfter, Millis, OnHang, OwnerRule, Parity, Settings, WhileRead,
};

use super::ask::Ask;
use super::batch::Batch;
use super::begin::Beginning;
use super::job_dir::{JobDir, WORK};
use super::kept_state::KeptState;
use super::owner::OwnerWish;
use super::reach::Reach;
use super::record::RecordOrders;
use super::run_log::Says;
use super::saver::SavePlan;
use ckpt_agent::agent::{Disposal, ForgetWhich, MachineOutlook, Tenure};
use ckpt_agent::core::sought::Sought;
use ckpt_agent::image::Exclude;
use ckpt_agent::report::Failure;

/// Usual grace period, if neither the user nor the batch system gives another.
const GRACE_USUAL: Duration = Duration::from_secs(30);

/// Largest part of the grace period that is kept for ending the job's processes.
const KILL_TIME: Duration = Duration::from_secs(5);

/// Name of the directory for the image of `--checkpoint-cmd`, in the job's directory.
const IMAGE: &str = "image";

/// How a checkpoint of the job comes about.
#[derive(Clone, Debug)]
pub enum Way {
    /// The job writes files.
    Files {
        /// The files and directories.
        paths: Vec<PathBuf>,
        /// How the job is asked to write them.
        ask: Ask,
    },
    /// A command writes an image of the job's processes into a directory, and another command restarts
    /// the job from it.
    Command {
        /// The command that writes the image of the processes.
        checkpoint: Script,
        /// The command that restarts the job from the image.
        restart: Script,
    },
}

/// A command for `sh -c`.
#[derive(Clone, Debug)]
pub struct Script {
    /// Its name in messages.
    pub name: String,
    /// The text for the shell.
    pub text: String,
}

impl From<String> for Script {
    fn from(text: String) -> Self {
        Self {
            name: text.clone(),
            text,
        }
    }
}

/// How long a job stays stopped for the owner before it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspend {
    /// For as long as waiting is expected to pay.
    Auto,
    /// It leaves after this time.
    After(Duration),
    /// It stays stopped until the owner has gone.
    Never,
}

/// What happens to the checkpoints of a job that has ended with exit status 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterSuccess {
    /// The checkpoints stay.
    Keep,
    /// They get a lease of this length.
    Lease(Duration),
    /// The checkpoints are removed.
    Forget,
}

/// All orders for a run.
#[derive(Clone, Debug)]
pub struct Orders {
    /// Name of the job.
    pub job: JobId,
    /// The job's program and its arguments.
    pub command: Vec<OsString>,
    /// How a checkpoint of the job comes about.
    pub way: Way,
    /// Files of the state to which the job only appends. They need not be at rest.
    pub append: Exclude,
    /// How checkpoints are saved.
    pub save: SavePlan,
    /// Whether the state is the working directory that another machine has staged: it comes from the
    /// hosts and goes back to them.
    pub staged: bool,
    /// Whether to begin from the files that are there.
    pub local: bool,
    /// Whether to begin anew where no host that answers shows a version, although silent members may hold one.
    pub is_new: bool,
    /// How long to wait for a version that exists and can't be restored now.
    pub wait: Duration,
    /// Time between the need to leave and the end, if the user gave one.
    pub grace: Option<Duration>,
    /// Share of the line that may be spent so that the last checkpoint is short, 0 to 1.
    pub spend: f64,
    /// How long the job stays stopped for the owner before it leaves.
    pub suspend: Suspend,
    /// What is done when the job hangs.
    pub on_hang: OnHang,
    /// The exit status that replaces 75, if the user gave one.
    pub evict_exit: Option<u8>,
    /// What happens to the checkpoints after the job has ended with exit status 0.
    pub after_success: AfterSuccess,
    /// The batch system that controls the machine, if one does.
    pub batch: Option<Batch>,
    /// When the batch system ends the job, Unix seconds.
    pub time_limit: Option<u64>,
    /// How much the job gives way to the machine's owner.
    pub owner: OwnerWish,
    /// Mean time between failures of the machine, if the user gave one.
    pub mtbf: Option<Duration>,
    /// The directory in which the program keeps the state of jobs.
    pub state_dir: Option<PathBuf>,
    /// What is recorded of the job, and when the job should end.
    pub record: RecordOrders,
    /// How much is printed.
    pub says: Says,
}

impl Orders {
    /// The paths of the job's state.
    pub fn paths(&self, place: &JobDir) -> Vec<PathBuf> {
        match &self.way {
            _ if self.staged => vec![place.path(WORK)],
            Way::Files { paths, .. } => paths.clone(),
            Way::Command { .. } => vec![place.path(IMAGE)],
        }
    }

    /// Whether the state is an image of processes.
    pub const fn is_image(&self) -> bool {
        matches!(self.way, Way::Command { .. })
    }

    /// What holds the job back for the owner; `None` if the batch system deals with the owner.
    pub(super) fn control(&self) -> Option<Control> {
        let name = own_name();
        let wishes = Wishes {
            name: &name,
            own_session: false,
        };
        let is_ours = self.batch.is_none();
        is_ours.then(|| choose(&Machine::here(), &wishes))
    }

    /// How the job is to begin.
    pub(super) fn beginning(&self, place: &JobDir) -> Beginning {
        Beginning {
            job: self.job.clone(),
            paths: self.paths(place),
            local: self.local,
            kept: (!self.staged && !self.is_image())
                .then(|| KeptState::read(place))
                .flatten(),
            exclude: self.save.options.exclude.clone(),
            is_new: self.is_new,
            wait: self.wait,
            least_data: self.save.least_data(),
            is_bound_to_host: self.is_image(),
        }
    }

    /// The grace period: time between the need to leave and the end.
    pub fn grace(&self) -> Duration {
        let of_batch = self.batch.map(Batch::usual_grace);
        self.grace.or(of_batch).unwrap_or(GRACE_USUAL)
    }

    /// Forecast for the machine, and the rate at which the hosts store what is saved. The machine counts
    /// as unknown if no host has a forecast for it.
    pub async fn outlook(&self, reach: &dyn Reach) -> MachineOutlook {
        let host = self.save.options.placement.compute_host.as_deref();
        let given = self
            .mtbf
            .map(|mtbf| MachineOutlook::given(mtbf.as_secs_f64()));
        let Ok(agent) = reach.agent().await else {
            return given.unwrap_or_else(MachineOutlook::of_unknown);
        };
        let outlook = match given {
            Some(given) => given,
            None => agent
                .outlook(host)
                .await
                .unwrap_or_else(|_| MachineOutlook::of_unknown()),
        };
        MachineOutlook {
            stores_bytes_per_second: agent.stores_bytes_per_second(self.save.options.redundancy),
            ..outlook
        }
    }

    /// Whether the patience of the job depends on how owners needed their machines before.
    pub(super) fn asks_owners(&self) -> bool {
        self.suspend == Suspend::Auto && self.batch.is_none()
    }

    /// How owners needed their machines before; empty if no host answers.
    pub(super) async fn owners_past(&self, reach: &dyn Reach) -> Past {
        let host = self.save.options.placement.compute_host.as_deref();
        let Ok(agent) = reach.agent().await else {
            return Past::default();
        };
        let said = agent.neighbours(host).await.unwrap_or_default();
        let needs = |one: &Announced| Needs::of_bitmaps(&one.guest_bitmap, &one.presence_bitmap);
        let own = said.here.as_ref().map(|(_, said)| needs(said));
        let own = own.unwrap_or_default();
        let mut pool = Needs::default();
        for other in &said.others {
            pool.extend(needs(other));
        }
        Past::new(&own, &pool)
    }

    /// The settings of the supervisor. `now` and `now_unix_s` are the same moment.
    pub fn settings(
        &self,
        restored: Option<u64>,
        image_bytes: u64,
        now: Millis,
        now_unix_s: u64,
    ) -> Settings {
        let grace = self.grace();
        let kill = (grace / 10).clamp(Duration::from_millis(500), KILL_TIME);
        let limit = self.time_limit.filter(|_| self.batch.is_some());
        Settings {
            owner: match self.batch {
                Some(_) => OwnerRule::BatchSystem,
                None => OwnerRule::Watched {
                    thresholds: self.owner.thresholds(),
                    run_if_user_active: self.owner.run_if_user_active,
                },
            },
            leave_after: match self.suspend {
                // The past arrives soon as an event; the start of the job does not wait for it.
                Suspend::Auto => LeaveAfter::Auto(Past::default()),
                Suspend::After(time) => LeaveAfter::Milliseconds(milliseconds(time)),
                Suspend::Never => LeaveAfter::Never,
            },
            grace_ms: milliseconds(grace),
            kill_ms: milliseconds(kill),
            asking: match &self.way {
                Way::Files { ask: Ask::None, .. } => Asking::Never,
                // SIGTERM ends the job, so it is sent only when the job has to leave.
                Way::Files { ask, .. } if ask.ends_the_job() => Asking::Never,
                _ => Asking::Possible,
            },
            while_read: match &self.way {
                Way::Files { .. } => WhileRead::Stopped,
                Way::Command { .. } => WhileRead::Runs,
            },
            final_parity: self
                .save
                .options
                .allow_degraded
                .map_or(Parity::Full, Parity::AtLeast),
            on_hang: self.on_hang,
            time_limit: limit.map(|end| now.plus(end.saturating_sub(now_unix_s) * 1000)),
            costs: Costs {
                image_bytes: if image_bytes > 0 {
                    image_bytes as f64
                } else {
                    Costs::default().image_bytes
                },
                ..Costs::default()
            },
            restored,
            restored_bytes: restored.map(|_| image_bytes),
            spend: self.spend,
            ..Settings::default()
        }
    }
}

/// A duration in milliseconds.
pub(super) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl AfterSuccess {
    /// Carries it out.
    ///
    /// # Errors
    /// A message, when the checkpoints stay as they were.
    pub async fn carry_out(self, job: &JobId, reach: &dyn Reach) -> Result<(), String> {
        let failed = |failure: &Failure| format!("the checkpoints of job {job} stay: {failure}");
        if self == Self::Keep {
            return Ok(());
        }
        let agent = reach.agent().await.map_err(|failure| failed(&failure))?;
        let done = match self {
            Self::Keep => Ok(()),
            Self::Lease(time) => agent.touch(job, Some(Tenure::For(time))).await.map(drop),
            Self::Forget => agent
                .forget(job, ForgetWhich::All, &Sought::default(), Disposal::Remove)
                .await
                .map(drop),
        };
        done.map_err(|failure| failed(&failure))
    }
}
