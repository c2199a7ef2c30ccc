//! Which checkpoint of a job is read: the newest that can be, or the one that the user names.

use codec::decode::Composer;
use codec::index::Index;
use codec::manifest::Summary;
use codec::notice::{Lease, Stamp};
use codec::pieces::BaseRef;
use codec::{JobId, JobTag, Version};

use crate::agent::ask::gather::Gathered;
use crate::agent::read::fetch::{Shortfall, Unreadable};
use crate::agent::{Agent, Which};
use crate::core::gather::WaitUntil;
use crate::core::marks::{Wholeness, take_out_marked};
use crate::core::sought::Sought;
use crate::inventory::KnownCheckpoint;
use crate::knowledge::{Observation, Sighting, SightingDetails};
use crate::pipeline::decode::RowKeys;
use crate::report::{ExitStatus, Failure, HostNote, SkippedVersion};
use crate::unix_time::unix_seconds;
use transfer::get::BlockReader;

/// Which checkpoint of a job the user wants.
pub(crate) struct Wish<'a> {
    pub(crate) job: &'a JobId,
    pub(crate) job_tag: JobTag,
    pub(crate) which: Which,
    pub(crate) sought: &'a Sought,
    /// Whether a marked version is taken although an older one is known to be whole.
    pub(crate) accept_marked: bool,
    /// What is being done, for messages.
    pub(crate) doing: &'a str,
}

/// The checkpoints that may be read, the best first, and the reasons for passing over those tried before.
pub(crate) struct Choices {
    gathered: Gathered,
    known: Vec<KnownCheckpoint>,
    next: usize,
    /// Newer versions that are not read, and why.
    pub(crate) skipped: Vec<SkippedVersion>,
    hosts: Vec<HostNote>,
    /// Whether hosts that broke off, or had no time, may have the missing shards of one of the versions.
    may_come_back: bool,
}

impl Choices {
    /// The checkpoint to try next.
    pub(crate) fn next(&self) -> Option<&KnownCheckpoint> {
        self.known.get(self.next)
    }

    /// The answers of all hosts, from the last time that they were asked.
    pub(crate) const fn gathered(&self) -> &Gathered {
        &self.gathered
    }
}

/// A checkpoint that is ready to be read.
pub(crate) struct FoundImage {
    pub(crate) summary: Summary,
    pub(crate) index: Index,
    pub(crate) composer: Composer,
    /// The checkpoint itself, then its origins.
    pub(crate) sources: Vec<FoundOrigin>,
}

/// A checkpoint whose rows can be read.
#[derive(Debug)]
pub(crate) struct FoundOrigin {
    pub(crate) known: KnownCheckpoint,
    pub(crate) keys: RowKeys,
    pub(crate) reader: BlockReader,
}

impl Agent {
    /// Asks the hosts which checkpoints there are.
    pub(crate) async fn choices(&self, wish: &Wish<'_>) -> Result<Choices, Failure> {
        let patience = match wish.which {
            Which::Newest => WaitUntil::ToRestoreNewest,
            Which::Version(version) => WaitUntil::ToRestoreVersion(version),
        };
        let mut gathered = self.gather(Some(wish.job_tag), patience).await;
        self.require_answers(&gathered, wish.doing)?;
        let mut known = self.choose(&gathered, wish);
        let is_short = known.first().is_some_and(|best| best.can_lose().is_none());
        if is_short && gathered.silent.is_empty() {
            // A shard that moves from one host to another while they are asked may show at neither.
            gathered = self.gather(Some(wish.job_tag), patience).await;
            self.require_answers(&gathered, wish.doing)?;
            known = self.choose(&gathered, wish);
        }
        let skipped = self.hidden(&gathered, wish);
        let marked = self.passed_over_for_marks(&gathered, &known, wish);
        Ok(Choices {
            gathered,
            known,
            next: 0,
            skipped: skipped.into_iter().chain(marked).collect(),
            hosts: Vec::new(),
            may_come_back: false,
        })
    }

    /// Goes on to the next checkpoint, since the present one can't be read, and returns what to report. If
    /// hosts were too slow to be waited for, all hosts are asked again first, and `None` is returned: the
    /// hosts that answered in time do not have what they announced.
    pub(crate) async fn pass_over(
        &self,
        choices: &mut Choices,
        wish: &Wish<'_>,
        short: Shortfall,
    ) -> Result<Option<SkippedVersion>, Failure> {
        if choices.gathered.is_cut_short {
            choices.gathered = self.gather(Some(wish.job_tag), WaitUntil::ALL).await;
            self.require_answers(&choices.gathered, wish.doing)?;
            choices.known = self.choose(&choices.gathered, wish);
            choices.next = 0;
            choices.may_come_back = false;
            return Ok(None);
        }
        choices.hosts.extend(short.notes);
        choices.may_come_back |= short.may_come_back;
        let version = choices.next().map(KnownCheckpoint::version);
        choices.next += 1;
        let skip = version.map(|version| SkippedVersion {
            version,
            reason: short.reason,
            marked: false,
        });
        choices.skipped.extend(skip.clone());
        Ok(skip)
    }

