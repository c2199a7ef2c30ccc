//! Asks all hosts what they hold, and waits for hosts that are gone no longer than needed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use codec::grant::VoidList;
use codec::keys::Keys;
use codec::notice::{Lease, Notice, Words};
use codec::{JobTag, ShardIndex};
use protocol::wire::WireVersion;
use protocol::wire::announcement::Announced;
use protocol::wire::message::HostStatus;
use tokio::task::JoinSet;
use tokio::time::Instant;
use transfer::find::Shown;

use crate::agent::ask::recent::Said;
use crate::agent::{Agent, SaveRequest};
use crate::cancel::Cancel;
use crate::core::clocks::Clocks;
use crate::core::gather::silence::Silence;
use crate::core::gather::{Best, Gathering, Wait, WaitUntil};
use crate::core::place::DomainNames;
use crate::core::pool_watch;
use crate::core::retention::Reach;
use crate::core::{Fault, HostIndex, Millis};
use crate::inventory::{Entered, Inventory, KnownCheckpoint};
use crate::knowledge::{Contact, Observation};
use crate::report::{ExitStatus, Failure, HostNote};
use crate::sleep::SleepWatch;
use crate::unix_time::{unix_millis, unix_seconds};

/// First wait before hosts are asked again when none of them answered; [`NO_ANSWER_WAIT_MAX`] is the longest.
const NO_ANSWER_WAIT: Duration = Duration::from_millis(500);
const NO_ANSWER_WAIT_MAX: Duration = Duration::from_secs(8);

/// One in this many bytes of the memory is for what hosts show: as much again may be in flight from them.
const MEMORY_SHARE: u64 = 2;

/// A host's answers about itself.
#[derive(Clone, Debug)]
pub(crate) struct HostAnswer {
    pub(crate) status: HostStatus,
    /// Time of one request and its answer.
    pub(crate) rtt: Duration,
    /// What the host announces of its availability; asked for only when hosts are to be chosen.
    pub(crate) announced: Option<Announced>,
    /// When it answered, by this machine's clock, Unix seconds.
    pub(crate) heard: u64,
    /// The version of the protocol that the host speaks.
    pub(crate) spoken: WireVersion,
    /// Which job keys of the owner are void, as far as the host knows.
    pub(crate) void: Option<VoidList>,
}

/// What a host answers about itself, and its notices about the job.
pub(crate) type Answered = (HostAnswer, Vec<Notice>);

/// The answers of all hosts.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) inventory: Inventory,
    /// Hosts that answered, and their answers.
    pub(crate) answered: Vec<(HostIndex, HostAnswer)>,
    /// Hosts that did not answer, and why.
    pub(crate) silent: Vec<(HostIndex, Fault)>,
    /// Members that no registry names as being there and that did not answer either, or were not asked.
    pub(crate) absent: Vec<(HostIndex, Fault)>,
    /// Whether hosts were left out that might still have answered.
    pub(crate) is_cut_short: bool,
    /// Whether hosts show more than there is memory for.
    pub(crate) is_too_much: bool,
    /// When the hosts were asked, Unix milliseconds.
    pub(crate) asked_at: u64,
    /// The owner's words on the job, if one job was asked for.
    pub(crate) said: Option<Words>,
    /// The owner's words on each job, for jobs that were asked for.
    pub(crate) words: BTreeMap<JobTag, Words>,
    /// The leases of jobs, for jobs that were asked for.
    pub(crate) leases: BTreeMap<JobTag, Lease>,
    /// The newest list of void job keys that any host has.
    pub(crate) void: Option<VoidList>,
}

impl Gathered {
    /// Leaves out the checkpoints that the owner of a job deleted, and records its lease.
    pub(crate) fn heed(&mut self, said: &Words) {
        self.inventory.pass_over(said);
        let lease = said.lease.map(|lease| (said.job_tag, lease));
        self.leases.extend(lease);
    }

    /// Until when a checkpoint is kept, Unix seconds; `None`: until it is removed.
    pub(crate) fn kept_until(&self, known: &KnownCheckpoint) -> Option<u64> {
        let lease = self.leases.get(&known.manifest.public().job_tag)?;
        Some(lease.until)
    }

