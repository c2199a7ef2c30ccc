//! The library: what a program needs that keeps its state on a grid.
//!
//! ```no_run
//! use ckpt_agent::client::{Save, Settings, Which, blocking::Client};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect(&Settings::of_grid("/home/ada/grid/grid.toml"))?;
//! let job = "42".parse()?;
//! client.save(Save::of_reader(&job, std::io::Cursor::new(b"state")))?;
//! let image = client.open(&job, Which::Newest)?;
//! let mut first = [0; 2];
//! image.read_at(image.file(None)?, 0, &mut first)?;
//! client.close();
//! # Ok(())
//! # }
//! ```
//!
//! Every call ends: waits for hosts are bounded as those of the program are, and a [`Canceller`] or, in
//! asynchronous programs, dropping the future ends one early. A save that ends early commits nothing.
//! Calls need a Tokio runtime; [`blocking`] has one of its own. A [`Failure`] says with its status what the
//! program would end with, and what to try next.

pub mod blocking;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use codec::labels::{LabelError, Labels};
use codec::seal::Cipher;

pub use crate::agent::{
    ForgetWhich, Image, ImageFile, ReadCost, RestoreTarget, SaveInput, Tenure, Which,
};
pub use crate::cancel::{Cancel, Canceller, canceller};
pub use crate::core::read::FileNumber;
pub use crate::image::NamedPath;
pub use crate::report::{
    CatReport, ExitStatus, Failure, ForgetReport, ListReport, Observer, Progress, ProgressEvent,
    RestoreReport, SaveReport, Silent,
};
pub use codec::{JobId, Redundancy, Version};

use crate::agent::{
    After, Agent, ByteRange, CatRequest, MEMORY_USUAL, PlacementWish, Resources, RestoreRequest,
    SaveRequest,
};
use crate::connection;
use crate::core::effort::Effort;
use crate::core::sought::{Sought, SoughtLabel};
use crate::image::{Exclude, OnceReader};

/// Which grid, who acts, and what may be used of this machine.
#[derive(Clone, Debug)]
pub struct Settings {
    grid: PathBuf,
    key: Option<PathBuf>,
    certificate: Option<PathBuf>,
    resources: Resources,
}

impl Settings {
    /// The grid of this file, with the key that it names or that is in its usual place, 256 MiB for data in
    /// flight and all processors. What is learnt of hosts is kept where the program keeps it.
    pub fn of_grid(grid: impl Into<PathBuf>) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            grid: grid.into(),
            key: None,
            certificate: None,
            resources: Resources {
                memory_bytes: MEMORY_USUAL,
                cpus,
                bytes_per_second: None,
            },
        }
    }

    /// Acts with the key in this file, its owner's or a job key; the certificate of the first is beside it,
    /// with the ending `crt`, unless [`Self::certificate`] says otherwise.
    #[must_use]
    pub fn key(mut self, file: impl Into<PathBuf>) -> Self {
        self.key = Some(file.into());
        self
    }

    /// The certificate of the key.
    #[must_use]
    pub fn certificate(mut self, file: impl Into<PathBuf>) -> Self {
        self.certificate = Some(file.into());
        self
    }

    /// Bytes of memory for data in flight and for parts that were read; at least 16 MiB.
    #[must_use]
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.resources.memory_bytes = bytes.max(16 << 20);
        self
    }

    /// Threads for compression and coding; at least one.
    #[must_use]
    pub fn cpus(mut self, cpus: usize) -> Self {
        self.resources.cpus = cpus.max(1);
        self
    }

    /// Bytes per second to all hosts together, and from them; at least 64 KiB.
    #[must_use]
    pub fn bytes_per_second(mut self, bytes: u64) -> Self {
        self.resources.bytes_per_second = Some(bytes.max(64 << 10));
        self
    }
}

/// How a long call is watched and ended.
#[derive(Clone, Default)]
struct Watch {
    observer: Option<Arc<dyn Observer>>,
    cancel: Option<Cancel>,
}

impl Watch {
    fn parts(&self) -> (Arc<dyn Observer>, Cancel) {
        let observer = self.observer.clone();
        let cancel = self.cancel.clone();
        (
            observer.unwrap_or_else(|| Arc::new(Silent)),
            // Nobody says stop: the side that could is dropped.
            cancel.unwrap_or_else(|| canceller().1),
        )
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch")
            .field("observed", &self.observer.is_some())
            .field("cancel", &self.cancel)
            .finish()
    }
}

/// What to save, and how.
#[derive(Clone, Debug)]
pub struct Save {
    request: SaveRequest,
    watch: Watch,
}

