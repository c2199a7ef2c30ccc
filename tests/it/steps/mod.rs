//! What the programs say to try next.

mod carried_out;
mod grammar;
mod sources;

use anyhow::{Result, ensure};

use grammar::Commands;

#[test]
fn every_command_and_option_that_a_text_of_the_programs_names_exists() -> Result<()> {
    let commands = Commands::of_the_programs()?;
    let mut wrong = Vec::new();
    let mut count = 0;
    for text in sources::texts()? {
        count += 1;
        for missing in commands.missing_from(&text.value) {
            wrong.push(format!("{}: {missing}: {}", text.place, text.value));
        }
    }
    ensure!(count > 1000, "only {count} texts");
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn a_command_or_option_that_there_is_not_is_found_in_a_text() -> Result<()> {
    let commands = Commands::of_the_programs()?;
    let wrong = [
        ("ckpt lists", "ckpt lists"),
        ("again later: `ckpt hosts --all`", "ckpt hosts --all"),
        ("ckpt key exports -o FILE", "ckpt key exports"),
        (
            "ckpt{} grid init{options} --nam GRID",
            "ckpt grid init --nam",
        ),
        ("ckpt list; ckpt-store list", "ckpt-store list"),
        ("a longer --dead-line", "any command --dead-line"),
        ("ckpt list -x", "ckpt list -x"),
    ];
    for (text, missing) in wrong {
        ensure!(
            commands.missing_from(text) == [missing],
            "{text}: {:?}",
            commands.missing_from(text)
        );
    }
    let right = [
        "ckpt run --files state -- sh --what; ckpt list",
        "ckpt, or a newer ckpt",
        "ckpt --help",
        "--dir DIR (CKPT_AUTHORITY), then ckpt grid init --dir {} --name=GRID",
        "ckpt-store history -o lab/$(hostname)",
    ];
    for text in right {
        ensure!(
            commands.missing_from(text).is_empty(),
            "{text}: {:?}",
            commands.missing_from(text)
        );
    }
    Ok(())
}
