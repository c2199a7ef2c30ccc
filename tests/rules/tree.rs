//! The source tree, for tests of rules: the code map of `ARCHITECTURE.md`, files, and their tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use proc_macro2::{Delimiter, Group, Spacing, TokenStream, TokenTree};

/// The page with the code map, the uses of crates, and the glossary.
const PAGE: &str = include_str!("../../ARCHITECTURE.md");

/// Folders without source text of this project.
const PASSED_OVER: [&str; 3] = ["target", "fixtures", "corpus"];

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR"));
    rules.ancestors().nth(2).unwrap_or(rules)
}

/// The first fenced block after the heading `## {title}` of the page.
fn fenced(title: &str) -> Result<Vec<&'static str>> {
    let heading = format!("## {title}\n");
    let rest = PAGE.split_once(&heading).context("no such heading")?.1;
    let section = rest.split("\n## ").next().unwrap_or_default();
    let block = section.split("```").nth(1).context("no fenced block")?;
    Ok(block.trim_matches('\n').lines().collect())
}

/// A line of the code map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The folder of a crate.
    pub(crate) dir: String,
    /// Whether the code map calls the crate pure: without input, output and clock.
    pub(crate) is_pure: bool,
}

/// The code map of the page, from top to bottom.
pub(crate) fn code_map() -> Result<Vec<Listed>> {
    let lines = fenced("Code map")?.into_iter();
    let rows = lines.filter(|line| !line.starts_with(' '));
    rows.map(|line| {
        let mut words = line.split_whitespace();
        let dir = words.next().and_then(|word| word.strip_suffix('/'));
        Ok(Listed {
            dir: dir.with_context(|| format!("no folder: {line}"))?.into(),
            is_pure: words.next() == Some("pure"),
        })
    })
    .collect()
}

/// For each crate, the crates of the workspace that it uses, by the page.
pub(crate) fn uses() -> Result<BTreeMap<String, BTreeSet<String>>> {
    let lines = fenced("Who uses whom")?.into_iter();
    let rows = lines.map(|line| {
        let mut words = line.split_whitespace().map(str::to_owned);
        let user = words.next().context("an empty line")?;
        Ok((user, words.collect()))
    });
    rows.collect()
}

/// Words that the glossary of the page forbids, each with the word to use instead.
pub(crate) fn forbidden_words() -> Result<BTreeMap<String, String>> {
    let glossary = PAGE.split_once("## Glossary\n").context("no glossary")?.1;
    let mut forbidden = BTreeMap::new();
    for row in glossary.lines().filter(|line| line.starts_with("| **")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [word, _, _, _, not] = cells.as_slice() else {
            ensure!(false, "not five cells: {row}");
            continue;
        };
        for not in not.split(',').map(str::trim).filter(|not| !not.is_empty()) {
            forbidden.insert(not.to_owned(), word.trim_matches('*').to_owned());
        }
    }
    Ok(forbidden)
}

/// A file of the tree.
#[derive(Debug)]
pub(crate) struct Source {
    /// The file's path below the root.
    pub(crate) path: String,
    /// The file's content.
    pub(crate) text: String,
}

/// All files with one of these endings, in the order of their paths.
pub(crate) fn files(endings: &[&str]) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    gather(root(), endings, &mut found)?;
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn gather(dir: &Path, endings: &[&str], found: &mut Vec<Source>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let (path, name) = {
            let entry = entry?;
            (entry.path(), entry.file_name())
        };
        let name = name.to_string_lossy();
        if path.is_dir() {
            if !name.starts_with('.') && !PASSED_OVER.contains(&&*name) {
                gather(&path, endings, found)?;
            }
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(Source {
                path: path.strip_prefix(root())?.to_string_lossy().into_owned(),
                text: fs::read_to_string(&path)?,
            });
        }
    }
    Ok(())
}

/// A token and the line on which it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// A name, a sign, a bracket, or `""` for a literal.
    pub(crate) text: String,
    /// Counted from 1.
    pub(crate) line: usize,
}

/// A function with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// The function's name.
    pub(crate) name: String,
    /// Number of lines from `fn` to the closing brace.
    pub(crate) lines: usize,
}

/// A path in the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Import {
    /// The path as it is written, with lists in `use` expanded.
    pub(crate) path: String,
    /// Whether it stands in a `pub use`.
    pub(crate) is_reexport: bool,
}

impl Import {
    /// The last name of the path.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit("::").next().unwrap_or_default()
    }
}

