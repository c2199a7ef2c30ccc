//! Rebuilds one shard on another host. That host then has to prove that it holds the shard.

use std::collections::BTreeSet;

use codec::manifest::Manifest;
use codec::{OwnerId, ShardIndex};
use protocol::wire::code::Code;
use protocol::wire::message::{PutRebuilt, PutShard, Request};
use tokio::sync::{mpsc, watch};
use transfer::put::{Meter, PutProgress, put_shard};
use transfer::rebuild::Rebuild;
use transfer::{Fault, HostIndex};

use super::ask::HolderAnswers;
use super::links::Around;
use super::{RepairError, Repairer, target};
use crate::core::repair::{Caretaker, Situation};

impl Repairer {
    /// Rebuilds a shard on another host and has that host prove that it holds it. Returns the host. At
    /// most a few targets are tried, one after the other.
    pub(super) async fn rebuild(
        &self,
        around: &Around,
        caretaker: &mut Caretaker,
        answers: &mut HolderAnswers,
        situation: &Situation,
        shard: ShardIndex,
    ) -> Result<OwnerId, RepairError> {
        let key = situation.key;
        let manifest = self.manifest(key).await?;
        let mut places = answers.sources(around, situation);
        let own = around.hosts.all().find(|host| self.is_own(around, *host));
        let mine = situation.held.iter();
        let mine = mine.filter(|(_, holders)| holders.contains(&self.own()));
        let mine = mine.filter_map(|(shard, _)| Some((*shard, own?)));
        // The shards on this host are the first sources.
        places.splice(0..0, mine.collect::<Vec<_>>());
        let free: BTreeSet<OwnerId> = situation
            .targets(self.own(), &answers.answering, shard)
            .into_iter()
            .collect();
        if answers.answering.len() <= 1 {
            return Err(RepairError::Alone);
        }
        if free.is_empty() && situation.awaits_spare(self.own(), &answers.answering, shard) {
            return Err(RepairError::Needed);
        }
        if situation.all_hold_some(&answers.answering) && free.is_empty() {
            return Err(RepairError::AllHoldSome);
        }
        let free = around.others().filter(|(id, _)| free.contains(id));
        let free = free.map(|(_, host)| host).collect();
        let targets = target::choose(&around.hosts, free, &places, manifest.public()).await;
        let mut last = RepairError::NoRoom;
        for target in targets {
            let Some(id) = around.hosts.entry(target).map(|entry| entry.id.0) else {
                continue;
            };
            let sources = places.iter().copied().filter(|(_, host)| *host != target);
            match self
                .send(around, &manifest, shard, sources.collect(), target)
                .await
            {
                Ok(()) => {
                    if self.is_surely_held(around, caretaker, key, shard, id).await {
                        answers.add(key, shard, id);
                        return Ok(id);
                    }
                    last = RepairError::NotProved(around.name(&id));
                }
                Err(fault) => {
                    let is_pointless = is_pointless_elsewhere(&fault);
                    let host = around.name(&id);
                    last = RepairError::NotTaken { host, fault };
                    if is_pointless {
                        break;
                    }
                }
            }
        }
        Err(last)
    }

    fn is_own(&self, around: &Around, host: HostIndex) -> bool {
        let entry = around.hosts.entry(host);
        entry.is_some_and(|entry| entry.id.0 == self.own())
    }

    async fn send(
        &self,
        around: &Around,
        manifest: &Manifest,
        shard: ShardIndex,
        sources: Vec<(ShardIndex, HostIndex)>,
        target: HostIndex,
    ) -> Result<(), Fault> {
        let public = manifest.public();
        let (commands, queue) = mpsc::unbounded_channel();
        let (sent, watching) = watch::channel(0);
        let rebuild = Rebuild {
            hosts: around.hosts.clone(),
            public: public.clone(),
            shard,
            sources,
            damaged: Vec::new(),
            commands,
            sent: watching,
            bytes_per_second: Some(self.settings.bytes_per_second),
        };
        let request = Request::PutRebuilt(Box::new(PutRebuilt {
            put: PutShard::of(public, shard),
            manifest: manifest.bytes().to_vec(),
        }));
        let meter = Meter::default();
        let on_progress = |progress| {
            if let PutProgress::Sent(row) = progress {
                sent.send_replace(row + 1);
            }
        };
        let putting = put_shard(
            around.hosts.clone(),
            target,
            request,
            queue,
            &meter,
            on_progress,
        );
        // Reading and sending run side by side. If one of them fails, the other is dropped.
        tokio::try_join!(rebuild.run(), putting).map(|_| ())
    }
}

/// Whether trying another host is pointless: a rebuilt shard already exists or is on its way, or too few
/// sources answer now.
fn is_pointless_elsewhere(fault: &Fault) -> bool {
    let exists = matches!(fault, Fault::Refused { code, .. } if *code == Code::Exists);
    exists || matches!(fault, Fault::Starved)
}
