//! Wall time and processor time of work, including the processor time of daemons.

use std::time::Instant;

use anyhow::Result;
use tests::Grid;

use crate::usage::cpu_seconds;

/// The time that some work took, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Wall time.
    pub wall: f64,
    /// Processor time of this process, its children that ended, and the daemons.
    pub cpu: f64,
}

/// Measures the work of this process, of the programs that it runs, and of some daemons.
#[derive(Debug, Default)]
pub struct Meter {
    daemons: Vec<u32>,
}

impl Meter {
    /// A meter that includes the daemons of `grid` that run now.
    ///
    /// # Errors
    /// When `ckpt grid status` fails.
    pub fn of(grid: &Grid) -> Result<Self> {
        let running = grid.running()?;
        let pids = running.iter().map(|(_, pid)| pid.as_raw_pid());
        let daemons = pids.filter_map(|pid| u32::try_from(pid).ok()).collect();
        Ok(Self { daemons })
    }

    /// Does `work`, and returns its result and its cost.
    ///
    /// # Errors
    /// When the work fails, or a daemon has ended.
    pub fn measure<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, Cost)> {
        let begun = Instant::now();
        let before = self.cpu()?;
        let done = work()?;
        let wall = begun.elapsed().as_secs_f64();
        let cpu = self.cpu()? - before;
        Ok((done, Cost { wall, cpu }))
    }

    fn cpu(&self) -> Result<f64> {
        let all = std::iter::once(std::process::id()).chain(self.daemons.iter().copied());
        all.map(cpu_seconds).sum()
    }
}

/// The median wall time and the median processor time, which may be of different costs.
pub fn median(costs: &[Cost]) -> Cost {
    Cost {
        wall: middle(costs.iter().map(|cost| cost.wall)),
        cpu: middle(costs.iter().map(|cost| cost.cpu)),
    }
}

/// The median; the upper one of an even number of values, and NaN without values.
pub fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs `work` for all clients at the same time, each on a thread of its own.
///
/// # Errors
/// The first failure in the order of clients.
pub fn at_once<T: Send>(clients: u8, work: impl Fn(u8) -> Result<T> + Sync) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..clients)
            .map(|client| scope.spawn(move || work(client)))
            .collect();
        let ended = threads.into_iter().map(|thread| {
            let ended = thread.join();
            ended.unwrap_or_else(|_| anyhow::bail!("a client panicked"))
        });
        ended.collect()
    })
}
