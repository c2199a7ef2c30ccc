//! Times saves and restores over links of limited rate: hosts in network namespaces, shaped with `tc tbf`. A
//! score is the time divided by the least time in which the bytes can cross the narrowest link. Needs root.
//!
//! ```text
//! cargo run --release -p benches --bin shaped-links -- IMAGE [links|slow|clients]
//! ```

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use benches::meter::at_once;
use serde_json::Value;
use tests::net::{CLIENT, NetGrid, available};

/// Bytes per second of payload on a link of `mbit` Mbit/s: 1,452 of the 1,514 bytes of a frame.
fn bytes_per_second(mbit: u32) -> f64 {
    f64::from(mbit) * 1e6 / 8.0 * 1452.0 / 1514.0
}

fn main() -> Result<()> {
    if let Err(why) = available() {
        anyhow::bail!("no network namespaces here: {why}");
    }
    let image = std::env::args_os().nth(1).context("which image?")?;
    let image = PathBuf::from(image).canonicalize()?;
    let only = std::env::args().nth(2);
    let wanted = |what: &str| only.as_ref().is_none_or(|only| only == what);
    if wanted("links") {
        links(&image)?;
    }
    if wanted("slow") {
        slow_host(&image)?;
    }
    if wanted("clients") {
        many_clients(&image)?;
    }
    Ok(())
}

/// One client, whose link is the narrowest.
fn links(image: &std::path::Path) -> Result<()> {
    println!("| | bytes | s | s at the link's rate | score |\n|---|---|---|---|---|");
    for mbit in [100, 1000] {
        let grid = NetGrid::up(6)?;
        grid.limit(CLIENT, mbit)?;
        grid.limit_uplink(CLIENT, mbit)?;
        let saved = save(&grid, image)?;
        row(
            &format!("save, uplink {mbit} Mbit/s"),
            &saved,
            "shard_bytes",
            mbit,
        )?;
        let restored = restore(&grid)?;
        let what = format!("restore, downlink {mbit} Mbit/s");
        row(&what, &restored, "fetched_bytes", mbit)?;
    }
    Ok(())
}

fn save(grid: &NetGrid, image: &std::path::Path) -> Result<Value> {
    let image = image.to_str().context("a name in UTF-8")?;
    let save = ["--json", "save", "--job", "42", "--full", image];
    grid.run(save)?.expect(0)?.json()
}

fn restore(grid: &NetGrid) -> Result<Value> {
    let out = grid.path("out");
    let out = out.to_str().context("a name in UTF-8")?;
    let restore = ["--json", "restore", "--job", "42", "--force", "-o", out];
    let restored = grid.run(restore)?.expect(0)?.json()?;
    std::fs::remove_file(out)?;
    Ok(restored)
}

fn row(what: &str, report: &Value, bytes: &str, mbit: u32) -> Result<()> {
    let bytes = report[bytes].as_f64().context("bytes")?;
    let seconds = report["seconds"].as_f64().context("seconds")?;
    let least = bytes / bytes_per_second(mbit);
    println!(
        "| {what} | {:.0} MB | {seconds:.2} | {least:.2} | {:.2} |",
        bytes / 1e6,
        seconds / least
    );
    Ok(())
}

/// One of six hosts has a tenth of the others' rate. The first save learns it, and the second one knows it.
fn slow_host(image: &std::path::Path) -> Result<()> {
    let seconds = |report: &Value| report["seconds"].as_f64().context("seconds");
    let mut times = Vec::new();
    for slow in [false, true] {
        let grid = NetGrid::up(6)?;
        for host in 1..=6 {
            grid.limit(host, if slow && host == 3 { 20 } else { 200 })?;
        }
        let first = seconds(&save(&grid, image)?)?;
        let second = seconds(&save(&grid, image)?)?;
        times.push([first, second]);
    }
    let [even, slow] = times.as_slice() else {
        anyhow::bail!("two runs");
    };
    println!(
        "\nsix hosts of 200 Mbit/s, then one of them with 20: first save {:.2} s, then {:.2} s ({:.2}); second {:.2} s, then {:.2} s ({:.2})",
        even[0],
        slow[0],
        slow[0] / even[0],
        even[1],
        slow[1],
        slow[1] / even[1]
    );
    Ok(())
}

/// Ten clients behind one uplink against ten hosts.
fn many_clients(image: &std::path::Path) -> Result<()> {
    let grid = NetGrid::up(10)?;
    grid.limit_uplink(CLIENT, 1000)?;
    let part = grid.path("part");
    let bytes = std::fs::read(image)?;
    std::fs::write(&part, &bytes[..bytes.len().min(128 << 20)])?;
    drop(bytes);
    let part = part.to_str().context("a name in UTF-8")?.to_owned();
    let begun = Instant::now();
    let times = at_once(10, |client| {
        let job = format!("job-{client}");
        grid.run(["save", "--memory", "64MiB", "--job", &job, &part])?
            .expect(0)?;
        Ok(begun.elapsed().as_secs_f64())
    })?;
    ensure!(times.len() == 10);
    let (least, most) = times
        .iter()
        .fold((f64::MAX, 0.0_f64), |(least, most), time| {
            (least.min(*time), most.max(*time))
        });
    println!(
        "\nten clients at once, ten hosts, one uplink of 1 Gbit/s: the first ended after {least:.2} s, the last after {most:.2} s ({:.2})",
        most / least
    );
    Ok(())
}
