//! What a command needs, and what it gets of it: threads, a signal that cancels, hosts, all keys of the owner.

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use supervision::signals::TERM;

use super::args::options::Global;
use super::connect::{Connected, connect};
use super::key::any::AnyKey;
use super::{Answer, DaemonProgram, bounds, progress, runtime};
use ckpt_agent::agent::Agent;
use ckpt_agent::cancel::{Cancel, canceller, next_signal};
use ckpt_agent::report::{ExitStatus, Failure};

/// The command that the user typed, apart from what is particular to it.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    /// The options of all commands.
    pub(crate) global: &'a Global,
    /// All words of the command line.
    pub(crate) typed: &'a [OsString],
    /// How to start a daemon.
    pub(crate) daemon: &'a DaemonProgram,
}

impl Call<'_> {
    /// For a command that needs threads, and handles signals itself.
    pub(crate) fn threads(
        &self,
        command: impl Future<Output = Result<Answer, Failure>>,
    ) -> Result<Answer, Failure> {
        be_nice(self.global)?;
        runtime()?.block_on(command)
    }

    /// For a command that the first SIGINT or SIGTERM cancels; the second ends the program at once.
    pub(crate) fn cancellable(
        &self,
        command: impl AsyncFnOnce(Cancel) -> Result<Answer, Failure>,
    ) -> Result<Answer, Failure> {
        self.threads(async {
            let (canceller, cancel) = canceller();
            let signal = Arc::new(AtomicI32::new(0));
            let seen = Arc::clone(&signal);
            tokio::spawn(async move {
                loop {
                    let Some(number) = next_signal().await else {
                        return;
                    };
                    if seen.swap(number, Ordering::SeqCst) != 0 {
                        std::process::exit(128 + number);
                    }
                    canceller.cancel();
                }
            });
            let _catching = bounds::report_long_files();
            command(cancel).await.map_err(|mut failure| {
                let is_term = signal.load(Ordering::SeqCst) == i32::from(TERM);
                if failure.status == ExitStatus::Interrupted && is_term {
                    failure.status = ExitStatus::Terminated;
                }
                failure
            })
        })
    }

    /// For a command that needs the grid.
    pub(crate) fn connected(
        &self,
        command: impl AsyncFnOnce(&Connected, Cancel) -> Result<Answer, Failure>,
    ) -> Result<Answer, Failure> {
        self.cancellable(async |cancel| {
            let connected = connect(self.global).await?;
            let ended = command(&connected, cancel).await;
            connected.agent.close().await;
            ended
        })
    }

    /// For a command that asks hosts.
    pub(crate) fn agent(
        &self,
        command: impl AsyncFnOnce(&Agent) -> Result<Answer, Failure>,
    ) -> Result<Answer, Failure> {
        self.connected(async |connected, _| command(&connected.agent).await)
    }

    /// For a command that also reaches what retired keys saved. Progress is shown under `title`.
    pub(crate) fn keys(
        &self,
        title: &'static str,
        command: impl AsyncFnOnce(&AnyKey<'_>) -> Result<Answer, Failure>,
    ) -> Result<Answer, Failure> {
        self.connected(async |connected, cancel| {
            let observer = progress::observer(self.global.progress, title);
            let keys = AnyKey::of(self.global, connected, observer, cancel).await;
            let ended = command(&keys).await;
            keys.close().await;
            ended
        })
    }
}

/// Lowers the priority of this thread and of all that it will start. Threads that run already would keep
/// theirs.
fn be_nice(global: &Global) -> Result<(), Failure> {
    let Some(nice) = global.nice else {
        return Ok(());
    };
    rustix::process::setpriority_process(None, nice).map_err(|cause| {
        Failure::new(ExitStatus::Usage, format!("--nice {nice}: {cause}"))
            .next("leave --nice out: a priority that was lowered stays so")
    })
}
