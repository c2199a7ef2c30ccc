//! How a supervisor gets to the grid.

use std::pin::Pin;

use ckpt_agent::agent::Agent;
use ckpt_agent::report::Failure;

/// The future of an agent.
pub type AgentFuture<'a> = Pin<Box<dyn Future<Output = Result<Agent, Failure>> + Send + 'a>>;

/// Connects to the grid. A job runs for days in which hosts come, go and change addresses, so each use
/// asks for a new agent.
pub trait Reach: Send + Sync {
    /// An agent that knows the hosts as they are now.
    fn agent(&self) -> AgentFuture<'_>;

    /// Closes connections that have not been used for a while. Is to be called about once a second: a
    /// connection costs this machine and its host some datagrams a second, as long as it is open.
    fn hang_up_if_idle(&self);
}
