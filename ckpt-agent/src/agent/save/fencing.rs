//! `save --after`: a save that commits only as the one checkpoint that follows another.
//!
//! [`crate::core::fence`] decides what may be proposed; this module asks the witnesses.

use std::collections::{BTreeMap, BTreeSet};

use codec::grant::{Grant, VoidList};
use codec::manifest::{Manifest, Public};
use codec::proposal::{Ballot, Proposal, Successor};
use codec::{CheckpointId, JobId, PublicKey, ShardIndex, Version};
use protocol::wire::Code;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Duration, Instant};
use transfer::fences::{Followed, Witnessed};

use crate::agent::handle::random;
use crate::agent::{Agent, Strength};
use crate::core::fence::{AttemptState, Choice, Proposer, Quorum, Witness};
use crate::core::{Fault, HostIndex};
use crate::report::{FenceReport, HostNote, SuccessorNote};

/// How many attempts are made when others bid more.
const ATTEMPTS_MAX: u32 = 24;

/// Without a deadline, how many times a save that finds too few witnesses asks them before it gives up.
const SHORT_TRIES: u32 = 2;

/// How long to wait before too few witnesses are asked again.
const SHORT_REST: Duration = Duration::from_secs(1);

/// How long witnesses are waited for that are asked to promise. That happens while the image is read, and
/// asking them again costs nothing.
const PROMISE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long witnesses that are far behind are led up to the others, step by step, without counting attempts.
const CLIMB_LONGEST: Duration = Duration::from_secs(120);

/// First wait before a higher bid. Two saves that outbid each other get out of step by waiting.
const FIRST_BID_WAIT: Duration = Duration::from_millis(20);
const BID_WAIT_MAX: Duration = Duration::from_secs(1);

/// How long the other witnesses are waited for when their answers decide whether a half-done save may have
/// been chosen.
const HALF_DONE_GRACE: Duration = Duration::from_millis(800);

/// How long the other witnesses are waited for when this save is outbid and too few are known.
const OUTBID_GRACE: Duration = Duration::from_millis(200);

/// How long each step may take of finishing another client's half-done save.
const FINISH_TIMEOUT: Duration = Duration::from_secs(8);

/// Why a save was not chosen as the successor.
#[derive(Debug)]
pub(crate) enum Lost {
    /// Another checkpoint is the successor, or may be.
    Another(SuccessorNote),
    /// Too few witnesses answer: how many do, and why the others do not.
    TooFew { answer: usize, why: Vec<HostNote> },
    /// Other saves bid more every time.
    Outbid,
    /// The proposal can't be signed.
    Unsigned(String),
}

/// A witness: a host that acknowledged the checkpoint that is followed.
#[derive(Clone, Copy, Debug)]
struct Member {
    key: PublicKey,
    /// `None` when the witness is no longer a host of the grid.
    host: Option<HostIndex>,
}

/// Asks the witnesses of a checkpoint, for one save.
#[derive(Debug)]
pub(crate) struct Fencing {
    agent: Agent,
    job: JobId,
    followed: Followed,
    version: Version,
    quorum: Quorum,
    members: Vec<Member>,
    me: CheckpointId,
    proposer: Proposer<Successor>,
    /// Proposals of other saves that witnesses have accepted and shown.
    shown: BTreeMap<Successor, Proposal>,
    faults: BTreeMap<Witness, Fault>,
    /// Which job keys of the owner are void.
    void: Option<VoidList>,
    /// Until when witnesses are asked again if too few answer; `None` without a deadline.
    until: Option<Instant>,
}

/// The checkpoint that a save follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Predecessor<'a> {
    pub(crate) public: &'a Public,
    pub(crate) witnesses: &'a [PublicKey],
    pub(crate) strength: Strength,
    pub(crate) void: Option<&'a VoidList>,
}

/// How the choice of a save ended.
pub(crate) type Fenced = Result<FenceReport, Lost>;

/// The task that has a save chosen while its image is being sent.
#[derive(Debug)]
pub(crate) struct FencingTask {
    task: JoinHandle<()>,
    manifest: Option<oneshot::Sender<Manifest>>,
}

