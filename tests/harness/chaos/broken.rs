//! A job whose saves are killed: what they sent serves the next save, whatever else happens to the grid.

use std::fs;
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::Stage;
use crate::image;

/// Seeds of its images have this bit.
pub(super) const LARGE: u64 = 1 << 63;

/// Hosts keep what a killed save sent of an image that is at least as large.
const IMAGE_BYTES: usize = 65 << 20;

/// How much of the image differs from one seed to the next.
const CHANGED_BYTES: usize = 5 << 20;

/// Longest time until a save is killed, milliseconds. At [`BANDWIDTH`], a save takes longer.
const KILLED_WITHIN_MS: u64 = 2500;

const BANDWIDTH: &str = "20MiB";

/// An image of which most is the same for all seeds.
pub(super) fn large_image(seed: u64) -> Vec<u8> {
    static SAME: OnceLock<Vec<u8>> = OnceLock::new();
    let mut image = SAME.get_or_init(|| image::memory(IMAGE_BYTES, 0)).clone();
    let mut rng = SmallRng::seed_from_u64(seed);
    let begin = rng.random_range(0..IMAGE_BYTES - CHANGED_BYTES);
    if let Some(changed) = image.get_mut(begin..begin + CHANGED_BYTES) {
        rng.fill(changed);
    }
    image
}

impl Stage<'_> {
    /// Saves, kills saves, and restores the job until the run is over.
    pub(super) fn break_saves(&self, seed: u64) -> Result<()> {
        let Some(job) = self.broken else {
            return Ok(());
        };
        let mut rng = SmallRng::seed_from_u64(seed.wrapping_add(LARGE));
        while !self.is_over() {
            let image = rng.random::<u64>() | LARGE;
            for _ in 0..rng.random_range(0..3) {
                // At times with the same image.
                let image = if rng.random() {
                    image
                } else {
                    rng.random::<u64>() | LARGE
                };
                self.kill_save(job, image, rng.random_range(0..KILLED_WITHIN_MS))?;
            }
            self.save(job, image)?;
            match rng.random_range(0..12) {
                // The disks of the hosts are small.
                0 => self.forget(job)?,
                1..4 => self.restore(job, "fresh-broken")?,
                4..7 => self.restore_older(job)?,
                _ => self.restore(job, "state")?,
            }
        }
        Ok(())
    }

    /// Begins a save and kills it. It may have been committed before; nobody acknowledged it.
    fn kill_save(&self, job: usize, image_seed: u64, after_ms: u64) -> Result<()> {
        let name = format!("job-{job}");
        let file = format!("image-{job}");
        fs::write(self.cluster.path(&file), super::image_of(image_seed))?;
        {
            let mut job = self.job(job)?;
            job.tried.push(image_seed);
            job.kept.clear();
        }
        let _changing = self.changing(job)?;
        let save = [
            "--bandwidth",
            BANDWIDTH,
            "save",
            "--job",
            &name,
            "--ttl",
            "1h",
            &file,
        ];
        let mut command = self.cluster.command("state", save)?;
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().context("no save")?;
        self.wait(Duration::from_millis(after_ms));
        child.kill()?;
        child.wait()?;
        self.tally().broken += 1;
        Ok(())
    }
}
