//! Refusals that users meet most, and what becomes of the step that each of them names.

use std::fs;
use std::os::unix::process::CommandExt;

use anyhow::{Context, Result, bail, ensure};
use tests::machines::{Machines, in_home};
use tests::port::free_address;
use tests::program::{command, run};
use tests::{Grid, Outcome};

/// Signs with which a command line ends in a step.
const ENDS: [&str; 6] = [";", ",", " or ", "`", "|", " ("];

/// A line of a table: a command, its exit status, the part of its step that is carried out, and how.
///
/// `options`: the command is run again with the options of the step, in which the further words take the places of
/// words like FILE. `command`: the command of the step is run, with the further words in such places. `as`: the step
/// is in words, and the further words are what they ask for. What is run ends with 0, or with the status after a slash.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Case {
    typed: Vec<String>,
    code: i32,
    part: String,
    how: String,
    ends: i32,
    more: Vec<String>,
}

impl Case {
    fn parse(line: &str) -> Result<Self> {
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let fields: Vec<&str> = line.split(" | ").collect();
        let [typed, code, part, how] = *fields else {
            bail!("not four fields: {line}");
        };
        let mut more = words(how);
        ensure!(!more.is_empty(), "{line}");
        let how = more.remove(0);
        let (how, ends) = how.split_once('/').unwrap_or((&how, "0"));
        Ok(Self {
            typed: words(typed),
            code: code.parse()?,
            part: part.to_owned(),
            how: how.to_owned(),
            ends: ends.parse()?,
            more,
        })
    }

    /// The words that carry out the step.
    fn words(&self, step: &str) -> Result<Vec<String>> {
        let from = step.find(&self.part).and_then(|at| step.get(at..));
        let from = from.with_context(|| format!("no {:?}", self.part))?;
        if self.how == "as" {
            return Ok(self.more.clone());
        }
        let end = ENDS.iter().filter_map(|end| from.find(end)).min();
        let text = from.get(..end.unwrap_or(from.len())).unwrap_or_default();
        // Between two options.
        let named = text.split_whitespace().filter(|word| *word != "and");
        let mut fill = self.more.iter();
        let words = named.map(|word| match is_place(word) {
            true => fill.next().cloned().context("no word for a place"),
            false => Ok(word.to_owned()),
        });
        let words = words.collect::<Result<Vec<String>>>()?;
        ensure!(fill.next().is_none(), "more words than places: {text}");
        match self.how.as_str() {
            "command" => Ok(words),
            "options" => Ok(with_options(&self.typed, &words)),
            how => bail!("{how} is no way to carry out a step"),
        }
    }
}

/// Whether another word has to take the place of this one.
fn is_place(word: &str) -> bool {
    let name = word.trim_end_matches('.');
    name.len() > 2 && name.chars().all(|sign| sign.is_ascii_uppercase())
}

/// The typed words with these options, each of which takes the place of one with the same name.
fn with_options(typed: &[String], options: &[String]) -> Vec<String> {
    let name_of = |word: &str| word.split('=').next().unwrap_or_default().to_owned();
    let own = typed.iter().position(|word| word == "--");
    let (before, rest) = typed.split_at(own.unwrap_or(typed.len()));
    let mut again = before.to_vec();
    for (at, option) in options.iter().enumerate() {
        let Some(given) = again
            .iter()
            .position(|word| name_of(word) == name_of(option))
        else {
            continue;
        };
        let has_value = options
            .get(at + 1)
            .is_some_and(|next| !next.starts_with('-'));
        again.drain(given..=given + usize::from(has_value));
    }
    [again.as_slice(), options, rest].concat()
}

