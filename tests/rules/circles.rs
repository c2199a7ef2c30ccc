//! No two files of a crate import each other, straight or by way of others; but for a file and the `mod.rs`
//! above it, which are one module.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use crate::tree::{self, Code, Import};

/// The path of a module within its crate; that of the crate itself is empty.
type Module = Vec<String>;

/// Most re-exports through which a name is followed.
const REEXPORTS_MAX: usize = 8;

/// The folder of the crate that a file belongs to, and the file's module.
fn module_of(path: &str) -> Option<(&str, Module)> {
    let (mut root, mut rest) = path.split_once("/src/")?;
    // Each of these is a program of its own.
    if let Some(bin) = rest.strip_prefix("bin/") {
        let (program, below) = bin.split_once('/')?;
        root = path.get(..root.len() + "/src/bin/".len() + program.len())?;
        rest = below;
    }
    let mut names: Module = rest
        .strip_suffix(".rs")?
        .split('/')
        .map(str::to_owned)
        .collect();
    if matches!(
        names.last().map(String::as_str),
        Some("mod" | "lib" | "main")
    ) {
        names.pop();
    }
    Some((root, names))
}

/// The files of one crate.
#[derive(Default)]
struct Crate {
    files: BTreeMap<Module, (String, Vec<Import>)>,
}

impl Crate {
    /// The modules that a path starts from, and the names after it.
    fn start<'a>(&self, from: &Module, path: &'a str) -> Option<(Module, Vec<&'a str>)> {
        let mut names = path.split("::").peekable();
        let first = *names.peek()?;
        let mut base = match first {
            "crate" => Module::new(),
            "super" | "self" => from.clone(),
            child => {
                let mut below = from.clone();
                below.push(child.to_owned());
                return self
                    .files
                    .contains_key(&below)
                    .then(|| (from.clone(), names.collect()));
            }
        };
        while let Some(name) = names.next_if(|name| matches!(*name, "crate" | "self" | "super")) {
            if name == "super" {
                base.pop();
            }
        }
        Some((base, names.collect()))
    }

    /// The module that defines what a path names, through re-exports.
    fn target(&self, from: &Module, path: &str, depth: usize) -> Option<Module> {
        let (mut module, names) = self.start(from, path)?;
        let mut names = names.into_iter();
        let item = loop {
            let Some(name) = names.next() else { break None };
            let mut below = module.clone();
            below.push(name.to_owned());
            if !self.files.contains_key(&below) {
                break Some(name);
            }
            module = below;
        };
        let (_, imports) = self.files.get(&module)?;
        let handed_on = imports.iter().find(|import| {
            import.is_reexport && item.is_some() && import.name() == item.unwrap_or_default()
        });
        match handed_on.filter(|_| depth < REEXPORTS_MAX) {
            Some(import) => self
                .target(&module, &import.path, depth + 1)
                .or(Some(module)),
            None => Some(module),
        }
    }

    /// For each file, the files that it imports from, each with a name that it takes.
    fn arrows(&self) -> BTreeMap<&str, BTreeMap<&str, &str>> {
        let mut arrows: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
        for (module, (file, imports)) in &self.files {
            let arrows = arrows.entry(file).or_default();
            for import in imports.iter().filter(|import| !import.is_reexport) {
                let target = self.target(module, &import.path, 0);
                // A module and the files below it are one: that a file uses what stands in the `mod.rs` above
                // it closes no circle.
                let target = target.filter(|target| !module.starts_with(target));
                let target = target.and_then(|target| self.files.get(&target));
                if let Some((target, _)) = target.filter(|(target, _)| target != file) {
                    arrows.entry(target).or_insert(&import.path);
                }
            }
        }
        arrows
    }
}

/// All files that can be reached from `start`.
fn reached<'a>(
    start: &'a str,
    arrows: &BTreeMap<&'a str, BTreeMap<&'a str, &'a str>>,
) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut ahead = vec![start];
    while let Some(file) = ahead.pop() {
        for next in arrows.get(file).into_iter().flat_map(BTreeMap::keys) {
            if found.insert(*next) {
                ahead.push(next);
            }
        }
    }
    found
}

/// The circles of a crate: each with its arrows, as text.
fn circles(one: &Crate) -> Vec<String> {
    let arrows = one.arrows();
    let reach: BTreeMap<&str, BTreeSet<&str>> = arrows
        .keys()
        .map(|file| (*file, reached(file, &arrows)))
        .collect();
    let in_one = |a: &str, b: &str| reach[a].contains(b) && reach[b].contains(a);
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for file in arrows.keys().filter(|file| in_one(file, file)) {
        if seen.contains(file) {
            continue;
        }
        let members: BTreeSet<&str> = arrows
            .keys()
            .copied()
            .filter(|other| in_one(file, other))
            .collect();
        let mut text = String::new();
        for member in &members {
            for (target, name) in arrows[member]
                .iter()
                .filter(|(to, _)| members.contains(*to))
            {
                text.push_str(&format!("\n  {member} takes {name} from {target}"));
            }
        }
        seen.extend(members);
        found.push(text);
    }
    found
}

fn crates() -> Result<BTreeMap<String, Crate>> {
    let mut crates: BTreeMap<String, Crate> = BTreeMap::new();
    for source in tree::files(&[".rs"])? {
        let Some((root, module)) = module_of(&source.path) else {
            continue;
        };
        let code = Code::of(&source.text)?;
        let files = &mut crates.entry(root.to_owned()).or_default().files;
        files.insert(module, (source.path.clone(), code.imports()));
    }
    Ok(crates)
}

#[test]
fn no_files_of_a_crate_import_each_other_in_a_circle() -> Result<()> {
    let mut all = Vec::new();
    for one in crates()?.values() {
        all.extend(circles(one));
    }
    assert!(all.is_empty(), "{} circles:{}", all.len(), all.join("\n"));
    Ok(())
}

#[test]
fn circles_are_found_through_reexports() -> Result<()> {
    let one = |files: &[(&str, &str)]| -> Result<usize> {
        let mut all = Crate::default();
        for (path, text) in files {
            let path = format!("x/src/{path}");
            let (_, module) = module_of(&path).unwrap_or_default();
            all.files.insert(module, (path, Code::of(text)?.imports()));
        }
        Ok(circles(&all).len())
    };
    let hall = ("lib.rs", "mod a; mod b; pub use a::A;");
    assert_eq!(one(&[hall, ("a.rs", ""), ("b.rs", "use crate::A;")])?, 0);
    assert_eq!(
        one(&[
            hall,
            ("a.rs", "use super::b::B;"),
            ("b.rs", "use crate::A;")
        ])?,
        1
    );
    let above = ("lib.rs", "mod a; use a::A; pub struct Z;");
    assert_eq!(one(&[above, ("a.rs", "use super::Z;")])?, 0);
    let hall = ("a/mod.rs", "mod b;");
    let below = ("a/b.rs", "use crate::c::C;");
    assert_eq!(one(&[hall, below, ("c.rs", "use crate::a::b::B;")])?, 1);
    let tested = ("c.rs", "#[cfg(test)] mod tests { use crate::a::b::B; }");
    assert_eq!(one(&[hall, below, tested])?, 0);
    Ok(())
}