impl Save {
    /// Saves this input as the next version of a job, as `ckpt save` does without options: 3 data and 2
    /// parity shards, two versions kept.
    pub fn of(job: &JobId, input: SaveInput) -> Self {
        let request = SaveRequest {
            job: job.clone(),
            input,
            redundancy: Redundancy::DEFAULT,
            allow_degraded: None,
            keep: 2,
            full: false,
            tenure: None,
            deadline: None,
            effort: Effort::Auto,
            cipher: Cipher::Aes256Gcm,
            exclude: Exclude::default(),
            skip_unreadable: false,
            accept_changed: false,
            placement: PlacementWish::default(),
            labels: Labels::default(),
            after: None,
        };
        let watch = Watch::default();
        Self { request, watch }
    }

    /// Saves what a reader gives, to its end.
    pub fn of_reader(job: &JobId, reader: impl Read + Send + 'static) -> Self {
        Self::of(job, SaveInput::Reader(OnceReader::new(reader)))
    }

    /// Saves files and directories.
    pub fn of_paths(job: &JobId, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        Self::of(job, SaveInput::Paths(paths.into_iter().collect()))
    }

    /// Is committed only as the one successor of a version, as with `ckpt save --after`.
    #[must_use]
    pub fn after(mut self, after: After) -> Self {
        self.request.after = Some(after);
        self
    }

    /// Adds a label, which hosts can't read.
    ///
    /// # Errors
    /// When it can't be a label, or the key has one.
    pub fn label(mut self, key: &str, value: impl Into<String>) -> Result<Self, LabelError> {
        let labels = std::mem::take(&mut self.request.labels);
        let mut pairs: Vec<(String, String)> = labels.into();
        pairs.push((key.to_owned(), value.into()));
        self.request.labels = Labels::of_user(pairs)?;
        Ok(self)
    }

    /// So many shards.
    #[must_use]
    pub const fn redundancy(mut self, redundancy: Redundancy) -> Self {
        self.request.redundancy = redundancy;
        self
    }

    /// Versions to keep, this one included; at least one.
    #[must_use]
    pub fn keep(mut self, versions: u32) -> Self {
        self.request.keep = versions.max(1);
        self
    }

    /// Finishes within this time or leaves the old version standing.
    #[must_use]
    pub const fn deadline(mut self, time: Duration) -> Self {
        self.request.deadline = Some(time);
        self
    }

    /// For how long the job's checkpoints are kept after this.
    #[must_use]
    pub const fn tenure(mut self, tenure: Tenure) -> Self {
        self.request.tenure = Some(tenure);
        self
    }

    /// Reports progress, from several threads; each call has to return quickly.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.watch.observer = Some(observer);
        self
    }

    /// Ends, and commits nothing, when this says so.
    #[must_use]
    pub fn cancel(mut self, cancel: Cancel) -> Self {
        self.watch.cancel = Some(cancel);
        self
    }
}

/// What to restore, and how.
#[derive(Clone, Debug)]
pub struct Restore {
    request: RestoreRequest,
    watch: Watch,
}

impl Restore {
    /// Restores a whole checkpoint to a path: a directory that is there, to restore into it, or a new name.
    pub fn new(job: &JobId, which: Which, to: impl Into<PathBuf>) -> Self {
        let request = RestoreRequest {
            job: job.clone(),
            which,
            sought: Sought::default(),
            target: RestoreTarget::Path(to.into()),
            if_exists: false,
            least_data: None,
            force: false,
            set_id_bits: false,
            globs: Vec::new(),
            dry_run: false,
        };
        let watch = Watch::default();
        Self { request, watch }
    }

    /// Considers only checkpoints with this label.
    #[must_use]
    pub fn label(mut self, key: &str, value: impl Into<String>) -> Self {
        let label = SoughtLabel::is(key, value);
        self.request.sought.labels.push(label);
        self
    }

    /// Replaces a file by a file and a directory by a tree of its name.
    #[must_use]
    pub const fn force(mut self) -> Self {
        self.request.force = true;
        self
    }

    /// Reports progress, from several threads; each call has to return quickly.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.watch.observer = Some(observer);
        self
    }

    /// Ends, and leaves the target as it was, when this says so.
    #[must_use]
    pub fn cancel(mut self, cancel: Cancel) -> Self {
        self.watch.cancel = Some(cancel);
        self
    }
}

/// Which bytes of a checkpoint to write, and how.
#[derive(Clone, Debug)]
pub struct Bytes {
    request: CatRequest,
    watch: Watch,
}

impl Bytes {
    /// All of the only file that a checkpoint has, or of its stream.
    pub fn of(job: &JobId, which: Which) -> Self {
        let request = CatRequest {
            job: job.clone(),
            which,
            path: None,
            range: ByteRange::default(),
        };
        let watch = Watch::default();
        Self { request, watch }
    }

    /// Of the file with this path in the image.
    #[must_use]
    pub fn file(mut self, path: impl Into<Vec<u8>>) -> Self {
        self.request.path = Some(path.into());
        self
    }

