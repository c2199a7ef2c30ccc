//! The documents match the program: exit statuses, commands, help texts, the systemd unit.

use anyhow::Result;

const USAGE: &str = include_str!("../../docs/use/usage.md");

#[test]
fn the_usage_page_has_the_exit_statuses_of_the_help() -> Result<()> {
    let help = tests::program::run(&mut tests::program::command(["--help"])?)?.expect(0)?;
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let table = help.split("Exit status:").nth(1).unwrap_or_default();
    let mut count = 0;
    for line in table.lines().filter(|line| !line.trim().is_empty()) {
        let (status, meaning) = line.trim().split_once(' ').unwrap_or_default();
        let documented = USAGE.lines().any(|row| {
            let mut cells = row.trim_start_matches("| ").split('|').map(str::trim);
            let numbers = cells.next().unwrap_or_default();
            // The page gives one row to both signals, and more words to some rows.
            let says = cells.next().unwrap_or_default().replace('`', "");
            let is_said = says.contains(meaning.trim()) || numbers == "130, 143";
            is_said && numbers.split(',').any(|number| number.trim() == status)
        });
        assert!(
            documented,
            "{status}, {meaning:?} is not in docs/use/usage.md"
        );
        count += 1;
    }
    assert_eq!(count, 13);
    Ok(())
}

#[test]
fn completions_and_man_pages_name_every_command() -> Result<()> {
    let shells = ["bash", "zsh", "fish"];
    let commands = [
        "save",
        "restore",
        "cat",
        "run",
        "watch",
        "notify",
        "runs",
        "list",
        "show",
        "map",
        "verify",
        "forget",
        "hosts",
        "trace",
        "plan",
        "health",
        "dashboard",
        "grid",
        "demo",
    ];
    for shell in shells {
        let mut completing = tests::program::command(["--", "ckpt", ""])?;
        completing
            .env("CKPT_COMPLETE", shell)
            .env("_CLAP_IFS", "\n")
            .env("_CLAP_COMPLETE_INDEX", "1");
        let offered = tests::program::run(&mut completing)?.expect(0)?;
        let offered = String::from_utf8_lossy(&offered.stdout).into_owned();
        for command in commands {
            let is_offered = offered.lines().any(|line| line.starts_with(command));
            assert!(is_offered, "{shell}: {command}: {offered}");
        }
    }
    let dir = tempfile::tempdir()?;
    let mut man = tests::program::command(["man", "--dir"])?;
    tests::program::run(man.arg(dir.path()))?.expect(0)?;
    for command in commands {
        assert!(
            dir.path().join(format!("ckpt-{command}.1")).exists(),
            "{command}"
        );
    }
    Ok(())
}

