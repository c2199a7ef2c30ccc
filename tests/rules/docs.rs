//! The documents match the source text: figures, names of tests, and the places of code that pages lead to.

use std::collections::BTreeSet;

use anyhow::Result;

fn table_rows(page: &str) -> Vec<Vec<&str>> {
    let mut rows = Vec::new();
    let mut is_below_head = false;
    for line in page.lines() {
        if line.starts_with("|---") {
            is_below_head = true;
        } else if !line.starts_with('|') {
            is_below_head = false;
        } else if is_below_head {
            let cells = line.trim_matches('|').split('|');
            rows.push(cells.map(str::trim).collect());
        }
    }
    rows
}

#[test]
fn figures_that_a_page_quotes_stand_in_a_row_of_its_tables() {
    let pages = [
        (
            include_str!("../../docs/research/prediction.md"),
            include_str!("../../benches/tables/prediction.md"),
        ),
        (
            include_str!("../../docs/research/placement.md"),
            concat!(
                include_str!("../../benches/tables/placement-spot.md"),
                include_str!("../../benches/tables/placement-bitbrains.md"),
                include_str!("../../benches/tables/placement-planetlab.md"),
                include_str!("../../benches/tables/placement-tor.md"),
                include_str!("../../benches/tables/placement-grid5000.md"),
                include_str!("../../benches/tables/placement-osg.md"),
            ),
        ),
    ];
    for (page, tables) in pages {
        let quoted = table_rows(page);
        let rows = table_rows(tables);
        assert!(quoted.len() >= 5, "{quoted:?}");
        for cells in quoted {
            let has_all = |row: &Vec<&str>| {
                row.first() == cells.first() && cells.iter().all(|cell| row.contains(cell))
            };
            assert!(rows.iter().any(has_all), "in no table: {cells:?}");
        }
    }
}

/// The unit names the program's installed path. That path is replaced by the path of the program that was
/// built, because nothing is installed here.
/// Names of all test functions in a folder, as `module::function`.
fn tests_below(dir: &std::path::Path, found: &mut BTreeSet<String>) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            tests_below(&path, found)?;
        } else if let Some(stem) = name.strip_suffix(".rs") {
            let folder = path
                .parent()
                .and_then(|dir| dir.file_name())
                .unwrap_or_default();
            let folder = folder.to_string_lossy();
            let module = if stem == "mod" { &*folder } else { stem };
            let text = std::fs::read_to_string(&path)?;
            let mut is_test = false;
            for line in text.lines().map(str::trim) {
                is_test |= line == "#[test]" || line.starts_with("#[tokio::test");
                if let Some(rest) = line
                    .strip_prefix("async ")
                    .unwrap_or(line)
                    .strip_prefix("fn ")
                    && std::mem::take(&mut is_test)
                {
                    let function = rest.split('(').next().unwrap_or_default();
                    found.insert(format!("{module}::{function}"));
                }
            }
        }
    }
    Ok(())
}

#[test]
fn the_tests_that_the_security_page_names_exist() -> Result<()> {
    const SECURITY: &str = include_str!("../../docs/run-a-grid/security.md");
    let root = crate::tree::root();
    let mut found = BTreeSet::new();
    tests_below(root, &mut found)?;
    let quoted = SECURITY.split('`').skip(1).step_by(2);
    let named: BTreeSet<&str> = quoted
        .filter(|name| name.contains("::") && *name != "module::test")
        .collect();
    assert!(named.len() > 40, "{}", named.len());
    let missing: Vec<_> = named
        .iter()
        .filter(|name| !found.contains(**name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    Ok(())
}

/// The places in a row of a table that read `` `TEXT` in `FILE` ``.
fn named_places(row: &[&str]) -> Vec<(String, String)> {
    let cells = row.join(" | ");
    let parts: Vec<&str> = cells.split('`').collect();
    let triples = parts.windows(3).skip(1).step_by(2);
    let places = triples.filter(|triple| triple[1] == " in ");
    places
        .map(|triple| (triple[0].to_owned(), triple[2].to_owned()))
        .collect()
}

#[test]
fn the_lines_that_contributing_leads_to_exist() -> Result<()> {
    let page = include_str!("../../CONTRIBUTING.md");
    let section = page
        .split("## From a question to the line")
        .nth(1)
        .and_then(|rest| rest.split("\n## ").next())
        .unwrap_or_default();
    let rows = table_rows(section);
    assert!(rows.len() >= 10, "{rows:?}");
    let root = crate::tree::root();
    for row in &rows {
        let places = named_places(row);
        assert!(!places.is_empty(), "{row:?} leads nowhere");
        for (text, file) in places {
            let source = std::fs::read_to_string(root.join(&file))?;
            assert!(source.contains(&text), "{file} has no {text}");
        }
    }
    Ok(())
}

/// The part of a link that leads to a heading, as renderers of Markdown make it of the heading.
fn anchor_of(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words.chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ => letter.is_alphanumeric().then_some(letter),
    });
    kept.collect()
}

/// Where the links of a page lead, without those to other sites.
fn links_in(page: &str) -> impl Iterator<Item = &str> {
    let links = page.split("](").skip(1).filter_map(|rest| {
        let link = rest.split(')').next()?;
        (!link.contains([' ', '\n'])).then_some(link)
    });
    links.filter(|link| !link.contains("://"))
}

/// The links of one page that lead nowhere.
fn dead_links(page: &std::path::Path) -> Result<Vec<String>> {
    let folder = page.parent().unwrap_or(page);
    let mut dead = Vec::new();
    for link in links_in(&std::fs::read_to_string(page)?) {
        let mut parts = link.splitn(2, '#');
        let target = match parts.next() {
            None | Some("") => page.to_path_buf(),
            Some(file) => folder.join(file),
        };
        let is_dead = match parts.next() {
            None => !target.exists(),
            Some(anchor) => {
                let text = std::fs::read_to_string(&target).unwrap_or_default();
                let mut headings = text.lines().filter(|line| line.starts_with('#'));
                !headings.any(|heading| anchor_of(heading) == anchor)
            }
        };
        if is_dead {
            dead.push(format!("{}: {link}", page.display()));
        }
    }
    Ok(dead)
}

#[test]
fn links_in_pages_lead_to_files_and_headings_that_exist() -> Result<()> {
    let root = crate::tree::root();
    let mut pages = Vec::new();
    let mut folders = vec![root.join("docs"), root.join("benches/tables")];
    for name in [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
    ] {
        pages.push(root.join(name));
    }
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                pages.push(path);
            }
        }
    }
    assert!(pages.len() > 25, "{pages:?}");
    let mut dead = Vec::new();
    for page in &pages {
        dead.extend(dead_links(page)?);
    }
    assert!(dead.is_empty(), "{dead:#?}");
    Ok(())
}