    /// The clocks of the hosts that were asked what they announce, as this machine's own clock would show them now,
    /// Unix seconds.
    pub(crate) fn clocks(&self) -> Clocks {
        let announced = self.answered.iter();
        let announced =
            announced.filter_map(|(_, answer)| Some((answer.announced.as_ref()?.at, answer.heard)));
        Clocks::heard(unix_seconds(), announced)
    }

    /// How many members may have what is lacking here: silent and absent ones.
    pub(crate) const fn away(&self) -> usize {
        self.silent.len() + self.absent.len()
    }

    /// The owner's words on a job, as far as hosts were asked for them.
    pub(crate) fn words_on(&self, job_tag: JobTag) -> Option<&Words> {
        let said = self.said.as_ref().filter(|said| said.job_tag == job_tag);
        said.or_else(|| self.words.get(&job_tag))
    }

    /// The exit status of a command that found too few shards: hosts that are away may have the others.
    pub(crate) const fn lost_status(&self) -> ExitStatus {
        match self.away() {
            0 => ExitStatus::Damaged,
            _ => ExitStatus::TooFewHosts,
        }
    }

    /// A note on versions that were passed over because they lie in an interval that was deleted.
    pub(crate) fn passed_over_note(&self, restored: Option<&KnownCheckpoint>) -> Option<String> {
        let passed = self.inventory.passed_over();
        if let Some(restored) = restored
            && passed.iter().any(|known| known.stamp() == restored.stamp())
        {
            let version = restored.version();
            return Some(format!(
                "version {version} belongs to a deleted part of the job's history"
            ));
        }
        let versions: Vec<String> = passed
            .iter()
            .map(|known| known.version().to_string())
            .collect();
        let versions = versions.join(", ");
        (!passed.is_empty()).then(|| {
            format!(
                "passed over, because they belong to a deleted part of the job's history: versions \
                 {versions} (saved or brought back afterwards; see: ckpt gc --dry-run)"
            )
        })
    }

    pub(crate) fn hosts(&self) -> impl Iterator<Item = HostIndex> {
        self.answered.iter().map(|(host, _)| *host)
    }

    /// Hosts that were slow to answer and may still serve as spares. A host that refuses for good is left
    /// out: waiting for it is useless.
    pub(crate) fn late(&self) -> impl Iterator<Item = HostIndex> {
        let silent = self.silent.iter();
        silent
            .filter(|(_, fault)| !fault.is_final())
            .map(|(host, _)| *host)
    }

    /// How many members there are, and how many of them do not answer.
    pub(crate) const fn silence(&self) -> Silence {
        Silence {
            members: self.answered.len() + self.away(),
            silent: self.away(),
        }
    }

    /// How far a policy may delete what it does not name. Where hosts may have versions that are not seen here,
    /// these may be needed.
    pub(crate) fn reach(&self) -> Reach {
        match self.inventory.left_out() {
            0 => Reach::Between.in_silence(self.silence()),
            _ => Reach::Named,
        }
    }

    /// Enters the answers of a host.
    pub(crate) fn enter(&mut self, host: HostIndex, (answer, notices): Answered) {
        self.answered.push((host, answer));
        self.hear(&notices);
    }

    pub(crate) fn hear(&mut self, notices: &[Notice]) {
        for words in notices.iter().map(Notice::words) {
            self.said = Some(match self.said.take() {
                Some(said) => said.and(words),
                None => words.clone(),
            });
        }
    }
}

/// What hosts have shown so far, and whether that is too much; shared by the tasks that ask them.
#[derive(Clone, Debug)]
pub(crate) struct Showing(Arc<Mutex<(Inventory, bool)>>);

impl Showing {
    pub(crate) fn lock(&self) -> MutexGuard<'_, (Inventory, bool)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing yet. The manifests of long lists are put into a file in `dir`.
    fn in_dir(dir: Option<PathBuf>) -> Self {
        Self(Arc::new(Mutex::new((Inventory::in_dir(dir), false))))
    }

    /// Enters what a host shows, and returns whether there is room for more.
    fn enter(&self, keys: &Keys, host: HostIndex, shown: Shown, memory_max: u64) -> bool {
        let (inventory, is_too_much) = &mut *self.lock();
        match inventory.add(keys, host, shown, memory_max) {
            Entered::Yes => {}
            Entered::Contradiction => {
                tracing::warn!("ignored a second manifest of a known checkpoint");
            }
            Entered::NoRoom => *is_too_much = true,
        }
        !*is_too_much
    }
}