#[test]
fn the_daemon_has_completions_and_man_pages_too() -> Result<()> {
    let daemon = |args: &[&str]| -> Result<tests::Outcome> {
        let mut command = tests::program::command(args)?;
        std::os::unix::process::CommandExt::arg0(&mut command, "ckpt-store");
        tests::program::run(&mut command)?.expect(0)
    };
    let commands = [
        "serve", "registry", "join", "status", "history", "pause", "resume", "drain",
    ];
    for shell in ["bash", "zsh", "fish"] {
        let script = daemon(&["completions", shell])?;
        let script = String::from_utf8_lossy(&script.stdout).into_owned();
        for command in commands {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    let dir = tempfile::tempdir()?;
    let pages = dir.path().join("pages");
    daemon(&["man", "--dir", &pages.display().to_string()])?;
    for command in commands {
        let page = std::fs::read_to_string(pages.join(format!("ckpt-store-{command}.1")))?;
        assert!(page.contains("\\-\\-data"), "{command}: {page}");
    }
    assert!(!pages.join("ckpt-store-calibrate-guest.1").exists());
    Ok(())
}

#[test]
fn a_commands_own_options_come_first_in_help_and_man_page() -> Result<()> {
    const GLOBAL: &str = "Options of all commands";
    let help = tests::program::run(&mut tests::program::command(["save", "--help"])?)?.expect(0)?;
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let options = help.split("Example:").next().unwrap_or_default();
    let (own, global) = options.split_once(GLOBAL).unwrap_or_default();
    for option in ["--job", "--keep", "--ttl", "--deadline", "--note"] {
        assert!(
            own.contains(option) && !global.contains(option),
            "{option}: {help}"
        );
    }
    for option in ["--grid", "--key-file", "--json", "--memory"] {
        assert!(
            global.contains(option) && !own.contains(option),
            "{option}: {help}"
        );
    }
    let dir = tempfile::tempdir()?;
    let mut man = tests::program::command(["man", "--dir"])?;
    tests::program::run(man.arg(dir.path()))?.expect(0)?;
    let page = std::fs::read_to_string(dir.path().join("ckpt-save.1"))?;
    let heading = format!(".SH \"{}\"", GLOBAL.to_uppercase());
    let (own, global) = page.split_once(&heading).unwrap_or_default();
    let options = own.split(".SH OPTIONS").nth(1).unwrap_or_default();
    assert!(
        options.contains("deadline") && !options.contains("key\\-file"),
        "{page}"
    );
    assert!(global.contains("key\\-file"), "{page}");
    assert!(
        page.contains(".SH \"EXAMPLES AND NOTES\"") && !page.contains("SH EXTRA"),
        "{page}"
    );
    Ok(())
}

fn help_of(args: &[&str]) -> Result<String> {
    let help = tests::program::run(&mut tests::program::command(args)?)?.expect(0)?;
    Ok(String::from_utf8_lossy(&help.stdout).into_owned())
}

#[test]
fn the_help_has_commands_in_groups_and_rare_ones_have_their_own_help() -> Result<()> {
    for option in ["-h", "--help"] {
        let help = help_of(&[option])?;
        let headings = help.lines().filter(|line| {
            !line.starts_with(' ') && line.ends_with(':') && !line.starts_with("Options")
        });
        let headings: Vec<&str> = headings.filter(|one| !one.starts_with("Exit")).collect();
        assert_eq!(headings.len(), 6, "{help}");
        let every_day = help.split("Every day:\n").nth(1).unwrap_or_default();
        let names = every_day
            .lines()
            .take(5)
            .filter_map(|line| line.split_whitespace().next());
        let names: Vec<&str> = names.collect();
        assert_eq!(names, ["run", "save", "restore", "list", "health"]);
        assert!(!help.contains("\n  notify"), "{help}");
    }
    for command in ["notify", "completions", "man"] {
        let help = help_of(&[command, "--help"])?;
        // The usage line begins with the name of the file that was started.
        let usage = help.lines().find(|line| line.starts_with("Usage: "));
        assert!(usage.is_some_and(|usage| usage.contains(command)), "{help}");
    }
    Ok(())
}

#[test]
fn a_short_help_leaves_out_what_is_rarely_needed() -> Result<()> {
    for command in ["save", "run"] {
        let short = help_of(&[command, "-h"])?;
        let long = help_of(&[command, "--help"])?;
        let has = |help: &str, option: &str| help.contains(&format!(" {option} "));
        for rare in ["--compute-host", "--choose", "--level", "--nice"] {
            assert!(!has(&short, rare) && has(&long, rare), "{command} {rare}");
        }
        for usual in ["--job", "--keep", "--exclude"] {
            assert!(has(&short, usual) && has(&long, usual), "{command} {usual}");
        }
    }
    Ok(())
}

/// What systemd says of a unit, with the program under test in place of the installed ones.
fn analyzed(args: &[&str], name: &str, unit: &str) -> Result<Option<std::process::Output>> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join(name);
    let program = tests::ckpt()?.display().to_string();
    let unit = unit.replace("/usr/bin/ckpt-store", &program);
    std::fs::write(
        &path,
        unit.replace("/usr/bin/ckpt ", &format!("{program} ")),
    )?;
    let mut analyze = std::process::Command::new("systemd-analyze");
    Ok(analyze.args(args).arg(&path).output().ok())
}

#[test]
fn the_systemd_units_are_sound_and_tight() -> Result<()> {
    /// Highest exposure level, on a scale to 10; a unit without any settings has 9.6.
    const EXPOSURE_MAX: f64 = 1.5;
    let units = [
        (
            "ckpt-store.service",
            include_str!("../../packaging/ckpt-store.service"),
        ),
        (
            "ckpt-registry.service",
            include_str!("../../packaging/ckpt-registry.service"),
        ),
    ];
    let watch = include_str!("../../packaging/ckpt-watch@.service");
    for (name, unit) in units
        .into_iter()
        .chain([("ckpt-watch@run3.service", watch)])
    {
        let Some(verified) = analyzed(&["verify"], name, unit)? else {
            return tests::skip::not_checked(
                "the systemd units",
                "systemd-analyze is not installed",
            );
        };
        let said = String::from_utf8_lossy(&verified.stderr).into_owned();
        assert!(
            verified.status.success() && !said.contains("ckpt-"),
            "{said}"
        );
    }
    for (name, unit) in units {
        let rated = analyzed(&["security", "--offline=true", "--no-pager"], name, unit)?;
        let rated = rated.map(|rated| String::from_utf8_lossy(&rated.stdout).into_owned());
        let rated = rated.unwrap_or_default();
        let level = rated.lines().find_map(|line| {
            let (_, level) = line.split_once(&format!("exposure level for {name}: "))?;
            level.split_whitespace().next()?.parse::<f64>().ok()
        });
        assert!(level.is_some_and(|level| level <= EXPOSURE_MAX), "{rated}");
    }
    Ok(())
}
