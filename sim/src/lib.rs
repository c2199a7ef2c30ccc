//! Simulates jobs over the availability traces of hosts and counts what each way of choosing hosts costs.
//!
//! Pure and repeatable: no clock, no file, and everything random follows from a seed. A [`World`] holds what
//! happens to hosts; a [`Grid`] is some of its hosts and the moment at which jobs begin. In [`run`] jobs
//! compute, checkpoint, are evicted and restart there under a [`Policy`], which knows only the past
//! ([`Knowledge`]).
//!
//! There are four more simulations: [`run_guarded`] (is it worth supervising a job?), [`run_scheduled`] (is
//! it worth choosing the host of a job?), [`run_stuttering`] (short jobs beside other processes), and
//! [`batch`] (clusters whose scheduler knows more or less of its nodes).
//!
//! ```
//! use placement::hazard::HazardModel;
//! use sim::schemes::Scheme;
//! use sim::{Grid, Knowledge, Policy, Settings, grid5000, run};
//!
//! let world = grid5000::world(7, 40);
//! let settings = Settings { work_seconds: 4.0 * 3600.0, ..Settings::default() };
//! let grid = Grid { hosts: (0..30).collect(), start: grid5000::START + 20 * 86_400, seed: 1 };
//! let model = HazardModel::pretrained();
//! let knowledge = Knowledge::at(&world, &grid, &model);
//! let jobs = run(&knowledge, &settings, Policy::Hosts(Scheme::Correlated));
//! assert_eq!(jobs.len(), settings.jobs);
//! ```

pub mod batch;
mod draw;
mod flow;
pub mod grid5000;
mod guarded;
mod job;
mod jobs;
mod keeper;
mod knowledge;
mod layers;
mod network;
mod outcome;
mod policy;
mod question;
mod repair;
mod run;
mod schedule;
mod scheduling;
pub mod schemes;
mod server;
mod settings;
mod stutter;
mod wipes;
mod world;

pub use guarded::{Guard, GuardedJobs, Waiting, run_guarded};
pub use knowledge::Knowledge;
pub use network::Network;
pub use outcome::{ForecastRestore, JobOutcome};
pub use policy::{Policy, Target};
pub use run::run;
pub use scheduling::{Choice, Keeping, Scheduled, ScheduledJobs, run_scheduled};
pub use settings::{Rule, Settings, Share, Versions};
pub use stutter::{
    Background, LoadOverTime, Ran, ShortJobs, Strategy, Stuttered, load_over_time, run_beside,
    run_stuttering,
};
pub use world::{Grid, Host, Reading, World};