    /// Records the version that was read, and returns notes for the user.
    pub(crate) fn after_choice(&self, choices: &Choices, wish: &Wish<'_>) -> Vec<String> {
        let known = choices.next();
        if let Some(known) = known {
            let lease = choices.gathered.leases.get(&wish.job_tag);
            let seen = self.sighting(wish.job, known.version(), known.stamp(), lease);
            self.notebook.note(Observation::Version(wish.job_tag, seen));
        }
        let newer = known.and_then(|known| note_of_newer(&choices.gathered, known, wish));
        let passed = choices.gathered.passed_over_note(known);
        let void = self.note_of_void(&choices.gathered, wish.which);
        let marked = known.and_then(|known| self.note_of_mark(known));
        let notes = newer.into_iter().chain(passed).chain(void);
        notes.chain(marked).collect()
    }

    /// What is to be remembered of a version of a job.
    pub(crate) fn sighting(
        &self,
        job: &JobId,
        version: Version,
        stamp: Stamp,
        lease: Option<&Lease>,
    ) -> Sighting {
        Sighting {
            version,
            more: Some(SightingDetails {
                owner: self.keys.owner(),
                job: job.clone(),
                stamp,
                until: lease.map(|lease| lease.until),
            }),
        }
    }

    /// The failure when nothing could be read, for want of hosts or because all that is there is damaged.
    pub(crate) fn lost(&self, choices: Choices, doing: &str) -> Failure {
        let skipped = choices.skipped.iter();
        let reasons: Vec<String> = skipped.map(SkippedVersion::to_string).collect();
        let lacking = Shortfall {
            reason: format!("{doing}: {}", reasons.join("; ")),
            notes: choices.hosts,
            may_come_back: choices.may_come_back,
        };
        let status = lacking.status(&choices.gathered);
        let next = match status {
            ExitStatus::Damaged => "ckpt verify --read-data",
            _ => "again when more hosts are up: ckpt hosts",
        };
        let mut failure = Failure::new(status, lacking.reason).next(next);
        failure.hosts = lacking.notes;
        failure.hosts.extend(self.silent_notes(&choices.gathered));
        failure
    }

    /// The checkpoints that may be read, in the order in which they are tried.
    fn choose(&self, gathered: &Gathered, wish: &Wish<'_>) -> Vec<KnownCheckpoint> {
        let all = gathered.inventory.newest_first().into_iter();
        let of_version: Vec<&KnownCheckpoint> = match wish.which {
            Which::Newest => all.collect(),
            // A version that the user names is read even if it was deleted, or signed with a job key that is
            // void now.
            Which::Version(version) => all
                .chain(gathered.inventory.passed_over())
                .chain(gathered.inventory.void())
                .filter(|known| known.version() == version)
                .collect(),
        };
        let now = unix_seconds();
        let sought = of_version
            .into_iter()
            .filter(|known| self.is_sought(wish.sought, known, now));
        let mut sought: Vec<KnownCheckpoint> = sought.cloned().collect();
        if wish.which == Which::Newest && !wish.accept_marked {
            take_out_marked(&mut sought, |known| self.wholeness(known));
        }
        sought
    }

    /// Whether the image of a checkpoint is one whole state.
    pub(crate) fn wholeness(&self, known: &KnownCheckpoint) -> Wholeness {
        match known.manifest.brief() {
            Ok(brief) => Wholeness::of(brief.mark),
            Err(_) => Wholeness::Unknown,
        }
    }

    /// Marked versions that are newer than the one that is `known` to be the best, and not taken.
    fn passed_over_for_marks(
        &self,
        gathered: &Gathered,
        known: &[KnownCheckpoint],
        wish: &Wish<'_>,
    ) -> Vec<SkippedVersion> {
        let Some(best) = known.first().map(KnownCheckpoint::version) else {
            return Vec::new();
        };
        let all = self.choose(
            gathered,
            &Wish {
                accept_marked: true,
                ..*wish
            },
        );
        let newer = all.into_iter().filter(|one| one.version() > best);
        let left_out = newer.filter(|one| known.iter().all(|it| it.stamp() != one.stamp()));
        left_out
            .filter_map(|one| {
                let mark = one.manifest.brief().ok()?.mark?;
                Some(SkippedVersion {
                    version: one.version(),
                    reason: format!("marked: {mark}; to restore it: --accept-marked"),
                    marked: true,
                })
            })
            .collect()
    }

    /// A warning when the version that is read is marked.
    pub(crate) fn note_of_mark(&self, known: &KnownCheckpoint) -> Option<String> {
        let mark = known.manifest.brief().ok()?.mark?;
        let version = known.version();
        Some(format!("version {version} may mix several states: {mark}"))
    }

