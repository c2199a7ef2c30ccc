//! The tables of messages and limits in `docs/inside/messages.md` match the definitions in the source.
//!
//! `CKPT_WRITE_TABLES=1 cargo test -p protocol --test format_page` writes the page anew.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use protocol::wire::limits;

const MESSAGES: &str = include_str!("../../protocol/src/wire/message.rs");
const ANNOUNCEMENT: &str = include_str!("../../protocol/src/wire/announcement.rs");
const CODES: &str = include_str!("../../protocol/src/wire/code.rs");
const PROOF: &str = include_str!("../../codec/src/proof.rs");
const PROPOSAL: &str = include_str!("../../codec/src/proposal/mod.rs");
const LIMITS: &str = include_str!("../../protocol/src/wire/limits.rs");

/// The text above the tables.
const INTRODUCTION: &str = "\
# Messages

`CKPT_WRITE_TABLES=1 cargo test -p protocol --test format_page` writes this page from the definitions; \
nothing on it is edited by hand. [format.md](format.md#messages) says how messages are encoded and who \
sends them.

";

/// A field of a struct or of a variant.
#[derive(Debug)]
struct Field {
    name: String,
    kind: String,
    says: String,
}

/// A variant of an enum.
#[derive(Debug)]
struct Variant {
    name: String,
    says: String,
    /// The type of a variant with one unnamed field.
    carries: Option<String>,
    fields: Vec<Field>,
}

/// The lines of the item whose first line is `head`, without its first and its last line.
fn body<'a>(source: &'a str, head: &str) -> Result<Vec<&'a str>> {
    let mut lines = source.lines().skip_while(|line| *line != head);
    lines.next().with_context(|| format!("no {head}"))?;
    Ok(lines.take_while(|line| *line != "}").collect())
}

/// Doc comments as one text, without links.
fn text(docs: &[&str]) -> String {
    let text = docs.join(" ");
    let plain = text.replace("[`", "`").replace("`]", "`");
    let plain = plain
        .replace("super::limits::", "")
        .replace("super::parts::", "");
    plain.replace('|', "\\|")
}

/// How a type is written in the page. Names of structs stay; they have tables of their own.
fn wire_type(rust: &str, is_bytes: bool, known: &BTreeSet<String>) -> Result<String> {
    let inner = |outer: &str| rust.strip_prefix(outer)?.strip_suffix('>');
    let of = |inner: &str| wire_type(inner, is_bytes, known);
    if let Some(inner) = inner("Box<") {
        return of(inner);
    }
    if let Some(inner) = inner("Option<") {
        return Ok(format!("optional {}", of(inner)?));
    }
    if rust == "Vec<u8>" && is_bytes {
        return Ok("bytes".into());
    }
    if let Some(inner) = inner("Vec<") {
        return Ok(format!("sequence of {}", of(inner)?));
    }
    if let Some(both) = rust
        .strip_prefix('(')
        .and_then(|rest| rest.strip_suffix(')'))
    {
        let parts = both.split(", ").map(of).collect::<Result<Vec<_>>>()?;
        return Ok(format!("({})", parts.join(", ")));
    }
    Ok(match rust {
        "u8" | "u16" | "u32" | "u64" | "bool" => rust.into(),
        "String" => "text".into(),
        "ByteBuf" => "bytes".into(),
        "Version" => "u64".into(),
        "CheckpointId" | "Tag" => "16 bytes".into(),
        "OwnerId" | "JobTag" | "ShardRoot" | "Blinded" | "BlockHash" | "[u8; 32]" => {
            "32 bytes".into()
        }
        "[u8; 16]" => "16 bytes".into(),
        "Redundancy" => "data u8, parity u8".into(),
        "SocketAddr" => "address".into(),
        "Parts" => "parts".into(),
        "ExtendedAnnouncement" => "Announcement, then parts".into(),
        "Retired" => "nothing".into(),
        name if known.contains(name) => name.into(),
        other => bail!("the page has no word for the type {other}"),
    })
}

