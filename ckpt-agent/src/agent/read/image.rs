//! Images that are read in parts: each read costs only the segments that it overlaps.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Range;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use codec::decode::Composer;
use codec::grant::Rights;
use codec::index::FileKind;
use codec::{JobId, Version};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::agent::ask::gather::Gathered;
use crate::agent::read::choose::{Choices, FoundImage, FoundOrigin, Wish};
use crate::agent::read::fetch::{READ_SHARES, SeenOfHosts, Unreadable, planned};
use crate::agent::{Agent, Which};
use crate::core::Millis;
use crate::core::pick::WantedRows;
use crate::core::read::{
    FileNumber, Holders, Layout, Materials, Needs, NoFile, Part, RawRows, ReadAhead, SegmentCache,
    Shared,
};
use crate::core::restore::windows;
use crate::core::sought::Sought;
use crate::image::path_from_bytes;
use crate::inventory::KnownCheckpoint;
use crate::report::{ExitStatus, Failure, SkippedVersion};

/// One in this many bytes of the memory is for segments that may be read again.
const CACHE_SHARE: u64 = 4;

/// One in this many bytes of the memory is for segments that are fetched at once, each perhaps with a row of
/// its own and one of the base.
const GROUP_SHARE: u64 = 16;

/// Bytes of a full segment.
const SEGMENT_BYTES: u64 = codec::geometry::SEGMENT_BYTES as u64;

/// What has been fetched of an image so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCost {
    /// Bytes of blocks that hosts sent, without tables of shards and the index.
    pub fetched_bytes: u64,
    /// How many rows were fetched.
    pub rows: u64,
}

/// A file of an image, as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFile {
    /// The file's path in the image; empty for a stream.
    pub path: PathBuf,
    /// Length in bytes, holes included; zero for directories, symbolic links and pipes.
    pub bytes: u64,
    /// Whether it has content to read, as regular files and hard links to them have.
    pub can_be_read: bool,
}

/// A checkpoint that is open for reading. Opening it fetches only its index.
///
/// Reads of one image wait for each other, and have the time limits of a restore. If a host dies, stalls or
/// sends a wrong byte, another host with another shard takes over. A host that did badly is asked again
/// only when the others are not enough.
#[derive(Debug)]
pub struct Image {
    agent: Agent,
    job: JobId,
    skipped: Vec<SkippedVersion>,
    warnings: Vec<String>,
    layout: Arc<Layout>,
    composer: Arc<Composer>,
    started: Instant,
    /// Most segments that are fetched at once.
    group: usize,
    state: Mutex<State>,
    version: Version,
}

#[derive(Debug)]
struct State {
    /// The checkpoint itself, then its origins.
    sources: Vec<Source>,
    cache: SegmentCache,
    ahead: ReadAhead,
    cost: ReadCost,
}

/// A checkpoint whose rows are read: the image's own, or one of its origins.
#[derive(Debug)]
struct Source {
    found: FoundOrigin,
    holders: Holders,
}

impl Source {
    fn new(found: FoundOrigin) -> Self {
        Self {
            holders: Holders::new(found.known.holders.clone()),
            found,
        }
    }

    fn saw(&mut self, seen: &SeenOfHosts, now: Millis) {
        for (host, fault) in &seen.faults {
            self.holders.failed(*host, fault, now);
        }
        for host in &seen.slow {
            self.holders.was_slow(*host, now);
        }
    }
}

impl Agent {
    /// Opens a checkpoint of a job for reading.
    ///
    /// # Errors
    /// When no checkpoint can be read.
    pub async fn open(&self, job: &JobId, which: Which) -> Result<Image, Failure> {
        let doing = format!("cannot open job {job}");
        let job_tag = self.job_tag(job)?;
        self.needs(Rights::RESTORE, &doing)?;
        let wish = Wish {
            job,
            job_tag,
            which,
            sought: &Sought::default(),
            accept_marked: false,
            doing: &doing,
        };
        let mut choices = self.choices(&wish).await?;
        if choices.next().is_none() {
            return Err(self.no_checkpoint(choices.gathered(), &wish));
        }
        while let Some(known) = choices.next() {
            match self.find_image(known, choices.gathered()).await {
                Ok(found) => {
                    let warnings = self.after_choice(&choices, &wish);
                    let version = known.version();
                    return Ok(self.image(job, choices, found, version, warnings));
                }
                Err(Unreadable::Fatal(failure)) => return Err(failure),
                Err(Unreadable::Short(short)) => {
                    self.pass_over(&mut choices, &wish, short).await?;
                }
            }
        }
        Err(self.lost(choices, &doing))
    }