/// Rust code without comments and without items that are compiled only for tests.
#[derive(Debug, Default)]
pub(crate) struct Code {
    /// All tokens.
    pub(crate) tokens: Vec<Token>,
    /// All functions.
    pub(crate) functions: Vec<Function>,
    /// Modules in files of their own that are compiled only for tests.
    pub(crate) test_modules: Vec<String>,
    /// Number of lines, without those of items that are compiled only for tests.
    pub(crate) lines: usize,
}

impl Code {
    /// Parses Rust code.
    pub(crate) fn of(text: &str) -> Result<Self> {
        let stream: TokenStream = match text.parse() {
            Ok(stream) => stream,
            Err(cause) => anyhow::bail!("not Rust: {cause}"),
        };
        let mut code = Self {
            lines: text.lines().count(),
            ..Self::default()
        };
        code.read(stream);
        Ok(code)
    }

    fn read(&mut self, stream: TokenStream) {
        let trees: Vec<TokenTree> = stream.into_iter().collect();
        let mut at = 0;
        while let Some(tree) = trees.get(at) {
            if is_for_tests(&trees, at) {
                let item = item_from(&trees, at);
                self.lines -= lines_of(item);
                self.test_modules.extend(module_in_a_file(item));
                at += item.len();
                continue;
            }
            self.functions.extend(function_from(&trees, at));
            self.take(tree);
            at += 1;
        }
    }

    fn take(&mut self, tree: &TokenTree) {
        let line = tree.span().start().line;
        let text = match tree {
            TokenTree::Group(group) => return self.take_group(group),
            TokenTree::Ident(name) => name.to_string(),
            TokenTree::Literal(_) => "\"\"".into(),
            TokenTree::Punct(sign) => {
                let is_second = |token: &Token| token.text == ":+" && sign.as_char() == ':';
                if let Some(first) = self.tokens.last_mut().filter(|token| is_second(token)) {
                    first.text = "::".into();
                    return;
                }
                let joint = sign.as_char() == ':' && sign.spacing() == Spacing::Joint;
                format!("{}{}", sign.as_char(), if joint { "+" } else { "" })
            }
        };
        self.tokens.push(Token { text, line });
    }

    fn take_group(&mut self, group: &Group) {
        let (open, close) = match group.delimiter() {
            Delimiter::Brace => ("{", "}"),
            Delimiter::Parenthesis => ("(", ")"),
            Delimiter::Bracket => ("[", "]"),
            Delimiter::None => ("", ""),
        };
        let bracket = |tokens: &mut Vec<Token>, text: &str, line| {
            let text = text.to_owned();
            tokens.push(Token { text, line });
        };
        bracket(&mut self.tokens, open, group.span_open().start().line);
        self.read(group.stream());
        bracket(&mut self.tokens, close, group.span_close().start().line);
    }

    /// Every path in the code, with lists in `use` expanded, and the line on which it begins.
    pub(crate) fn paths(&self) -> Vec<(String, usize)> {
        let mut paths = Vec::new();
        let mut at = 0;
        while let Some(token) = self.tokens.get(at) {
            let is_start = is_name(&token.text) && self.text(at + 1) == "::";
            if is_start {
                at = self.path_from(at, "", &mut paths);
            } else {
                at += 1;
            }
        }
        paths
    }

    /// Every path in the code, and whether it hands a name on.
    pub(crate) fn imports(&self) -> Vec<Import> {
        let mut imports = Vec::new();
        let mut at = 0;
        let mut reexports_until = 0;
        while let Some(token) = self.tokens.get(at) {
            if token.text == "use" && at > 0 && matches!(self.text(at - 1), "pub" | ")") {
                let rest = self.tokens.get(at..).unwrap_or_default();
                let end = rest.iter().position(|token| token.text == ";");
                reexports_until = at + end.unwrap_or(0);
            }
            if !(is_name(&token.text) && self.text(at + 1) == "::") {
                at += 1;
                continue;
            }
            let is_reexport = at < reexports_until;
            let mut paths = Vec::new();
            at = self.path_from(at, "", &mut paths);
            let paths = paths.into_iter().map(|(path, _)| path);
            imports.extend(paths.map(|path| Import { path, is_reexport }));
        }
        imports
    }

    fn text(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |token| &token.text)
    }

    /// Adds the path that begins at token `at` to `paths`, and returns the index of the token after it.
    fn path_from(&self, at: usize, above: &str, paths: &mut Vec<(String, usize)>) -> usize {
        if self.text(at) == "{" {
            let mut next = at + 1;
            while !matches!(self.text(next), "}" | "") {
                next = match self.text(next) {
                    "," => next + 1,
                    _ => self.path_from(next, above, paths),
                };
            }
            return next + 1;
        }
        let path = match above {
            "" => self.text(at).to_owned(),
            above => format!("{above}::{}", self.text(at)),
        };
        let next = self.text(at + 2);
        if self.text(at + 1) == "::" && (is_name(next) || matches!(next, "{" | "*")) {
            return self.path_from(at + 2, &path, paths);
        }
        paths.push((path, self.tokens.get(at).map_or(0, |token| token.line)));
        match self.text(at + 1) {
            "as" => at + 3,
            _ => at + 1,
        }
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first == '_' || first.is_alphabetic())
}

