//! `ckpt demo`: starts a grid, saves, kills two hosts, restores, and compares.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use codec::{JobId, Redundancy};
use serde::Serialize;

use super::args::options::Global;
use super::call::Call;
use super::connect::connect;
use super::grid::local;
use super::render::{Report, Table, bytes, count, json_of_self, ratio};
use super::{Answer, done, progress};
use ckpt_agent::agent::{
    RestoreRequest, RestoreTarget, SaveInput, SaveOptions, SaveRequest, Which,
};
use ckpt_agent::cancel::Cancel;
use ckpt_agent::core::sought::Sought;
use ckpt_agent::report::{ExitStatus, Failure, RestoreReport, SaveReport};

/// Hosts of the demonstration: one more than shards.
const HOSTS: u16 = 6;

/// Size of the made-up image, bytes.
const IMAGE_BYTES: usize = 256 << 20;

/// The results of the demonstration.
#[derive(Debug, Serialize)]
pub(super) struct DemoReport {
    save: SaveReport,
    restore: RestoreReport,
    killed: Vec<String>,
    identical: bool,
    seconds: f64,
}

impl Report for DemoReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let save = &self.save;
        let restore = &self.restore;
        let rate =
            |seconds: f64| format!("{}/s", bytes((save.image_bytes as f64 / seconds) as u64));
        writeln!(
            out,
            "image    {} in {}; {} zero, {} stored (ratio {})",
            bytes(save.image_bytes),
            count(save.files as usize, "file"),
            bytes(save.zero_bytes),
            bytes(save.stored_bytes),
            ratio(save.read_bytes, save.stored_bytes),
        )?;
        writeln!(
            out,
            "save     {:.2} s  {}  {} to {} hosts, encrypted",
            save.seconds,
            rate(save.seconds),
            bytes(save.shard_bytes),
            save.holders.len(),
        )?;
        writeln!(
            out,
            "restore  {:.2} s  {}  {} from {} hosts",
            restore.seconds,
            rate(restore.seconds),
            bytes(restore.fetched_bytes),
            restore.sources.len(),
        )?;
        let mut table = Table::new(&["SHARD", "KIND", "HOST", "AFTER THE SAVE", "SENT BACK"]);
        for holder in &save.holders {
            let host = holder.host.clone().unwrap_or_default();
            let sent = restore.sources.iter().find(|source| source.host == host);
            let dead = self.killed.contains(&host);
            table.row(vec![
                holder.shard.to_string(),
                if usize::from(holder.shard) < save.redundancy.data() {
                    "data".to_owned()
                } else {
                    "parity".to_owned()
                },
                host,
                if dead { "killed (SIGKILL)" } else { "alive" }.to_owned(),
                sent.map_or("-".to_owned(), |source| bytes(source.bytes)),
            ]);
        }
        table.write(out)?;
        writeln!(
            out,
            "restored image is {} to the saved one; {:.1} s in all",
            if self.identical {
                "identical"
            } else {
                "NOT IDENTICAL"
            },
            self.seconds,
        )
    }

    json_of_self!();
}

/// Stops the daemons at the end, also after an error.
struct Running<'a>(&'a Path);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // A daemon that can't be stopped ends by itself when its files are removed, which comes next.
        let _ = local::down(self.0);
    }
}

/// Writes a step of the demonstration to standard error, unless the report is wanted as JSON.
fn say(global: &Global, text: &str) {
    if !global.json {
        // Fails only if standard error is closed.
        let _ = writeln!(io::stderr(), "{text}");
    }
}

