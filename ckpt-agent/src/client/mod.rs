//! The library for programs that keep their state on a grid.
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
//! Every call ends, because waits for hosts are as bounded as those of the program. A [`Canceller`] ends
//! a call early; so does dropping the future in asynchronous programs. A save that ends early commits
//! nothing. Calls need a Tokio runtime; [`blocking`] brings its own. A [`Failure`] contains the exit
//! status that the program would have, and what to try next.

pub mod blocking;
mod renewing;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

pub use crate::agent::{
    After, AfterError, AfterWhich, Choose, Depth, ForgetWhich, HealthRequest, Image, ImageFile,
    PlacementWish, ReadCost, RestoreTarget, SaveInput, SaveOptions, Strength, Tenure, Which,
    given_code,
};
pub use crate::cancel::{Cancel, Canceller, canceller};
pub use crate::core::glob::{Glob, GlobError};
pub use crate::core::read::FileNumber;
pub use crate::image::{Existing, NamedPath, OnceReader};
pub use crate::report::{
    CatReport, ExitStatus, Failure, ForgetReport, HostsReport, ListReport, Observer, Progress,
    ProgressEvent, RestoreReport, SaveReport, ShowReport, Silent, VerifyReport,
};
pub use codec::labels::{LabelError, Labels};
pub use codec::{JobId, Redundancy, Version};
pub use health::Health;
pub use placement::Probability;

use crate::agent::{
    Agent, ByteRange, CatRequest, Disposal, MEMORY_USUAL, Resources, RestoreRequest, SaveRequest,
    keys_health, registries_health,
};
use crate::client::renewing::Renewing;
use crate::core::sought::{Sought, SoughtLabel};
use crate::unix_time::unix_seconds;

/// Which grid to use, with which key, and how much of this machine.
#[derive(Clone, Debug)]
pub struct Settings {
    grid: PathBuf,
    key: Option<PathBuf>,
    certificate: Option<PathBuf>,
    resources: Resources,
}

impl Settings {
    /// Settings for the grid of this file, with the key that the file names or that is in its usual
    /// place. Uses 256 MiB for data in flight and all processors. What is learnt of hosts is kept in the
    /// same place as by the program.
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

    /// Uses the key in this file: an owner's key or a job key. The certificate of an owner's key is
    /// beside it, with the ending `crt`, unless [`Self::certificate`] names another file.
    #[must_use]
    pub fn key(mut self, file: impl Into<PathBuf>) -> Self {
        self.key = Some(file.into());
        self
    }

    /// Uses the certificate in this file.
    #[must_use]
    pub fn certificate(mut self, file: impl Into<PathBuf>) -> Self {
        self.certificate = Some(file.into());
        self
    }

    /// Limits the memory for data in flight and for parts that were read, bytes; at least 16 MiB.
    #[must_use]
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.resources.memory_bytes = bytes.max(16 << 20);
        self
    }

    /// Sets the number of threads for compression and coding; at least one.
    #[must_use]
    pub fn cpus(mut self, cpus: usize) -> Self {
        self.resources.cpus = cpus.max(1);
        self
    }

    /// Limits the rate to all hosts together, and from them, bytes per second; at least 64 KiB.
    #[must_use]
    pub fn bytes_per_second(mut self, bytes: u64) -> Self {
        self.resources.bytes_per_second = Some(bytes.max(64 << 10));
        self
    }
}

/// How a long call reports its progress and is cancelled.
#[derive(Clone, Default)]
struct CallOptions {
    observer: Option<Arc<dyn Observer>>,
    cancel: Option<Cancel>,
}

impl CallOptions {
    fn parts(&self) -> (Arc<dyn Observer>, Cancel) {
        let observer = self.observer.clone();
        let cancel = self.cancel.clone();
        (
            observer.unwrap_or_else(|| Arc::new(Silent)),
            // Never cancelled: the canceller is dropped.
            cancel.unwrap_or_else(|| canceller().1),
        )
    }
}

impl std::fmt::Debug for CallOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallOptions")
            .field("observed", &self.observer.is_some())
            .field("cancel", &self.cancel)
            .finish()
    }
}

/// What to save, and how.
#[derive(Clone, Debug)]
pub struct Save {
    request: SaveRequest,
    watch: CallOptions,
}

impl Save {
    /// Saves this input as the next version of a job, like `ckpt save` without options: two versions are kept,
    /// and any two hosts can be lost. The code is chosen by forecast where enough is known of the hosts; else
    /// 3 data and 2 parity shards, or fewer data shards where fewer than five hosts take a shard.
    pub fn of(job: &JobId, input: SaveInput) -> Self {
        Self {
            request: SaveRequest {
                job: job.clone(),
                input,
                options: SaveOptions::default(),
            },
            watch: CallOptions::default(),
        }
    }

    /// Saves everything that a reader returns until its end.
    pub fn of_reader(job: &JobId, reader: impl Read + Send + 'static) -> Self {
        Self::of(job, SaveInput::Reader(OnceReader::new(reader)))
    }