/// Whether the item that begins here is compiled only for tests.
fn is_for_tests(trees: &[TokenTree], at: usize) -> bool {
    let attribute = |at| match (trees.get(at), trees.get(at + 1)) {
        (Some(TokenTree::Punct(sign)), Some(TokenTree::Group(group))) if sign.as_char() == '#' => {
            Some(group.stream().to_string().replace(' ', ""))
        }
        _ => None,
    };
    attribute(at).is_some_and(|text| text == "cfg(test)")
}

/// The item that begins here with an attribute, up to its braces or its semicolon.
fn item_from(trees: &[TokenTree], at: usize) -> &[TokenTree] {
    let rest = trees.get(at..).unwrap_or_default();
    let is_end = |tree: &TokenTree| match tree {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(sign) => sign.as_char() == ';',
        TokenTree::Ident(_) | TokenTree::Literal(_) => false,
    };
    let count = rest.iter().position(is_end).map_or(rest.len(), |at| at + 1);
    rest.get(..count).unwrap_or_default()
}

fn lines_of(item: &[TokenTree]) -> usize {
    let first = item.first().map_or(0, |tree| tree.span().start().line);
    let last = item.last().map_or(0, |tree| tree.span().end().line);
    last - first + 1
}

/// The name of the module, if the item is `mod name;`.
fn module_in_a_file(item: &[TokenTree]) -> Option<String> {
    let [
        ..,
        TokenTree::Ident(word),
        TokenTree::Ident(name),
        TokenTree::Punct(_),
    ] = item
    else {
        return None;
    };
    (word == "mod").then(|| name.to_string())
}

/// The function that begins here, if there is one and it has a body.
fn function_from(trees: &[TokenTree], at: usize) -> Option<Function> {
    let mut rest = trees.get(at..)?.iter();
    let (Some(TokenTree::Ident(word)), Some(TokenTree::Ident(name))) = (rest.next(), rest.next())
    else {
        return None;
    };
    if word != "fn" {
        return None;
    }
    let body = rest.find_map(|tree| match tree {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(Some(group)),
        TokenTree::Punct(sign) if sign.as_char() == ';' => Some(None),
        _ => None,
    })??;
    Some(Function {
        name: name.to_string(),
        lines: body.span_close().end().line - word.span().start().line + 1,
    })
}

/// Paths, without ending, of the folders and files that are compiled only for tests.
pub(crate) fn test_paths(sources: &[(Source, Code)]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (source, code) in sources {
        let stem = source.path.strip_suffix(".rs").unwrap_or(&source.path);
        let (dir, name) = stem.rsplit_once('/').unwrap_or(("", stem));
        let beneath = if matches!(name, "mod" | "lib" | "main") {
            dir
        } else {
            stem
        };
        let modules = code.test_modules.iter();
        found.extend(modules.map(|module| format!("{beneath}/{module}")));
    }
    found
}

#[test]
fn comments_strings_and_tests_are_no_code() -> Result<()> {
    let code = Code::of(
        "// std::fs\n/// std::env\nfn f() { g(\"std::net\", r#\"std::fs\"#) }\n#[cfg(test)]\nmod tests {\n use std::fs;\n}\n#[cfg(test)]\nmod beside;\n",
    )?;
    assert!(code.paths().is_empty());
    assert_eq!(code.test_modules, ["beside"]);
    assert_eq!(code.lines, 3);
    Ok(())
}

#[test]
fn use_lists_are_taken_apart() -> Result<()> {
    let code =
        Code::of("use std::{fs, io::{self, Read as _}};\nfn f() { vec![a::<u8>(), x::y()] }")?;
    let paths: Vec<String> = code.paths().into_iter().map(|(path, _)| path).collect();
    let expected = ["std::fs", "std::io::self", "std::io::Read", "a", "x::y"];
    assert_eq!(paths, expected);
    Ok(())
}

#[test]
fn functions_have_a_name_and_a_length() -> Result<()> {
    let code = Code::of("trait T {\n fn a();\n fn b(f: fn(u8)) {\n }\n}\nfn c() {\n\n}\n")?;
    let found: Vec<(&str, usize)> = code
        .functions
        .iter()
        .map(|function| (function.name.as_str(), function.lines))
        .collect();
    assert_eq!(found, [("b", 2), ("c", 3)]);
    Ok(())
}
