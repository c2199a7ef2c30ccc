//! The answers of `ckpt save --detach`, `ckpt wait` and `ckpt list --queued`.

use std::io::{self, Write};

use codec::JobId;
use serde::{Deserialize, Serialize};

use crate::commands::render::{Report, Table, bytes, count, json_of_self, one_line, shown, time};

/// Longest error in the table, characters.
const ERROR_WIDTH: usize = 80;

/// How the content of a path was set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// The path itself was moved.
    Taken,
    /// By further names of the same files.
    Linked,
    /// By copies that share their blocks.
    Shared,
    /// By copies.
    Copied,
}

/// Answer of `ckpt save --detach`.
#[derive(Clone, Debug, Serialize)]
pub struct DetachedReport {
    /// Name of the job.
    pub job: JobId,
    /// The number of the image in the job's queue.
    pub number: u64,
    /// How it was set aside.
    pub how: How,
    /// Bytes of its files, which the spool keeps until they are saved.
    pub bytes: u64,
}

/// Answer of `ckpt list --queued`.
#[derive(Clone, Debug, Serialize)]
pub struct QueuedReport {
    /// The images that were set aside and are not saved yet.
    pub saves: Vec<QueuedSave>,
    /// Bytes of their files.
    pub bytes: u64,
}

/// An image that was set aside and is not saved yet.
#[derive(Clone, Debug, Serialize)]
pub struct QueuedSave {
    /// Name of the job.
    pub job: String,
    /// `queued`, `saving` or `failed`: one that failed is tried again.
    pub state: &'static str,
    /// When it was set aside, Unix seconds.
    pub set_aside_at: u64,
    /// How it was set aside.
    pub how: How,
    /// Bytes of its files.
    pub bytes: u64,
    /// Why the last try failed.
    pub error: Option<String>,
}

/// The report of a save that another process made.
#[derive(Debug)]
pub(super) struct WaitReport {
    pub text: String,
    pub json: String,
}

const fn means(how: How) -> &'static str {
    match how {
        How::Taken => "moved",
        How::Linked => "linked",
        How::Shared => "in copies that share their blocks",
        How::Copied => "copied, because this file system has no copies that share blocks",
    }
}

impl Report for DetachedReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "job {}: {} set aside, {}; ckpt wait {} waits until it is saved",
            self.job,
            bytes(self.bytes),
            means(self.how),
            self.job
        )
    }

    json_of_self!();
}

impl Report for QueuedReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&["JOB", "STATE", "SET ASIDE", "SIZE", "HOW", "ERROR"]);
        for save in &self.saves {
            table.row(vec![
                shown(&save.job, 24),
                save.state.to_owned(),
                time(save.set_aside_at),
                bytes(save.bytes),
                match save.how {
                    How::Taken => "taken",
                    How::Linked => "linked",
                    How::Shared => "shared",
                    How::Copied => "copied",
                }
                .to_owned(),
                shown(save.error.as_deref().unwrap_or("-"), ERROR_WIDTH),
            ]);
        }
        if !self.saves.is_empty() {
            table.write(out)?;
        }
        let images = count(self.saves.len(), "image");
        writeln!(out, "{images} with {} in the spool", bytes(self.bytes))
    }

    json_of_self!();
}

impl Report for WaitReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        for line in self.text.lines() {
            writeln!(out, "{}", one_line(line))?;
        }
        Ok(())
    }

    fn json(&self) -> String {
        self.json.clone()
    }
}
