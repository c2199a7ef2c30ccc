//! Reports: jobs, checkpoints, hosts, registries, and what is expected of them.

pub(crate) mod advise;
pub(crate) mod census;
pub(crate) mod doctor;
pub(crate) mod health;
pub(crate) mod hosts;
pub(crate) mod list;
pub(crate) mod map;
pub(crate) mod outlook;
pub(crate) mod pool;