    /// The newest version that this machine knows of, if hosts show only older ones.
    fn hidden(&self, gathered: &Gathered, wish: &Wish<'_>) -> Option<SkippedVersion> {
        let known_versions = self.notebook.read(unix_seconds());
        let seen = known_versions.newest(wish.job_tag)?.version;
        let inventory = &gathered.inventory;
        let shown = inventory.newest_first().into_iter().chain(inventory.void());
        let shown = shown.map(KnownCheckpoint::version).max();
        let is_newest = wish.which == Which::Newest && wish.sought.is_all();
        let is_hidden = is_newest && shown.is_none_or(|shown| shown < seen);
        is_hidden.then(|| SkippedVersion {
            version: seen,
            reason: "this machine has seen it, but no host that answers shows it: it was removed from another machine, lost or hidden".into(),
            marked: false,
        })
    }

    /// Opens a checkpoint, and finds its origins if it has any.
    pub(crate) async fn find_image(
        &self,
        known: &KnownCheckpoint,
        gathered: &Gathered,
    ) -> Result<FoundImage, Unreadable> {
        let public = known.manifest.public();
        let found = known.shards_found();
        let needed = public.redundancy.data();
        if found < needed {
            return Err(Unreadable::because(format!(
                "{found} of {} shards found, {needed} needed",
                public.redundancy.total()
            )));
        }
        let summary = known.manifest.open(&self.keys);
        let summary = summary.map_err(|cause| Unreadable::because(cause.to_string()))?;
        let own = self.found(known, RowKeys::of(&summary));
        let mut index = self.read_index(known, &summary, &own.reader).await?;
        let mut sources = vec![own];
        let mut pieces_key = &summary.data_key;
        let of_base;
        if let Some(base) = summary.tail.base {
            let base = find_needed(base, gathered)?;
            of_base = self.open_base(base)?;
            let origin = self.found(base, RowKeys::of(&of_base));
            if index.has_base() {
                let reading = self.read_index(base, &of_base, &origin.reader);
                let of_base = reading.await?;
                let over = index.over(&of_base);
                index = over.map_err(|cause| Unreadable::because(cause.to_string()))?;
            }
            pieces_key = &of_base.data_key;
            sources.push(origin);
        }
        if let Some(chain) = &summary.tail.chain {
            for origin in &chain.origins {
                let needed = find_needed(origin.reference, gathered)?;
                // Its rows are checked as parts of segments.
                let keys = RowKeys {
                    data: origin.data_key.clone(),
                    pieces: None,
                };
                sources.push(self.found(needed, keys));
            }
            pieces_key = &chain.pieces_key;
        }
        if index
            .check_origins(sources.len().saturating_sub(1))
            .is_err()
        {
            let why = "it refers to another version without naming it";
            return Err(Unreadable::because(why));
        }
        let sealer = public.sealer(&summary.data_key);
        Ok(FoundImage {
            composer: Composer::new(sealer, pieces_key),
            summary,
            index,
            sources,
        })
    }

    fn found(&self, known: &KnownCheckpoint, keys: RowKeys) -> FoundOrigin {
        let public = known.manifest.public().clone();
        FoundOrigin {
            reader: BlockReader::new(self.hosts.clone(), public),
            known: known.clone(),
            keys,
        }
    }

    fn open_base(&self, known: &KnownCheckpoint) -> Result<Summary, Unreadable> {
        let version = known.version();
        known.manifest.open(&self.keys).map_err(|cause| {
            Unreadable::because(format!("version {version}, on which it builds: {cause}"))
        })
    }
}

/// A checkpoint that another one builds on, with enough shards to read it.
fn find_needed(reference: BaseRef, gathered: &Gathered) -> Result<&KnownCheckpoint, Unreadable> {
    let Some(known) = gathered.inventory.needed(reference) else {
        let why = match gathered.inventory.get(reference.checkpoint) {
            Some(_) => "the version that it builds on has another manifest",
            None => "the version that it builds on is not found",
        };
        return Err(Unreadable::because(why));
    };
    if known.can_lose().is_none() {
        let version = known.version();
        let found = known.shards_found();
        return Err(Unreadable::because(format!(
            "version {version}, on which it builds: {found} shards found, more are needed"
        )));
    }
    Ok(known)
}

/// The note that silent members may hold a version that is newer than the one that was read.
fn note_of_newer(gathered: &Gathered, known: &KnownCheckpoint, wish: &Wish<'_>) -> Option<String> {
    let silent = gathered.silence().silent;
    let is_newest = wish.which == Which::Newest && wish.sought.is_all();
    let may_be_newer = is_newest && silent >= known.manifest.public().redundancy.total();
    may_be_newer.then(|| {
        format!(
            "{silent} members are silent: they may hold a version that is newer than {}",
            known.version()
        )
    })
}