    fn image(
        &self,
        job: &JobId,
        choices: Choices,
        found: FoundImage,
        version: Version,
        warnings: Vec<String>,
    ) -> Image {
        let FoundImage {
            index,
            composer,
            sources,
            ..
        } = found;
        let memory = self.resources.memory_bytes;
        let group = usize::try_from(memory / GROUP_SHARE / SEGMENT_BYTES).unwrap_or(usize::MAX);
        let group = group.max(1);
        Image {
            agent: self.clone(),
            job: job.clone(),
            skipped: choices.skipped,
            warnings,
            layout: Arc::new(Layout::new(index)),
            composer: Arc::new(composer),
            started: Instant::now(),
            group,
            version,
            state: Mutex::new(State {
                sources: sources.into_iter().map(Source::new).collect(),
                cache: SegmentCache::new(memory / CACHE_SHARE),
                ahead: ReadAhead::new(group.saturating_sub(1)),
                cost: ReadCost::default(),
            }),
        }
    }
}

impl Image {
    /// The version that is open.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Newer versions that can't be read, and why.
    pub fn skipped(&self) -> &[SkippedVersion] {
        &self.skipped
    }

    /// Notes for the user.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The files of the image, in the order of their numbers.
    pub fn files(&self) -> impl Iterator<Item = (FileNumber, ImageFile)> {
        let files = self.layout.files().iter().enumerate();
        files.map(|(number, file)| {
            let file = ImageFile {
                path: path_from_bytes(&file.path).to_owned(),
                bytes: self.size(FileNumber(number)),
                can_be_read: matches!(
                    file.kind,
                    FileKind::Regular { .. } | FileKind::HardLink { .. }
                ),
            };
            (FileNumber(number), file)
        })
    }

    /// The regular file with this path; for a hard link, the file that it links to. Without a path, the only
    /// file of the image.
    ///
    /// # Errors
    /// When there is no such file, or it has no content, such as a directory.
    pub fn file(&self, path: Option<&[u8]>) -> Result<FileNumber, Failure> {
        self.layout.file(path).map_err(|cause| {
            let job = &self.job;
            let version = self.version;
            let status = match cause {
                NoFile::Missing(_) => ExitStatus::NotFound,
                NoFile::NotRegular { .. } | NoFile::Several(_) => ExitStatus::Usage,
            };
            let message = match cause {
                NoFile::NotRegular { .. } => {
                    format!("cannot read job {job}: version {version}: {cause}, and holds no bytes")
                }
                _ => format!("cannot read job {job}: version {version} {cause}"),
            };
            let next = format!("ckpt show --job {job} --version {version}");
            Failure::new(status, message).next(next)
        })
    }

    /// Length of a file in bytes, holes included; for a hard link, that of the file that it links to.
    pub fn size(&self, file: FileNumber) -> u64 {
        self.layout.size(self.regular(file))
    }

    /// What has been fetched so far.
    pub async fn cost(&self) -> ReadCost {
        self.state.lock().await.cost
    }