    /// From `offset` on, at most `len` bytes; all to the end of the file without it.
    #[must_use]
    pub const fn range(mut self, offset: u64, len: Option<u64>) -> Self {
        self.request.range = ByteRange { offset, len };
        self
    }

    /// Reports progress, from several threads; each call has to return quickly.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.watch.observer = Some(observer);
        self
    }

    /// Ends when this says so.
    #[must_use]
    pub fn cancel(mut self, cancel: Cancel) -> Self {
        self.watch.cancel = Some(cancel);
        self
    }
}

/// A client of one grid with one key. Clones share connections. For programs that have a Tokio runtime;
/// [`blocking::Client`] is for others.
#[derive(Clone, Debug)]
pub struct Client {
    agent: Agent,
    /// When key or certificate end, Unix seconds.
    ends: u64,
}

impl Client {
    /// Reads grid file, key and certificate, and finds the hosts. No host is asked yet, unless the grid has
    /// a registry.
    ///
    /// # Errors
    /// When a file can't be read, or the key is none that may save or restore.
    pub async fn connect(settings: &Settings) -> Result<Self, Failure> {
        let settings = settings.clone();
        let mut grid = connection::load_grid(&settings.grid)?;
        let lists = connection::list_files(&settings.grid, &grid);
        let files = connection::files(settings.key, settings.certificate, Some(&grid))?;
        let identity = connection::identity(connection::key_of_file(&files)?, &files)?;
        let (identity, _) = connection::renewed(identity, &grid, &files);
        let ends = identity.peer().map_or(0, |peer| peer.not_after);
        let notebook = connection::notebook(&grid);
        let roster = connection::roster(&mut grid, &lists, &identity, &notebook).await;
        let agent = Agent::new(&grid, roster, &identity, settings.resources, notebook)?;
        Ok(Self {
            agent: agent.with_lists(&grid, lists),
            ends,
        })
    }

    /// When the certificate or job key ends with which this client acts, Unix seconds: hosts let nobody in
    /// afterwards. A certificate that the grid's admin renewed is taken over by the next client that
    /// connects.
    #[must_use]
    pub const fn identity_ends(&self) -> u64 {
        self.ends
    }

    /// Saves an image as the next version of a job.
    ///
    /// # Errors
    /// When it was not committed; the older versions stand.
    pub async fn save(&self, save: Save) -> Result<SaveReport, Failure> {
        let (observer, cancel) = save.watch.parts();
        self.agent.save(save.request, observer, cancel).await
    }

    /// Restores a checkpoint. `skipped` of the report names newer versions that could not be.
    ///
    /// # Errors
    /// When nothing was restored; the target is as it was.
    pub async fn restore(&self, restore: Restore) -> Result<RestoreReport, Failure> {
        let (observer, cancel) = restore.watch.parts();
        self.agent.restore(restore.request, observer, cancel).await
    }

    /// Writes bytes of a checkpoint to a writer. That it breaks off with
    /// [`std::io::ErrorKind::BrokenPipe`] is no failure.
    ///
    /// # Errors
    /// When they can't be read or written; the writer may have the beginning of them then.
    pub async fn write_to(
        &self,
        out: impl Write + Send + 'static,
        bytes: Bytes,
    ) -> Result<CatReport, Failure> {
        let (observer, cancel) = bytes.watch.parts();
        self.agent.cat(&bytes.request, out, observer, cancel).await
    }

    /// Opens a checkpoint, to read parts of it.
    ///
    /// # Errors
    /// When there is none that can be read.
    pub async fn open(&self, job: &JobId, which: Which) -> Result<Image, Failure> {
        self.agent.open(job, which).await
    }

    /// Lists the checkpoints of a job, or all.
    ///
    /// # Errors
    /// When no host answers.
    pub async fn list(&self, job: Option<&JobId>) -> Result<ListReport, Failure> {
        self.agent.list(job, &Sought::default(), None).await
    }

    /// Removes checkpoints of a job. `unheard` of the report names hosts that did not hear of it.
    ///
    /// # Errors
    /// When there is nothing to remove, or no host heard of it.
    pub async fn forget(&self, job: &JobId, which: ForgetWhich) -> Result<ForgetReport, Failure> {
        self.agent.forget(job, which, &Sought::default()).await
    }

    /// The same of checkpoints that are sought, without waiting for hosts that are silent.
    #[cfg(feature = "cli")]
    pub(crate) async fn forget_hurriedly(
        &self,
        job: &JobId,
        which: ForgetWhich,
        sought: &Sought,
    ) -> Result<ForgetReport, Failure> {
        self.agent.forget_hurriedly(job, which, sought).await
    }

    /// Whether it acts with the owner's own key.
    #[cfg(feature = "cli")]
    pub(crate) fn is_owner(&self) -> bool {
        self.agent.is_owner()
    }

    /// Says goodbye to all hosts, and writes down what was learnt of them.
    pub async fn close(self) {
        self.agent.close().await;
    }
}
