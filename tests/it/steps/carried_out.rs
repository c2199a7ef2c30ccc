//! Refusals that users meet most, and what becomes of the step that each of them names.

use std::fs;
use std::os::unix::process::CommandExt;

use anyhow::{Context, Result, ensure};
use tests::machines::{Machines, in_home};
use tests::port::free_address;
use tests::program::{command, run};
use tests::{Grid, Outcome};

/// Signs with which a command line ends in a step.
const ENDS: [&str; 5] = [";", ",", " or ", "`", "|"];

/// What is done with a step.
#[derive(Clone, Copy, Debug)]
enum Done {
    /// The command that is refused is run again with the options of the step, in which these words take the places of
    /// words like FILE.
    Options(&'static [&'static str]),
    /// The command of the step is run, with these words in such places.
    Command(&'static [&'static str]),
    /// The step is in words, and this is what they say.
    As(&'static [&'static str]),
}

use Done::{As, Command, Options};

/// A command that is refused, its exit status, the part of the step that is carried out, and how.
type Case = (&'static [&'static str], i32, &'static str, Done);

/// On a grid of five hosts. Each case may use what the ones before it made.
const ON_A_GRID: [Case; 48] = [
    (&["ckpt", "show", "77"], 4, "ckpt list", Command(&[])),
    (&["ckpt", "verify", "77"], 4, "ckpt list", Command(&[])),
    (
        &["ckpt", "restore", "42", "--version", "9"],
        4,
        "ckpt list",
        Command(&[]),
    ),
    (
        &["ckpt", "forget", "42", "--version", "9"],
        4,
        "ckpt list",
        Command(&[]),
    ),
    (
        &["ckpt", "save", "42", "image", "--after", "9"],
        4,
        "ckpt list",
        Command(&[]),
    ),
    (
        &["ckpt", "save", "42", "image", "--after", "1"],
        10,
        "--after 2",
        Options(&[]),
    ),
    (
        &["ckpt", "restore", "42", "-o", "image"],
        8,
        "--force",
        Options(&[]),
    ),
    (
        &["ckpt", "restore", "42", "-o", "no/copy"],
        8,
        "-o with a path in a directory that exists",
        As(&["ckpt", "restore", "42", "-o", "copy"]),
    ),
    (
        &["ckpt", "restore", "42", "--path", "no", "-o", "copy2"],
        4,
        "ckpt show",
        Command(&[]),
    ),
    (
        &["ckpt", "restore", "trees", "-o", "-"],
        2,
        "-o DIR",
        Options(&["tree-copy"]),
    ),
    (
        &["ckpt", "restore", "-o", "copy3"],
        2,
        "--job JOB",
        Options(&["42"]),
    ),
    (&["ckpt", "cat", "42", "no"], 4, "ckpt show", Command(&[])),
    (&["ckpt", "touch"], 2, "--job JOB", Options(&["42"])),
    (
        &["ckpt", "hosts", "42", "--for-job", "43"],
        2,
        "name one of them",
        As(&["ckpt", "hosts", "--for-job", "43"]),
    ),
    (&["ckpt", "save", "image"], 2, "ckpt save", Command(&["42"])),
    (
        &["ckpt", "save", "42", "missing"],
        8,
        "a path that exists",
        As(&["ckpt", "save", "42", "image"]),
    ),
    (
        &["ckpt", "save", "42", "-"],
        2,
        "--allow-empty",
        Options(&[]),
    ),
    (
        &["ckpt", "save", "42", "--", "true"],
        2,
        "--allow-empty",
        Options(&[]),
    ),
    (
        &["ckpt", "save", "42", "--", "false"],
        8,
        "the command alone",
        As(&["ckpt", "save", "42", "--", "echo", "state"]),
    ),
    (
        &["ckpt", "save", "42", "image", "-"],
        2,
        "./- for a file that is called -",
        As(&["ckpt", "save", "42", "image", "./-"]),
    ),
    (
        &["ckpt", "save", "42", "image", "tree/image"],
        2,
        "PATH=NAME",
        As(&["ckpt", "save", "42", "image", "tree/image=another"]),
    ),
    (
        &[
            "ckpt", "save", "42", "image", "--data", "40", "--parity", "2",
        ],
        2,
        "--data 3 --parity 2",
        Options(&[]),
    ),
    (
        &[
            "ckpt", "save", "42", "image", "--data", "4", "--parity", "2",
        ],
        5,
        "--data 3 --parity 2",
        Options(&[]),
    ),
    (
        &[
            "ckpt",
            "save",
            "42",
            "image",
            "--parity",
            "1",
            "--allow-degraded=2",
        ],
        2,
        "--allow-degraded=1",
        Options(&[]),
    ),
    (
        &["ckpt", "save", "42", "image", "--compute-host", "h99"],
        2,
        "ckpt hosts",
        Command(&[]),
    ),
    (
        &["ckpt", "save", "--detach", "42", "-"],
        2,
        "ckpt save --detach",
        Command(&["42", "image"]),
    ),
    (
        &["ckpt", "save", "--detach", "42", "link"],
        2,
        "name what it leads to",
        As(&["ckpt", "save", "--detach", "42", "image"]),
    ),
    (
        &["ckpt", "wait", "77"],
        4,
        "ckpt list --queued",
        Command(&[]),
    ),
    (
        &["ckpt", "forget", "--all"],
        2,
        "--job JOB",
        Options(&["trees"]),
    ),
    (
        &["ckpt", "run", "--files", "state", "--", "true"],
        125,
        "--job JOB",
        Options(&["50"]),
    ),
    (
        &["ckpt", "run", "50", "--files", "/", "--", "true"],
        125,
        "--files with a file or a directory that has a name",
        As(&["ckpt", "run", "50", "--files", "state", "--", "true"]),
    ),
    (
        &["ckpt", "run", "50", "--files", "state", "--", "./missing"],
        127,
        "-- COMMAND",
        As(&["ckpt", "run", "50", "--files", "state", "--", "true"]),
    ),
    (
        &["ckpt", "run", "--setup"],
        2,
        "--under shell",
        As(&[
            "ckpt",
            "run",
            "--setup",
            "51",
            "--under",
            "shell",
            "--files",
            "state",
            "--no-trial",
            "--",
            "true",
        ]),
    ),
    (
        &["ckpt", "runs", "--predict", "--", "unknown"],
        4,
        "ckpt runs",
        Command(&[]),
    ),
    (
        &["ckpt", "watch", "42", "missing", "--once"],
        8,
        "mkdir",
        As(&["ckpt", "watch", "42", "tree", "--once"]),
    ),
    (
        &[
            "ckpt",
            "--key-file",
            "restores.key",
            "forget",
            "42",
            "--version",
            "1",
        ],
        6,
        "the owner's key",
        As(&["ckpt", "forget", "42", "--version", "1"]),
    ),
    (
        &["ckpt", "--key-file", "restores.key", "save", "43", "image"],
        6,
        "ckpt key for-job",
        Command(&["43.key"]),
    ),
    (
        &[
            "ckpt",
            "--key-file",
            "restores.key",
            "key",
            "for-job",
            "--job",
            "44",
            "-o",
            "44.key",
        ],
        6,
        "--key-file FILE",
        Options(&["grid/owner.key"]),
    ),
    (
        &["ckpt", "--key-file", "open.key", "list"],
        6,
        "chmod 600 open.key",
        As(&["chmod", "600", "open.key"]),
    ),
    (
        &["ckpt", "--key-file", "missing.key", "list"],
        6,
        "ckpt key import",
        Command(&["owner.copy"]),
    ),
    (
        &[
            "ckpt",
            "--key-file",
            "other.key",
            "key",
            "import",
            "owner.copy",
        ],
        2,
        "--key-file FILE and --cert-file FILE",
        Options(&["third.key", "third.crt"]),
    ),
    (
        &["ckpt", "key", "export", "-o", "image"],
        8,
        "another path",
        As(&["ckpt", "key", "export", "-o", "owner.copy2"]),
    ),
    (
        &[
            "ckpt",
            "key",
            "export",
            "-o",
            "sealed",
            "--seal",
            "--passphrase-file",
            "short",
        ],
        2,
        "a longer one",
        As(&[
            "ckpt",
            "key",
            "export",
            "-o",
            "sealed",
            "--seal",
            "--passphrase-file",
            "long",
        ]),
    ),
    (
        &["ckpt", "key", "import", "image"],
        2,
        "a file that ckpt key export wrote",
        As(&["ckpt", "key", "import", "owner.copy"]),
    ),
    (
        &["ckpt", "grid", "show", "--dir", "new"],
        2,
        "ckpt grid init",
        Command(&["lab"]),
    ),
    (
        &[
            "ckpt",
            "grid",
            "restore",
            "image",
            "--dir",
            "back",
            "--passphrase-file",
            "long",
        ],
        2,
        "a file that ckpt grid backup wrote",
        As(&[
            "ckpt",
            "grid",
            "restore",
            "backup",
            "--dir",
            "back",
            "--passphrase-file",
            "long",
        ]),
    ),
    (
        &["ckpt-store", "status", "--data", "missing"],
        1,
        "--data DIR",
        Options(&["grid/hosts/h01"]),
    ),
    (
        &[
            "ckpt-store",
            "history",
            "--data",
            "grid/hosts/h01",
            "-o",
            "tree",
        ],
        1,
        "--output DIR",
        As(&[
            "ckpt-store",
            "history",
            "--data",
            "grid/hosts/h01",
            "-o",
            "history",
        ]),
    ),
];

