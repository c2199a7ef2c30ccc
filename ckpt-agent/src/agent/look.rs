//! What changes nothing, or only removes: list, show, verify, forget, hosts.

use std::sync::Arc;

use codec::index::{FileEntry, FileKind, SegmentEntry};
use codec::manifest::{ImageKind, Summary};
use codec::seal::Cipher;
use codec::{JobId, ShardIndex, Version};
use placement::AvailabilityBitmap;
use tokio::task::JoinSet;

use super::gather::{Gathered, Patience};
use super::restore::Stop;
use super::{Agent, ForgetWhich, Which};
use crate::cancel::Cancel;
use crate::core::{Fault, HostIndex};
use crate::inventory::{KnownCheckpoint, OpenedCheckpoint};
use crate::report::{
    BadShard, ExitStatus, Failure, ForgetReport, Holder, HostReport, HostsReport, ListReport,
    ListedCheckpoint, Observer, Progress, ProgressEvent, ShowReport, ShownFile, VerifiedCheckpoint,
    VerifyReport,
};
use crate::transfer::get::BlockReader;

/// Rows that are read at once when all data are verified.
const VERIFY_ROWS: u64 = 16;

impl Agent {
    /// Lists the owner's checkpoints, or those of one job.
    ///
    /// # Errors
    /// When no host answers.
    pub async fn list(&self, job: Option<&JobId>) -> Result<ListReport, Failure> {
        let (gathered, opened) = self.find_all("cannot list", job).await?;
        Ok(ListReport {
            checkpoints: opened
                .iter()
                .map(|one| listed(&one.known, &one.summary))
                .collect(),
            silent: self.silent_notes(&gathered),
        })
    }

    /// All checkpoints, or those of a job, whose summaries open.
    async fn find_all(
        &self,
        doing: &str,
        job: Option<&JobId>,
    ) -> Result<(Gathered, Vec<OpenedCheckpoint>), Failure> {
        let job_tag = job.map(|job| self.owner.job_tag(job));
        let gathered = self.gather(job_tag, Patience::All).await;
        self.somebody(&gathered, doing)?;
        let (opened, failed) = gathered.inventory.opened(&self.owner);
        for cause in failed {
            tracing::warn!(%cause, "checkpoint left out");
        }
        Ok((gathered, opened))
    }