/// Hosts' answers, before they are put in order.
struct Asked {
    gathered: Gathered,
    /// Hosts that were not waited for any longer.
    waiting: Vec<HostIndex>,
    /// Why they were not.
    why: GivenUp,
    begun: Instant,
}

impl Asked {
    /// The answers when no more are waited for, of some hosts because their lists take too long.
    fn of(mut gathered: Gathered, gathering: &Gathering, is_cut: bool, begun: Instant) -> Self {
        gathered.is_cut_short = !gathering.waiting().is_empty();
        Self {
            gathered,
            waiting: gathering.waiting().iter().copied().collect(),
            why: match gathering.was_enough() {
                true => GivenUp::Enough,
                false if is_cut => GivenUp::LongLists,
                false => GivenUp::Silent,
            },
            begun,
        }
    }
}

/// Why hosts were not waited for any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GivenUp {
    /// The others were enough.
    Enough,
    /// They were silent for longer than a host may be.
    Silent,
    /// Their lists took much longer than those of most others, or than any list may take.
    LongLists,
}

/// Once half of the hosts that can be reached have answered, the others have as long again as these needed, and this
/// much longer: a host that lies could list checkpoints for ever.
const LISTS_OVERTIME: Duration = Duration::from_secs(7);

/// Longest wait for lists where most hosts hold theirs up. An owner of a hundred thousand checkpoints behind a slow line
/// needs minutes for lists of honest hosts.
const LISTS_TIME_MAX: Duration = Duration::from_secs(600);

/// How often this machine may sleep while hosts are asked, until they are not asked again.
const ASKED_AFTER_SLEEP_MAX: u32 = 8;

impl Agent {
    /// Asks all hosts before a save. With a deadline, if no host answers, all are asked again until three
    /// quarters of the time are over, at times that differ between clients: when many jobs are evicted
    /// together, even healthy hosts answer late.
    pub(crate) async fn gather_to_save(
        &self,
        job_tag: JobTag,
        request: &SaveRequest,
        started: Instant,
        mut cancel: Cancel,
    ) -> Result<Gathered, Failure> {
        let shards = request.options.redundancy.unwrap_or_default().total();
        let last = request
            .options
            .deadline
            .map(|limit| started + limit / 4 * 3);
        let mut rest = NO_ANSWER_WAIT;
        loop {
            let gathered = self
                .gather(Some(job_tag), WaitUntil::ToSave { shards })
                .await;
            let has_no_answer = gathered.answered.is_empty()
                && !gathered.is_too_much
                && !gathered
                    .silent
                    .iter()
                    .any(|(_, fault)| fault.is_forbidden());
            if !has_no_answer || last.is_none_or(|last| Instant::now() + rest >= last) {
                return Ok(gathered);
            }
            let [jitter] = crate::agent::handle::random()?;
            let wait = rest + rest * u32::from(jitter) / 256;
            tokio::select! {
                () = cancel.cancelled() => return Ok(gathered),
                () = tokio::time::sleep(wait) => {}
            }
            rest = (rest * 2).min(NO_ANSWER_WAIT_MAX);
        }
    }

    fn showing(&self) -> Showing {
        Showing::in_dir(self.notebook.dir())
    }

    /// Asks all hosts for the checkpoints of one job, or of all jobs. If this machine sleeps meanwhile, asks again: no
    /// host is silent for that.
    pub(crate) async fn gather(&self, job_tag: Option<JobTag>, wait_until: WaitUntil) -> Gathered {
        let sleep = SleepWatch::start();
        let mut slept = 0;
        loop {
            let showing = self.showing();
            let unreached = self.not_to_be_asked(wait_until);
            let all = self.hosts.all();
            let all = all.filter(|host| !unreached.contains_key(host)).collect();
            let asking = self.gather_of(all, &unreached, job_tag, wait_until, &showing);
            let mut asked = asking.await;
            let aside = unreached.keys().copied().collect();
            self.ask_absent(aside, job_tag, wait_until, &showing, &mut asked.gathered)
                .await;
            self.try_in_background(&asked.waiting);
            let now = sleep.slept().times;
            if now == slept {
                let given_up = asked.waiting.iter().copied();
                let given_up = given_up.filter(|host| match asked.why {
                    GivenUp::Enough => false,
                    GivenUp::Silent => true,
                    // A host that is slow is there.
                    GivenUp::LongLists => !self.hosts.is_connected(*host),
                });
                let given_up: Vec<HostIndex> = given_up.collect();
                self.saw_pool(&asked.gathered, &given_up);
                return self.settled(asked, &showing);
            }
            if now > ASKED_AFTER_SLEEP_MAX {
                return self.settled(asked, &showing);
            }
            slept = now;
        }
    }