/// On a machine that knows no grid.
const WITHOUT_A_GRID: [Case; 4] = [
    (
        &["ckpt", "list"],
        2,
        "ckpt grid up --dir DIR",
        Command(&["own"]),
    ),
    (
        &["ckpt", "--grid", "missing.toml", "list"],
        2,
        "--grid FILE",
        Options(&["own/grid.toml"]),
    ),
    (
        &["ckpt-store", "guest", "--socket", "socket", "123"],
        1,
        "ckpt-store guest -- COMMAND",
        As(&["ckpt-store", "guest", "--help"]),
    ),
    (
        &["ckpt", "trace", "describe", "."],
        4,
        "a trace is a folder with trace.csv",
        As(&["ckpt-store", "history", "--help"]),
    ),
];

/// On a machine that joins a grid. The words in angles are tokens.
const OF_A_NEW_MEMBER: [Case; 6] = [
    (
        &["ckpt", "join", "nonsense"],
        2,
        "the whole token",
        As(&["ckpt", "join", "--help"]),
    ),
    (
        &["ckpt", "join", "<donor>"],
        2,
        "ckpt-store join TOKEN",
        Command(&["<donor>"]),
    ),
    (
        &["ckpt-store", "join", "<donor 2>"],
        1,
        "--data DIR",
        Options(&["d2"]),
    ),
    (
        &["ckpt-store", "join", "<donor>", "--data", "d3"],
        1,
        "a new token",
        As(&["ckpt-store", "join", "<donor 3>", "--data", "d3"]),
    ),
    (
        &["ckpt-store", "join", "<person>", "--data", "d4"],
        1,
        "ckpt join TOKEN",
        Command(&["<person>"]),
    ),
    (
        &["ckpt", "join", "<person 2>"],
        2,
        "another --grid FILE with --key-file and --cert-file",
        As(&[
            "ckpt",
            "join",
            "<person 2>",
            "--grid",
            "g2",
            "--key-file",
            "k2",
            "--cert-file",
            "c2",
        ]),
    ),
];

