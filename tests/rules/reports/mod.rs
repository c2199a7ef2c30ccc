//! What `docs/use/json.md` and the Python package say of reports is what their structs and docstrings say.
//!
//! `CKPT_WRITE_TABLES=1 cargo test -p rules reports` writes both anew.

mod page;
mod python;
mod source;

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::tree;
use source::Reports;

const PAGE: &str = "docs/use/json.md";
const MODULE: &str = "python/package/ckpt/reports.py";

/// The lines before and after the sections in the page.
const BEGIN: &str = "<!-- sections of the reports: begin -->\n";
const END: &str = "<!-- sections of the reports: end -->\n";

/// Writes the file if the user asks for it, or else compares it.
fn keep(path: &'static str, text: &str) -> Result<()> {
    let file = tree::root().join(path);
    if std::env::var_os("CKPT_WRITE_TABLES").is_some() {
        return fs::write(&file, text).context(path);
    }
    let found = fs::read_to_string(&file).context(path)?;
    let mut lines = found.lines().zip(text.lines());
    let differs = lines.find(|(found, wanted)| found != wanted);
    ensure!(
        found == text,
        "{path} does not say what the reports' structs say: {differs:?}; CKPT_WRITE_TABLES=1 cargo test -p rules reports writes it"
    );
    Ok(())
}

#[test]
fn the_json_page_is_made_of_docstrings() -> Result<()> {
    let reports = Reports::read()?;
    ensure!(reports.types.len() > 80, "{}", reports.types.len());
    let old = fs::read_to_string(tree::root().join(PAGE))?;
    let (head, rest) = old.split_once(BEGIN).context("no begin")?;
    let (_, tail) = rest.split_once(END).context("no end")?;
    for root in &reports.roots {
        let is_named = head.contains(&format!("[{root}]("));
        ensure!(is_named, "{PAGE} does not say which command prints {root}");
    }
    let sections = page::sections(&reports);
    keep(PAGE, &format!("{head}{BEGIN}\n{sections}\n{END}{tail}"))
}

#[test]
fn the_types_of_the_python_package_are_those_of_the_reports() -> Result<()> {
    keep(MODULE, &python::module(&Reports::read()?))
}