    /// Goes on trying to reach hosts that were not waited for, so that the next call knows which of them are down.
    fn try_in_background(&self, hosts: &[HostIndex]) {
        let unreached = hosts.iter().filter(|host| !self.hosts.is_connected(**host));
        for host in unreached {
            self.hosts.try_again(*host);
        }
    }

    /// Asks hosts again that have answered, for what became of a job meanwhile. Those that are silent now are
    /// not waited for.
    pub(crate) async fn gather_again(
        &self,
        hosts: BTreeSet<HostIndex>,
        job_tag: JobTag,
    ) -> Gathered {
        let showing = self.showing();
        let hurried = WaitUntil::Answers(Wait::NotForSilent);
        let unreached = BTreeMap::new();
        let asking = self.gather_of(hosts, &unreached, Some(job_tag), hurried, &showing);
        self.settled(asking.await, &showing)
    }

    /// Asks `hosts`. The answer of `unreached` hosts is that they were not reached.
    async fn gather_of(
        &self,
        hosts: BTreeSet<HostIndex>,
        unreached: &BTreeMap<HostIndex, Fault>,
        job_tag: Option<JobTag>,
        wait_until: WaitUntil,
        showing: &Showing,
    ) -> Asked {
        let mut gathered = Gathered {
            asked_at: unix_millis(),
            ..Gathered::default()
        };
        let mut asking = JoinSet::new();
        for host in hosts.iter().copied() {
            let agent = self.clone();
            let showing = showing.clone();
            let to_place = matches!(wait_until, WaitUntil::ToSave { .. });
            asking.spawn(async move { (host, agent.ask(host, job_tag, to_place, &showing).await) });
        }
        let begun = Instant::now();
        let now = || Millis::default().after(begun.elapsed());
        let mut lists_end: Option<Instant> = None;
        let mut is_cut = false;
        let best = || best(&showing.lock().0, wait_until);
        let all = hosts.into_iter().chain(unreached.keys().copied());
        let mut gathering = Gathering::begin(wait_until, all, now());
        for (host, fault) in unreached {
            gathered.silent.push((*host, fault.clone()));
            gathering.failed(*host, best(), now());
        }
        loop {
            lists_end = lists_end.or_else(|| lists_end_of(&gathering, begun));
            let deadline = gathering.deadline();
            let deadline = deadline.map(|Millis(until)| begun + Duration::from_millis(until));
            let end = lists_end.unwrap_or(begun + LISTS_TIME_MAX);
            let until = deadline.map_or(end, |deadline| deadline.min(end));
            match tokio::time::timeout_at(until, asking.join_next()).await {
                Ok(None) => break,
                Ok(Some(Ok((host, Ok(answered))))) => {
                    gathered.enter(host, answered);
                    gathering.answered(host, best(), now());
                }
                Ok(Some(Ok((host, Err(fault))))) => {
                    self.drop_liar(host, &fault, showing).await;
                    gathered.silent.push((host, fault));
                    gathering.failed(host, best(), now());
                }
                // A task that panicked counts as a silent host.
                Ok(Some(Err(_))) => {}
                Err(_) if end <= Instant::now() => {
                    is_cut = true;
                    break;
                }
                Err(_) => {
                    let mut waiting = gathering.waiting().iter();
                    let is_any_connected = waiting.any(|host| self.hosts.is_connected(*host));
                    if gathering.goes_on(is_any_connected, now()) {
                        break;
                    }
                }
            }
        }
        drop(asking);
        gathered.is_too_much = showing.lock().1;
        Asked::of(gathered, &gathering, is_cut, begun)
    }

