//! A connected client with its threads. Python threads wait for its calls.

use std::future::Future;
use std::mem;
use std::pin::pin;
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ckpt_agent::client::{Canceller, Client, ExitStatus, Failure, Save, SaveReport, Settings};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::failure::exception;

/// Longest time from a signal to the run of Python's handler for it.
const SIGNAL_PERIOD: Duration = Duration::from_millis(50);

/// Time for an interrupted save to remove its shards from hosts.
const CANCEL_WAIT: Duration = Duration::from_secs(10);

/// Most idle clients that are kept for the next save.
const SAVERS_MAX: usize = 4;

/// A client of one grid, and the threads on which it works.
#[derive(Debug)]
pub(crate) struct Session {
    /// The client for everything but saves.
    pub(crate) client: Client,
    /// Idle clients, each for one save at a time. A cancelled save closes its connections, so that hosts drop
    /// the shards that they were receiving; so no call of another thread may use these connections.
    savers: Mutex<Vec<Client>>,
    runtime: Option<Runtime>,
}

impl Session {
    pub(crate) fn connect(py: Python<'_>, settings: &Settings) -> PyResult<Arc<Self>> {
        let runtime = Builder::new_multi_thread()
            .enable_io()
            .enable_time()
            .build();
        let runtime = runtime.map_err(|cause| {
            let message = format!("starting threads: {cause}");
            exception(py, &Failure::new(ExitStatus::Failed, message))
        })?;
        let client = wait_on(py, &runtime, Client::connect(settings), None)?;
        Ok(Arc::new(Self {
            client,
            savers: Mutex::default(),
            runtime: Some(runtime),
        }))
    }

    /// Saves over connections that no other call uses.
    pub(crate) async fn save(&self, save: Save) -> Result<SaveReport, Failure> {
        let idle = self.savers().pop();
        let saver = match idle {
            Some(saver) => saver,
            None => self.client.beside().await?,
        };
        let saved = saver.save(save).await?;
        let mut savers = self.savers();
        if savers.len() < SAVERS_MAX {
            savers.push(saver);
        }
        Ok(saved)
    }

    /// Closes the connections, and writes what was observed of hosts to the state directory.
    pub(crate) async fn close(&self) -> Result<(), Failure> {
        let savers = mem::take(&mut *self.savers());
        for saver in savers {
            saver.close().await;
        }
        self.client.clone().close().await;
        Ok(())
    }

    fn savers(&self) -> MutexGuard<'_, Vec<Client>> {
        self.savers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn runtime(&self) -> PyResult<&Runtime> {
        let gone = || PyRuntimeError::new_err("the client's threads have ended");
        self.runtime.as_ref().ok_or_else(gone)
    }

    /// Waits for a call. When a signal handler of Python raises, the call is cancelled, or dropped if it has
    /// no canceller, and the handler's exception is returned.
    pub(crate) fn wait<T: Send>(
        &self,
        py: Python<'_>,
        call: impl Future<Output = Result<T, Failure>> + Send,
        canceller: Option<&Canceller>,
    ) -> PyResult<T> {
        wait_on(py, self.runtime()?, call, canceller)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Not waited for: the last owner may be a task on one of these threads.
            runtime.shutdown_background();
        }
    }
}

fn wait_on<T: Send>(
    py: Python<'_>,
    runtime: &Runtime,
    call: impl Future<Output = Result<T, Failure>> + Send,
    canceller: Option<&Canceller>,
) -> PyResult<T> {
    // If the call is dropped, its destructors may need the runtime.
    let _entered = runtime.enter();
    let mut call = pin!(call);
    loop {
        let ended =
            py.detach(|| runtime.block_on(async { timeout(SIGNAL_PERIOD, &mut call).await }));
        if let Ok(result) = ended {
            return result.map_err(|failure| exception(py, &failure));
        }
        if let Err(raised) = py.check_signals() {
            if let Some(canceller) = canceller {
                canceller.cancel();
                // Whatever the call returns now, the user wants the handler's exception.
                let _ =
                    py.detach(|| runtime.block_on(async { timeout(CANCEL_WAIT, &mut call).await }));
            }
            return Err(raised);
        }
    }
}

/// A value that only the process that made it may use. A forked child has a copy of the value, but not of its
/// threads. The child may neither use nor drop the copy: both would wait for these threads for ever.
#[derive(Debug)]
pub(crate) struct OfProcess<T> {
    value: Option<T>,
    process: u32,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Some(value),
            process: process::id(),
        }
    }

    /// The value, in the process that made it.
    pub(crate) fn get(&self) -> PyResult<&T> {
        let own = self.value.as_ref().filter(|_| self.is_own());
        own.ok_or_else(|| {
            PyRuntimeError::new_err(
                "this was opened before a fork: open it again in the new process (ckpt.Client, \
                 ckpt.open; the functions of the module ckpt do so themselves)",
            )
        })
    }

    fn is_own(&self) -> bool {
        self.process == process::id()
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if !self.is_own() {
            mem::forget(self.value.take());
        }
    }
}
