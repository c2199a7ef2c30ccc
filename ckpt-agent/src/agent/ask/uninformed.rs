//! Which hosts did not hear an owner's notice on a job although they hold shards of the job.

use crate::agent::Agent;
use crate::agent::ask::gather::Gathered;
use crate::core::{Fault, HostIndex};
use crate::inventory::KnownCheckpoint;
use crate::report::{ExitStatus, Failure, HostNote};

impl Agent {
    /// Hosts that did not hear a notice `about` these checkpoints and have something of them: the `failed`
    /// hosts that hold shards or know the manifest, and all hosts that are away unless every shard was found
    /// elsewhere.
    pub(crate) fn unheard(
        &self,
        gathered: &Gathered,
        failed: &[(HostIndex, Fault)],
        about: &[&KnownCheckpoint],
    ) -> Vec<HostNote> {
        let has_some = |host: HostIndex| {
            let mut all = about.iter();
            all.any(|known| known.knowers.contains(&host))
        };
        let is_missing = about.iter().any(|known| {
            let shards = known.manifest.public().redundancy.total();
            known.shards_found() < shards
        });
        let failed = failed.iter().filter(|(host, _)| has_some(*host));
        let away = gathered.silent.iter().chain(&gathered.absent);
        let silent = away.filter(|_| is_missing);
        let mut unheard: Vec<HostNote> = Vec::new();
        for (host, fault) in failed.chain(silent) {
            let note = self.note(*host, fault);
            if unheard.iter().all(|one| one.host != note.host) {
                unheard.push(note);
            }
        }
        unheard
    }

    /// Fails when none of the hosts that answered heard the notice.
    pub(crate) fn require_heard(
        &self,
        gathered: &Gathered,
        failed: &[(HostIndex, Fault)],
        doing: &str,
    ) -> Result<(), Failure> {
        let hosts = gathered.answered.len();
        if failed.len() < hosts {
            return Ok(());
        }
        let what = format!("{doing}: none of the {hosts} hosts that answer accepted the change");
        let mut failure = Failure::new(ExitStatus::Failed, what).next("again later; ckpt hosts");
        failure.hosts = self.notes(failed);
        failure.state = Some("nothing changed".into());
        Err(failure)
    }
}