    /// Forgets what a host showed that lies.
    pub(crate) async fn drop_liar(&self, host: HostIndex, fault: &Fault, showing: &Showing) {
        if matches!(fault, Fault::Lied(_)) {
            showing.lock().0.drop_host(host);
            // The host may have sent much that is not read any more.
            self.hosts.hang_up(host).await;
        }
    }

    /// What was gathered, in order, and without what the owner deleted.
    fn settled(&self, asked: Asked, showing: &Showing) -> Gathered {
        let mut gathered = asked.gathered;
        (gathered.inventory, gathered.is_too_much) = std::mem::take(&mut *showing.lock());
        let waited = asked.begun.elapsed();
        let slow = asked.waiting.into_iter().map(|host| {
            let is_connected = self.hosts.is_connected(host);
            (host, not_waited_for(waited, asked.why, is_connected))
        });
        gathered.silent.extend(slow);
        gathered.answered.sort_by_key(|(host, _)| *host);
        gathered.silent.sort_by_key(|(host, _)| *host);
        if let Some(said) = gathered.said.clone() {
            // A host that was away may not have heard yet of deletions, so its answers are filtered here.
            gathered.heed(&said);
        }
        self.set_void_aside(&mut gathered);
        gathered
    }

    /// Asks all hosts which of them hold a checkpoint now: hosts hand shards over to others, and repair makes
    /// new ones. `None` if no host that answers shows it any more.
    pub(crate) async fn holders_now(
        &self,
        known: &KnownCheckpoint,
    ) -> (Gathered, Option<Vec<(ShardIndex, HostIndex)>>) {
        let public = known.manifest.public();
        let gathered = self.gather(Some(public.job_tag), WaitUntil::ALL).await;
        let holders = {
            let inventory = &gathered.inventory;
            let aside = inventory.void().chain(inventory.passed_over());
            let mut all = inventory.get(public.checkpoint).into_iter().chain(aside);
            all.find(|shown| shown.manifest.hash() == known.manifest.hash())
                .map(|shown| shown.holders.clone())
        };
        (gathered, holders)
    }

    pub(crate) async fn ask(
        &self,
        host: HostIndex,
        job_tag: Option<JobTag>,
        to_place: bool,
        showing: &Showing,
    ) -> Result<Answered, Fault> {
        let owner = self.keys.owner();
        let notices = self.notices_of(host, job_tag);
        let memory_max = self.resources.memory_bytes / MEMORY_SHARE;
        let known = |checkpoint| showing.lock().0.already(checkpoint);
        let enter = |shown| showing.enter(&self.keys, host, shown, memory_max);
        // As soon as it is heard of, so that what void keys signed takes no room.
        let void_heard = async {
            let void = self.hosts.void_of(host, owner).await.ok().flatten();
            if let Some(list) = &void {
                showing.lock().0.set_void_aside(list);
            }
            void
        };
        let (said, found, (notices, missed), void) = tokio::join!(
            self.of_itself(host, to_place),
            self.hosts.find(host, owner, job_tag, known, enter),
            notices,
            void_heard
        );
        let said = said?;
        found?;
        if let Some(fault) = missed
            && !fault.is_final()
        {
            // Its notices may name a deletion that no other host has heard of yet.
            return Err(fault);
        }
        let answer = HostAnswer {
            status: said.status,
            rtt: said.rtt,
            announced: said.announced,
            heard: said.heard,
            spoken: self.hosts.spoken(host).await?,
            void,
        };
        Ok((answer, notices))
    }

    /// What a host says of itself, or said a moment ago; with what it announces, if hosts are chosen `to_place`.
    async fn of_itself(&self, host: HostIndex, to_place: bool) -> Result<Said, Fault> {
        let before = self.recent.of(host, Instant::now());
        if let Some(said) = &before
            && (!to_place || said.announced.is_some())
        {
            return Ok(said.clone());
        }
        let announced = async {
            match to_place {
                true => self.announcement(host).await,
                false => Ok(None),
            }
        };
        let (status, announced) = tokio::join!(self.hosts.status(host), announced);
        let (status, rtt) = status?;
        let said = Said {
            status,
            rtt,
            // A host with an invalid announcement counts as one without.
            announced: announced.unwrap_or_else(|cause| {
                tracing::warn!(host = self.hosts.name(host), %cause, "ignored an announcement");
                None
            }),
            heard: unix_seconds(),
            at: Instant::now(),
        };
        self.recent.note(host, said.clone());
        Ok(said)
    }

