//! Images that look like those of real jobs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use anyhow::{Result, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Bytes like the memory of a process. Stretches of 64 KiB take turns: a smooth field with noise of
/// 1e-9, random bytes, zeros, and rising integers.
pub fn memory(bytes: usize, seed: u64) -> Vec<u8> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut image = vec![0; bytes];
    for (number, piece) in image.chunks_mut(64 << 10).enumerate() {
        match number % 4 {
            0 => {
                for (i, value) in piece.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    let x = (number * 8192 + i) as f64;
                    let noise: f64 = rng.random_range(-1e-9..1e-9);
                    *value = (300.0 + 10.0 * (x * 0.0007).sin() + noise).to_le_bytes();
                }
            }
            1 => rng.fill(piece),
            2 => {}
            _ => {
                for (i, value) in piece.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    *value = ((i + number) as u32 * 7).to_le_bytes();
                }
            }
        }
    }
    image
}

/// Bytes that do not compress.
pub fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut image = vec![0; bytes];
    SmallRng::seed_from_u64(seed).fill(&mut image[..]);
    image
}

/// Writes a directory tree with every kind of file that `ckpt` saves.
///
/// # Errors
/// When the tree can't be written.
pub fn tree(root: &Path, seed: u64) -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    fs::create_dir_all(root.join("empty directory"))?;
    fs::create_dir_all(root.join("deep/er/still"))?;
    fs::write(root.join("empty"), b"")?;
    fs::write(root.join("core-1.img"), memory((3 << 20) + 7, seed))?;
    fs::write(root.join("deep/er/pages-1.img"), memory(100_000, seed + 1))?;
    fs::write(root.join("deep/new\nline"), b"line")?;
    fs::write(
        root.join(std::ffi::OsStr::from_bytes(b"not-utf8-\xff\xfe")),
        b"bytes",
    )?;
    symlink("deep/er", root.join("link"))?;
    symlink("/nowhere/at/all", root.join("dangling"))?;
    fs::hard_link(root.join("core-1.img"), root.join("deep/same-core"))?;
    fs::set_permissions(root.join("empty"), fs::Permissions::from_mode(0o400))?;
    fs::set_permissions(root.join("deep/er"), fs::Permissions::from_mode(0o750))?;
    let sparse = fs::File::create(root.join("sparse"))?;
    sparse.set_len(64 << 20)?;
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"in the middle", 30 << 20)?;
    Ok(())
}

/// Fails unless both trees have the same names, kinds, bytes, modes, times and links.
///
/// # Errors
/// When they differ; the error names the first difference.
pub fn same(a: &Path, b: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let left = a.symlink_metadata()?;
    let right = b.symlink_metadata()?;
    let what = format!("{} and {}", a.display(), b.display());
    ensure!(left.file_type() == right.file_type(), "kinds: {what}");
    ensure!(left.mtime() == right.mtime(), "times: {what}");
    ensure!(left.mtime_nsec() == right.mtime_nsec(), "times: {what}");
    if left.is_symlink() {
        ensure!(fs::read_link(a)? == fs::read_link(b)?, "targets: {what}");
        return Ok(());
    }
    ensure!(left.mode() == right.mode(), "modes: {what}");
    if left.is_dir() {
        let names = sorted_names(a)?;
        let others = sorted_names(b)?;
        ensure!(names == others, "{names:?} != {others:?}: {what}");
        for name in names {
            same(&a.join(&name), &b.join(&name))?;
        }
    } else if left.is_file() {
        ensure!(left.nlink() == right.nlink(), "links: {what}");
        ensure!(fs::read(a)? == fs::read(b)?, "bytes: {what}");
    }
    Ok(())
}

fn sorted_names(dir: &Path) -> Result<Vec<std::ffi::OsString>> {
    let mut names = fs::read_dir(dir)?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// Weights of a neural network as numbers of two bytes (bfloat16): normally distributed.
pub fn weights(bytes: usize, seed: u64) -> Vec<u8> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let numbers = std::iter::repeat_with(|| {
        // The sum of twelve uniform numbers.
        let sum: f32 = (0..12).map(|_| rng.random::<f32>()).sum();
        let [_, _, low, high] = ((sum - 6.0) * 0.02).to_le_bytes();
        [low, high]
    });
    numbers.take(bytes / 2).flatten().collect()
}
