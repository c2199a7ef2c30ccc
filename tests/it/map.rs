//! What `ckpt map` says of hosts that go away is what happens when they go.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::Grid;

use crate::save_file;

/// The hosts with a shard of a job's newest version.
fn holders(map: &Value) -> Result<Vec<String>> {
    let all = map["jobs"][0]["holders"].as_array().context("holders")?;
    let name = |one: &Value| one["host"].as_str().map(str::to_owned).context("host");
    all.iter().map(name).collect()
}

#[test]
fn what_a_map_expects_of_hosts_that_go_away_comes_true() -> Result<()> {
    let grid = Grid::up(8)?;
    // Two versions on different hosts, of which the first is whole.
    let [first, second] = ["h01,h02,h03,h04,h05", "h04,h05,h06,h07,h08"];
    for (hosts, content) in [(first, b"one"), (second, b"two")] {
        std::fs::write(grid.path("image"), content)?;
        let save = ["save", "--job", "42", "--full", "--choose", hosts, "image"];
        grid.run(save)?.expect(0)?;
    }
    save_file(&grid, "43", b"other")?;
    let map = |more: &[&str]| -> Result<Value> {
        let args = [&["--json", "map", "42"], more].concat();
        grid.run(args)?.expect(0)?.json()
    };
    let shown = map(&[])?;
    ensure!(shown["is_supposed"] == false && shown["jobs"][0]["then"].is_null());
    ensure!(shown["jobs"][0]["now"]["can_lose"] == 2, "{shown}");
    let mut held_by = holders(&shown)?;
    held_by.sort();
    ensure!(held_by.join(",") == second, "{shown}");

    let one = map(&["--if-down", "h08"])?["jobs"][0]["then"].clone();
    ensure!(one["version"] == 2 && one["can_lose"] == 1, "{one}");
    let three = map(&["--if-down", "h06,h07", "--if-down", "h08"])?["jobs"][0]["then"].clone();
    ensure!(three["version"] == 1 && three["can_lose"] == 2, "{three}");
    let words = grid.run(["map", "--if-down", "h06,h07,h08"])?.expect(0)?;
    let words = String::from_utf8(words.stdout)?;
    ensure!(words.contains("1 job from an older version"), "{words}");
    let drawn = grid.run(["map", "42", "--svg", "--if-down", "h06,h07,h08"])?;
    let drawn = String::from_utf8(drawn.expect(0)?.stdout)?;
    ensure!(drawn.starts_with("<svg"), "{drawn}");
    ensure!(drawn.matches("class=\"cell good\"").count() == 5, "{drawn}");
    ensure!(drawn.contains("version 1, "), "{drawn}");
    let most = map(&["--if-down", "h03,h04,h05,h06,h07,h08"])?["jobs"][0]["then"].clone();
    ensure!(most.is_null(), "{most}");
    grid.run(["map", "--if-down", "h09"])?.expect(2)?;

    for host in ["h06", "h07", "h08"] {
        grid.kill(host)?;
    }
    let restored = grid.run(["--json", "restore", "--job", "42", "-o", "back"])?;
    ensure!(restored.expect(3)?.json()?["version"] == 1);
    ensure!(std::fs::read(grid.path("back"))? == b"one");
    for host in ["h03", "h04", "h05"] {
        grid.kill(host)?;
    }
    grid.run(["restore", "--job", "42", "-o", "more"])?
        .expect(5)?;
    Ok(())
}
