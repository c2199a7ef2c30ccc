//! Scripts in `tests/ecosystem` run the blocks of the recipes with the programs that the recipes are for.
//! These tests check that no block is left out.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Number of blocks in all recipes that no script runs: those of DMTCP, which no Debian suite has.
const NOT_RUN: usize = 9;

#[test]
fn every_block_of_a_recipe_is_taken_by_the_script_that_it_names() -> Result<()> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut taken = BTreeSet::new();
    let mut not_run = 0;
    for page in fs::read_dir(top.join("docs/use/recipes"))? {
        let path = page?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .context("a name")?;
        let page = fs::read_to_string(&path)?;
        let mut comment = None;
        let mut is_open = false;
        for (number, line) in page.lines().enumerate() {
            if line.starts_with("```") {
                is_open = !is_open;
                if !is_open {
                    continue;
                }
                let place = format!("{name}:{}", number + 1);
                let said: &str = comment
                    .take()
                    .with_context(|| format!("{place}: who runs it?"))?;
                if said.starts_with("not run: ") {
                    not_run += 1;
                    continue;
                }
                let by = said
                    .strip_prefix("run by ")
                    .and_then(|by| by.split_once(": "));
                let (script, block) = by.with_context(|| format!("{place}: {said}"))?;
                let text = fs::read_to_string(top.join("tests/ecosystem").join(script))?;
                let takes = ["block", "run_block"].map(|verb| format!("{verb} {name} {block}"));
                ensure!(
                    takes.iter().any(|take| text.contains(take)),
                    "{place}: {script} does not take it"
                );
                taken.insert((name.to_owned(), block.to_owned()));
            } else if !is_open && !line.is_empty() {
                let inner = line.strip_prefix("<!-- ");
                comment = inner.and_then(|rest| rest.strip_suffix(" -->"));
            }
        }
    }
    ensure!(not_run == NOT_RUN, "{not_run} blocks are not run");
    ensure!(taken.len() > 6, "{taken:?}");
    Ok(())
}

#[test]
fn scripts_say_first_what_they_need_and_have_no_syntax_errors() -> Result<()> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("ecosystem");
    for script in fs::read_dir(dir)? {
        let path = script?.path();
        if path.extension().is_none_or(|extension| extension != "sh") {
            continue;
        }
        let checked = std::process::Command::new("bash")
            .arg("-n")
            .arg(&path)
            .status()?;
        ensure!(checked.success(), "{}", path.display());
        let text = fs::read_to_string(&path)?;
        if text.starts_with("#!") {
            let head: String = text
                .lines()
                .take_while(|line| line.starts_with('#'))
                .collect();
            ensure!(
                head.contains("Needs ") && head.contains("min"),
                "{}",
                path.display()
            );
        }
    }
    Ok(())
}