pub(super) async fn run(
    path: Option<PathBuf>,
    call: Call<'_>,
    cancel: Cancel,
) -> Result<Answer, Failure> {
    let global = call.global;
    let started = Instant::now();
    let dir = tempfile::Builder::new()
        .prefix("ckpt-demo-")
        .tempdir()
        .map_err(|cause| io_failure("temporary directory", &cause))?;
    let image = match path {
        Some(path) => path,
        None => made_up_image(dir.path(), global)?,
    };
    let grid_dir = dir.path().join("demo");
    say(global, "starting 6 hosts");
    let running = Running(&grid_dir);
    local::up(&grid_dir, Some(HOSTS), None, call.daemon)?;
    let global = Global {
        grid: Some(grid_dir.join("grid.toml")),
        key_file: None,
        cert_file: None,
        ..global.clone()
    };
    let (save, killed) = save_and_kill(&image, &grid_dir, &global, cancel.clone()).await?;
    let target = dir.path().join("restored");
    let restore = restore(&save.job, &target, &global, cancel).await?;
    say(&global, "comparing");
    let difference = compare(&image, &target).map_err(|cause| io_failure("comparing", &cause))?;
    drop(running);
    if let Some(path) = difference {
        let message = format!("the restored image differs in {}", path.display());
        return Err(Failure::new(ExitStatus::Damaged, message));
    }
    done(DemoReport {
        save,
        restore,
        killed,
        identical: true,
        seconds: started.elapsed().as_secs_f64(),
    })
}

fn made_up_image(dir: &Path, global: &Global) -> Result<PathBuf, Failure> {
    say(global, "making a memory image of 256 MiB");
    let path = dir.join("image");
    make_image(&path).map_err(|cause| io_failure("image", &cause))?;
    Ok(path)
}

/// Saves the image, and kills two of the hosts that hold it. Returns the names of these hosts.
async fn save_and_kill(
    image: &Path,
    grid_dir: &Path,
    global: &Global,
    cancel: Cancel,
) -> Result<(SaveReport, Vec<String>), Failure> {
    let agent = connect(global).await?.agent;
    say(global, "saving, 3 data + 2 parity shards");
    let observer = progress::observer(global.progress, "saving");
    let save = agent.save(save_request(image)?, observer, cancel).await?;

    // The first and the last data shard, so that the restore has to compute both.
    let killed: Vec<String> = [0, 2]
        .iter()
        .filter_map(|shard| save.holders.get(*shard)?.host.clone())
        .collect();
    say(global, &format!("killing {}", killed.join(" and ")));
    for host in &killed {
        local::kill(grid_dir, host)?;
    }
    agent.close().await;
    Ok((save, killed))
}

async fn restore(
    job: &JobId,
    target: &Path,
    global: &Global,
    cancel: Cancel,
) -> Result<RestoreReport, Failure> {
    say(global, "restoring from the others");
    let agent = connect(global).await?.agent;
    let observer = progress::observer(global.progress, "restoring");
    let request = restore_request(job, target);
    let restored = agent.restore(request, observer, cancel).await?;
    agent.close().await;
    Ok(restored)
}

fn restore_request(job: &JobId, target: &Path) -> RestoreRequest {
    RestoreRequest {
        job: job.clone(),
        which: Which::Newest,
        sought: Sought::default(),
        target: RestoreTarget::Path(target.to_owned()),
        at_hand: Vec::new(),
        if_exists: false,
        least_data: None,
        is_new: false,
        accept_marked: false,
        force: false,
        set_id_bits: true,
        globs: Vec::new(),
        dry_run: false,
    }
}

fn save_request(image: &Path) -> Result<SaveRequest, Failure> {
    let job = "demo"
        .parse()
        .map_err(|cause| Failure::new(ExitStatus::Failed, format!("job: {cause}")))?;
    Ok(SaveRequest {
        job,
        input: SaveInput::Paths(vec![image.to_owned()]),
        options: SaveOptions {
            redundancy: Some(Redundancy::DEFAULT),
            keep: 1,
            ..SaveOptions::default()
        },
    })
}

fn io_failure(what: &str, cause: &io::Error) -> Failure {
    Failure::new(ExitStatus::LocalIo, format!("{what}: {cause}"))
}

