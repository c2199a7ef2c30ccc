//! Job keys: what is needed to make one, how to make them void, and what then happens to what they signed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use codec::CheckpointId;
use codec::grant::{Rights, VoidList};
use codec::keys::Keys;
use protocol::wire::Code;
use tokio::task::JoinSet;

use crate::agent::ask::gather::Gathered;
use crate::agent::{Agent, Which};
use crate::core::gather::Wait;
use crate::core::{Fault, HostIndex};
use crate::report::{ExitStatus, Failure, HostNote};

/// What became of checkpoints that a job key had hosts remove.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forgotten {
    /// Hosts that did not remove all of them, and why.
    pub(crate) failed: Vec<(HostIndex, Fault)>,
    /// Those that a host keeps as guards, for now.
    pub(crate) guarded: BTreeSet<CheckpointId>,
}

/// The outcome of making job keys void.
#[derive(Clone, Debug)]
pub struct Voided {
    /// Hosts that heard of it, and pass it on.
    pub heard: Vec<String>,
    /// Hosts that did not hear of it.
    pub silent: Vec<HostNote>,
}

/// Most versions that a note names.
const NAMED_MAX: usize = 10;

fn is_guarded(removed: &Result<(), Fault>) -> bool {
    let fault = removed.as_ref().err();
    fault.is_some_and(|fault| fault.is_refused_as(Code::Guarded))
}

impl Agent {
    /// Has hosts remove checkpoints one by one. A job key with the right to remove does this, since it can't
    /// sign a notice, which hosts would pass on to each other.
    pub(crate) async fn forget_each(
        &self,
        hosts: &BTreeSet<HostIndex>,
        gone: &[CheckpointId],
        wait: Wait,
    ) -> Forgotten {
        let guarded = Arc::new(Mutex::new(BTreeSet::new()));
        let mut asking = JoinSet::new();
        for host in hosts.iter().copied() {
            let hosts = self.hosts.clone();
            let gone = gone.to_vec();
            let guarded = Arc::clone(&guarded);
            asking.spawn(async move {
                let mut done = Ok(());
                let mut guards = Ok(());
                for checkpoint in gone {
                    let removed = hosts.forget(host, checkpoint).await.map(drop);
                    if is_guarded(&removed) {
                        let mut all = guarded.lock().unwrap_or_else(PoisonError::into_inner);
                        all.insert(checkpoint);
                        guards = removed;
                    } else {
                        done = done.and(removed);
                    }
                }
                (host, done.and(guards))
            });
        }
        let failed = wait.answers(hosts, asking).await;
        let mut all = guarded.lock().unwrap_or_else(PoisonError::into_inner);
        let guarded = std::mem::take(&mut *all);
        Forgotten { failed, guarded }
    }

    /// Makes all job keys of the owner void that have smaller serials than this.
    ///
    /// # Errors
    /// When this client does not have the owner's own key, or no host hears of it.
    pub async fn make_void(&self, serials_below: u64) -> Result<Voided, Failure> {
        let doing = "cannot revoke job keys";
        let Keys::Owner(owner) = &self.keys else {
            let message = format!("{doing}: only their owner can");
            return Err(Failure::new(ExitStatus::Denied, message)
                .next("--key-file FILE, with the owner's key"));
        };
        let list = VoidList::sign(owner, serials_below)
            .map_err(|cause| Failure::new(ExitStatus::Failed, format!("{doing}: {cause}")))?;
        let mut asking = JoinSet::new();
        for host in self.hosts.all() {
            let hosts = self.hosts.clone();
            let list = list.clone();
            asking.spawn(async move { (host, hosts.say_void(host, &list).await) });
        }
        let mut answers = asking.join_all().await;
        answers.sort_by_key(|(host, _)| *host);
        let silent: Vec<(HostIndex, Fault)> = answers
            .iter()
            .filter_map(|(host, heard)| Some((*host, heard.as_ref().err()?.clone())))
            .collect();
        let heard = answers.iter().filter(|(_, heard)| heard.is_ok());
        let heard: Vec<String> = heard
            .map(|(host, _)| self.hosts.name(*host).to_owned())
            .collect();
        let silent = self.notes(&silent);
        if heard.is_empty() {
            let mut failure = Failure::new(
                ExitStatus::TooFewHosts,
                format!("{doing}: no host accepted the change"),
            );
            failure.hosts = silent;
            return Err(failure.next("again when hosts are up: ckpt hosts"));
        }
        Ok(Voided { heard, silent })
    }

    /// Sets aside what was signed with job keys that any host knows to be void, and informs the hosts that
    /// have not heard of them.
    pub(crate) fn set_void_aside(&self, gathered: &mut Gathered) {
        let lists = gathered
            .answered
            .iter()
            .filter_map(|(_, answer)| answer.void.clone());
        let Some(list) = lists.max_by_key(VoidList::serials_below) else {
            return;
        };
        for (host, answer) in &gathered.answered {
            let known = answer.void.as_ref().map_or(0, VoidList::serials_below);
            if known < list.serials_below() && self.keys.grant().is_none() {
                let hosts = self.hosts.clone();
                let host = *host;
                let list = list.clone();
                // A host that does not hear of it now hears of it from another host or the next client.
                tokio::spawn(async move { hosts.say_void(host, &list).await });
            }
        }
        gathered.inventory.set_void_aside(&list);
        gathered.void = Some(list);
    }

    /// A note on versions that were signed with job keys that are void now.
    pub(crate) fn note_of_void(&self, gathered: &Gathered, which: Which) -> Option<String> {
        let void = gathered.inventory.void();
        let versions: Vec<String> = void
            .map(|known| known.version())
            .filter(|version| match which {
                Which::Newest => true,
                Which::Version(wanted) => *version == wanted,
            })
            .map(|version| version.to_string())
            .collect();
        let more = versions.len().saturating_sub(NAMED_MAX);
        let mut names = versions
            .iter()
            .take(NAMED_MAX)
            .cloned()
            .collect::<Vec<_>>()
            .join(", ");
        if more > 0 {
            names = format!("{names} and {more} more");
        }
        let text = match which {
            Which::Newest => format!(
                "passed over, because the job key that saved them is revoked: {names}; take one with \
                 --version if you trust it"
            ),
            Which::Version(_) => {
                format!("version {names} was saved with a job key that is revoked now")
            }
        };
        (!versions.is_empty()).then_some(text)
    }

    /// A note on what a save leaves undone because its job key has no right to remove.
    pub(crate) fn note_of_kept(&self) -> Option<String> {
        let note = "older versions stay until the owner removes them (ckpt gc --keep N, ckpt forget) or the \
                    lease ends: the job key has no right to remove";
        (!self.keys.may(Rights::REMOVE)).then(|| note.to_owned())
    }
}