/// Parses the fields of a struct or variant, whose lines all begin with `indent`.
fn fields(lines: &[&str], indent: &str, known: &BTreeSet<String>) -> Result<Vec<Field>> {
    let mut docs = Vec::new();
    let mut is_bytes = false;
    let mut skipped = false;
    let mut found = Vec::new();
    for line in lines {
        let line = line.strip_prefix(indent).unwrap_or(line);
        if let Some(doc) = line.strip_prefix("/// ") {
            docs.push(doc);
        } else if line.starts_with("#[serde") {
            is_bytes |= line.contains("serde_bytes");
            skipped |= line.contains("skip");
        } else if let Some((name, kind)) = line.trim_end_matches(',').split_once(": ") {
            if !std::mem::take(&mut skipped) {
                found.push(Field {
                    name: name.trim_start_matches("pub ").to_owned(),
                    kind: wire_type(kind, is_bytes, known)?,
                    says: text(&docs),
                });
            }
            is_bytes = false;
            docs.clear();
        } else {
            bail!("not understood: {line:?}");
        }
    }
    Ok(found)
}

fn variants(source: &str, head: &str, known: &BTreeSet<String>) -> Result<Vec<Variant>> {
    let lines = body(source, head)?;
    let mut docs = Vec::new();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(line) = lines.get(at) {
        at += 1;
        let line = line.strip_prefix("    ").unwrap_or(line);
        if let Some(doc) = line.strip_prefix("/// ") {
            docs.push(doc);
            continue;
        }
        if line.is_empty() || line.starts_with("//") {
            continue;
        }
        let mut variant = Variant {
            name: line
                .split([',', '(', ' '])
                .next()
                .unwrap_or_default()
                .to_owned(),
            says: text(&std::mem::take(&mut docs)),
            carries: None,
            fields: Vec::new(),
        };
        if line.ends_with('{') {
            let end = lines.iter().skip(at).position(|line| *line == "    },");
            let end = at + end.context("an open variant")?;
            variant.fields = fields(&lines[at..end], "        ", known)?;
            at = end + 1;
        } else if let Some((_, rest)) = line.split_once('(') {
            let carried = rest.trim_end_matches("),");
            variant.carries = Some(wire_type(carried, false, known)?);
        }
        found.push(variant);
    }
    Ok(found)
}

/// Names of the structs and enums that are serialised.
fn known() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for source in [MESSAGES, ANNOUNCEMENT, CODES, PROOF, PROPOSAL] {
        let mut travels = false;
        for line in source.lines() {
            if line.starts_with("#[derive(") {
                travels = line.contains("Serialize");
            }
            let name = line
                .strip_prefix("pub struct ")
                .or_else(|| line.strip_prefix("pub enum "));
            if let Some(name) = name.filter(|_| travels) {
                names.insert(name.trim_end_matches(" {").to_owned());
            }
        }
    }
    names
}

fn table_of_variants(out: &mut String, title: &str, all: &[Variant]) {
    out.push_str(&format!(
        "## {title}\n\n| number | name | fields | meaning |\n|---|---|---|---|\n"
    ));
    for (number, variant) in all.iter().enumerate() {
        let fields = match &variant.carries {
            Some(carried) => carried.clone(),
            None => {
                let fields = variant.fields.iter();
                let fields = fields.map(|field| format!("`{}` {}", field.name, field.kind));
                fields.collect::<Vec<_>>().join("; ")
            }
        };
        let says = variant.fields.iter().filter(|field| !field.says.is_empty());
        let says = says.map(|field| format!(" `{}`: {}", field.name, field.says));
        let says: String = std::iter::once(variant.says.clone()).chain(says).collect();
        out.push_str(&format!(
            "| {number} | {} | {fields} | {says} |\n",
            variant.name
        ));
    }
    out.push('\n');
}

fn table_of_struct(
    out: &mut String,
    source: &str,
    name: &str,
    known: &BTreeSet<String>,
) -> Result<()> {
    let lines = body(source, &format!("pub struct {name} {{"))?;
    out.push_str(&format!(
        "## {name}\n\n| field | type | meaning |\n|---|---|---|\n"
    ));
    for field in fields(&lines, "    ", known)? {
        out.push_str(&format!(
            "| `{}` | {} | {} |\n",
            field.name, field.kind, field.says
        ));
    }
    out.push('\n');
    Ok(())
}

/// Values of constants, as the page writes them.
trait Value {
    fn shown(&self) -> String;
}

macro_rules! number {
    ($($kind:ty),*) => {$(
        impl Value for $kind {
            fn shown(&self) -> String {
                let digits = self.to_string();
                let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev()
                    .filter_map(|group| std::str::from_utf8(group).ok())
                    .collect();
                groups.join(",")
            }
        }
    )*};
}
number!(u32, u64, usize);

impl Value for Duration {
    fn shown(&self) -> String {
        format!("{} s", self.as_secs())
    }
}