/// Makes an image like the memory of a process: smooth fields, random numbers, zero pages, sorted
/// indices.
fn make_image(path: &Path) -> io::Result<()> {
    const PART_BYTES: usize = 64 << 10;
    let mut file = io::BufWriter::new(File::create(path)?);
    let mut noise = blake3::Hasher::new_derive_key("ckpt demo image").finalize_xof();
    let mut part = vec![0; PART_BYTES];
    const PARTS: usize = IMAGE_BYTES / PART_BYTES;
    for number in 0..PARTS {
        match number * 10 / PARTS {
            0..3 => smooth(&mut part, number),
            3..6 => random_doubles(&mut part, &mut noise),
            6..8 => part.fill(0),
            _ => indices(&mut part, number, &mut noise),
        }
        file.write_all(&part)?;
    }
    file.into_inner()?.sync_all()
}

fn smooth(part: &mut [u8], number: usize) {
    for (at, value) in part.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let x = (number * 8192 + at) as f64;
        let field = 300.0 + 10.0 * (x * 0.0007).sin() + (number as f64 * 0.01).cos();
        *value = field.to_le_bytes();
    }
}

/// Random numbers, uniform in [1, 2): full mantissas, and always the same exponent.
fn random_doubles(part: &mut [u8], noise: &mut blake3::OutputReader) {
    noise.fill(part);
    for value in part.as_chunks_mut::<8>().0 {
        let mantissa = u64::from_le_bytes(*value) >> 12;
        *value = (mantissa | 0x3ff0_0000_0000_0000).to_le_bytes();
    }
}

fn indices(part: &mut [u8], number: usize, noise: &mut blake3::OutputReader) {
    let mut steps = vec![0; part.len() / 8];
    noise.fill(&mut steps);
    let mut index = number as u64 * 1000;
    for (value, step) in part.as_chunks_mut::<8>().0.iter_mut().zip(steps) {
        index += u64::from(step);
        *value = index.to_le_bytes();
    }
}

/// The first path at which two trees differ in names, kinds, modes, links or contents.
fn compare(a: &Path, b: &Path) -> io::Result<Option<PathBuf>> {
    let left = fs::metadata(a)?;
    let right = b.symlink_metadata()?;
    compare_as(a, &left, b, &right)
}

fn compare_as(
    a: &Path,
    left: &fs::Metadata,
    b: &Path,
    right: &fs::Metadata,
) -> io::Result<Option<PathBuf>> {
    let differs = || Ok(Some(b.to_owned()));
    if left.file_type() != right.file_type() {
        return differs();
    }
    if left.is_symlink() {
        return Ok((fs::read_link(a)? != fs::read_link(b)?).then(|| b.to_owned()));
    }
    if left.mode() != right.mode() {
        return differs();
    }
    if left.is_dir() {
        let others = names(b)?;
        let names = names(a)?;
        for name in &names {
            let kept = !is_not_kept(&a.join(name))?;
            if kept && !others.contains(name) {
                return Ok(Some(b.join(name)));
            }
        }
        for name in &others {
            let a = a.join(name);
            let b = b.join(name);
            let found = compare_as(&a, &a.symlink_metadata()?, &b, &b.symlink_metadata()?)?;
            if found.is_some() {
                return Ok(found);
            }
        }
    } else if left.is_file() && (left.len() != right.len() || !same_bytes(a, b)?) {
        return differs();
    }
    Ok(None)
}

fn is_not_kept(path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::FileTypeExt;
    let kind = path.symlink_metadata()?.file_type();
    Ok(kind.is_socket() || kind.is_block_device() || kind.is_char_device())
}

fn names(dir: &Path) -> io::Result<Vec<std::ffi::OsString>> {
    let mut names: Vec<_> = fs::read_dir(dir)?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<io::Result<_>>()?;
    names.sort();
    Ok(names)
}

fn same_bytes(a: &Path, b: &Path) -> io::Result<bool> {
    const PART_BYTES: usize = 1 << 20;
    let mut a = File::open(a)?;
    let mut b = File::open(b)?;
    let mut left = vec![0; PART_BYTES];
    let mut right = vec![0; PART_BYTES];
    loop {
        let len = a.read(&mut left)?;
        let (Some(left), Some(right)) = (left.get(..len), right.get_mut(..len)) else {
            return Ok(false);
        };
        if len == 0 {
            return Ok(true);
        }
        b.read_exact(right)?;
        if left != right {
            return Ok(false);
        }
    }
}
