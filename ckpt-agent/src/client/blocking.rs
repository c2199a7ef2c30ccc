//! The same client for programs without a runtime. Each call blocks until it is done. Not for threads of
//! a Tokio runtime.

use std::io::Write;
use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};

use super::{
    Bytes, CatReport, ExitStatus, Failure, FileNumber, ForgetReport, ForgetWhich, ImageFile, JobId,
    ListReport, Restore, RestoreReport, Save, SaveReport, Settings, Version, Which,
};

/// A client of one grid with one key, which has threads of its own. Clones share these threads.
#[derive(Clone, Debug)]
pub struct Client {
    inner: super::Client,
    runtime: Arc<Runtime>,
}

/// A checkpoint that is open for reading; see [`super::Image`].
#[derive(Debug)]
pub struct Image {
    inner: super::Image,
    runtime: Arc<Runtime>,
}

impl Client {
    /// See [`super::Client::connect`].
    ///
    /// # Errors
    /// Those of the original, and when no thread can be started.
    pub fn connect(settings: &Settings) -> Result<Self, Failure> {
        let runtime = Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(|cause| {
            Failure::new(ExitStatus::Failed, format!("starting threads: {cause}"))
        })?;
        Ok(Self {
            inner: runtime.block_on(super::Client::connect(settings))?,
            runtime: Arc::new(runtime),
        })
    }

    /// When the certificate ends, as [`super::Client::identity_ends`] returns it.
    #[must_use]
    pub fn identity_ends(&self) -> u64 {
        self.inner.identity_ends()
    }

    /// See [`super::Client::save`].
    ///
    /// # Errors
    /// As there.
    pub fn save(&self, save: Save) -> Result<SaveReport, Failure> {
        self.runtime.block_on(self.inner.save(save))
    }

    /// See [`super::Client::restore`].
    ///
    /// # Errors
    /// As there.
    pub fn restore(&self, restore: Restore) -> Result<RestoreReport, Failure> {
        self.runtime.block_on(self.inner.restore(restore))
    }

    /// See [`super::Client::write_to`].
    ///
    /// # Errors
    /// As there.
    pub fn write_to(
        &self,
        out: impl Write + Send + 'static,
        bytes: Bytes,
    ) -> Result<CatReport, Failure> {
        self.runtime.block_on(self.inner.write_to(out, bytes))
    }

    /// See [`super::Client::open`].
    ///
    /// # Errors
    /// As there.
    pub fn open(&self, job: &JobId, which: Which) -> Result<Image, Failure> {
        Ok(Image {
            inner: self.runtime.block_on(self.inner.open(job, which))?,
            runtime: Arc::clone(&self.runtime),
        })
    }

    /// See [`super::Client::list`].
    ///
    /// # Errors
    /// As there.
    pub fn list(&self, job: Option<&JobId>) -> Result<ListReport, Failure> {
        self.runtime.block_on(self.inner.list(job))
    }

    /// See [`super::Client::forget`].
    ///
    /// # Errors
    /// As there.
    pub fn forget(&self, job: &JobId, which: ForgetWhich) -> Result<ForgetReport, Failure> {
        self.runtime.block_on(self.inner.forget(job, which))
    }

    /// Closes all connections, as [`super::Client::close`] does.
    pub fn close(self) {
        self.runtime.block_on(self.inner.close());
    }
}

impl Image {
    /// The version of the open checkpoint.
    pub const fn version(&self) -> Version {
        self.inner.version()
    }

    /// The files with their numbers, in the order of the numbers.
    pub fn files(&self) -> impl Iterator<Item = (FileNumber, ImageFile)> {
        self.inner.files()
    }

    /// See [`super::Image::file`].
    ///
    /// # Errors
    /// As there.
    pub fn file(&self, path: Option<&[u8]>) -> Result<FileNumber, Failure> {
        self.inner.file(path)
    }

    /// Bytes of a file, holes included.
    pub fn size(&self, file: FileNumber) -> u64 {
        self.inner.size(file)
    }

    /// See [`super::Image::read_at`].
    ///
    /// # Errors
    /// As there.
    pub fn read_at(
        &self,
        file: FileNumber,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, Failure> {
        self.runtime
            .block_on(self.inner.read_at(file, offset, buffer))
    }
}
