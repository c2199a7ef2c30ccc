//! The class `Client`.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use ckpt_agent::client::{
    Depth, Existing, ExitStatus, Failure, ForgetWhich, Glob, HealthRequest, OnceReader, Restore,
    Save, SaveInput, Settings, Version, Which, canceller,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::canceller::Canceller;
use crate::failure::{exception, report};
use crate::image::Image;
use crate::options::{Keywords, job, named};
use crate::session::{OfProcess, Session};
use crate::writer::Writer;

/// A client of one grid with one key.
#[pyclass(frozen, module = "ckpt._ckpt")]
#[derive(Debug)]
pub(crate) struct Client {
    session: OfProcess<Arc<Session>>,
}

fn which(version: Option<u64>) -> PyResult<Which> {
    let version = version.map(numbered).transpose()?;
    Ok(version.map_or(Which::Newest, Which::Version))
}

fn numbered(version: u64) -> PyResult<Version> {
    let wrong = "not a version: versions are whole numbers from 1 on";
    Version::new(version).ok_or_else(|| PyValueError::new_err(wrong))
}

impl Client {
    fn save_input(
        &self,
        py: Python<'_>,
        name: &str,
        input: SaveInput,
        options: Keywords,
        canceller: &Canceller,
    ) -> PyResult<String> {
        let session = self.session.get()?;
        let save = Save::of(&job(py, name)?, input)
            .options(options.options(py)?)
            .cancel(canceller.cancelled.clone());
        let saved = session.wait(py, session.save(save), Some(&canceller.cancels))?;
        report(&saved)
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (grid, *, key=None, certificate=None, memory=None, cpus=None, rate=None))]
    fn new(
        py: Python<'_>,
        grid: PathBuf,
        key: Option<PathBuf>,
        certificate: Option<PathBuf>,
        memory: Option<u64>,
        cpus: Option<usize>,
        rate: Option<u64>,
    ) -> PyResult<Self> {
        let mut settings = Settings::of_grid(grid);
        if let Some(file) = key {
            settings = settings.key(file);
        }
        if let Some(file) = certificate {
            settings = settings.certificate(file);
        }
        if let Some(bytes) = memory {
            settings = settings.memory_bytes(bytes);
        }
        if let Some(cpus) = cpus {
            settings = settings.cpus(cpus);
        }
        if let Some(bytes) = rate {
            settings = settings.bytes_per_second(bytes);
        }
        Ok(Self {
            session: OfProcess::new(Session::connect(py, &settings)?),
        })
    }

    /// The time from which hosts refuse the key, Unix seconds.
    fn identity_ends(&self) -> PyResult<u64> {
        Ok(self.session.get()?.client.identity_ends())
    }

    /// Saves the files and directories at `paths`, each under its own name or the given one. Returns a SaveReport.
    fn save(
        &self,
        py: Python<'_>,
        name: &str,
        paths: Vec<(PathBuf, Option<PathBuf>)>,
        options: Keywords,
        canceller: &Canceller,
    ) -> PyResult<String> {
        let input = SaveInput::Named(named(py, paths)?);
        self.save_input(py, name, input, options, canceller)
    }

    /// Saves the first `len` bytes of an open file, such as one in memory. Its position stays. Returns a SaveReport.
    fn save_open(
        &self,
        py: Python<'_>,
        name: &str,
        descriptor: u32,
        len: u64,
        options: Keywords,
        canceller: &Canceller,
    ) -> PyResult<String> {
        let file = File::open(format!("/proc/self/fd/{descriptor}"))?;
        let input = SaveInput::Reader(OnceReader::new(file.take(len)));
        self.save_input(py, name, input, options, canceller)
    }

    /// Fails if a job can't have this name, or a save these options.
    #[staticmethod]
    fn check(py: Python<'_>, name: &str, options: Keywords) -> PyResult<()> {
        job(py, name)?;
        options.options(py).map(|_| ())
    }

    /// Starts a save of the bytes that will be written to the returned writer.
    fn writer(&self, py: Python<'_>, name: &str, options: Keywords) -> PyResult<Writer> {
        Writer::start(py, self.session.get()?, &job(py, name)?, options)
    }

    /// Restores a version, by default the newest, into a directory, with the word for what becomes of names that exist
    /// there; with `paths`, only what one of these patterns matches. Returns a RestoreReport.
    fn restore(
        &self,
        py: Python<'_>,
        name: &str,
        version: Option<u64>,
        into: (PathBuf, String),
        labels: Vec<(String, String)>,
        paths: Vec<Vec<u8>>,
    ) -> PyResult<String> {
        let (to, existing) = into;
        let existing = match existing.as_str() {
            "stay" => Existing::Stay,
            "replace" => Existing::Replace,
            "clear" => Existing::Clear,
            _ => {
                let message = format!("existing={existing:?} is none of stay, replace and clear");
                return Err(exception(py, &Failure::new(ExitStatus::Usage, message)));
            }
        };
        let session = self.session.get()?;
        let (canceller, cancel) = canceller();
        let mut restore = Restore::new(&job(py, name)?, which(version)?, to).cancel(cancel);
        for (key, value) in labels {
            restore = restore.label(&key, value);
        }
        for path in paths {
            let pattern = Glob::new(&path).map_err(|cause| {
                let text = String::from_utf8_lossy(&path);
                let message = format!("the path {text:?} is no pattern: {cause}");
                exception(py, &Failure::new(ExitStatus::Usage, message))
            })?;
            restore = restore.path(pattern);
        }
        let call = session.client.restore_into(restore, existing);
        let restored = session.wait(py, call, Some(&canceller))?;
        report(&restored)
    }

    /// Opens a version, by default the newest, to read parts of it.
    fn open(&self, py: Python<'_>, name: &str, version: Option<u64>) -> PyResult<Image> {
        let session = self.session.get()?;
        let job = job(py, name)?;
        let open = session.client.open(&job, which(version)?);
        let image = session.wait(py, open, None)?;
        Ok(Image::new(session, image))
    }

    /// Lists the checkpoints of one job, or of all jobs. Returns a ListReport.
    fn list(&self, py: Python<'_>, name: Option<&str>) -> PyResult<String> {
        let session = self.session.get()?;
        let job = name.map(|name| job(py, name)).transpose()?;
        let listed = session.wait(py, session.client.list(job.as_ref()), None)?;
        report(&listed)
    }

    /// Describes a version, by default the newest. Returns a ShowReport.
    fn show(&self, py: Python<'_>, name: &str, version: Option<u64>) -> PyResult<String> {
        let session = self.session.get()?;
        let job = job(py, name)?;
        let shown = session.client.show(&job, which(version)?);
        report(&session.wait(py, shown, None)?)
    }

    /// Checks the shards of a job, or of all jobs; with `all_blocks`, reads every block. Returns a VerifyReport.
    fn verify(
        &self,
        py: Python<'_>,
        name: Option<&str>,
        version: Option<u64>,
        all_blocks: bool,
    ) -> PyResult<String> {
        let session = self.session.get()?;
        let job = name.map(|name| job(py, name)).transpose()?;
        let version = version.map(numbered).transpose()?;
        let depth = match all_blocks {
            true => Depth::All,
            false => Depth::Tables,
        };
        let verified = session.client.verify(job.as_ref(), version, depth);
        report(&session.wait(py, verified, None)?)
    }

    /// Asks the hosts how they are. Returns a HostsReport.
    fn hosts(&self, py: Python<'_>) -> PyResult<String> {
        let session = self.session.get()?;
        report(&session.wait(py, session.client.hosts(), None)?)
    }

    /// Describes the state of jobs, hosts, keys and registries; with `proves`, hosts prove that they have the newest
    /// shards. Returns a Health.
    fn health(&self, py: Python<'_>, proves: bool) -> PyResult<String> {
        let session = self.session.get()?;
        let request = HealthRequest {
            proves,
            ..HealthRequest::default()
        };
        report(&session.wait(py, session.client.health(&request), None)?)
    }

    /// Removes one version, all versions but the newest `keep`, or all versions. Returns a ForgetReport.
    fn forget(
        &self,
        py: Python<'_>,
        name: &str,
        version: Option<u64>,
        keep: Option<u32>,
    ) -> PyResult<String> {
        let session = self.session.get()?;
        let which = match (version, keep) {
            (Some(version), _) => ForgetWhich::Version(numbered(version)?),
            (None, Some(keep)) => ForgetWhich::Keep(keep),
            (None, None) => ForgetWhich::All,
        };
        let job = job(py, name)?;
        let forgotten = session.wait(py, session.client.forget(&job, which), None)?;
        report(&forgotten)
    }

    /// Closes the connections, and writes what was observed of hosts to the state directory.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let session = self.session.get()?;
        session.wait(py, session.close(), None)
    }
}
