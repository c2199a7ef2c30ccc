//! Lists an owner's checkpoints, and shows one of them.

use std::collections::BTreeMap;

use codec::index::{FileEntry, FileKind, SegmentEntry};
use codec::labels::RESERVED;
use codec::manifest::ImageKind;
use codec::seal::Cipher;
use codec::{CheckpointId, JobId, Version};

use crate::agent::ask::gather::Gathered;
use crate::agent::read::fetch::Unreadable;
use crate::agent::{Agent, Which};
use crate::core::gather::WaitUntil;
use crate::core::sought::{NOTE, Sought};
use crate::inventory::{self, Brief, KnownCheckpoint, OpenedCheckpoint};
use crate::report::{ExitStatus, Failure, ListReport, ListedCheckpoint, ShowReport, ShownFile};
use crate::unix_time::unix_seconds;
use transfer::get::BlockReader;

impl Agent {
    /// Lists the owner's checkpoints, or those of one job, that meet the conditions of `sought`; with `host`,
    /// only those of which that host holds shards.
    ///
    /// # Errors
    /// When no host answers.
    pub async fn list(
        &self,
        job: Option<&JobId>,
        sought: &Sought,
        host: Option<&str>,
    ) -> Result<ListReport, Failure> {
        let (gathered, opened) = self.find_all("cannot list", job).await?;
        let job_tag = job.map(|job| self.job_tag(job)).transpose()?;
        let now = unix_seconds();
        let is_listed = |one: &&OpenedCheckpoint| {
            let mut holders = one.known.holders.iter();
            let is_there =
                host.is_none_or(|name| holders.any(|(_, at)| self.hosts.name(*at) == name));
            is_there && self.is_sought(sought, &one.known, now)
        };
        let kept_for = kept_for(&opened);
        // What is left of a save that was interrupted is nothing to anybody until a version uses it.
        let is_named =
            |one: &&OpenedCheckpoint| !one.brief.is_remnant || kept_for.contains_key(&one.id());
        let known = opened.iter().map(|one| (one.id(), one.known.can_lose()));
        let known: BTreeMap<CheckpointId, Option<usize>> = known.collect();
        let of_all = |one: &OpenedCheckpoint| {
            let kept_for = kept_for.get(&one.id()).copied();
            let can_lose_of = |need| known.get(&need).copied().flatten();
            ListedCheckpoint {
                // Of what is no version, only its own rows are needed.
                can_lose: match kept_for {
                    Some(_) => one.known.can_lose(),
                    None => one.weakest(one.known.can_lose(), can_lose_of),
                },
                void: one.is_void,
                kept_for,
                ..listed(&gathered, &one.known, &one.brief)
            }
        };
        Ok(ListReport {
            checkpoints: opened
                .iter()
                .filter(is_named)
                .filter(is_listed)
                .map(of_all)
                .collect(),
            silent: self.silent_notes(&gathered),
            may_be_away: self.may_be_away(job_tag, &gathered),
            left_out: gathered.inventory.left_out(),
        })
    }

    /// All checkpoints, or those of a job, whose summaries can be opened, without deleted ones.
    pub(crate) async fn find_all(
        &self,
        doing: &str,
        job: Option<&JobId>,
    ) -> Result<(Gathered, Vec<OpenedCheckpoint>), Failure> {
        let (mut gathered, opened) = self.show_all(doing, job).await?;
        if job.is_some() {
            let said = gathered.said.iter();
            gathered.words = said.map(|said| (said.job_tag, said.clone())).collect();
            return Ok((gathered, opened));
        }
        let (_, said) = self.all_notices(&gathered, doing).await?;
        for said in said.values() {
            gathered.heed(said);
        }
        gathered.words = said;
        let (opened, _) = gathered.inventory.opened();
        Ok((gathered, opened))
    }

    /// Like [`Self::find_all`], but without a `job`, also deleted checkpoints that a host still has.
    pub(crate) async fn show_all(
        &self,
        doing: &str,
        job: Option<&JobId>,
    ) -> Result<(Gathered, Vec<OpenedCheckpoint>), Failure> {
        let job_tag = job.map(|job| self.job_tag(job)).transpose()?;
        let gathered = self.gather(job_tag, WaitUntil::ALL).await;
        self.require_answers(&gathered, doing)?;
        let (opened, failed) = gathered.inventory.opened();
        for cause in failed {
            tracing::warn!(%cause, "checkpoint left out");
        }
        Ok((gathered, opened))
    }

