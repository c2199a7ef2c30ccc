//! Rules for the source text. They have no exceptions.
//!
//! To add a crate, add it to the code map of `ARCHITECTURE.md`; to forbid a word, add it to the glossary.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use crate::tree::{self, Code, Source, Token};

/// Most lines of a function, from `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;

/// Most lines of a file, its tests aside.
const FILE_LINES_MAX: usize = 800;

/// Names that pure code may not use, as any part of a path.
const IMPURE_NAMES: [&str; 9] = [
    "HashMap",
    "HashSet",
    "Instant",
    "RandomState",
    "SystemTime",
    "UNIX_EPOCH",
    "async",
    "await",
    "thread_rng",
];

/// Macros that pure code may not use, because they print.
const IMPURE_MACROS: [&str; 5] = ["dbg", "eprint", "eprintln", "print", "println"];

/// Beginnings of paths that pure code may not use.
const IMPURE_PATHS: [&str; 20] = [
    "aws_lc_rs::rand",
    "direct_io",
    "getrandom",
    "libc",
    "mio",
    "quinn",
    "rand::random",
    "rand::random_range",
    "rand::rng",
    "rustix",
    "socket2",
    "std::env",
    "std::fs",
    "std::io::stderr",
    "std::io::stdin",
    "std::io::stdout",
    "std::os",
    "std::process",
    "std::thread",
    "tokio",
];

/// All that pure code may use of `std::net`: addresses are data.
const ADDRESSES: [&str; 4] = ["IpAddr", "Ipv4Addr", "Ipv6Addr", "SocketAddr"];

/// Fails with the rule's name and all places that break the rule, if there are any.
fn judge(rule: &str, broken: &BTreeMap<String, String>) {
    let broken: Vec<String> = broken
        .iter()
        .map(|(place, how)| format!("{place}: {how}"))
        .collect();
    assert!(broken.is_empty(), "{rule}\n  {}", broken.join("\n  "));
}

/// Like [`judge`], for places that have more than `max` lines.
fn judge_lengths(rule: &str, max: usize, lengths: Vec<(String, usize)>) {
    let long = lengths.into_iter().filter(|(_, lines)| *lines > max);
    let broken = long.map(|(place, lines)| (place, format!("{lines} lines, at most {max}")));
    judge(rule, &broken.collect());
}

/// All Rust files of the tree.
fn sources() -> Result<Vec<(Source, Code)>> {
    let files = tree::files(&[".rs"])?.into_iter();
    let sources = files.map(|source| {
        let code = Code::of(&source.text).map_err(|cause| cause.context(source.path.clone()))?;
        Ok((source, code))
    });
    sources.collect()
}