macro_rules! values {
    ($($name:ident),* $(,)?) => { [$((stringify!($name), limits::$name.shown())),*] };
}

fn table_of_limits(out: &mut String) -> Result<()> {
    let values = values![
        FRAME_BYTES_MAX,
        TEXT_BYTES_MAX,
        PARTS_MAX,
        PARTS_BYTES_MAX,
        RECORDS_MAX,
        MEMBERS_MAX,
        HOLDERS_MAX,
        HOLDS_MAX,
        PEER_HOLDS_ASKED_MAX,
        NOTICES_ASKED_MAX,
        NOTICES_PER_JOB_MAX,
        VOIDS_ASKED_MAX,
        CARDS_MAX,
        CARD_DAYS_MAX,
        JOINERS_MAX,
        LIST_BYTES_MAX,
        CENSUS_OWNERS_MAX,
        ROWS_PER_READ_MAX,
        SHARDS_MAX,
        READ_BYTES_MAX,
        PROBE_BYTES_MAX,
        PAGE_BYTES_MAX,
        OUTLINE_BYTES_MAX,
        CONNECT_TIMEOUT,
        REQUEST_TIMEOUT,
        SYNC_TIMEOUT,
        LIST_TIMEOUT,
        STALL_TIMEOUT,
        UNCOMMITTED_LIFETIME,
    ];
    out.push_str("## Limits\n\n| name | value | meaning |\n|---|---|---|\n");
    let mut docs = Vec::new();
    let mut count = 0;
    for line in LIMITS.lines() {
        if let Some(doc) = line.strip_prefix("/// ") {
            docs.push(doc);
        } else if let Some(rest) = line.strip_prefix("pub const ") {
            let name = rest.split(':').next().unwrap_or_default();
            let value = values.iter().find(|(known, _)| *known == name);
            let (_, value) = value.with_context(|| format!("{name} is not in this test"))?;
            let says = text(&std::mem::take(&mut docs));
            out.push_str(&format!("| {name} | {value} | {says} |\n"));
            count += 1;
        }
    }
    ensure!(count == values.len(), "{count} of {} limits", values.len());
    out.push('\n');
    Ok(())
}

fn tables() -> Result<String> {
    let known = known();
    let mut out = String::from(INTRODUCTION);
    let requests = variants(MESSAGES, "pub enum Request {", &known)?;
    table_of_variants(&mut out, "Request", &requests);
    let responses = variants(MESSAGES, "pub enum Response {", &known)?;
    table_of_variants(&mut out, "Response", &responses);
    table_of_variants(
        &mut out,
        "Code",
        &variants(CODES, "pub enum Code {", &known)?,
    );
    for line in MESSAGES.lines() {
        let name = line
            .strip_prefix("pub enum ")
            .map(|rest| rest.trim_end_matches(" {"));
        if let Some(name) = name.filter(|name| !["Request", "Response"].contains(name)) {
            table_of_variants(&mut out, name, &variants(MESSAGES, line, &known)?);
        }
        let name = line
            .strip_prefix("pub struct ")
            .map(|rest| rest.trim_end_matches(" {"));
        if let Some(name) = name.filter(|name| known.contains(*name)) {
            table_of_struct(&mut out, MESSAGES, name, &known)?;
        }
    }
    table_of_struct(&mut out, ANNOUNCEMENT, "Announcement", &known)?;
    for name in ["Spot", "ShardProof"] {
        table_of_struct(&mut out, PROOF, name, &known)?;
    }
    table_of_struct(&mut out, PROPOSAL, "Ballot", &known)?;
    table_of_limits(&mut out)?;
    // A page ends with one line feed.
    out.pop();
    Ok(out)
}

#[test]
fn every_message_field_code_and_limit_is_in_the_page_as_it_is_defined() -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/inside/messages.md");
    let tables = tables()?;
    ensure!(tables.matches("\n| ").count() > 100, "{tables}");
    if std::env::var_os("CKPT_WRITE_TABLES").is_some() {
        fs::write(&path, tables)?;
        return Ok(());
    }
    let page = fs::read_to_string(&path)?;
    for (line, (is, should)) in page.lines().zip(tables.lines()).enumerate() {
        ensure!(
            is == should,
            "line {} of the page\n is        {is}\n should be {should}",
            line + 1
        );
    }
    ensure!(
        page == tables,
        "the page has more lines or fewer than the definitions"
    );
    Ok(())
}