    /// Describes one checkpoint.
    ///
    /// # Errors
    /// When there is none, or its index can't be read.
    pub async fn show(&self, job: &JobId, which: Which) -> Result<ShowReport, Failure> {
        let doing = format!("cannot show job {job}");
        let (gathered, opened) = self.find_all(&doing, Some(job)).await?;
        let chosen = opened.iter().rev().find(|one| match which {
            Which::Newest => true,
            Which::Version(version) => one.known.version() == version,
        });
        let Some(OpenedCheckpoint { known, summary }) = chosen else {
            return Err(not_found(&doing, which));
        };
        let public = known.manifest.public();
        let reader = BlockReader::new(self.hosts.clone(), public.clone());
        let index = self
            .read_index(known, summary, &reader)
            .await
            .map_err(|stop| match stop {
                Stop::Fatal(failure) => failure,
                Stop::Unrestorable { reason, notes } => {
                    let mut failure =
                        Failure::new(ExitStatus::Damaged, format!("{doing}: {reason}"));
                    failure.hosts = notes;
                    failure
                }
            })?;
        let zeros = index.segments.iter().map(|segment| match segment {
            SegmentEntry::Zero { bytes } => *bytes,
            SegmentEntry::Stored { .. } => 0,
        });
        Ok(ShowReport {
            checkpoint: listed(known, summary),
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

    /// Checks that shards are where they should be and, with `read_data`, reads every block.
    ///
    /// # Errors
    /// When no host answers or there is no such checkpoint. Damage is in the report.
    pub async fn verify(
        &self,
        job: Option<&JobId>,
        version: Option<Version>,
        read_data: bool,
        observer: Arc<dyn Observer>,
        mut cancel: Cancel,
    ) -> Result<VerifyReport, Failure> {
        let doing = "cannot verify";
        let (gathered, mut opened) = self.find_all(doing, job).await?;
        opened.retain(|one| version.is_none_or(|version| one.known.version() == version));
        if opened.is_empty() && (job.is_some() || version.is_some()) {
            return Err(not_found(
                doing,
                version.map_or(Which::Newest, Which::Version),
            ));
        }
        let total = opened
            .iter()
            .map(|one| one.known.manifest.public().block_bytes * one.known.holders.len() as u64);
        let mut verifier = Verifier {
            agent: self,
            read_data,
            progress: Progress {
                total_bytes: read_data.then(|| total.sum()),
                ..Progress::default()
            },
            observer,
        };
        let mut checkpoints = Vec::new();
        for one in &opened {
            let verified = tokio::select! {
                biased;
                () = cancel.cancelled() => {
                    return Err(Failure::new(ExitStatus::Interrupted, format!("{doing}: interrupted")));
                }
                verified = verifier.checkpoint(one) => verified,
            };
            checkpoints.push(verified);
        }
        Ok(VerifyReport {
            checkpoints,
            read_data,
            read_bytes: verifier.progress.done_bytes,
            silent: self.silent_notes(&gathered),
        })
    }

    /// Removes checkpoints.
    ///
    /// # Errors
    /// When there is none.
    pub async fn forget(&self, job: &JobId, which: ForgetWhich) -> Result<ForgetReport, Failure> {
        let doing = format!("cannot forget job {job}");
        let job_tag = self.owner.job_tag(job);
        let mut gathered = self.gather(Some(job_tag), Patience::All).await;
        self.somebody(&gathered, &doing)?;
        let newest = gathered.inventory.newest_first();
        let chosen: Vec<_> = newest
            .into_iter()
            .enumerate()
            .filter(|(age, known)| match which {
                ForgetWhich::All => true,
                ForgetWhich::Version(version) => known.version() == version,
                ForgetWhich::Keep(keep) => *age >= keep as usize,
            })
            .map(|(_, known)| (known.version(), known.manifest.public().checkpoint))
            .collect();
        if chosen.is_empty() && !matches!(which, ForgetWhich::Keep(_)) {
            return Err(not_found(
                &doing,
                match which {
                    ForgetWhich::Version(version) => Which::Version(version),
                    _ => Which::Newest,
                },
            ));
        }
        let hosts: Vec<HostIndex> = gathered.hosts().collect();
        for (_, checkpoint) in &chosen {
            let mut asking = JoinSet::new();
            for host in &hosts {
                let (agent, host, checkpoint) = (self.clone(), *host, *checkpoint);
                asking.spawn(async move { (host, agent.hosts.forget(host, checkpoint).await) });
            }
            for (host, answer) in asking.join_all().await {
                if let Err(fault) = answer {
                    gathered.silent.push((host, fault));
                }
            }
        }
        Ok(ForgetReport {
            job: job.clone(),
            removed: chosen.into_iter().map(|(version, _)| version).collect(),
            silent: self.silent_notes(&gathered),
        })
    }

    /// Asks all hosts how they are.
    ///
    /// # Errors
    /// Never for a host that does not answer: that is in the report.
    pub async fn hosts(&self) -> Result<HostsReport, Failure> {
        let mut asking = JoinSet::new();
        for host in self.hosts.all() {
            let agent = self.clone();
            asking.spawn(async move {
                let answers =
                    tokio::join!(agent.hosts.status(host), agent.hosts.announcement(host));
                (host, answers)
            });
        }
        let mut answers = asking.join_all().await;
        answers.sort_by_key(|(host, _)| *host);
        let hosts = answers.into_iter().filter_map(|(host, (answer, said))| {
            let said = said.ok().flatten();
            let said = said.as_ref();
            let entry = self.hosts.entry(host)?;
            let error = answer.as_ref().err().map(Fault::to_string);
            let (status, rtt) = answer.ok().unzip();
            Some(HostReport {
                name: entry.name.clone(),
                addr: entry.addr.to_string(),
                site: entry.site.clone(),
                up: error.is_none(),
                error,
                rtt_ms: rtt.map(|rtt| rtt.as_secs_f64() * 1000.0),
                software: status
                    .as_ref()
                    .map(|s| s.software.escape_debug().to_string()),
                capacity_bytes: status.as_ref().map(|s| s.capacity_bytes),
                used_bytes: status.as_ref().map(|s| s.used_bytes),
                free_bytes: status.as_ref().map(|s| s.free_bytes),
                shards: status.as_ref().map(|s| s.shards),
                checkpoints: status.as_ref().map(|s| s.checkpoints),
                uptime_s: status.as_ref().map(|s| s.uptime_s),
                machine: said.map(|said| said.guest_state.to_string()),
                disk: said.map(|said| said.storage_state.to_string()),
                refuses_for_s: said.map(|said| said.refuses_for_s),
                availability: said.and_then(|said| share_of_time(&said.presence_bitmap)),
                stays_10h: said.map(|said| said.presence.at(36_000.0).value()),
            })
        });
        Ok(HostsReport {
            hosts: hosts.collect(),
        })
    }
}

/// Share of the known time in which a host was there; `None` when nothing is known.
fn share_of_time(bitmap: &AvailabilityBitmap) -> Option<f64> {
    let known = bitmap.known().count();
    (known > 0).then(|| f64::from(bitmap.usable().count()) / f64::from(known))
}

fn not_found(doing: &str, which: Which) -> Failure {
    let what = match which {
        Which::Newest => "no checkpoint".to_owned(),
        Which::Version(version) => format!("no version {version}"),
    };
    Failure::new(ExitStatus::NotFound, format!("{doing}: {what}")).next("ckpt list")
}

fn listed(known: &KnownCheckpoint, summary: &Summary) -> ListedCheckpoint {
    let public = known.manifest.public();
    ListedCheckpoint {
        job: summary.job.clone(),
        version: public.version,
        checkpoint: public.checkpoint,
        created: public.created,
        redundancy: public.redundancy,
        image_bytes: summary.image_bytes,
        stored_bytes: summary.stored_bytes,
        shards_found: known.shards_found(),
        can_lose: known.can_lose(),
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

/// A name in one line, from which the bytes can be told.
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

struct Verifier<'a> {
    agent: &'a Agent,
    read_data: bool,
    progress: Progress,
    observer: Arc<dyn Observer>,
}

impl Verifier<'_> {
    async fn checkpoint(&mut self, one: &OpenedCheckpoint) -> VerifiedCheckpoint {
        let known = &one.known;
        let public = known.manifest.public();
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        for (shard, host) in &known.holders {
            let name = self.agent.hosts.name(*host).to_owned();
            match self.shard(known, *shard, *host).await {
                Ok(()) => good.push(Holder {
                    shard: shard.number(),
                    host: Some(name),
                }),
                Err(fault) => bad.push(BadShard {
                    shard: shard.number(),
                    host: Some(name),
                    what: fault.to_string(),
                }),
            }
        }
        for shard in public.redundancy.shards() {
            if known.holders.iter().all(|(held, _)| *held != shard) {
                bad.push(BadShard {
                    shard: shard.number(),
                    host: None,
                    what: "no host that answers has it".to_owned(),
                });
            }
        }
        let mut different: Vec<u8> = good.iter().map(|holder| holder.shard).collect();
        different.dedup();
        VerifiedCheckpoint {
            job: one.summary.job.clone(),
            version: public.version,
            can_lose: different.len().checked_sub(public.redundancy.data()),
            good,
            bad,
        }
    }

    async fn shard(
        &mut self,
        known: &KnownCheckpoint,
        shard: ShardIndex,
        host: HostIndex,
    ) -> Result<(), Fault> {
        let public = known.manifest.public();
        let reader = BlockReader::new(self.agent.hosts.clone(), public.clone());
        reader.fetch_outline(shard, host).await?;
        let mut first = 0;
        while self.read_data && first < public.rows {
            let end = public.rows.min(first + VERIFY_ROWS);
            let mut bytes = 0;
            let count = |_, block: bytes::Bytes| bytes += block.len() as u64;
            reader.blocks(shard, host, first..end, count).await?;
            self.progress.done_bytes += bytes;
            self.progress.network_bytes += bytes;
            self.observer.event(ProgressEvent::Progress(self.progress));
            first = end;
        }
        Ok(())
    }
}