/// Where the authority is.
const OF_AN_ADMIN: [Case; 3] = [
    (
        &["ckpt", "grid", "remove", "nobody"],
        4,
        "ckpt grid show",
        Command(&[]),
    ),
    (
        &["ckpt", "grid", "invite", "--count", "0"],
        2,
        "--count COUNT",
        Options(&["1"]),
    ),
    (
        &[
            "ckpt",
            "grid",
            "sign",
            "--role",
            "submitter",
            "--pubkey",
            "missing.pub",
        ],
        2,
        "--pubkey FILE.pub, which ckpt init",
        As(&["ckpt", "init", "--key-file", "bob.key", "--name", "bob"]),
    ),
];

fn ready_for_cases(grid: &Grid) -> Result<()> {
    fs::write(grid.path("image"), b"an image")?;
    fs::write(grid.path("-"), b"a file with a short name")?;
    fs::write(grid.path("short"), b"abc\n")?;
    fs::write(grid.path("long"), b"correct horse battery\n")?;
    fs::create_dir(grid.path("tree"))?;
    fs::write(grid.path("tree/image"), b"another image")?;
    fs::create_dir(grid.path("state"))?;
    std::os::unix::fs::symlink("image", grid.path("link"))?;
    fs::copy(grid.path("grid/owner.key"), grid.path("open.key"))?;
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(grid.path("open.key"), open)?;
    let made: [&[&str]; 7] = [
        &["save", "42", "image"],
        &["save", "42", "image"],
        &["save", "trees", "tree"],
        &[
            "key",
            "for-job",
            "--job",
            "42",
            "--rights",
            "restore",
            "-o",
            "restores.key",
        ],
        &["key", "export", "-o", "owner.copy"],
        &["init", "--key-file", "other.key", "--name", "other"],
        &[
            "grid",
            "backup",
            "backup",
            "--dir",
            "grid",
            "--passphrase-file",
            "long",
        ],
    ];
    for args in made {
        grid.run(args)?.expect(0)?;
    }
    Ok(())
}

/// The step that a program printed.
fn step_of(refused: &Outcome) -> Result<String> {
    let line = refused
        .stderr
        .lines()
        .find_map(|line| line.strip_prefix("try: "));
    Ok(line
        .with_context(|| format!("no step: {refused}"))?
        .to_owned())
}

