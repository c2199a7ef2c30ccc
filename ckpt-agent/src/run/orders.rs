//! What a supervisor is to do, as the command line says it.

use std::ffi::OsString;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use codec::JobId;
use machine::Machine;
use machine::control::{Control, Wishes, choose, own_name};
use protocol::wire::announcement::Announced;
use supervision::patience::{Needs, Past};
use supervision::{Asking, Costs, Millis, OnHang, OwnerRule, Parity, Patience, Settings, Standing};

use super::ask::Ask;
use super::batch::Batch;
use super::begin::Beginning;
use super::owner::OwnerWish;
use super::place::Place;
use super::record::RecordOrders;
use super::run_log::Says;
use super::saver::SavePlan;
use super::staged::WORK;
use crate::agent::{Agent, ForgetWhich, MachineOutlook, Tenure};
use crate::core::sought::Sought;
use crate::report::Failure;

/// Grace where neither the user nor a batch system says one.
const GRACE_USUAL: Duration = Duration::from_secs(30);

/// Part of the grace that is kept for ending the job's processes, at most.
const KILL_TIME: Duration = Duration::from_secs(5);

/// Directory of the image that `--checkpoint-cmd` writes, in the job's directory.
const IMAGE: &str = "image";

/// An agent that lives.
pub type AgentFuture<'a> = Pin<Box<dyn Future<Output = Result<Agent, Failure>> + Send + 'a>>;

/// How hosts are reached. A job runs for days: hosts come and go, and so do their addresses.
pub trait Reach: Send + Sync {
    /// An agent that knows the hosts as they are now.
    fn agent(&self) -> AgentFuture<'_>;
}

/// How the job's state comes to be saved.
#[derive(Clone, Debug)]
pub enum Way {
    /// The job writes files.
    Files {
        /// Which.
        paths: Vec<PathBuf>,
        /// How it is asked to.
        ask: Ask,
    },
    /// A command writes an image of the job's processes into a directory, and another one starts the job
    /// from it.
    Command {
        /// The first.
        checkpoint: Script,
        /// The second.
        restart: Script,
    },
}

/// A command for `sh -c`.
#[derive(Clone, Debug)]
pub struct Script {
    /// What messages call it.
    pub name: String,
    /// What is run.
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

/// How long a job stands still before it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspend {
    /// As long as it is expected to pay.
    Auto,
    /// This long.
    After(Duration),
    /// For ever.
    Never,
}

/// What becomes of the checkpoints of a job that has ended with 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterSuccess {
    /// They stay.
    Keep,
    /// They stay for so long.
    Lease(Duration),
    /// They are removed.
    Forget,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Orders {
    /// The job.
    pub job: JobId,
    /// The command.
    pub command: Vec<OsString>,
    /// How its state comes to be saved.
    pub way: Way,
    /// How it is saved.
    pub save: SavePlan,
    /// The state is the job's working directory, in its place: it comes from the store and goes back there.
    pub staged: bool,
    /// Begin from what lies there.
    pub local: bool,
    /// How long a version is waited for that can't be had.
    pub wait: Duration,
    /// Time between the need to leave and the end.
    pub grace: Option<Duration>,
    /// How long a job stands still.
    pub suspend: Suspend,
    /// What is done when it hangs.
    pub on_hang: OnHang,
    /// Exit status in place of 75.
    pub evict_exit: Option<u8>,
    /// What becomes of its checkpoints.
    pub after_success: AfterSuccess,
    /// The batch system that has the machine.
    pub batch: Option<Batch>,
    /// When that one ends the job, Unix seconds.
    pub time_limit: Option<u64>,
    /// What the machine's owner is granted.
    pub owner: OwnerWish,
    /// Mean time between failures of the machine, as the user says.
    pub mtbf: Option<Duration>,
    /// Where this program keeps what it knows.
    pub state_dir: Option<PathBuf>,
    /// What is noted of the job, and when it should end.
    pub record: RecordOrders,
    /// How much is said.
    pub says: Says,
}

impl Orders {
    /// Where the state is.
    pub fn paths(&self, place: &Place) -> Vec<PathBuf> {
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

    /// What holds the job back here; nothing where the owner is the batch system's affair.
    pub(super) fn control(&self) -> Option<Control> {
        let name = own_name();
        let wishes = Wishes {
            name: &name,
            own_session: false,
        };
        let is_ours = self.batch.is_none();
        is_ours.then(|| choose(&Machine::here(), &wishes))
    }

    /// What is to be had before the job starts.
    pub fn beginning(&self, place: &Place) -> Beginning {
        Beginning {
            job: self.job.clone(),
            paths: self.paths(place),
            local: self.local,
            wait: self.wait,
            least_data: u8::try_from(self.save.redundancy.data()).unwrap_or(1),
            is_bound_to_host: self.is_image(),
        }
    }

    /// Time between the need to leave and the end.
    pub fn grace(&self) -> Duration {
        let of_batch = self.batch.map(Batch::usual_grace);
        self.grace.or(of_batch).unwrap_or(GRACE_USUAL)
    }

    /// What is to be expected of the machine, that of an unknown one where nobody says it; and of the hosts
    /// that take what is saved.
    pub async fn outlook(&self, reach: &dyn Reach) -> MachineOutlook {
        let host = self.save.placement.compute_host.as_deref();
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
            stores_bytes_per_second: agent.stores_bytes_per_second(self.save.redundancy),
            ..outlook
        }
    }

    /// Whether the time for which the job stands still follows from how owners needed their machines.
    pub(super) fn asks_owners(&self) -> bool {
        self.suspend == Suspend::Auto && self.batch.is_none()
    }

    /// How owners needed their machines; nothing where nobody says it.
    pub(super) async fn owners_past(&self, reach: &dyn Reach) -> Past {
        let host = self.save.placement.compute_host.as_deref();
        let Ok(agent) = reach.agent().await else {
            return Past::default();
        };
        let said = agent.neighbours(host).await.unwrap_or_default();
        let needs = |one: &Announced| Needs::of_bitmaps(&one.guest_bitmap, &one.presence_bitmap);
        let own = said.here.as_ref().map(needs).unwrap_or_default();
        let mut pool = Needs::default();
        for other in &said.others {
            pool.extend(needs(other));
        }
        Past::new(&own, &pool)
    }

    /// Settings of the supervisor. `now_unix_s` and `now` are the same moment.
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
            patience: match self.suspend {
                // It is heard of soon, without the job's waiting for it.
                Suspend::Auto => Patience::Auto(Past::default()),
                Suspend::After(time) => Patience::After(milliseconds(time)),
                Suspend::Never => Patience::Never,
            },
            grace_ms: milliseconds(grace),
            kill_ms: milliseconds(kill),
            asking: match &self.way {
                Way::Files { ask: Ask::None, .. } => Asking::Never,
                // It gets SIGTERM when it has to leave, whoever asks it.
                Way::Files { ask, .. } if ask.ends_the_job() => Asking::Never,
                _ => Asking::Possible,
            },
            standing: match &self.way {
                Way::Files { .. } => Standing::Stopped,
                Way::Command { .. } => Standing::Runs,
            },
            final_parity: self
                .save
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
            ..Settings::default()
        }
    }
}

/// Milliseconds of a time.
pub(super) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl AfterSuccess {
    /// Does it; a sentence when it could not be done.
    ///
    /// # Errors
    /// When the checkpoints stay as they were.
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
                .forget(job, ForgetWhich::All, &Sought::default())
                .await
                .map(drop),
        };
        done.map_err(|failure| failed(&failure))
    }
}
