//! Saves a path, kills two of the hosts that hold it, restores, and compares.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use codec::{JobId, Redundancy};
use serde::Serialize;

use super::{Hosts, io_failure, say};
use crate::commands::args::options::Global;
use crate::commands::call::Call;
use crate::commands::connect::connect;
use crate::commands::render::{Report, Table, bytes, count, json_of_self, ratio};
use crate::commands::{Answer, done, progress};
use ckpt_agent::agent::{
    RestoreRequest, RestoreTarget, SaveInput, SaveOptions, SaveRequest, Which,
};
use ckpt_agent::cancel::Cancel;
use ckpt_agent::report::{ExitStatus, Failure, RestoreReport, SaveReport};

/// Answer of `ckpt demo PATH`.
#[derive(Debug, Serialize)]
pub(super) struct DemoReport {
    /// The report of the save.
    save: SaveReport,
    /// The report of the restore.
    restore: RestoreReport,
    /// Names of the hosts that were killed between them.
    killed: Vec<String>,
    /// Whether what was restored equals what was saved.
    identical: bool,
    /// Seconds from start to end.
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

pub(super) async fn run(path: &Path, call: Call<'_>, cancel: Cancel) -> Result<Answer, Failure> {
    let started = Instant::now();
    let hosts = Hosts::start(&call)?;
    let global = Global {
        grid: Some(hosts.grid_file()),
        key_file: None,
        cert_file: None,
        ..call.global.clone()
    };
    let (save, killed) = save_and_kill(path, &hosts, &global, cancel.clone()).await?;
    let target = hosts.folder().join("restored");
    let restore = restore(&save.job, &target, &global, cancel).await?;
    say(&global, "comparing");
    let difference = compare(path, &target).map_err(|cause| io_failure("comparing", &cause))?;
    drop(hosts);
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

/// Saves the image, and kills two of the hosts that hold it. Returns the names of these hosts.
async fn save_and_kill(
    image: &Path,
    hosts: &Hosts,
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
    hosts.kill(&killed)?;
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
        set_id_bits: true,
        ..RestoreRequest::new(
            job.clone(),
            Which::Newest,
            RestoreTarget::Path(target.to_owned()),
        )
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
