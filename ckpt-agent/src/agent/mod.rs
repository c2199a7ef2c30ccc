//! The client's operations, one method of [`Agent`] each. `ask` asks hosts what they hold; `save`, `read` and
//! `keep` do what a command says with checkpoints; `report` shows the state of jobs, hosts and the grid.

mod ask;
mod discover;
mod handle;
mod keep;
mod list_files;
mod read;
mod report;
mod requests;
mod save;

pub use codec::geometry::{DATA_USUAL, PARITY_USUAL};

pub use discover::{KNOWS_ETCD, discover};
pub use handle::Agent;
pub use keep::gc::{Disposal, Superseded};
pub use keep::job_keys::Voided;
pub use keep::verify::Depth;
pub use read::ahead::FetchedAhead;
pub use read::cat::{ByteRange, CatRequest};
pub use read::image::{Image, ImageFile, ReadCost};
pub use report::advise::{AdviseRequest, YEAR_SECONDS, advise};
pub use report::census::grid_health;
pub use report::doctor::{MTU_USUAL, Reached, Unreached, Way};
pub use report::health::{
    HealthRequest, health_status, keys_health, registries_health, with_retired,
};
pub use report::map::Departures;
pub use report::outlook::{HostSays, MachineOutlook, Neighbours};
pub use requests::{
    ALLOW_EMPTY, After, AfterError, AfterWhich, Choose, ForgetWhich, MEMORY_USUAL, PlacementWish,
    Resources, RestoreRequest, RestoreTarget, SaveInput, SaveOptions, SaveRequest, Strength,
    TARGET_USUAL, Tenure, Which, given_code,
};
