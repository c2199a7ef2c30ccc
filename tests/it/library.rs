//! The library `ckpt_agent::client`, as other programs use it.

use std::fs;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ckpt_agent::client::blocking::Client;
use ckpt_agent::client::{
    Bytes, ExitStatus, ForgetWhich, JobId, Observer, ProgressEvent, Restore, Save, Settings, Which,
    canceller,
};
use tests::program::wait_until;
use tests::{Grid, image};

#[allow(
    dead_code,
    unreachable_pub,
    reason = "the example is a program, of which only a part is called"
)]
#[path = "../../ckpt-agent/examples/keep_state.rs"]
mod keep_state;

/// A writer that keeps what was written to it.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Kept {
    fn bytes(&self) -> Vec<u8> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps the number of bytes done from each event of progress.
#[derive(Default)]
struct DoneBytes(Mutex<Vec<u64>>);

impl Observer for DoneBytes {
    fn event(&self, event: ProgressEvent) {
        if let ProgressEvent::Progress(progress) = event {
            let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            seen.push(progress.done_bytes);
        }
    }
}

/// A slow reader without end.
/// A source without an end, which reports its first read.
struct Endless(Option<mpsc::Sender<()>>);

impl Read for Endless {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if let Some(report) = self.0.take() {
            report.send(()).map_err(io::Error::other)?;
        }
        std::thread::sleep(Duration::from_millis(5));
        let len = room.len().min(4096);
        room[..len].fill(7);
        Ok(len)
    }
}

fn connect(grid: &Grid) -> Result<Client> {
    Ok(Client::connect(
        &Settings::of_grid(grid.file()).memory_bytes(64 << 20),
    )?)
}

#[test]
fn the_example_keeps_a_state() -> Result<()> {
    let grid = Grid::up(5)?;
    let file = grid.file().display().to_string();
    let number = keep_state::keep(&file, "42");
    ensure!(number.map_err(|cause| anyhow::anyhow!("{cause}"))? == b"900");
    Ok(())
}

#[test]
fn a_program_saves_lists_reads_restores_and_forgets() -> Result<()> {
    let grid = Grid::up(5)?;
    let client = connect(&grid)?;
    let job: JobId = "42".parse()?;
    let bytes = image::memory(9 << 20, 1);
    let seen = Arc::new(DoneBytes::default());
    let observer: Arc<dyn Observer> = Arc::<DoneBytes>::clone(&seen);
    let save = Save::of_reader(&job, io::Cursor::new(bytes.clone())).observer(observer);
    ensure!(client.save(save)?.version.number() == 1);
    let done = seen
        .0
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    ensure!(done.last() == Some(&(bytes.len() as u64)), "{done:?}");

    fs::write(grid.path("f"), &bytes)?;
    client.save(Save::of_paths(&job, [grid.path("f")]))?;
    let listed = client.list(Some(&job))?;
    ensure!(listed.checkpoints.len() == 2);
    let kept = Kept::default();
    let first = Which::Version(listed.checkpoints[0].version);
    client.write_to(kept.clone(), Bytes::of(&job, first))?;
    ensure!(kept.bytes() == bytes);
    let part = Kept::default();
    let range = Bytes::of(&job, Which::Newest).file("f").range(70, Some(9));
    client.write_to(part.clone(), range)?;
    ensure!(part.bytes() == bytes[70..79]);

    // Two hosts die while an image is open. Later reads still return the right bytes.
    let open = client.open(&job, Which::Newest)?;
    let file = open.file(Some(b"f"))?;
    let mut part = vec![0; 3 << 20];
    for host in grid.holders("42")?.iter().take(2) {
        grid.kill(host)?;
    }
    let begun = Instant::now();
    for at in [1_usize << 20, 0, 6 << 20, 8 << 20] {
        let read = open.read_at(file, at as u64, &mut part)?;
        let expected = &bytes[at..bytes.len().min(at + part.len())];
        ensure!(&part[..read] == expected, "{at}");
    }
    ensure!(
        begun.elapsed() < Duration::from_secs(40),
        "{:?}",
        begun.elapsed()
    );
    grid.restart()?;

    client.restore(Restore::new(&job, Which::Newest, grid.path("back")))?;
    ensure!(fs::read(grid.path("back"))? == bytes);
    let again = client.restore(Restore::new(&job, Which::Newest, grid.path("back")));
    ensure!(again.is_err_and(|failure| failure.status == ExitStatus::LocalIo));
    client.restore(Restore::new(&job, Which::Newest, grid.path("back")).force())?;
    client.forget(&job, ForgetWhich::All)?;
    let gone = client.open(&job, Which::Newest);
    ensure!(gone.is_err_and(|failure| failure.status == ExitStatus::NotFound));
    client.close();
    Ok(())
}

