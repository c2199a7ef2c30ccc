//! The texts in the source of the programs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};

/// Crates whose texts users read.
const CRATES: [&str; 10] = [
    "ckpt",
    "ckpt-agent",
    "ckpt-store",
    "command-line",
    "condor",
    "health",
    "machine",
    "protocol",
    "runner",
    "transfer",
];

/// A string literal.
#[derive(Debug)]
pub(super) struct Text {
    /// Its file and line.
    pub(super) place: String,
    pub(super) value: String,
}

/// All string literals outside of tests and docstrings that have more than one word.
pub(super) fn texts() -> Result<Vec<Text>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let root = root.context("no root of the tree")?;
    let mut texts = Vec::new();
    for name in CRATES {
        let mut waiting: Vec<PathBuf> = vec![root.join(name).join("src")];
        while let Some(path) = waiting.pop() {
            if path.is_dir() {
                for entry in fs::read_dir(&path)? {
                    waiting.push(entry?.path());
                }
            } else if path.extension().is_some_and(|end| end == "rs") {
                read(root, &path, &mut texts)?;
            }
        }
    }
    Ok(texts)
}

fn read(root: &Path, path: &Path, texts: &mut Vec<Text>) -> Result<()> {
    let is_test = |part: &std::ffi::OsStr| part == "tests" || part == "tests.rs";
    let place = path.strip_prefix(root)?;
    if place.iter().any(is_test) {
        return Ok(());
    }
    let source = fs::read_to_string(path)?;
    let stream: TokenStream = source
        .parse()
        .map_err(|cause| anyhow::anyhow!("{}: {cause}", path.display()))?;
    gather(stream, place, texts);
    Ok(())
}

fn gather(stream: TokenStream, path: &Path, texts: &mut Vec<Text>) {
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        match tree {
            TokenTree::Group(group) => gather(group.stream(), path, texts),
            TokenTree::Punct(sign) if sign.as_char() == '#' => {
                trees.next_if(|tree| matches!(tree, TokenTree::Punct(_)));
                let Some(TokenTree::Group(attribute)) = trees.peek() else {
                    continue;
                };
                match attribute.stream().to_string().replace(' ', "") {
                    text if text == "cfg(test)" => {
                        // Up to the end of the item.
                        for skipped in trees.by_ref() {
                            let is_end = match &skipped {
                                TokenTree::Group(group) => {
                                    group.delimiter() == proc_macro2::Delimiter::Brace
                                }
                                TokenTree::Punct(sign) => sign.as_char() == ';',
                                _ => false,
                            };
                            if is_end {
                                break;
                            }
                        }
                    }
                    text if text.starts_with("doc=") => {
                        trees.next();
                    }
                    _ => {}
                }
            }
            TokenTree::Literal(literal) => {
                let line = literal.span().start().line;
                let Ok(text) = syn::parse_str::<syn::LitStr>(&literal.to_string()) else {
                    continue;
                };
                let value = text.value();
                if value.contains(' ') || value.starts_with("--") {
                    let place = format!("{}:{line}", path.display());
                    texts.push(Text { place, value });
                }
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}