    /// Fills `buffer` from `offset` of a file on. Returns how many bytes were read: fewer than fit only at
    /// the end of the file.
    ///
    /// # Errors
    /// When the bytes can't be read now; `buffer` then holds nothing useful.
    pub async fn read_at(
        &self,
        file: FileNumber,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, Failure> {
        self.read_within(file, offset, buffer, u64::MAX).await
    }

    /// Like [`Self::read_at`], for a reader that stops at `reader_end` of the file: no segment behind it is
    /// read ahead.
    pub(crate) async fn read_within(
        &self,
        file: FileNumber,
        offset: u64,
        buffer: &mut [u8],
        reader_end: u64,
    ) -> Result<usize, Failure> {
        let file = self.regular(file);
        let ahead_end = self.layout.stream_at(file, reader_end);
        let end = offset.saturating_add(buffer.len() as u64);
        let mut state = self.state.lock().await;
        let end = end.min(self.layout.size(file)).max(offset);
        state.ahead.read(file.0, offset, end);
        let mut done: usize = 0;
        for part in self.layout.parts(file, offset..end) {
            let len = match &part {
                Part::Hole(bytes) => *bytes,
                Part::Stream(range) => range.end - range.start,
            };
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            let room = buffer.get_mut(done..done.saturating_add(len));
            let room = room.unwrap_or_default();
            match part {
                Part::Hole(_) => room.fill(0),
                Part::Stream(range) => self.read_stream(&mut state, range, room, ahead_end).await?,
            }
            done += room.len();
        }
        Ok(done)
    }

    /// The regular file that a hard link links to; any other file itself.
    fn regular(&self, file: FileNumber) -> FileNumber {
        match self.layout.files().get(file.0).map(|file| &file.kind) {
            Some(FileKind::HardLink { file }) => {
                FileNumber(usize::try_from(*file).unwrap_or(usize::MAX))
            }
            _ => file,
        }
    }

    /// Reads a part of the stream, a group of segments at a time.
    async fn read_stream(
        &self,
        state: &mut State,
        range: Range<u64>,
        buffer: &mut [u8],
        ahead_end: u64,
    ) -> Result<(), Failure> {
        let mut at = range.start;
        let mut rest = buffer;
        while at < range.end {
            let segments = self.layout.overlapping(&(at..range.end));
            let group = segments.start..segments.end.min(segments.start + self.group);
            let last = group.end.saturating_sub(1);
            let until = self.layout.bytes_of(last).end.min(range.end).max(at + 1);
            let made = self.segments(state, group, ahead_end).await?;
            let len = usize::try_from(until - at).unwrap_or(usize::MAX);
            let (room, after) = rest.split_at_mut(len.min(rest.len()));
            let copied = self.layout.copy(&(at..until), room, &made);
            copied.ok_or_else(|| self.failed(ExitStatus::Failed, "a segment is missing"))?;
            (rest, at) = (after, until);
        }
        Ok(())
    }

    /// Returns these segments, and if the image is read in order, fetches some of the following ones into the
    /// cache.
    async fn segments(
        &self,
        state: &mut State,
        group: Range<usize>,
        ahead_end: u64,
    ) -> Result<BTreeMap<usize, Shared>, Failure> {
        let needs = self
            .layout
            .needs(group.clone(), |number| state.cache.has(number));
        let needs = if needs.segments.is_empty() {
            needs
        } else {
            let more = state.ahead.more();
            let room = self.group.saturating_sub(group.len());
            let following = (group.end..self.layout.segments())
                .take_while(|number| self.layout.bytes_of(*number).start < ahead_end)
                .filter(|number| !self.layout.is_zero(*number))
                .take(more.min(room));
            let all = group.chain(following);
            self.layout.needs(all, |number| state.cache.has(number))
        };
        let kept = needs.kept.iter();
        let made: BTreeMap<usize, Shared> = kept
            .filter_map(|number| Some((*number, state.cache.get(*number)?)))
            .collect();
        if needs.segments.is_empty() {
            return Ok(made);
        }
        let rows = self.fetch(state, &needs).await?;
        let layout = Arc::clone(&self.layout);
        let composer = Arc::clone(&self.composer);
        let new = needs.segments.clone();
        let making = tokio::task::spawn_blocking(move || {
            let mut materials = Materials {
                composer: &composer,
                rows,
                made,
            };
            let result = layout.make(&needs, &mut materials);
            result.map(|()| materials.made)
        });
        let made = making.await.map_err(|cause| cause.to_string());
        let made = made.and_then(|made| made.map_err(|cause| cause.to_string()));
        let made = made.map_err(|cause| self.failed(ExitStatus::Damaged, &cause))?;
        for (number, bytes) in made.iter().filter(|(number, _)| new.contains(number)) {
            state.cache.put(*number, Arc::clone(bytes));
        }
        Ok(made)
    }

    /// Fetches and decodes the needed rows, those of the checkpoint and of its origins at the same time.
    async fn fetch(&self, state: &mut State, needs: &Needs) -> Result<RawRows, Failure> {
        let State { sources, cost, .. } = state;
        let mut wanted = vec![WantedRows::new(); sources.len()];
        for ((source, row), format) in &needs.rows {
            let Some(rows) = wanted.get_mut(*source) else {
                let why = "it refers to rows of another version that are not there";
                return Err(self.failed(ExitStatus::Damaged, why));
            };
            rows.insert(*row, *format);
        }
        let costs = sources.iter().zip(&wanted);
        let costs: Vec<_> = costs
            .map(|(source, rows)| planned(&source.found.known, rows))
            .collect();
        let windows = windows(self.agent.window(READ_SHARES), &costs);
        let all = sources
            .iter_mut()
            .zip(wanted.iter().zip(windows))
            .enumerate();
        let all = all.filter(|(_, (_, (rows, _)))| !rows.is_empty());
        let mut reading: Vec<Pin<Box<_>>> = all
            .map(|(number, (source, (rows, window)))| {
                Box::pin(async move { (number, self.rows(source, rows, window).await) })
            })
            .collect();
        let mut made = RawRows::new();
        while !reading.is_empty() {
            let (number, read) = poll_fn(|context| {
                for at in 0..reading.len() {
                    if let Poll::Ready(read) = reading[at].as_mut().poll(context) {
                        drop(reading.swap_remove(at));
                        return Poll::Ready(read);
                    }
                }
                Poll::Pending
            })
            .await;
            let (rows, spent) = read?;
            cost.fetched_bytes += spent.fetched_bytes;
            cost.rows += spent.rows;
            let rows = rows.into_iter();
            made.extend(rows.map(|(row, raw)| ((number, row), raw)));
        }
        Ok(made)
    }

    /// Reads rows from hosts that did well in earlier reads. If these are not enough, tries all hosts that
    /// were known to hold shards, and then asks which hosts hold them now.
    async fn rows(
        &self,
        origin: &mut Source,
        rows: &WantedRows,
        window_bytes: u64,
    ) -> Result<(BTreeMap<u64, Vec<u8>>, ReadCost), Failure> {
        let mut cost = ReadCost {
            rows: rows.len() as u64,
            ..ReadCost::default()
        };
        let data = origin.found.known.manifest.public().redundancy.data();
        let well = origin.holders.to_ask(self.now(), data);
        let mut asked = vec![well];
        let all = origin.holders.all().to_vec();
        if asked.first() != Some(&all) {
            asked.push(all);
        }
        let mut status = ExitStatus::TooFewHosts;
        let mut stop = Unreadable::because("no host was asked");
        for attempt in 0..=asked.len() {
            let holders = match asked.get(attempt) {
                Some(holders) => holders.clone(),
                None => {
                    let gathered = self.look_again(origin).await?;
                    status = gathered.lost_status();
                    origin.holders.all().to_vec()
                }
            };
            let known = KnownCheckpoint {
                holders,
                ..origin.found.known.clone()
            };
            let (read, seen) = self
                .agent
                .read_from_known(
                    &known,
                    &origin.found.keys,
                    &origin.found.reader,
                    rows,
                    window_bytes,
                )
                .await;
            cost.fetched_bytes += seen.bytes;
            origin.saw(&seen, self.now());
            match read {
                Ok(read) => return Ok((read, cost)),
                Err(cause) => stop = cause,
            }
        }
        Err(match stop {
            Unreadable::Fatal(failure) => failure,
            Unreadable::Short(short) => {
                let mut failure = self.failed(short.status_or(status), &short.reason);
                failure.hosts = short.notes;
                failure
            }
        })
    }

    /// Asks all hosts which of them hold the checkpoint now: it may have been repaired elsewhere, or
    /// forgotten.
    async fn look_again(&self, origin: &mut Source) -> Result<Gathered, Failure> {
        let (gathered, found) = self.agent.holders_now(&origin.found.known).await;
        let doing = format!("cannot read job {}", self.job);
        self.agent.require_answers(&gathered, &doing)?;
        let Some(holders) = found else {
            let what = "no host that answers shows it any more";
            let status = match gathered.away() {
                0 => ExitStatus::NotFound,
                _ => ExitStatus::TooFewHosts,
            };
            return Err(self.failed(status, what));
        };
        origin.holders = Holders::new(holders);
        Ok(gathered)
    }

    fn failed(&self, status: ExitStatus, why: &str) -> Failure {
        let job = &self.job;
        let version = self.version;
        let message = format!("cannot read job {job}: version {version}: {why}");
        Failure::new(status, message).next(match status {
            ExitStatus::TooFewHosts => "again when more hosts are up: ckpt hosts".to_owned(),
            ExitStatus::NotFound => format!("ckpt list --job {job}"),
            _ => format!("ckpt verify --job {job} --version {version} --read-data"),
        })
    }

    fn now(&self) -> Millis {
        let elapsed = u64::try_from(self.started.elapsed().as_millis());
        Millis(elapsed.unwrap_or(u64::MAX))
    }
}