/// Whether a file has only tests.
fn is_for_tests(path: &str, test_paths: &BTreeSet<String>) -> bool {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    let in_a_folder_of_tests = path.split('/').rev().skip(1).any(|dir| dir == "tests");
    let is_declared = test_paths.iter().any(|test| {
        let rest = stem.strip_prefix(test.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    in_a_folder_of_tests || is_declared
}

/// Code of pure crates and of the folders called `core`, without tests.
fn pure_sources() -> Result<Vec<(Source, Code)>> {
    let map = tree::code_map()?;
    let sources = sources()?;
    let test_paths = tree::test_paths(&sources);
    let is_pure = |path: &str| {
        let mut parts = path.split('/');
        let dir = parts.next().unwrap_or_default();
        let listed = map.iter().find(|listed| listed.dir == dir);
        let is_source = parts.next() == Some("src");
        let is_core = parts.next() == Some("core");
        is_source && (is_core || listed.is_some_and(|listed| listed.is_pure))
    };
    let kept = sources
        .into_iter()
        .filter(|(source, _)| is_pure(&source.path) && !is_for_tests(&source.path, &test_paths));
    Ok(kept.collect())
}

/// Names and paths in this code that pure code may not use, each with its line.
fn impurities(code: &Code) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for (at, token) in code.tokens.iter().enumerate() {
        let follows = |text| {
            code.tokens
                .get(at + 1)
                .is_some_and(|next| next.text == text)
        };
        let is_macro = IMPURE_MACROS.contains(&token.text.as_str()) && follows("!");
        if is_macro || IMPURE_NAMES.contains(&token.text.as_str()) {
            found.push((token.text.clone(), token.line));
        }
    }
    for (path, line) in code.paths() {
        let is_below = |above: &&str| {
            let rest = path.strip_prefix(*above);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        let address = |rest: &str| ADDRESSES.iter().any(|name| rest.starts_with(name));
        let is_socket = path
            .strip_prefix("std::net")
            .is_some_and(|rest| !address(rest.trim_start_matches(':')));
        if let Some(above) = IMPURE_PATHS.iter().find(|above| is_below(above)) {
            found.push(((*above).to_owned(), line));
        } else if is_socket {
            found.push(("std::net".to_owned(), line));
        }
    }
    found
}

#[test]
fn pure_code_has_no_clock_file_socket_environment_thread_async_or_random_order() -> Result<()> {
    let sources = pure_sources()?;
    assert!(sources.len() > 60, "too few pure files: {}", sources.len());
    let mut broken = BTreeMap::new();
    for (Source { path, .. }, code) in &sources {
        for (what, line) in impurities(code) {
            broken.insert(format!("{path} {what}"), format!("on line {line}"));
        }
    }
    judge("pure code reaches out", &broken);
    Ok(())
}

#[test]
fn a_core_uses_nothing_of_its_crate_but_itself() -> Result<()> {
    let mut broken = BTreeMap::new();
    for (Source { path, .. }, code) in &pure_sources()? {
        if !path.contains("/src/core/") {
            continue;
        }
        for (used, line) in code.paths() {
            let mut names = used.split("::");
            if names.next() != Some("crate") {
                continue;
            }
            let module = names.next().unwrap_or_default();
            if module != "core" {
                broken.insert(format!("{path} {module}"), format!("on line {line}"));
            }
        }
    }
    judge("a core looks up", &broken);
    Ok(())
}

#[test]
fn functions_are_short() -> Result<()> {
    let mut lengths = Vec::new();
    for (Source { path, .. }, code) in &sources()? {
        let functions = code.functions.iter();
        lengths.extend(functions.map(|one| (format!("{path} {}", one.name), one.lines)));
    }
    assert!(lengths.len() > 2_000);
    judge_lengths("a long function", FUNCTION_LINES_MAX, lengths);
    Ok(())
}

/// The parts of the bracketed group that begins at a token, without the commas between them, and the token after it.
fn group(tokens: &[Token], start: usize) -> (Vec<&[Token]>, usize) {
    let mut depth = 0_usize;
    let mut parts = Vec::new();
    let mut begin = start + 1;
    for (at, token) in tokens.iter().enumerate().skip(start) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            "," if depth == 1 => {
                parts.extend(tokens.get(begin..at));
                begin = at + 1;
            }
            _ => {}
        }
        if depth == 0 {
            let last = tokens.get(begin..at).filter(|last| !last.is_empty());
            parts.extend(last);
            return (parts, at + 1);
        }
    }
    (parts, tokens.len())
}

/// Whether a later value uses a name that an earlier part of the pattern binds, as in a swap: as statements of their
/// own they would mean something else.
fn needs_old_values(names: &[&[Token]], values: &[&[Token]]) -> bool {
    names.iter().enumerate().any(|(at, pattern)| {
        let later = values.iter().skip(at + 1).flat_map(|value| value.iter());
        let mut later = later.map(|token| &token.text);
        later.any(|used| {
            let is_name = used.starts_with(|first: char| first.is_lowercase());
            is_name && used != "mut" && pattern.iter().any(|token| token.text == *used)
        })
    })
}

/// Lines on which independent values are bound as one tuple.
fn tuple_bindings(code: &Code) -> Vec<usize> {
    let is = |at: usize, text: &str| code.tokens.get(at).is_some_and(|one| one.text == text);
    let mut found = Vec::new();
    for (at, token) in code.tokens.iter().enumerate() {
        if token.text != "let" || !is(at + 1, "(") {
            continue;
        }
        let (names, after) = group(&code.tokens, at + 1);
        if !is(after, "=") || !is(after + 1, "(") {
            continue;
        }
        let (values, end) = group(&code.tokens, after + 1);
        if is(end, ";") && values.len() > 1 && !needs_old_values(&names, &values) {
            found.push(token.line);
        }
    }
    found
}

#[test]
fn each_value_is_bound_by_a_statement_of_its_own() -> Result<()> {
    let mut broken = BTreeMap::new();
    for (Source { path, .. }, code) in &sources()? {
        for line in tuple_bindings(code) {
            let how = "a tuple of independent values; write a `let` for each".to_owned();
            broken.insert(format!("{path}:{line}"), how);
        }
    }
    judge("lines are saved by a tuple", &broken);
    Ok(())
}

#[test]
fn files_are_short() -> Result<()> {
    let lengths: Vec<(String, usize)> = sources()?
        .into_iter()
        .map(|(source, code)| (source.path, code.lines))
        .collect();
    assert!(lengths.len() > 200);
    judge_lengths("a long file", FILE_LINES_MAX, lengths);
    Ok(())
}

#[test]
fn a_module_with_a_folder_is_the_mod_rs_in_it() -> Result<()> {
    let mut broken = BTreeMap::new();
    for Source { path, .. } in tree::files(&[".rs"])? {
        let stem = path.strip_suffix(".rs").unwrap_or(&path);
        let how = format!("move it to {stem}/mod.rs");
        if tree::root().join(stem).is_dir() {
            broken.insert(path, how);
        }
    }
    judge("a module beside its folder", &broken);
    Ok(())
}

/// The words of a text, each with its line. Names are split into words, and a final s is dropped.
fn words(text: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mut word = String::new();
        let mut was_small = false;
        for letter in line.chars().chain([' ']) {
            if !letter.is_alphabetic() || (was_small && letter.is_uppercase()) {
                let whole = std::mem::take(&mut word);
                let one = whole.strip_suffix('s').unwrap_or(&whole);
                found.push((one.to_owned(), number + 1));
            }
            if letter.is_alphabetic() {
                word.extend(letter.to_lowercase());
            }
            was_small = letter.is_lowercase();
        }
    }
    found.retain(|(word, _)| !word.is_empty());
    found
}