    /// The notices of a host about a job, and the fault that ended them early.
    async fn notices_of(
        &self,
        host: HostIndex,
        job_tag: Option<JobTag>,
    ) -> (Vec<Notice>, Option<Fault>) {
        let mut heard = Vec::new();
        let Some(job_tag) = job_tag else {
            return (heard, None);
        };
        let jobs = Arc::new(vec![(self.keys.owner(), job_tag)]);
        let mut hearing = self.hosts.fetch_notices(host, jobs);
        loop {
            match hearing.next().await {
                Ok(Some(notice)) => heard.push(notice),
                Ok(None) => return (heard, None),
                Err(fault) => return (heard, Some(fault)),
            }
        }
    }

    /// Records which hosts answered and which did not. Hosts that are `given_up` had as much time as a host gets;
    /// others that are not in `gathered` were not waited for.
    fn saw_pool(&self, gathered: &Gathered, given_up: &[HostIndex]) {
        let faults: BTreeMap<HostIndex, &Fault> = gathered
            .silent
            .iter()
            .map(|(h, fault)| (*h, fault))
            .collect();
        let answered: BTreeSet<HostIndex> = gathered.hosts().collect();
        let came = |host: &HostIndex| match faults.get(host) {
            Some(fault) => Some(!is_away(fault)),
            None if given_up.contains(host) => Some(false),
            None => answered.contains(host).then_some(true),
        };
        let mut names = DomainNames::default();
        let asked = self.hosts.all().filter_map(|host| {
            let entry = self.hosts.entry(host)?;
            let site = entry.site.as_deref();
            let owner = entry.owner.as_deref();
            let addr = self.hosts.address(host).map(|addr| addr.ip());
            let addr = addr.unwrap_or(Ipv4Addr::LOCALHOST.into());
            let [place, _] = names.of(site, owner, addr);
            Some(pool_watch::Asked {
                host: entry.id,
                place,
                answered: came(&host),
            })
        });
        self.notebook.note(Observation::Look(asked.collect()));
        for host in answered {
            self.saw(host, Contact::Answered);
        }
        for (host, fault) in faults {
            self.saw_fault(host, fault);
        }
    }

    /// Records how a contact with a host went.
    pub(crate) fn saw(&self, host: HostIndex, contact: Contact) {
        if let Some(entry) = self.hosts.entry(host) {
            self.notebook.note(Observation::Contact(entry.id, contact));
        }
    }

    /// Records a failed contact, if the failure says something about the host.
    pub(crate) fn saw_fault(&self, host: HostIndex, fault: &Fault) {
        match fault {
            fault if is_away(fault) => self.saw(host, Contact::Silent),
            Fault::Lied(_) => self.saw(host, Contact::Lied),
            _ => {}
        }
    }

    /// Fails when no host answered, or there is no memory for the answers.
    pub(crate) fn require_answers(&self, gathered: &Gathered, doing: &str) -> Result<(), Failure> {
        if gathered.is_too_much {
            let memory = self.resources.memory_bytes >> 20;
            let what =
                format!("{doing}: the checkpoints that hosts list do not fit into {memory} MiB");
            let failure = Failure::new(ExitStatus::Failed, what);
            return Err(failure.next("a larger --memory; or fewer checkpoints: --job"));
        }
        if !gathered.answered.is_empty() {
            return Ok(());
        }
        let mut forbidden = gathered.silent.iter().filter(|(_, f)| f.is_forbidden());
        let mut failure = if let Some((_, fault)) = forbidden.next() {
            Failure::new(ExitStatus::Denied, format!("{doing}: {fault}")).next("ckpt doctor")
        } else {
            self.no_host_answers(doing)
        };
        failure.hosts = self.silent_notes(gathered);
        Err(failure)
    }