impl Drop for FencingTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FencingTask {
    /// Asks for promises at once, and proposes the save as soon as its manifest is known. The outcome is sent
    /// to `sender`.
    pub(crate) fn start<E: Send + 'static>(
        fencing: Fencing,
        sender: mpsc::UnboundedSender<E>,
        event: impl FnOnce(Fenced) -> E + Send + 'static,
    ) -> Self {
        let (manifest, ready) = oneshot::channel();
        let task = tokio::spawn(async move {
            if let Some(fenced) = fencing.run(ready).await {
                // Fails only when the save is over.
                let _ = sender.send(event(fenced));
            }
        });
        Self {
            task,
            manifest: Some(manifest),
        }
    }

    /// Proposes the save with this manifest.
    pub(crate) fn propose(&mut self, manifest: Manifest) {
        if let Some(sender) = self.manifest.take() {
            // Fails when the task has ended, which it has reported itself.
            let _ = sender.send(manifest);
        }
    }
}

impl Fencing {
    pub(crate) fn new(
        agent: &Agent,
        job: &JobId,
        predecessor: Predecessor<'_>,
        me: CheckpointId,
        until: Option<Instant>,
    ) -> Self {
        let public = predecessor.public;
        let members = members(agent, predecessor.witnesses);
        let quorum = match predecessor.strength {
            Strength::Majority => Quorum::majority(members.len()),
            Strength::Strong => Quorum::strong(members.len(), public.redundancy.parity()),
        };
        Self {
            agent: agent.clone(),
            job: job.clone(),
            followed: Followed {
                owner: public.owner,
                job_tag: public.job_tag,
                checkpoint: public.checkpoint,
            },
            version: public.version,
            quorum,
            members,
            me,
            proposer: Proposer::new(me, quorum),
            shown: BTreeMap::new(),
            faults: BTreeMap::new(),
            void: predecessor.void.cloned(),
            until,
        }
    }

    /// Version of the checkpoint that is followed.
    pub(crate) const fn version(&self) -> Version {
        self.version
    }

    /// The checkpoint that is followed.
    pub(crate) const fn after(&self) -> CheckpointId {
        self.followed.checkpoint
    }

    /// How many witnesses there are, and how many have to agree.
    pub(crate) const fn quorum(&self) -> Quorum {
        self.quorum
    }

    /// Runs from the first promise to the choice. `None` when the save ended before it had a manifest.
    async fn run(mut self, manifest: oneshot::Receiver<Manifest>) -> Option<Fenced> {
        if let Err(lost) = self.prepare().await {
            return Some(Err(self.finished(lost).await));
        }
        let manifest = manifest.await.ok()?;
        let fenced = self.propose(&manifest).await;
        Some(match fenced {
            Ok(report) => Ok(report),
            Err(lost) => Err(self.finished(lost).await),
        })
    }

    /// Asks for promises until enough witnesses have promised and this save's own checkpoint may be proposed.
    async fn prepare(&mut self) -> Result<(), Lost> {
        let mut rest = FIRST_BID_WAIT;
        let mut short = 0;
        let mut attempts = 0;
        let begun = Instant::now();
        while attempts < ATTEMPTS_MAX {
            self.ask_to_promise().await;
            match self.proposer.state() {
                AttemptState::Promised => {
                    return match self.proposer.choice() {
                        Some(Choice::Bound(other)) if other.checkpoint != self.me => {
                            Err(Lost::Another(note(other, false)))
                        }
                        _ => Ok(()),
                    };
                }
                AttemptState::TooFew { answer } => {
                    attempts += 1;
                    self.again_if_short(&mut short, answer).await?;
                }
                // Nobody else bids, so there is nothing to wait for.
                AttemptState::Outbid
                    if self.proposer.climbs() && begun.elapsed() < CLIMB_LONGEST => {}
                AttemptState::Outbid | AttemptState::Waiting | AttemptState::Chosen(_) => {
                    attempts += 1;
                    rest = pause(rest).await;
                }
            }
        }
        Err(Lost::Outbid)
    }

    /// Waits before witnesses are asked again because too few answer, or gives up.
    async fn again_if_short(&self, tries: &mut u32, answer: usize) -> Result<(), Lost> {
        *tries += 1;
        let is_over = match self.until {
            Some(until) => Instant::now() + SHORT_REST >= until,
            None => *tries >= SHORT_TRIES,
        };
        if is_over {
            let why = self.faults.iter();
            let why = why.map(|(witness, fault)| self.why(*witness, fault));
            return Err(Lost::TooFew {
                answer,
                why: why.collect(),
            });
        }
        tokio::time::sleep(SHORT_REST).await;
        Ok(())
    }

