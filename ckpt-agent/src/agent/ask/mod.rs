//! Asks hosts what they hold of a job or of an owner, and says what their silence allows.

pub(crate) mod gather;
pub(crate) mod hidden;
pub(crate) mod lists;
pub(in crate::agent) mod recent;
pub(crate) mod select;
pub(crate) mod uninformed;
pub(crate) mod unnamed_hosts;
pub(crate) mod waiting;