    fn no_host_answers(&self, doing: &str) -> Failure {
        let (message, next) = match self.hosts.count() {
            0 => match self.hosts.absent().count() {
                0 => (
                    "no host is known: the grid file lists none, and no registry names one"
                        .to_owned(),
                    "ckpt doctor; a machine becomes a host by: ckpt-store join TOKEN",
                ),
                absent => (
                    format!(
                        "none of the {absent} hosts that were there answers, and no registry names one now"
                    ),
                    "again when hosts are up: ckpt doctor",
                ),
            },
            known => (format!("none of {known} hosts answers"), "ckpt hosts"),
        };
        Failure::new(ExitStatus::TooFewHosts, format!("{doing}: {message}")).next(next)
    }

    /// Notes on all hosts that are away.
    pub(crate) fn silent_notes(&self, gathered: &Gathered) -> Vec<HostNote> {
        let mut notes = self.notes(&gathered.silent);
        notes.extend(self.notes(&gathered.absent));
        notes
    }
}

/// The best that hosts have shown so far of what is wanted.
fn best(inventory: &Inventory, wait_until: WaitUntil) -> Option<Best> {
    let of = |known: &KnownCheckpoint| Best {
        shards: known.manifest.public().redundancy.total(),
        can_be_restored: inventory.is_restorable(known),
    };
    let newest = inventory.newest_first();
    match wait_until {
        WaitUntil::Answers(_) => None,
        WaitUntil::ToSave { .. } | WaitUntil::ToRestoreNewest => {
            newest.first().map(|known| of(known))
        }
        WaitUntil::ToRestoreVersion(version) => {
            let wanted = newest.iter().filter(|known| known.version() == version);
            wanted
                .map(|known| of(known))
                .max_by_key(|best| best.can_be_restored)
        }
    }
}

/// Whether the fault shows that a host can't be reached.
const fn is_away(fault: &Fault) -> bool {
    matches!(fault, Fault::Gone(_) | Fault::Silent(_) | Fault::Stalled(_))
}

/// Until when lists are waited for, once half of the hosts have shown theirs.
fn lists_end_of(gathering: &Gathering, begun: Instant) -> Option<Instant> {
    let Millis(took) = gathering.half_at()?;
    Some(begun + Duration::from_millis(took) * 2 + LISTS_OVERTIME)
}

/// Why a host counts as silent that was not waited for any longer.
fn not_waited_for(waited: Duration, why: GivenUp, is_connected: bool) -> Fault {
    match why {
        GivenUp::Enough => Fault::Gone("no answer yet".into()),
        GivenUp::LongLists if is_connected => {
            let seconds = waited.as_secs();
            let why = format!(
                "its list of checkpoints was not whole after {seconds} s, and was not waited for any longer"
            );
            Fault::Gone(why)
        }
        GivenUp::Silent | GivenUp::LongLists => {
            let waited = u64::try_from(waited.as_millis());
            Fault::no_answer(waited.unwrap_or(u64::MAX))
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::wire::Code;

    use super::*;

    #[test]
    fn what_absent_hosts_may_have_is_away_and_not_lost() {
        let gone = || Fault::Gone("away".into());
        let mut gathered = Gathered::default();
        assert_eq!(gathered.lost_status(), ExitStatus::Damaged);
        gathered.absent.push((HostIndex(7), gone()));
        assert_eq!(gathered.lost_status(), ExitStatus::TooFewHosts);
        gathered.silent.push((HostIndex(1), gone()));
        assert_eq!(gathered.away(), 2);
        // A save does not wait for absent hosts.
        assert_eq!(gathered.late().collect::<Vec<_>>(), [HostIndex(1)]);
    }

    #[test]
    fn a_slow_host_is_a_spare_and_one_that_refuses_for_good_is_not() {
        let refused = |retry_after_ms| Fault::Refused {
            code: Code::Forbidden,
            detail: String::new(),
            retry_after_ms,
        };
        let gathered = Gathered {
            silent: vec![
                (HostIndex(1), refused(0)),
                (HostIndex(2), Fault::Stalled(1_300)),
                (HostIndex(3), refused(5_000)),
            ],
            ..Gathered::default()
        };
        let late: Vec<HostIndex> = gathered.late().collect();
        assert_eq!(late, [HostIndex(2), HostIndex(3)]);
    }
}