    async fn ask_to_promise(&mut self) {
        let ballot = self.proposer.begin();
        self.faults.clear();
        let followed = self.followed;
        let mut asking = JoinSet::new();
        for (witness, host) in self.hosts() {
            let Some(host) = host else {
                self.note_fault(witness, Fault::Gone("no longer a host of the grid".into()));
                continue;
            };
            let asked = Asked {
                agent: self.agent.clone(),
                host,
                followed,
                ballot,
            };
            let void = self.void.clone();
            asking.spawn(async move { (witness, asked.promise(void.as_ref()).await) });
        }
        let begun = Instant::now();
        let mut grace = None;
        loop {
            match self.proposer.state() {
                AttemptState::Waiting => {}
                // If some have accepted another save, it depends on the other witnesses whether it was
                // chosen.
                AttemptState::Promised if self.is_bound() && !self.proposer.has_heard_all() => {
                    grace.get_or_insert_with(|| Instant::now() + HALF_DONE_GRACE);
                }
                // The next bid depends on what the others have promised.
                AttemptState::Outbid if !self.proposer.knows_enough() => {
                    grace.get_or_insert_with(|| Instant::now() + OUTBID_GRACE);
                }
                _ => break,
            }
            let until = grace.unwrap_or(begun + PROMISE_TIMEOUT);
            match tokio::time::timeout_at(until, asking.join_next()).await {
                Ok(Some(Ok((witness, answer)))) => self.hear(witness, answer),
                Ok(Some(Err(_))) => {}
                Ok(None) | Err(_) => break,
            }
        }
        // Requests still under way go on in the background.
        asking.detach_all();
        if self.proposer.state() == AttemptState::Waiting {
            let waited = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            let silent = self.hosts().into_iter().map(|(witness, _)| witness);
            let silent = silent.filter(|witness| self.proposer.heard(*witness).is_none());
            for witness in silent.collect::<Vec<_>>() {
                self.note_fault(witness, Fault::no_answer(waited));
            }
        }
    }

    fn is_bound(&self) -> bool {
        matches!(self.proposer.choice(), Some(Choice::Bound(other)) if other.checkpoint != self.me)
    }

    fn hosts(&self) -> Vec<(Witness, Option<HostIndex>)> {
        let members = self.members.iter().enumerate();
        members
            .map(|(at, member)| (Witness(at), member.host))
            .collect()
    }

    fn hear(&mut self, witness: Witness, answer: Result<Witnessed, Fault>) {
        let ballot = self.proposer.ballot();
        match answer {
            Ok(Witnessed::Promised(None)) => self.proposer.promised(witness, ballot, None),
            Ok(Witnessed::Promised(Some(proposal))) => {
                let said = proposal.proposed();
                let accepted = (said.ballot, said.successor);
                self.note_shown(*proposal);
                self.proposer.promised(witness, ballot, Some(accepted));
            }
            Ok(Witnessed::Agreed) => self.proposer.agreed(witness, ballot),
            Ok(Witnessed::Outbid(higher)) => self.proposer.outbid(witness, ballot, higher),
            Err(fault) => self.note_fault(witness, fault),
        }
    }

    /// Notes a proposal that a witness has accepted. One of a void key is passed over, unless another witness
    /// shows the same successor in a proposal that counts.
    fn note_shown(&mut self, proposal: Proposal) {
        let successor = proposal.proposed().successor;
        if !self.is_void(&proposal) {
            self.proposer.take_back(successor);
            self.shown.insert(successor, proposal);
        } else if !self.shown.contains_key(&successor) {
            self.proposer.pass_over(successor);
        }
    }

    /// Whether the proposed checkpoint was signed with a void key, so that all programs pass it over. If its
    /// manifest can't be opened, whoever proposed it has to answer for it.
    fn is_void(&self, proposal: &Proposal) -> bool {
        let Some(list) = &self.void else {
            return false;
        };
        let voids = |grant: Option<&Grant>| grant.is_some_and(|grant| list.voids(grant.terms()));
        match proposal.manifest(&self.agent.keys, &self.job) {
            Ok(manifest) => voids(manifest.grant()),
            Err(_) => voids(proposal.grant()),
        }
    }

    fn note_fault(&mut self, witness: Witness, fault: Fault) {
        let ballot = self.proposer.ballot();
        self.proposer.failed(witness, ballot);
        self.faults.insert(witness, fault);
    }