/// On a grid of five hosts. Each case may use what the ones before it made.
const ON_A_GRID: &str = "
ckpt show 77 | 4 | ckpt list | command
ckpt verify 77 | 4 | ckpt list | command
ckpt restore 42 --version 9 | 4 | ckpt list | command
ckpt forget 42 --version 9 | 4 | ckpt list | command
ckpt save 42 image --after 9 | 4 | ckpt list | command
ckpt save 42 image --after 1 | 10 | --after 2 | options
ckpt restore 42 -o image | 8 | --force | options
ckpt restore 42 -o no/copy | 8 | -o with a path in a directory that exists | as ckpt restore 42 -o copy
ckpt restore 42 --path no -o copy2 | 4 | ckpt show | command
ckpt restore trees -o - | 2 | -o DIR | options tree-copy
ckpt restore -o copy3 | 2 | --job JOB | options 42
ckpt cat 42 no | 4 | ckpt show | command
ckpt touch | 2 | --job JOB | options 42
ckpt hosts 42 --for-job 43 | 2 | name one of them | as ckpt hosts --for-job 43
ckpt save image | 2 | ckpt save | command 42
ckpt save 42 missing | 8 | a path that exists | as ckpt save 42 image
ckpt save 42 - | 2 | --allow-empty | options
ckpt save 42 -- true | 2 | --allow-empty | options
ckpt save 42 -- false | 8 | the command alone | as ckpt save 42 -- echo state
ckpt save 42 image - | 2 | ./- for a file that is called - | as ckpt save 42 image ./-
ckpt save 42 image tree/image | 2 | PATH=NAME | as ckpt save 42 image tree/image=another
ckpt save 42 image --data 40 --parity 2 | 2 | --data 3 --parity 2 | options
ckpt save 42 image --data 4 --parity 2 | 5 | --data 3 --parity 2 | options
ckpt save 42 image --parity 1 --allow-degraded=2 | 2 | --allow-degraded=1 | options
ckpt save 42 image --compute-host h99 | 2 | ckpt hosts | command
ckpt save --detach 42 - | 2 | ckpt save --detach | command 42 image
ckpt save --detach 42 link | 2 | name what it leads to | as ckpt save --detach 42 image
ckpt wait 77 | 4 | ckpt list --queued | command
ckpt forget --all | 2 | --job JOB | options trees
ckpt run --files state -- true | 125 | --job JOB | options 50
ckpt run 50 --files / -- true | 125 | --files with a file or a directory that has a name | as ckpt run 50 --files state -- true
ckpt run 50 --files state -- ./missing | 127 | -- COMMAND | as ckpt run 50 --files state -- true
ckpt run --setup | 2 | --under shell | as ckpt run --setup 51 --under shell --files state --untried -- true
ckpt runs --predict -- unknown | 4 | ckpt runs | command
ckpt watch 42 missing --once | 8 | mkdir | as ckpt watch 42 tree --once
ckpt --key-file restores.key forget 42 --keep 1 | 6 | the owner's key | as ckpt forget 42 --keep 1
ckpt --key-file restores.key save 43 image | 6 | ckpt key for-job | command 43.key
ckpt --key-file restores.key key for-job --job 44 -o 44.key | 6 | --key-file FILE | options grid/owner.key
ckpt --key-file open.key list | 6 | chmod 600 open.key | command
ckpt --key-file missing.key list | 6 | ckpt key import | command owner.copy
ckpt --key-file other.key key import owner.copy | 2 | --key-file FILE and --cert-file FILE | options third.key third.crt
ckpt key export -o image | 8 | another path | as ckpt key export -o owner.copy2
ckpt key export -o sealed --seal --passphrase-file short | 2 | a longer one | as ckpt key export -o sealed --seal --passphrase-file long
ckpt key import image | 2 | a file that ckpt key export wrote | as ckpt key import owner.copy
ckpt grid show --dir new | 2 | ckpt grid init | command lab
ckpt grid restore image --dir back --passphrase-file long | 2 | a file that ckpt grid backup wrote | as ckpt grid restore backup --dir back --passphrase-file long
ckpt-store status --data missing | 1 | --data DIR | options grid/hosts/h01
ckpt-store history --data grid/hosts/h01 -o tree | 1 | --output DIR | as ckpt-store history --data grid/hosts/h01 -o history
";

/// On the same grid, when no host is up.
const WHILE_ALL_ARE_DOWN: &str = "
ckpt list | 5 | ckpt hosts | command/5
ckpt restore 42 -o again | 5 | ckpt hosts | command/5
ckpt save 42 image | 5 | ckpt hosts | as ckpt grid up --dir grid
ckpt restore 42 -o copy | 8 | --force | options
";