    /// Saves files and directories.
    pub fn of_paths(job: &JobId, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        Self::of(job, SaveInput::Paths(paths.into_iter().collect()))
    }

    /// Saves with these options.
    #[must_use]
    pub fn options(mut self, options: SaveOptions) -> Self {
        self.request.options = options;
        self
    }

    /// Reports progress to `observer`, from several threads; each call has to return quickly.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.watch.observer = Some(observer);
        self
    }

    /// Ends the save, without committing anything, when it is cancelled.
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
    watch: CallOptions,
}

impl Restore {
    /// Restores a whole checkpoint to a path: into an existing directory, or to a new name.
    pub fn new(job: &JobId, which: Which, to: impl Into<PathBuf>) -> Self {
        let request = RestoreRequest::new(job.clone(), which, RestoreTarget::Path(to.into()));
        let watch = CallOptions::default();
        Self { request, watch }
    }

    /// Considers only checkpoints with this label.
    #[must_use]
    pub fn label(mut self, key: &str, value: impl Into<String>) -> Self {
        let label = SoughtLabel::is(key, value);
        self.request.sought.labels.push(label);
        self
    }

    /// Restores only what matches this pattern, or one of several.
    #[must_use]
    pub fn path(mut self, pattern: Glob) -> Self {
        self.request.globs.push(pattern);
        self
    }

    /// Replaces files and trees that have the same names.
    #[must_use]
    pub const fn force(mut self) -> Self {
        self.request.force = true;
        self
    }

    /// Reports progress to `observer`, from several threads; each call has to return quickly.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.watch.observer = Some(observer);
        self
    }

    /// Ends the restore, with the target as it was, when it is cancelled.
    #[must_use]
    pub fn cancel(mut self, cancel: Cancel) -> Self {
        self.watch.cancel = Some(cancel);
        self
    }
}

/// Which bytes of a checkpoint to write.
#[derive(Clone, Debug)]
pub struct Bytes {
    request: CatRequest,
    watch: CallOptions,
}

impl Bytes {
    /// All bytes of a checkpoint that is a stream or has only one file.
    pub fn of(job: &JobId, which: Which) -> Self {
        let request = CatRequest {
            job: job.clone(),
            which,
            path: None,
            range: ByteRange::default(),
        };
        let watch = CallOptions::default();
        Self { request, watch }
    }

    /// Takes the file with this path in the image.
    #[must_use]
    pub fn file(mut self, path: impl Into<Vec<u8>>) -> Self {
        self.request.path = Some(path.into());
        self
    }

    /// Takes at most `len` bytes from `offset` on; without `len`, all up to the end of the file.
    #[must_use]
    pub const fn range(mut self, offset: u64, len: Option<u64>) -> Self {
        self.request.range = ByteRange { offset, len };
        self
    }

    /// Reports progress to `observer`, from several threads; each call has to return quickly.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.watch.observer = Some(observer);
        self
    }

    /// Ends the call when it is cancelled.
    #[must_use]
    pub fn cancel(mut self, cancel: Cancel) -> Self {
        self.watch.cancel = Some(cancel);
        self
    }
}

/// A client of one grid with one key. Clones share its connections. It needs a Tokio runtime;
/// [`blocking::Client`] does not.
///
/// A program may keep it for weeks: while it is used, it looks anew about once a minute, in the background, which
/// hosts there are, where they are, and whether its certificate was renewed.
#[derive(Clone, Debug)]
pub struct Client {
    renewing: Arc<Renewing>,
}

impl Client {
    /// Reads grid file, key and certificate, and finds the hosts. Connects to no host yet; if the grid
    /// has a registry, asks it for hosts.
    ///
    /// # Errors
    /// When a file can't be read, or when the key may neither save nor restore.
    pub async fn connect(settings: &Settings) -> Result<Self, Failure> {
        let renewing = Renewing::connect(settings).await?;
        Ok(Self { renewing })
    }