    /// Proposes the checkpoint of this save until it or another one is chosen.
    async fn propose(&mut self, manifest: &Manifest) -> Fenced {
        let mine = Successor::from(manifest);
        let mut rest = FIRST_BID_WAIT;
        let mut short = 0;
        for _ in 0..ATTEMPTS_MAX {
            if let Some(value) = self.proposer.propose(mine) {
                if value != mine {
                    return Err(Lost::Another(note(value, false)));
                }
                let named = (self.followed.checkpoint, self.proposer.ballot());
                let signed = Proposal::sign(&self.agent.keys, &self.job, named, manifest);
                let proposal = signed.map_err(|cause| Lost::Unsigned(cause.to_string()))?;
                self.ask_to_accept(&proposal).await;
            }
            match self.proposer.state() {
                AttemptState::Chosen(_) => return Ok(self.report()),
                AttemptState::TooFew { answer } => self.again_if_short(&mut short, answer).await?,
                AttemptState::Outbid | AttemptState::Waiting | AttemptState::Promised => {
                    rest = pause(rest).await;
                }
            }
            self.prepare().await?;
        }
        Err(Lost::Outbid)
    }

    /// Asks all witnesses to accept, and returns when enough have, or when too few still can. The other
    /// requests go on in the background: a witness that accepted keeps the shard until it is committed.
    async fn ask_to_accept(&mut self, proposal: &Proposal) {
        self.faults.clear();
        let mut asking = JoinSet::new();
        for (witness, host) in self.hosts() {
            let Some(host) = host else {
                self.note_fault(witness, Fault::Gone("no longer a host of the grid".into()));
                continue;
            };
            let hosts = self.agent.hosts.clone();
            let proposal = proposal.clone();
            asking.spawn(async move { (witness, hosts.propose(host, &proposal).await) });
        }
        while self.proposer.state() == AttemptState::Waiting {
            match asking.join_next().await {
                Some(Ok((witness, answer))) => self.hear(witness, answer),
                Some(Err(_)) => {}
                None => break,
            }
        }
        asking.detach_all();
    }

    fn report(&self) -> FenceReport {
        let agreed = self.hosts().into_iter().filter(|(witness, _)| {
            self.proposer.heard(*witness) == Some(crate::core::fence::WitnessAnswer::Agreed)
        });
        FenceReport {
            after: self.version,
            after_checkpoint: self.followed.checkpoint,
            fenced: true,
            witnesses: self.quorum.witnesses(),
            needed: self.quorum.needed(),
            agreed: agreed.count(),
        }
    }

    /// Finishes another client's half-done save, if that is why this save lost, and if it can be finished.
    async fn finished(&mut self, lost: Lost) -> Lost {
        let Lost::Another(other) = lost else {
            return lost;
        };
        let shown = self.shown.iter();
        let mut shown = shown.filter(|(of, _)| of.checkpoint == other.checkpoint);
        let Some((successor, proposal)) = shown.next().map(|(of, what)| (*of, what.clone())) else {
            return Lost::Another(other);
        };
        let committed = self.finish(successor, &proposal).await;
        if committed {
            tracing::info!(checkpoint = %successor.checkpoint, "finished the save of another");
        }
        Lost::Another(note(successor, committed))
    }

    /// Has a successor chosen that may have been chosen already, and has its holders commit it.
    async fn finish(&mut self, successor: Successor, proposal: &Proposal) -> bool {
        let Ok(manifest) = proposal.manifest(&self.agent.keys, &self.job) else {
            return false;
        };
        let holders = self.holders_of(&manifest);
        // A checkpoint that can't be restored must not become the successor, unless it is already.
        if !self.is_stored(&manifest, &holders).await {
            return false;
        }
        // The value may have been proposed in this attempt or in an earlier one.
        if self.proposer.propose(successor) != Some(successor) {
            return false;
        }
        let ballot = self.proposer.ballot();
        let Ok(proposal) = proposal.again(&self.agent.keys, &self.job, ballot) else {
            return false;
        };
        self.ask_to_accept(&proposal).await;
        if self.proposer.state() != AttemptState::Chosen(successor) {
            return false;
        }
        self.commit(&manifest, &holders).await
    }

    fn holders_of(&self, manifest: &Manifest) -> Vec<HostIndex> {
        let opened = manifest.open(&self.agent.keys);
        let witnesses = opened.map_or_else(|_| Vec::new(), |opened| opened.tail.witnesses);
        let members = members(&self.agent, &witnesses);
        members.iter().filter_map(|member| member.host).collect()
    }