/// On a machine that knows no grid.
const WITHOUT_A_GRID: &str = "
ckpt list | 2 | ckpt grid up --dir DIR | command own
ckpt --grid missing.toml list | 2 | --grid FILE | options own/grid.toml
ckpt-store guest --socket socket 123 | 1 | ckpt-store guest -- COMMAND | as ckpt-store guest --help
ckpt trace describe . | 4 | a trace is a folder with trace.csv | as ckpt-store history --help
";

/// Words of the tables in whose place a token is put.
const NAMED_TOKENS: [&str; 6] = [
    "<donor>",
    "<donor-2>",
    "<donor-3>",
    "<donor-4>",
    "<person>",
    "<person-2>",
];

/// On a machine that joins a grid.
const OF_A_NEW_MEMBER: &str = "
ckpt join nonsense | 2 | the whole token | as ckpt join --help
ckpt join <donor> | 2 | ckpt-store join TOKEN | command <donor>
ckpt-store join <donor-2> | 1 | --data DIR | options d2
ckpt-store join <donor-2> --data d3 | 1 | a new token | as ckpt-store join <donor-3> --data d3 --name taken
ckpt-store join <donor-4> --data d4 --name taken | 1 | --name with another name | as ckpt-store join <donor-4> --data d4 --name free
ckpt-store join <person> --data d5 | 1 | ckpt join TOKEN | command <person>
ckpt join <person-2> | 2 | another --grid FILE with --key-file and --cert-file | as ckpt join <person-2> --grid g2 --key-file k2 --cert-file c2
";

/// Where the authority is.
const OF_AN_ADMIN: &str = "
ckpt grid remove nobody | 4 | ckpt grid show | command
ckpt grid invite --count 0 | 2 | --count COUNT | options 1
ckpt grid sign --role submitter --pubkey missing.pub | 2 | --pubkey FILE.pub, which ckpt init | as ckpt init --key-file bob.key --name bob
";

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

/// Runs each command that is refused, and carries out its step.
fn carry_out(table: &str, act: impl Fn(&[String]) -> Result<Outcome>) -> Result<()> {
    let mut wrong = Vec::new();
    for line in table.lines().filter(|line| !line.is_empty()) {
        let case = Case::parse(line)?;
        let refused = act(&case.typed)?;
        let tried = step_of(&refused).and_then(|step| {
            ensure!(refused.code == Some(case.code), "{refused}");
            let words = case.words(&step).with_context(|| step.clone())?;
            let ended = act(&words)?;
            ensure!(
                ended.code == Some(case.ends),
                "{step}\n{}: {ended}",
                words.join(" ")
            );
            Ok(())
        });
        if let Err(cause) = tried {
            wrong.push(format!("{line}\n{cause:#}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    Ok(())
}

/// A command of one of the programs, or of the system.
fn command_of(words: &[String]) -> Result<std::process::Command> {
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
    let act = |words: &[String]| {
        let mut made = command_of(words)?;
        in_home(&mut made, grid.dir())?.env("CKPT_GRID", grid.file());
        run(&mut made)
    };
    carry_out(ON_A_GRID, act)?;
    grid.stop()?;
    carry_out(WHILE_ALL_ARE_DOWN, act)
}

#[test]
fn the_step_of_a_refusal_without_a_grid_is_carried_out_and_works() -> Result<()> {
    let machines = Machines::new()?;
    let done = carry_out(WITHOUT_A_GRID, |words| {
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
    let tokens = machines.invite(4, 2)?;
    let on = |machine: &'static str| {
        let machines = &machines;
        let tokens = &tokens;
        move |words: &[String]| {
            let words = words.iter().map(|word| {
                let at = NAMED_TOKENS.iter().position(|name| name == word);
                at.map_or_else(|| word.clone(), |at| tokens[at].clone())
            });
            let words: Vec<String> = words.collect();
            let mut made = command_of(&words)?;
            machines.at(machine, &mut made)?;
            run(&mut made)
        }
    };
    carry_out(OF_A_NEW_MEMBER, on("ada"))?;
    carry_out(OF_AN_ADMIN, on("admin"))
}