    /// Describes one checkpoint: its files, sizes and holders.
    ///
    /// # Errors
    /// When there is no such checkpoint, or its index can't be read.
    pub async fn show(&self, job: &JobId, which: Which) -> Result<ShowReport, Failure> {
        let doing = format!("cannot show job {job}");
        let (gathered, opened) = self.find_all(&doing, Some(job)).await?;
        let versions = opened.iter().rev().filter(|one| !one.brief.is_remnant);
        let chosen = { versions }.find(|one| match which {
            Which::Newest => !one.is_void,
            Which::Version(version) => one.known.version() == version,
        });
        let Some(one) = chosen else {
            let job_tag = Some(self.job_tag(job)?);
            return Err(self.not_found(&doing, which, &Sought::default(), job_tag, &gathered));
        };
        let OpenedCheckpoint { known, brief, .. } = one;
        let summary = known.manifest.open(&self.keys);
        let summary = summary
            .map_err(|cause| Failure::new(ExitStatus::Failed, format!("{doing}: {cause}")))?;
        let public = known.manifest.public();
        let reader = BlockReader::new(self.hosts.clone(), public.clone());
        let index = self
            .read_index(known, &summary, &reader)
            .await
            .map_err(|stop| match stop {
                Unreadable::Fatal(failure) => failure,
                Unreadable::Short(short) => {
                    let message = format!("{doing}: {}", short.reason);
                    let mut failure = Failure::new(short.status(&gathered), message);
                    failure.hosts = short.notes;
                    failure
                }
            })?;
        let zeros = index.segments.iter().map(|segment| match segment {
            SegmentEntry::Zero { bytes } => *bytes,
            _ => 0,
        });
        Ok(ShowReport {
            checkpoint: ListedCheckpoint {
                kept_for: kept_for(&opened).remove(&one.id()),
                ..listed(&gathered, known, brief)
            },
            kind: match summary.kind {
                ImageKind::File => "file",
                ImageKind::Tree => "tree",
                ImageKind::Stream => "stream",
            }
            .to_owned(),
            encrypted: public.cipher != Cipher::None,
            segments: index.rows().count() as u64,
            zero_bytes: zeros.sum(),
            shard_bytes: public.block_bytes,
            holders: self.holders(public.redundancy, &known.holders),
            files: index
                .files
                .iter()
                .map(|file| shown(file, &index.files))
                .collect(),
            silent: self.silent_notes(&gathered),
        })
    }
}

/// Which of these checkpoints are no versions any more, and which version needs each. All are in the order of versions
/// within a job.
pub(crate) fn kept_for(opened: &[OpenedCheckpoint]) -> BTreeMap<CheckpointId, Version> {
    inventory::kept_for(opened.iter().map(|one| (one.known.version(), &*one.brief)))
}

fn listed(gathered: &Gathered, known: &KnownCheckpoint, brief: &Brief) -> ListedCheckpoint {
    let public = known.manifest.public();
    let labels = &brief.labels;
    let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    ListedCheckpoint {
        job: brief.job.clone(),
        version: public.version,
        checkpoint: public.checkpoint,
        created: public.created,
        redundancy: public.redundancy,
        image_bytes: brief.image_bytes,
        stored_bytes: brief.stored_bytes,
        kept_for: None,
        shards_found: known.shards_found(),
        can_lose: known.can_lose(),
        marked: brief.mark.map(|mark| mark.to_string()),
        void: false,
        retired: false,
        kept_until: gathered.kept_until(known),
        note: labels.get(NOTE).map(str::to_owned),
        labels: labels
            .iter()
            .filter(|(key, _)| !key.starts_with(RESERVED))
            .map(owned)
            .collect(),
        own_labels: labels
            .iter()
            .filter(|(key, _)| key.starts_with(RESERVED))
            .map(owned)
            .collect(),
    }
}

fn shown(file: &FileEntry, files: &[FileEntry]) -> ShownFile {
    let (kind, data_bytes, target) = match &file.kind {
        FileKind::Directory => ("directory", 0, None),
        FileKind::Regular { extents, .. } => {
            ("file", extents.iter().map(|extent| extent.len).sum(), None)
        }
        FileKind::Symlink { target } => ("symlink", 0, Some(printable(target))),
        FileKind::HardLink { file } => {
            let linked = usize::try_from(*file).ok().and_then(|at| files.get(at));
            ("hardlink", 0, linked.map(|linked| printable(&linked.path)))
        }
        FileKind::Fifo => ("fifo", 0, None),
    };
    ShownFile {
        path: printable(&file.path),
        kind: kind.to_owned(),
        size: file.size(),
        data_bytes,
        mode: file.mode,
        mtime: file.mtime_s,
        target,
    }
}

/// A name on one line, escaped so that the bytes can be recovered.
fn printable(name: &[u8]) -> String {
    name.utf8_chunks()
        .flat_map(|chunk| {
            let valid = chunk.valid().chars().flat_map(|c| {
                let plain = !c.is_control() && c != '\\';
                let text = if plain {
                    c.to_string()
                } else {
                    c.escape_default().to_string()
                };
                text.chars().collect::<Vec<_>>()
            });
            let invalid = chunk
                .invalid()
                .iter()
                .flat_map(|byte| format!("\\x{byte:02x}").chars().collect::<Vec<_>>());
            valid.chain(invalid).collect::<Vec<_>>()
        })
        .collect()
}
