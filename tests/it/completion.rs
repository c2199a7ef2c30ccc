//! Completion in real shells: names of jobs and hosts that this machine knows, without the network.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Result, ensure};
use tests::{Grid, Outcome};

/// Runs `script` in a shell that finds `ckpt` by its name. `None` if the shell is not installed.
fn shell(grid: &Grid, name: &str, options: &[&str], script: &str) -> Result<Option<Outcome>> {
    let dirs = std::env::var("PATH").unwrap_or_default();
    if !dirs
        .split(':')
        .any(|dir| Path::new(dir).join(name).exists())
    {
        tests::skip::not_checked("completion", &format!("{name} is not installed"))?;
        return Ok(None);
    }
    let bin = grid.path("bin");
    if !bin.exists() {
        fs::create_dir(&bin)?;
        symlink(tests::ckpt()?, bin.join("ckpt"))?;
    }
    let args = [options, &["-c", script]].concat();
    let mut command = grid.command_as(Path::new(name), args)?;
    command
        .env("PATH", format!("{}:{dirs}", bin.display()))
        .env("CKPT_STATE_DIR", grid.path("state"));
    Ok(Some(tests::program::run(&mut command)?.expect(0)?))
}

/// What bash offers for the last of these words.
fn bash(grid: &Grid, words: &[&str]) -> Result<Vec<String>> {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let last = words.last().copied().unwrap_or_default();
    let script = format!(
        "source <(ckpt completions bash)
        complete -p ckpt >/dev/null || exit 1
        COMP_WORDS=({}) COMP_CWORD={} COMP_TYPE=9
        _clap_complete_ckpt ckpt '{last}' ''
        printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        quoted.join(" "),
        words.len() - 1
    );
    let options = ["--noprofile", "--norc"];
    offered(shell(grid, "bash", &options, &script)?)
}

/// The lines that a shell printed, without descriptions. Nothing may stand on standard error.
fn offered(ended: Option<Outcome>) -> Result<Vec<String>> {
    let Some(ended) = ended else {
        return Ok(Vec::new());
    };
    ensure!(ended.stderr.is_empty(), "{ended}");
    let text = String::from_utf8_lossy(&ended.stdout);
    let words = text.lines().filter_map(|line| line.split('\t').next());
    let words = words.filter(|word| !word.is_empty());
    Ok(words.map(str::to_owned).collect())
}

fn saved_grid() -> Result<Grid> {
    let grid = Grid::up(5)?;
    fs::write(grid.path("image"), b"an image")?;
    for job in ["sim-1", "sim-2", "other"] {
        grid.run(["save", "--job", job, "image"])?.expect(0)?;
    }
    // From here on nobody answers.
    grid.stop()?;
    Ok(grid)
}

#[test]
fn bash_completes_jobs_hosts_and_files_with_all_hosts_down() -> Result<()> {
    let grid = saved_grid()?;
    let jobs = ["other", "sim-1", "sim-2"];
    for command in [
        &["restore"][..],
        &["list"],
        &["show", "--version", "1"],
        &["forget"],
        &["runs"],
        &["hosts"],
        &["plan", "when"],
        &["run"],
        &["key", "for-job"],
        &["save", "--job"],
        &["hosts", "--for-job"],
        &["cat", "--job"],
    ] {
        let words = [&["ckpt"], command, &[""]].concat();
        let found = bash(&grid, &words)?;
        ensure!(found == jobs, "{words:?}: {found:?}");
    }
    let found = bash(&grid, &["ckpt", "restore", "sim"])?;
    ensure!(found == ["sim-1", "sim-2"], "{found:?}");
    let found = bash(&grid, &["ckpt", "save", "sim-1", "im"])?;
    ensure!(found == ["image"], "{found:?}");
    let hosts = ["h01", "h02", "h03", "h04", "h05"];
    for option in [&["list", "--host"][..], &["hosts", "--compute-host"]] {
        let words = [&["ckpt"], option, &["h"]].concat();
        let found = bash(&grid, &words)?;
        ensure!(found == hosts, "{words:?}: {found:?}");
    }
    let found = bash(&grid, &["ckpt", "map", "--if-down", "h01,h0"])?;
    ensure!(found.len() == 5 && found[1] == "h01,h02", "{found:?}");
    let found = bash(&grid, &["ckpt", "res"])?;
    ensure!(found == ["restore"], "{found:?}");
    let found = bash(&grid, &["ckpt", "restore", "--if"])?;
    ensure!(found == ["--if-exists"], "{found:?}");
    let found = bash(&grid, &["ckpt", "run", "7", "--files", "a", "--", "./im"])?;
    ensure!(found == ["./image"], "{found:?}");
    Ok(())
}

#[test]
fn zsh_and_fish_complete_jobs() -> Result<()> {
    let grid = saved_grid()?;
    // Zsh completes in its line editor alone; these stand for what it provides there.
    let zsh = "compdef() { : }; _describe() { print -rl -- ${(P)${@[-1]}} }
        source <(ckpt completions zsh)
        words=(ckpt restore sim); CURRENT=3
        _clap_dynamic_completer_ckpt";
    let fish = "ckpt completions fish | source; complete -C 'ckpt restore sim'";
    for (name, options, script) in [("zsh", &["-f"][..], zsh), ("fish", &["-N"], fish)] {
        let Some(ended) = shell(&grid, name, options, script)? else {
            continue;
        };
        let found = offered(Some(ended))?;
        ensure!(found == ["sim-1", "sim-2"], "{name}: {found:?}");
    }
    Ok(())
}

#[test]
fn completion_is_silent_where_nothing_is_known() -> Result<()> {
    let grid = Grid::up(3)?;
    let found = bash(&grid, &["ckpt", "save", "--job", ""])?;
    ensure!(found.is_empty(), "{found:?}");
    let good = fs::read(grid.file())?;
    fs::write(grid.file(), b"no grid file")?;
    let found = bash(&grid, &["ckpt", "list", "--host", ""]);
    // `grid down` reads it.
    fs::write(grid.file(), good)?;
    let found = found?;
    ensure!(found.is_empty(), "{found:?}");
    Ok(())
}