#[test]
fn a_save_that_is_cancelled_ends_soon_and_commits_nothing() -> Result<()> {
    let grid = Grid::up(5)?;
    let client = connect(&grid)?;
    let job: JobId = "42".parse()?;
    let (canceller, cancel) = canceller();
    let (report, first_read) = mpsc::channel();
    let saving = {
        let client = client.clone();
        let job = job.clone();
        let save = Save::of_reader(&job, Endless(Some(report))).cancel(cancel);
        std::thread::spawn(move || client.save(save))
    };
    first_read.recv_timeout(Duration::from_secs(60))?;
    canceller.cancel();
    let begun = Instant::now();
    let Ok(saved) = saving.join() else {
        anyhow::bail!("panic");
    };
    ensure!(saved.is_err_and(|failure| failure.status == ExitStatus::Interrupted));
    ensure!(
        begun.elapsed() < Duration::from_secs(30),
        "{:?}",
        begun.elapsed()
    );
    ensure!(client.list(Some(&job))?.checkpoints.is_empty());
    client.close();
    Ok(())
}

/// Futures of the library are `Send`, so a runtime can move them between threads.
#[test]
fn asynchronous_calls_can_be_spawned() -> Result<()> {
    let grid = Grid::up(5)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let settings = Settings::of_grid(grid.file());
    let (one, other) = runtime.block_on(async move {
        let client = ckpt_agent::client::Client::connect(&settings).await?;
        let save = |job: &str| -> Result<_> {
            let client = client.clone();
            let job = job.parse()?;
            let save = Save::of_reader(&job, io::Cursor::new(vec![1; 5000]));
            Ok(tokio::spawn(async move {
                client.save(save).await?;
                let image = client.open(&job, Which::Newest).await?;
                let mut part = [0; 10];
                let file = image.file(None)?;
                image.read_at(file, 4995, &mut part).await
            }))
        };
        let one = save("1")?;
        let other = save("2")?;
        let read = (one.await??, other.await??);
        client.close().await;
        anyhow::Ok(read)
    })?;
    ensure!((one, other) == (5, 5));
    Ok(())
}

/// A program keeps its client for long: it finds a host that was added since.
#[test]
fn a_client_finds_a_host_that_joins_later() -> Result<()> {
    let grid = Grid::up(5)?;
    let client = connect(&grid)?;
    let job: JobId = "42".parse()?;
    let has = |name: &str| -> Result<bool> {
        // Connects to all hosts, so that the client learns that one is down.
        client.list(Some(&job))?;
        let saved = client.save(Save::of_reader(&job, io::Cursor::new(vec![7; 9])))?;
        Ok(saved
            .holders
            .iter()
            .any(|holder| holder.host.as_deref() == Some(name)))
    };
    ensure!(!has("h06")?);
    let mut add = grid.command(["grid", "add", "--name", "h06", "--listen", "127.0.0.1:0"])?;
    add.arg("--data").arg(grid.path("h06"));
    add.arg("--dir")
        .arg(grid.file().parent().context("no directory")?);
    tests::program::run(&mut add)?.expect(0)?;
    grid.restart()?;
    grid.kill("h01")?;
    wait_until("the new host gets a shard", Duration::from_secs(90), || {
        has("h06")
    })?;
    client.close();
    Ok(())
}