    /// Another client of the same grid, with connections of its own. It knows already which hosts this one can't reach,
    /// and both together keep to the bytes per second of the settings.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn beside(&self) -> Result<Self, Failure> {
        let renewing = self.renewing.beside().await?;
        Ok(Self { renewing })
    }

    /// When the certificate or job key of this client ends, Unix seconds; hosts refuse it afterwards. If
    /// the grid's admin renews the certificate, the client takes the new one.
    #[must_use]
    pub fn identity_ends(&self) -> u64 {
        self.renewing.ends()
    }

    async fn agent(&self) -> Agent {
        self.renewing.agent().await
    }

    /// Saves an image as the next version of a job.
    ///
    /// # Errors
    /// When it was not committed; the older versions are still there.
    pub async fn save(&self, save: Save) -> Result<SaveReport, Failure> {
        let (observer, cancel) = save.watch.parts();
        self.agent()
            .await
            .save(save.request, observer, cancel)
            .await
    }

    /// Restores a checkpoint. `skipped` of the report names newer versions that could not be restored.
    ///
    /// # Errors
    /// When nothing was restored; the target is then as it was.
    pub async fn restore(&self, restore: Restore) -> Result<RestoreReport, Failure> {
        let (observer, cancel) = restore.watch.parts();
        self.agent()
            .await
            .restore(restore.request, observer, cancel)
            .await
    }

    /// Restores a checkpoint into the directory that `restore` names: afterwards it has the files of the checkpoint,
    /// each under its name, whether it was there before or not. A stream gets the name of the job. A process that is
    /// killed may leave some new and some old names with [`Existing::Replace`], never half a file or tree.
    ///
    /// # Errors
    /// When nothing was restored, or names are taken that shall stay.
    pub async fn restore_into(
        &self,
        restore: Restore,
        existing: Existing,
    ) -> Result<RestoreReport, Failure> {
        let (observer, cancel) = restore.watch.parts();
        let to = match &restore.request.target {
            RestoreTarget::Path(to) => to.clone(),
            _ => PathBuf::new(),
        };
        let request = restore.request;
        let agent = self.agent().await;
        agent
            .restore_into(request, (to, existing), observer, cancel)
            .await
    }

    /// Writes bytes of a checkpoint to a writer. It is no failure if the writer ends early with
    /// [`std::io::ErrorKind::BrokenPipe`].
    ///
    /// # Errors
    /// When the bytes can't be read or written; some of them may have been written by then.
    pub async fn write_to(
        &self,
        out: impl Write + Send + 'static,
        bytes: Bytes,
    ) -> Result<CatReport, Failure> {
        let (observer, cancel) = bytes.watch.parts();
        self.agent()
            .await
            .cat(&bytes.request, out, observer, cancel)
            .await
    }

    /// Opens a checkpoint to read parts of it.
    ///
    /// # Errors
    /// When there is no checkpoint that can be read.
    pub async fn open(&self, job: &JobId, which: Which) -> Result<Image, Failure> {
        self.agent().await.open(job, which).await
    }

    /// Lists the checkpoints of a job, or of all jobs.
    ///
    /// # Errors
    /// When no host answers.
    pub async fn list(&self, job: Option<&JobId>) -> Result<ListReport, Failure> {
        self.agent().await.list(job, &Sought::default(), None).await
    }

    /// Describes one checkpoint: its files, sizes and holders.
    ///
    /// # Errors
    /// When there is no such checkpoint, or its list of files can't be read.
    pub async fn show(&self, job: &JobId, which: Which) -> Result<ShowReport, Failure> {
        self.agent().await.show(job, which).await
    }

    /// Checks the shards of one version or of all versions of a job, or of all jobs.
    ///
    /// # Errors
    /// When no host answers, or there is no such checkpoint. Damage is in the report.
    pub async fn verify(
        &self,
        job: Option<&JobId>,
        version: Option<Version>,
        depth: Depth,
    ) -> Result<VerifyReport, Failure> {
        let (observer, cancel) = CallOptions::default().parts();
        let agent = self.agent().await;
        agent.verify(job, version, depth, observer, cancel).await
    }

    /// Asks the hosts how they are.
    ///
    /// # Errors
    /// When no host answers.
    pub async fn hosts(&self) -> Result<HostsReport, Failure> {
        self.agent().await.hosts().await
    }

    /// Describes the state of the jobs that this key saved, of the hosts, keys and registries. What `ckpt run` knows
    /// of this machine's jobs, and what keys saved that this one replaced, is left to the program.
    ///
    /// # Errors
    /// When a file can't be read, or the key is not let in. If no host answers, the report states that instead.
    pub async fn health(&self, request: &HealthRequest) -> Result<Health, Failure> {
        let (grid, identity) = self.renewing.membership()?;
        let keys = keys_health(&identity, &grid, unix_seconds());
        let registries = registries_health(&grid, &identity);
        self.agent().await.health(request, keys, registries).await
    }

    /// Removes checkpoints of a job. `unheard` of the report names hosts that do not know of it.
    ///
    /// # Errors
    /// When there is nothing to remove, or when no host could be reached.
    pub async fn forget(&self, job: &JobId, which: ForgetWhich) -> Result<ForgetReport, Failure> {
        let sought = Sought::default();
        let disposal = Disposal::Remove;
        self.agent()
            .await
            .forget(job, which, &sought, disposal)
            .await
    }

    /// Like [`Self::forget`] for the checkpoints that `sought` matches, without waiting for silent hosts.
    pub async fn forget_hurriedly(
        &self,
        job: &JobId,
        which: ForgetWhich,
        sought: &Sought,
    ) -> Result<ForgetReport, Failure> {
        self.agent()
            .await
            .forget_hurriedly(job, which, sought)
            .await
    }

    /// Whether the client acts with the owner's own key, not with a job key.
    pub fn is_owner(&self) -> bool {
        self.renewing.present().is_owner()
    }

    /// Closes the connections to all hosts, and writes down what was learnt of them.
    pub async fn close(self) {
        self.renewing.close().await;
    }
}