    /// Whether the holders have enough shards to restore the checkpoint.
    async fn is_stored(&self, manifest: &Manifest, holders: &[HostIndex]) -> bool {
        let public = manifest.public();
        let mut asking = JoinSet::new();
        for host in holders.iter().copied() {
            for shard in public.redundancy.shards() {
                let hosts = self.agent.hosts.clone();
                let id = public.checkpoint;
                asking.spawn(async move { (shard, hosts.has_shard(host, id, shard).await) });
            }
        }
        let mut found: BTreeSet<ShardIndex> = BTreeSet::new();
        let needed = public.redundancy.data();
        let counting = async {
            while let Some(answer) = asking.join_next().await {
                if let Ok((shard, Ok(true))) = answer {
                    found.insert(shard);
                }
                if found.len() >= needed {
                    return true;
                }
            }
            false
        };
        let counted = tokio::time::timeout(FINISH_TIMEOUT, counting).await;
        counted.unwrap_or(false)
    }

    /// Has the holders commit the checkpoint; returns whether enough did for it to be restored.
    async fn commit(&self, manifest: &Manifest, holders: &[HostIndex]) -> bool {
        let mut asking = JoinSet::new();
        for host in holders.iter().copied() {
            let hosts = self.agent.hosts.clone();
            let bytes = manifest.bytes().to_vec();
            asking.spawn(async move { hosts.commit(host, bytes).await.is_ok() });
        }
        let until = Instant::now() + FINISH_TIMEOUT;
        let mut done = 0;
        while let Ok(Some(answer)) = tokio::time::timeout_at(until, asking.join_next()).await {
            done += usize::from(answer.unwrap_or(false));
        }
        done >= manifest.public().redundancy.data()
    }

    fn why(&self, witness: Witness, fault: &Fault) -> HostNote {
        let member = self.members.get(witness.0);
        let host = member.and_then(|member| member.host);
        let host = match (host, member) {
            (Some(host), _) => self.agent.hosts.name(host).to_owned(),
            (None, Some(member)) => member.key.to_string(),
            (None, None) => "?".into(),
        };
        let what = if fault.is_refused_as(Code::NotFound) {
            format!("no longer holds anything of version {}", self.version)
        } else {
            fault.to_string()
        };
        HostNote { host, what }
    }
}

/// A question to one witness.
struct Asked {
    agent: Agent,
    host: HostIndex,
    followed: Followed,
    ballot: Ballot,
}

impl Asked {
    /// Asks for a promise. A witness that shows a proposal of a void key has not heard of the list, and may have
    /// accepted something before that it shows only when it has.
    async fn promise(&self, void: Option<&VoidList>) -> Result<Witnessed, Fault> {
        let hosts = &self.agent.hosts;
        let host = self.host;
        let answer = hosts.prepare(host, self.followed, self.ballot).await?;
        let Witnessed::Promised(Some(shown)) = &answer else {
            return Ok(answer);
        };
        let is_void = |list: &VoidList| {
            let grant = shown.grant();
            grant.is_some_and(|grant| list.voids(grant.terms()))
        };
        let Some(list) = void.filter(|list| is_void(list)) else {
            return Ok(answer);
        };
        if self.agent.keys.grant().is_none() {
            hosts.say_void(host, list).await?;
            return hosts.prepare(host, self.followed, self.ballot).await;
        }
        // Hosts take the list from its owner and from each other, not from a job key. One that has it now got it
        // after it had answered, and is asked again.
        let known = hosts.void_of(host, self.followed.owner).await?;
        if known.is_some_and(|known| is_void(&known)) {
            return hosts.prepare(host, self.followed, self.ballot).await;
        }
        let what = "has not heard yet that a job key is revoked";
        Err(Fault::Gone(what.into()))
    }
}

/// The hosts with these keys, each once.
fn members(agent: &Agent, witnesses: &[PublicKey]) -> Vec<Member> {
    let keys: BTreeSet<PublicKey> = witnesses.iter().copied().collect();
    let of = |key: PublicKey| {
        let has_key = |host: &HostIndex| {
            let entry = agent.hosts.entry(*host);
            entry.is_some_and(|entry| PublicKey::from(entry.id.0) == key)
        };
        let host = agent.hosts.all().find(has_key);
        Member { key, host }
    };
    keys.into_iter().map(of).collect()
}

const fn note(successor: Successor, committed: bool) -> SuccessorNote {
    SuccessorNote {
        version: successor.version,
        checkpoint: successor.checkpoint,
        committed,
    }
}

/// Waits for a random part of `rest`; returns how long to wait the next time.
async fn pause(rest: Duration) -> Duration {
    let [jitter] = random().unwrap_or([128]);
    tokio::time::sleep(rest * u32::from(jitter) / 255).await;
    (rest * 2).min(BID_WAIT_MAX)
}
