//! What one checkpoint costs: the share of each part, many clients at once, donors that die.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tests::image;

use super::lab::{Lab, Way, holders, timed};
use crate::meter::{at_once, middle};

const MIB: usize = 1 << 20;

const PARTS: [(&str, Way); 7] = [
    ("one server, uncompressed", Way::Server),
    ("one donor (serial), uncompressed", Way::SERIAL_RAW),
    ("one donor (serial), compressed", Way::SERIAL),
    ("random 3+2 (parallel), uncompressed", Way::RANDOM_RAW),
    ("chosen 3+2 (parallel), uncompressed", Way::CHOSEN_RAW),
    ("random 3+2 (parallel), compressed", Way::RANDOM),
    ("ckpt: chosen 3+2, compressed", Way::CKPT),
];

fn image_of(lab: &Lab, mib: usize) -> Result<PathBuf> {
    let path = lab.path(&format!("image-{mib}"));
    if !path.exists() {
        fs::write(&path, image::memory(mib * MIB, 1))?;
    }
    Ok(path)
}

/// Seconds to save and restore images of these sizes, one client, medians.
///
/// # Errors
/// When a command fails.
pub fn parts(lab: &Lab, sizes: &[usize], rounds: usize) -> Result<String> {
    let mut table = "| way | MiB | save, s | restore, s |\n|---|---|---|---|\n".to_owned();
    for mib in sizes {
        let image = image_of(lab, *mib)?;
        let mut times = vec![(Vec::new(), Vec::new()); PARTS.len()];
        for _ in 0..rounds {
            // All ways take turns, so that what else the machine does meets all.
            for ((_, way), (saves, restores)) in PARTS.iter().zip(&mut times) {
                saves.push(timed(lab.save(0, *way, "parts", &image)?)?);
                let out = lab.path("out");
                restores.push(timed(lab.restore(0, *way, "parts", &out)?)?);
                ensure!(fs::read(&image)? == fs::read(&out)?, "another image");
                lab.forget(*way, "parts")?;
            }
        }
        for ((name, _), (saves, restores)) in PARTS.iter().zip(times) {
            let save = middle(saves.into_iter());
            let restore = middle(restores.into_iter());
            table += &format!("| {name} | {mib} | {save:.1} | {restore:.1} |\n");
        }
    }
    Ok(table)
}

/// Seconds until clients that save at the same time are done: mean, and the last one. A save that fails is
/// counted; it has no time.
///
/// # Errors
/// When a command fails.
pub fn clients(lab: &Lab, counts: &[u8], mib: usize) -> Result<String> {
    let mut table =
        "| clients | way | failed | mean, s | last, s |\n|---|---|---|---|---|\n".to_owned();
    let image = image_of(lab, mib)?;
    let ways = [
        ("one server, uncompressed", Way::Server),
        ("random 3+2, uncompressed", Way::RANDOM_RAW),
        ("ckpt", Way::CKPT),
    ];
    for count in counts {
        for (name, way) in ways {
            let job = |client: u8| format!("client-{client}");
            let saved = at_once(*count, |client| {
                let saved = timed(lab.save(client, way, &job(client), &image)?);
                Ok(saved.inspect_err(|why| eprintln!("{why}")).ok())
            })?;
            for (client, _) in (0..*count).zip(&saved).filter(|(_, saved)| saved.is_some()) {
                lab.forget(way, &job(client))?;
            }
            let times: Vec<f64> = saved.iter().copied().flatten().collect();
            let failed = saved.len() - times.len();
            let mean = times.iter().sum::<f64>() / times.len() as f64;
            let last = times.iter().copied().fold(0.0, f64::max);
            table += &format!("| {count} | {name} | {failed} | {mean:.1} | {last:.1} |\n");
        }
    }
    Ok(table)
}

/// Seconds to restore with donors dead, and to save while one dies.
///
/// # Errors
/// When a command fails.
pub fn losses(lab: &mut Lab, mib: usize) -> Result<String> {
    let mut table = "| what | s |\n|---|---|\n".to_owned();
    let image = image_of(lab, mib)?;
    let saved = timed(lab.save(0, Way::CKPT, "losses", &image)?)?;
    table += &format!("| save, all donors there | {saved:.1} |\n");
    let holders = holders(lab, "losses")?;
    for dead in 0..=2_usize {
        if let Some(victim) = dead.checked_sub(1).and_then(|last| holders.get(last)) {
            lab.grid.kill(*victim)?;
        }
        let restored = timed(lab.restore(0, Way::CKPT, "losses", &lab.path("out"))?)?;
        table += &format!("| restore, {dead} of 5 holders dead | {restored:.1} |\n");
    }
    for victim in holders.iter().take(2) {
        lab.grid.revive(*victim)?;
    }
    lab.forget(Way::CKPT, "losses")?;
    let took = save_while_one_dies(
        lab,
        &image,
        Duration::from_secs_f64(saved / 2.0),
        holders[2],
    )?;
    table += &format!("| save, a holder killed after half of its time | {took:.1} |\n");
    lab.forget(Way::CKPT, "losses")?;
    Ok(table)
}

fn save_while_one_dies(lab: &mut Lab, image: &Path, after: Duration, victim: u8) -> Result<f64> {
    let began = Instant::now();
    let mut saving = lab.save(0, Way::CKPT, "losses", image)?;
    let mut saving = saving.stdout(Stdio::null()).spawn()?;
    std::thread::sleep(after);
    lab.grid.kill(victim)?;
    ensure!(saving.wait()?.success(), "the save failed");
    let took = began.elapsed().as_secs_f64();
    lab.grid.revive(victim)?;
    Ok(took)
}
