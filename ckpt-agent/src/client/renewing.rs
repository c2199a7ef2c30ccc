//! The agent of a client, which is replaced now and then: while a program keeps its client, hosts come, go and
//! change addresses, and certificates are renewed.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use protocol::grid::Grid;
use protocol::identity::Identity;

use super::Settings;
use crate::agent::Agent;
use crate::connection;
use crate::report::Failure;

/// From this age on, an agent is replaced in the background when it is used.
const RENEWED_AFTER: Duration = Duration::from_secs(60);

/// As [`RENEWED_AFTER`], if some host can't be reached: it may be at another address by now.
const RENEWED_AFTER_UNREACHED: Duration = Duration::from_secs(15);

/// From this age on, a call waits for a new agent: what the old one knows of the hosts may all be wrong.
const STALE_AFTER: Duration = Duration::from_secs(600);

/// The grid and the identity of `settings` as the files are now.
fn membership(settings: &Settings) -> Result<(Grid, Identity), Failure> {
    let grid = connection::load_grid(&settings.grid)?;
    let key = settings.key.clone();
    let certificate = settings.certificate.clone();
    let files = connection::files(key, certificate, Some(&grid))?;
    let identity = connection::identity(connection::key_of_file(&files)?, &files)?;
    let (identity, _) = connection::renewed(identity, &grid, &files);
    Ok((grid, identity))
}

/// An agent, and what it was made with.
#[derive(Debug)]
struct Made {
    agent: Agent,
    /// When the key or its certificate ends, Unix seconds.
    ends: u64,
    /// When the agent was made, or could not be replaced last.
    at: Instant,
}

impl Made {
    /// An agent that knows what `before` knows of the hosts.
    async fn of(settings: &Settings, before: Option<&Agent>) -> Result<Self, Failure> {
        let (mut grid, identity) = membership(settings)?;
        let lists = connection::list_files(&settings.grid, &grid);
        let ends = identity.peer().map_or(0, |peer| peer.not_after);
        let notebook = connection::notebook(&grid);
        let roster = connection::roster(&mut grid, &lists, &identity, &notebook).await;
        let mut agent = Agent::new(&grid, roster, &identity, settings.resources, notebook)?;
        if let Some(before) = before {
            agent.take_over(before);
        }
        Ok(Self {
            agent: agent.with_lists(&grid, lists),
            ends,
            at: Instant::now(),
        })
    }

    /// The agent that takes over from `before`.
    async fn after(settings: &Settings, before: &Agent) -> Result<Self, Failure> {
        let mut made = Self::of(settings, Some(before)).await?;
        made.agent.share_connections(before);
        Ok(made)
    }
}

/// The agent of a client at present.
#[derive(Debug)]
struct Held {
    made: Made,
    is_closed: bool,
}

/// Makes the agents of a client, one after the other.
#[derive(Debug)]
pub(super) struct Renewing {
    settings: Settings,
    held: Mutex<Held>,
    /// Locked while the next agent is made.
    next: Arc<tokio::sync::Mutex<()>>,
}

impl Renewing {
    pub(super) async fn connect(settings: &Settings) -> Result<Arc<Self>, Failure> {
        let made = Made::of(settings, None).await?;
        Ok(Self::beginning(settings, made))
    }

    /// Makes agents with connections of their own, which begin with what the present agent knows of the hosts.
    pub(super) async fn beside(&self) -> Result<Arc<Self>, Failure> {
        let made = Made::of(&self.settings, Some(&self.present())).await?;
        Ok(Self::beginning(&self.settings, made))
    }

    fn beginning(settings: &Settings, made: Made) -> Arc<Self> {
        let held = Held {
            made,
            is_closed: false,
        };
        Arc::new(Self {
            settings: settings.clone(),
            held: Mutex::new(held),
            next: Arc::default(),
        })
    }

    /// An agent that knows the hosts about as they are now.
    pub(super) async fn agent(self: &Arc<Self>) -> Agent {
        if self.held().made.at.elapsed() >= STALE_AFTER {
            let _next = self.next.lock().await;
            // Another call may have made one while this one waited.
            if self.held().made.at.elapsed() >= STALE_AFTER {
                let next = self.made_anew().await;
                self.replace(next).await;
            }
        } else if self.is_to_be_renewed()
            && let Ok(locked) = Arc::clone(&self.next).try_lock_owned()
        {
            let renewing = Arc::clone(self);
            tokio::spawn(async move {
                let next = renewing.made_anew().await;
                if let Ok(made) = &next {
                    made.agent.connect_to_all().await;
                }
                renewing.replace(next).await;
                drop(locked);
            });
        }
        self.held().made.agent.clone()
    }

    /// The grid and the identity as the files are now.
    ///
    /// # Errors
    /// When one of the files can't be read.
    pub(super) fn membership(&self) -> Result<(Grid, Identity), Failure> {
        membership(&self.settings)
    }

    /// When the key or its certificate ends, Unix seconds.
    pub(super) fn ends(&self) -> u64 {
        self.held().made.ends
    }

    /// The agent as it is.
    pub(super) fn present(&self) -> Agent {
        self.held().made.agent.clone()
    }

    /// Closes the connections to all hosts. No agent follows.
    pub(super) async fn close(&self) {
        self.held().is_closed = true;
        self.present().close().await;
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_to_be_renewed(&self) -> bool {
        let held = self.held();
        let age = held.made.at.elapsed();
        let has_unreached = || held.made.agent.has_unreached_hosts();
        !held.is_closed
            && (age >= RENEWED_AFTER || age >= RENEWED_AFTER_UNREACHED && has_unreached())
    }

    async fn made_anew(&self) -> Result<Made, Failure> {
        let before = self.present();
        Made::after(&self.settings, &before).await
    }

    /// Replaces the agent, unless the client was closed meanwhile. The old one stays if no other could be made: the
    /// hosts that it knows may still be there.
    async fn replace(&self, next: Result<Made, Failure>) {
        let before = {
            let mut held = self.held();
            match next {
                Ok(made) if !held.is_closed => mem::replace(&mut held.made, made),
                Ok(_) => return,
                Err(cause) => {
                    tracing::warn!(%cause, "can't look anew which hosts there are");
                    held.made.at = Instant::now();
                    return;
                }
            }
        };
        // It is not closed: calls may still use a clone of it, and the new one its connections.
        before.agent.note_down().await;
    }
}