#[test]
fn no_word_that_the_glossary_forbids_is_used() -> Result<()> {
    let forbidden = tree::forbidden_words()?;
    assert!(forbidden.len() >= 8, "the glossary forbids too few words");
    let mut broken = BTreeMap::new();
    for Source { path, text } in tree::files(&[".rs", ".md", ".toml"])? {
        for (word, line) in words(&text) {
            if let Some(instead) = forbidden.get(&word) {
                let how = format!("on line {line}: say {instead:?}");
                broken.insert(format!("{path} {word}"), how);
            }
        }
    }
    broken.retain(|place, _| !place.starts_with("ARCHITECTURE.md "));
    // It uses the names of the crate fuser.
    broken.retain(|place, _| !place.starts_with("tests/it/lying_files.rs "));
    judge("a word that the glossary forbids", &broken);
    Ok(())
}

#[test]
fn impure_names_paths_and_macros_are_found() -> Result<()> {
    let found = |text: &str| -> Result<Vec<String>> {
        let found = impurities(&Code::of(text)?).into_iter();
        Ok(found.map(|(what, _)| what).collect())
    };
    let cases = [
        ("use std::{fmt, fs::File};", "std::fs"),
        ("use std::net::{IpAddr, UdpSocket};", "std::net"),
        ("use std::time::{Duration, Instant};", "Instant"),
        ("fn f() { let _ = std::env::var(\"A\"); }", "std::env"),
        ("fn f() { m!(std::thread::sleep(d)); }", "std::thread"),
        ("fn f() { println!(\"a\"); }", "println"),
        ("use std::collections::HashMap as Map;", "HashMap"),
        ("fn f() { g(async || 1); }", "async"),
    ];
    for (text, expected) in cases {
        assert_eq!(found(text)?, [expected], "{text}");
    }
    let clean = "use std::net::{IpAddr, SocketAddr};\nuse std::time::Duration;\n// async\n#[cfg(test)]\nuse std::fs;\nfn print() { print(\"std::fs\"); }";
    assert!(found(clean)?.is_empty());
    Ok(())
}

#[test]
fn words_are_found_in_names_too() {
    let of = |text| -> Vec<String> { words(text).into_iter().map(|(word, _)| word).collect() };
    assert_eq!(
        of("BlockMap::read_rows(4)"),
        ["block", "map", "read", "row"]
    );
}

#[test]
fn tuples_that_only_save_a_line_are_found() -> Result<()> {
    let found = |text: &str| -> Result<Vec<usize>> { Ok(tuple_bindings(&Code::of(text)?)) };
    assert_eq!(
        found("fn f() { let (a, mut b) = (g(1, 2), [3, 4]); }")?,
        [1]
    );
    for allowed in [
        "fn f() { let (a, b) = (b, a); }",
        "fn f() { let (a, b) = g(1, 2); }",
        "fn f() { let (a, b) = (g()); }",
        "fn f() { let (Some(a), Some(b)) = (g(), h()) else { return }; }",
    ] {
        assert!(found(allowed)?.is_empty(), "{allowed}");
    }
    Ok(())
}
