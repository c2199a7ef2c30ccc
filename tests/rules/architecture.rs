//! The crates and their dependencies match `ARCHITECTURE.md`, and pure crates stay pure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::tree::{self, Listed};

/// Crates that bring sockets, clocks or a runtime.
const WORLDLY: [&str; 7] = [
    "mio",
    "quinn",
    "quinn-proto",
    "quinn-udp",
    "rustls",
    "socket2",
    "tokio",
];

/// The output of `cargo metadata`.
struct Metadata(Value);

/// A crate of the workspace.
struct Member<'a> {
    name: &'a str,
    id: &'a str,
    /// The crate's folder below the root.
    dir: String,
    /// Crates of the workspace that it uses, also in tests and build scripts.
    uses: BTreeSet<String>,
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

impl Metadata {
    fn load() -> Result<Self> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut metadata = Command::new(cargo);
        metadata
            .args(["metadata", "--format-version", "1", "--locked"])
            // Sources of crates for other systems may be missing on this machine.
            .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
            .current_dir(tree::root());
        let output = metadata.output().context("starting cargo")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cargo metadata: {errors}");
        Ok(Self(serde_json::from_slice(&output.stdout)?))
    }

    fn members(&self) -> Result<Vec<Member<'_>>> {
        let ids: BTreeSet<&str> = list(&self.0["workspace_members"])
            .iter()
            .map(text)
            .collect();
        let packages = list(&self.0["packages"]).iter();
        let ours = packages.filter(|package| ids.contains(text(&package["id"])));
        ours.map(|package| {
            let manifest = Path::new(text(&package["manifest_path"]));
            let dir = manifest.parent().context("no folder")?;
            let dir = dir.strip_prefix(text(&self.0["workspace_root"]))?;
            let used = list(&package["dependencies"]).iter();
            let used = used.filter(|dependency| dependency["path"].is_string());
            Ok(Member {
                name: text(&package["name"]),
                id: text(&package["id"]),
                dir: dir.to_string_lossy().into_owned(),
                uses: used
                    .map(|dependency| text(&dependency["name"]).into())
                    .collect(),
            })
        })
        .collect()
    }

    /// Names of all crates that are linked into this one, each with the name of a crate that uses it.
    fn linked(&self, id: &str) -> BTreeMap<&str, &str> {
        let packages = list(&self.0["packages"]).iter();
        let names: BTreeMap<&str, &str> = packages
            .map(|package| (text(&package["id"]), text(&package["name"])))
            .collect();
        let nodes: BTreeMap<&str, &Value> = list(&self.0["resolve"]["nodes"])
            .iter()
            .map(|node| (text(&node["id"]), node))
            .collect();
        let mut linked = BTreeMap::new();
        let mut ahead = vec![id];
        while let Some(user) = ahead.pop() {
            let used = nodes.get(user).map_or(&[][..], |node| list(&node["deps"]));
            for dependency in used {
                let mut kinds = list(&dependency["dep_kinds"]).iter();
                let (Some(user), Some(name)) =
                    (names.get(user), names.get(text(&dependency["pkg"])))
                else {
                    continue;
                };
                if kinds.any(|kind| kind["kind"].is_null()) && !linked.contains_key(name) {
                    linked.insert(*name, *user);
                    ahead.push(text(&dependency["pkg"]));
                }
            }
        }
        linked
    }
}

/// The position in the code map of a crate's folder, or of the folder above it.
fn place_of(map: &[Listed], dir: &str) -> Option<usize> {
    let first = dir.split('/').next().unwrap_or_default();
    map.iter().position(|listed| listed.dir == first)
}

#[test]
fn every_crate_has_a_line_in_the_code_map() -> Result<()> {
    let map = tree::code_map()?;
    let metadata = Metadata::load()?;
    let members = metadata.members()?;
    for member in &members {
        let dir = &member.dir;
        let place = place_of(&map, dir);
        assert!(place.is_some(), "the code map has no line for {dir}/");
    }
    for Listed { dir, .. } in &map {
        let is_there = members.iter().any(|member| member.dir.starts_with(dir));
        assert!(is_there, "the code map has a line for {dir}/, and no crate");
    }
    Ok(())
}

#[test]
fn crates_use_each_other_as_the_page_says_and_only_those_above_them() -> Result<()> {
    let map = tree::code_map()?;
    let said = tree::uses()?;
    let metadata = Metadata::load()?;
    let members = metadata.members()?;
    let places: BTreeMap<&str, Option<usize>> = members
        .iter()
        .map(|member| (member.name, place_of(&map, &member.dir)))
        .collect();
    let mut wrong = Vec::new();
    for Member { name, uses, .. } in &members {
        let said = said.get(*name).cloned().unwrap_or_default();
        for other in uses.difference(&said) {
            wrong.push(format!("{name} uses {other}, and the page does not say so"));
        }
        for other in said.difference(uses) {
            wrong.push(format!("the page says that {name} uses {other}"));
        }
        for other in uses {
            if places.get(other.as_str()) >= places.get(name) {
                wrong.push(format!("{name} uses {other}, which stands below it"));
            }
        }
    }
    for name in said.keys() {
        if !places.contains_key(name.as_str()) {
            wrong.push(format!(
                "the page says whom {name} uses, and it is no crate"
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

#[test]
fn no_socket_and_no_runtime_is_linked_into_a_pure_crate() -> Result<()> {
    let map = tree::code_map()?;
    let pure: Vec<&str> = map
        .iter()
        .filter(|listed| listed.is_pure)
        .map(|listed| listed.dir.as_str())
        .collect();
    assert!(pure.len() >= 3, "the code map has lost its pure crates");
    let metadata = Metadata::load()?;
    for member in metadata.members()? {
        if pure.contains(&member.dir.as_str()) {
            let linked = metadata.linked(member.id);
            for worldly in WORLDLY {
                let user = linked.get(worldly);
                let name = member.name;
                assert_eq!(user, None, "{worldly} is linked into {name}, by");
            }
        }
    }
    Ok(())
}

#[test]
fn pure_crates_have_the_same_clippy_toml() -> Result<()> {
    let mut lists = Vec::new();
    for Listed { dir, .. } in tree::code_map()?.iter().filter(|listed| listed.is_pure) {
        let path = format!("{dir}/clippy.toml");
        let text = std::fs::read_to_string(tree::root().join(&path));
        let text = text.with_context(|| format!("{path}: every pure crate has one"))?;
        lists.push((path, text));
    }
    let (first, rest) = lists.split_first().context("no pure crate")?;
    for (path, text) in rest {
        let same = *text == first.1;
        assert!(same, "{path} is not what {} is: copy it", first.0);
    }
    let workspace = std::fs::read_to_string(tree::root().join("clippy.toml"))?;
    for setting in workspace.lines().filter(|line| !line.starts_with('#')) {
        let is_repeated = first.1.lines().any(|line| line == setting);
        assert!(is_repeated, "{} replaces, and lacks: {setting}", first.0);
    }
    Ok(())
}