/// The words that carry a step out.
fn words_of(typed: &[&str], step: &str, part: &str, done: Done) -> Result<Vec<String>> {
    let fill = match done {
        As(words) => return Ok(words.iter().map(|word| (*word).to_owned()).collect()),
        Options(fill) | Command(fill) => fill,
    };
    let from = step.find(part).and_then(|at| step.get(at..));
    let from = from.with_context(|| format!("no {part:?} in {step:?}"))?;
    let end = ENDS.iter().filter_map(|end| from.find(end)).min();
    let text = from.get(..end.unwrap_or(from.len())).unwrap_or_default();
    let mut fill = fill.iter();
    let mut words = Vec::new();
    for word in text.split_whitespace() {
        let is_place = word.len() > 2
            && word
                .trim_end_matches('.')
                .chars()
                .all(|sign| sign.is_ascii_uppercase());
        match (is_place, word) {
            (true, _) => words.push((*fill.next().context("a place is not filled")?).to_owned()),
            // Between two options.
            (false, "and") => {}
            (false, _) => words.push(word.to_owned()),
        }
    }
    ensure!(fill.next().is_none(), "more words than places: {text}");
    if matches!(done, Command(_)) {
        return Ok(words);
    }
    let mut again: Vec<String> = typed.iter().map(|word| (*word).to_owned()).collect();
    let own = again
        .iter()
        .position(|word| word == "--")
        .unwrap_or(again.len());
    let mut rest = again.split_off(own);
    // An option that was given gets its new value.
    for option in words.iter().filter(|word| word.starts_with('-')) {
        let name = option.split('=').next().unwrap_or_default();
        let given = again
            .iter()
            .position(|word| word.split('=').next() == Some(name));
        if let Some(at) = given {
            let count = if again[at].contains('=') || words.len() == 1 {
                1
            } else {
                2
            };
            again.drain(at..at + count);
        }
    }
    again.append(&mut words);
    again.append(&mut rest);
    Ok(again)
}

/// Runs each command that is refused, and carries out its step, which has to end with 0.
fn carry_out(cases: &[Case], act: impl Fn(&[&str]) -> Result<Outcome>) -> Result<()> {
    let mut wrong = Vec::new();
    for &(typed, code, part, done) in cases {
        let refused = act(typed)?;
        let step = step_of(&refused);
        let tried = step.and_then(|step| {
            ensure!(refused.code == Some(code), "{refused}");
            ensure!(step.contains(part), "{step}");
            let words = words_of(typed, &step, part, done)?;
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let ended = act(&words)?;
            ensure!(ended.code == Some(0), "try: {step}\n{words:?}: {ended}");
            Ok(())
        });
        if let Err(cause) = tried {
            wrong.push(format!("{typed:?}: {cause:#}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    Ok(())
}

/// A command of one of the programs, or of the system.
fn command_of(words: &[&str]) -> Result<std::process::Command> {
    let (program, args) = words.split_first().context("no program")?;
    if !program.starts_with("ckpt") {
        let mut other = std::process::Command::new(program);
        other.args(args);
        return Ok(other);
    }
    let mut made = command(args)?;
    made.arg0(program);
    Ok(made)
}

#[test]
fn the_step_of_a_refusal_on_a_grid_is_carried_out_and_works() -> Result<()> {
    let grid = Grid::up(5)?;
    ready_for_cases(&grid)?;
    carry_out(&ON_A_GRID, |words| {
        let mut made = command_of(words)?;
        in_home(&mut made, grid.dir())?.env("CKPT_GRID", grid.file());
        run(&mut made)
    })
}

#[test]
fn the_step_of_a_refusal_without_a_grid_is_carried_out_and_works() -> Result<()> {
    let machines = Machines::new()?;
    let done = carry_out(&WITHOUT_A_GRID, |words| {
        let mut made = command_of(words)?;
        machines.at("ada", &mut made)?;
        run(&mut made)
    });
    let down = machines.ckpt("ada", &["grid", "down", "--dir", "own"])?;
    done?;
    down.expect(0)?;
    Ok(())
}

#[test]
fn the_step_of_a_refusal_to_join_is_carried_out_and_works() -> Result<()> {
    let mut machines = Machines::new()?;
    machines.found(&free_address()?.to_string())?;
    let tokens = machines.invite(3, 2)?;
    let names = [
        "<donor>",
        "<donor 2>",
        "<donor 3>",
        "<person>",
        "<person 2>",
    ];
    let on = |machine: &'static str| {
        let machines = &machines;
        let tokens = &tokens;
        move |words: &[&str]| {
            let token = |word: &str| Some(&*tokens[names.iter().position(|name| *name == word)?]);
            let words: Vec<&str> = words
                .iter()
                .map(|word| token(word).unwrap_or(word))
                .collect();
            let mut made = command_of(&words)?;
            machines.at(machine, &mut made)?;
            run(&mut made)
        }
    };
    carry_out(&OF_A_NEW_MEMBER, on("ada"))?;
    carry_out(&OF_AN_ADMIN, on("admin"))
}
