//! Hosts that lie in every way that has a name, among honest ones. With as many liars as there are
//! parity shards every restore is right; with more, `ckpt` says so and leaves nothing behind.

use anyhow::{Context, Result, ensure};
use tests::image;
use tests::liar::{Kind, Lie};
use tests::mixed::MixedGrid;

/// Several segments.
const IMAGE_BYTES: usize = 3 << 20;

fn save(grid: &MixedGrid, file: &str) -> Result<tests::Outcome> {
    grid.run(["save", "--job", "42", file])
}

fn write_images(grid: &MixedGrid) -> Result<[Vec<u8>; 2]> {
    let images = [image::memory(IMAGE_BYTES, 1), image::memory(IMAGE_BYTES, 2)];
    for (name, image) in ["first", "second"].iter().zip(&images) {
        std::fs::write(grid.path(name), image)?;
    }
    Ok(images)
}

/// Restores and compares; `None` when `ckpt` said that it can't.
fn restore(grid: &MixedGrid) -> Result<(tests::Outcome, Option<Vec<u8>>)> {
    let out = grid.path("out");
    let outcome = grid.run(["restore", "--job", "42", "--json", "--force", "-o", "out"])?;
    let bytes = match outcome.code {
        Some(0) => Some(std::fs::read(&out)?),
        _ => {
            ensure!(!out.exists(), "something was left behind\n{outcome}");
            None
        }
    };
    // Whatever happens, a second attempt is not to find the first one's file.
    if bytes.is_some() {
        std::fs::remove_file(&out)?;
    }
    Ok((outcome, bytes))
}

/// Two versions are saved while all are honest; then two of five lie.
fn two_of_five(lie: Lie) -> Result<()> {
    let grid = MixedGrid::up(3, 2)?;
    let images = write_images(&grid)?;
    save(&grid, "first")?.expect(0)?;
    save(&grid, "second")?.expect(0)?;
    grid.lie(lie);
    let (outcome, bytes) = restore(&grid)?;
    ensure!(bytes.as_ref() == Some(&images[1]), "{lie:?}\n{outcome}");
    Ok(())
}

/// Three of five lie: one more than there are parity shards. What is restored is right and an
/// earlier version only if that is said; nothing else than that or an error is allowed.
fn three_of_five(lie: Lie) -> Result<()> {
    let grid = MixedGrid::up(2, 3)?;
    let images = write_images(&grid)?;
    save(&grid, "first")?.expect(0)?;
    save(&grid, "second")?.expect(0)?;
    grid.lie(lie);
    let (outcome, bytes) = restore(&grid)?;
    match bytes {
        Some(bytes) => {
            let version = outcome.json()?["version"].as_u64().context("version")?;
            let expected = images
                .get(version as usize - 1)
                .context("no such version")?;
            ensure!(&bytes == expected, "{lie:?}: wrong bytes\n{outcome}");
            let passed_over = outcome.json()?["skipped"]
                .as_array()
                .is_some_and(|s| !s.is_empty());
            ensure!(
                version == 2 || passed_over,
                "{lie:?}: silently an old version\n{outcome}"
            );
        }
        None => {
            let said = outcome.json()?["error"]["message"].to_string();
            ensure!(
                matches!(outcome.code, Some(4 | 5 | 7)),
                "{lie:?}\n{outcome}"
            );
            ensure!(said.contains("42"), "{lie:?}: {said}");
        }
    }
    Ok(())
}

/// Two of ten lie all the time, when checkpoints are saved, too.
fn two_of_ten(lie: Lie) -> Result<()> {
    let grid = MixedGrid::up(8, 2)?;
    let images = write_images(&grid)?;
    grid.lie(lie);
    for (file, image) in ["first", "second"].iter().zip(&images) {
        let saved = save(&grid, file)?;
        ensure!(matches!(saved.code, Some(0 | 3)), "{lie:?}: {saved}");
        let (outcome, bytes) = restore(&grid)?;
        ensure!(bytes.as_ref() == Some(image), "{lie:?}\n{outcome}");
    }
    Ok(())
}

/// All lies of a kind, in threads: each has a grid of its own.
fn each(lies: impl Iterator<Item = Lie>, test: fn(Lie) -> Result<()>) -> Result<()> {
    let lies: Vec<Lie> = lies.collect();
    for some in lies.chunks(4) {
        std::thread::scope(|scope| {
            let running: Vec<_> = some.iter().map(|lie| scope.spawn(|| test(*lie))).collect();
            for thread in running {
                match thread.join() {
                    Ok(result) => result?,
                    Err(_) => anyhow::bail!("a test panicked"),
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn about_data() -> impl Iterator<Item = Lie> {
    Lie::ALL.into_iter().filter(|lie| !about_life(*lie))
}

/// Lies that cost the client time.
fn about_life(lie: Lie) -> bool {
    matches!(
        lie,
        Lie::Drips | Lie::IsSilent | Lie::SendsHugeFrames | Lie::SendsNoise | Lie::AnswersTooMuch
    ) || matches!(lie, Lie::HangsUpAt(_))
}

fn about_time() -> impl Iterator<Item = Lie> {
    Lie::ALL.into_iter().filter(|lie| about_life(*lie))
}

#[test]
fn two_liars_of_five_do_no_harm() -> Result<()> {
    each(about_data(), two_of_five)
}

#[test]
fn two_of_five_that_break_off_or_hold_up_do_no_harm() -> Result<()> {
    each(about_time(), two_of_five)
}

#[test]
fn three_liars_of_five_are_an_error_or_do_no_harm() -> Result<()> {
    each(about_data(), three_of_five)
}

#[test]
fn three_of_five_that_break_off_or_hold_up_are_an_error() -> Result<()> {
    // Hosts that drip are borne for minutes when there are no others: slow is better than nothing.
    each(about_time().filter(|lie| *lie != Lie::Drips), three_of_five)
}

#[test]
fn two_liars_of_ten_do_no_harm_to_saves_either() -> Result<()> {
    each(about_data(), two_of_ten)
}

#[test]
fn two_of_ten_that_break_off_or_hold_up_do_no_harm_to_saves_either() -> Result<()> {
    each(about_time(), two_of_ten)
}

#[test]
fn the_list_of_lies_is_whole() {
    let ends = Lie::ALL
        .into_iter()
        .filter(|lie| matches!(lie, Lie::HangsUpAt(_)));
    assert_eq!(ends.count(), 9);
    assert!(!Lie::ALL.contains(&Lie::None));
    assert!(Lie::ALL.contains(&Lie::HangsUpAt(Kind::Rows)));
}
