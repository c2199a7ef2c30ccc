//! Reads the structs and enums that are printed as JSON, and their docstrings, from the source text.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use syn::{Attribute, Expr, Fields, GenericArgument, Lit, PathArguments, Type};

use crate::tree;

/// Crates with reports.
const CRATES: [&str; 5] = ["ckpt", "ckpt-agent", "health", "runner", "study"];

/// What is printed as JSON beside the reports of commands.
const PRINTED: [&str; 5] = [
    "Failure",
    "JournalLine",
    "PoolDescription",
    "ProgressEvent",
    "WatchedSave",
];

/// The type of a value in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Text,
    /// An id, as hexadecimal digits.
    Id,
    /// Numbers of shards, such as `3+2`.
    Redundancy,
    Whole,
    Real,
    Truth,
    /// A number of any kind, which may be missing: the value of a generic struct.
    Any,
    Optional(Box<Self>),
    List(Box<Self>),
    /// This many values of one type.
    Several(usize, Box<Self>),
    /// Texts by text.
    Texts,
    /// A struct or enum, and the type of its value if it is generic.
    Named(String, Option<Box<Self>>),
}

/// A field of a report.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) shape: Shape,
    pub(super) doc: String,
}

/// A variant of an enum with fields.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) name: String,
    pub(super) doc: String,
    pub(super) fields: Vec<Field>,
    /// The struct whose fields it has.
    pub(super) of: Option<String>,
}

/// What a type consists of.
#[derive(Debug)]
pub(super) enum Body {
    /// A struct: the struct whose fields it has, too, and its own fields.
    Fields(Option<String>, Vec<Field>),
    /// An enum without fields: the values, each with its docstring.
    Values(Vec<(String, String)>),
    /// An enum with fields, which names the variant in the field `event`.
    Events(Vec<Event>),
}

/// A type that is printed as JSON.
#[derive(Debug)]
pub(super) struct Printed {
    pub(super) doc: String,
    pub(super) body: Body,
}

/// All types that are printed as JSON, by name.
pub(super) struct Reports {
    /// The types.
    pub(super) types: BTreeMap<String, Printed>,
    /// Names of those that are the object of a command.
    pub(super) roots: Vec<String>,
}

/// Definitions by crate and name.
type Definitions = BTreeMap<(String, String), syn::Item>;

impl Reports {
    /// Reads the source tree.
    pub(super) fn read() -> Result<Self> {
        let mut definitions = Definitions::new();
        let mut roots = PRINTED.map(str::to_owned).to_vec();
        for source in tree::files(&[".rs"])? {
            let Some((of, rest)) = source.path.split_once('/') else {
                continue;
            };
            if !(CRATES.contains(&of) && rest.starts_with("src/")) {
                continue;
            }
            let file = syn::parse_file(&source.text).context(source.path.clone())?;
            for item in file.items {
                roots.extend(report_of(&item));
                if let Some(name) = printed_name(&item) {
                    definitions.insert((of.to_owned(), name), item);
                }
            }
        }
        roots.sort();
        let mut reports = Self {
            types: BTreeMap::new(),
            roots: roots.clone(),
        };
        for name in &roots {
            reports.add(&definitions, None, name)?;
        }
        Ok(reports)
    }

    /// Adds a type that this crate names, and all types of its fields.
    fn add(&mut self, all: &Definitions, by: Option<&str>, name: &str) -> Result<()> {
        let own = by.map(|by| (by.to_owned(), name.to_owned()));
        let own = own.and_then(|key| all.get_key_value(&key));
        let mut others = all.iter().filter(|((_, other), _)| other == name);
        let ((of, _), item) = match own {
            Some(found) => found,
            None => {
                let found = others.next();
                ensure!(others.next().is_none(), "{name} is defined in two crates");
                found
                    .with_context(|| format!("{name} is printed, and does not derive Serialize"))?
            }
        };
        if self.types.contains_key(name) {
            return Ok(());
        }
        let printed = printed(item).with_context(|| format!("{name} in {of}"))?;
        let mut named = Vec::new();
        match &printed.body {
            Body::Values(_) => {}
            Body::Fields(above, fields) => {
                named.extend(above.clone());
                named.extend(fields.iter().flat_map(|field| names_in(&field.shape)));
            }
            Body::Events(events) => {
                for event in events {
                    named.extend(event.of.clone());
                    named.extend(event.fields.iter().flat_map(|field| names_in(&field.shape)));
                }
            }
        }
        self.types.insert(name.to_owned(), printed);
        for other in named {
            self.add(all, Some(of), &other)?;
        }
        Ok(())
    }
}

/// Names of structs and enums in a type.
fn names_in(shape: &Shape) -> Vec<String> {
    match shape {
        Shape::Optional(of) | Shape::List(of) | Shape::Several(_, of) => names_in(of),
        Shape::Named(name, of) => {
            let mut names = of.as_deref().map(names_in).unwrap_or_default();
            names.push(name.clone());
            names
        }
        _ => Vec::new(),
    }
}

/// The name of the type whose JSON this `impl Report` prints.
fn report_of(item: &syn::Item) -> Option<String> {
    let syn::Item::Impl(block) = item else {
        return None;
    };
    let (_, of, _) = block.trait_.as_ref()?;
    let prints = block.items.iter().any(
        |item| matches!(item, syn::ImplItem::Macro(call) if call.mac.path.is_ident("json_of_self")),
    );
    let Type::Path(path) = &*block.self_ty else {
        return None;
    };
    (of.is_ident("Report") && prints).then(|| path.path.segments.last().map(name_of))?
}

fn name_of(segment: &syn::PathSegment) -> String {
    segment.ident.to_string()
}

/// The name of a struct or enum that derives `Serialize`.
fn printed_name(item: &syn::Item) -> Option<String> {
    let (attributes, name) = match item {
        syn::Item::Struct(item) => (&item.attrs, &item.ident),
        syn::Item::Enum(item) => (&item.attrs, &item.ident),
        _ => return None,
    };
    let mut is_printed = false;
    for attribute in attributes
        .iter()
        .filter(|one| one.path().is_ident("derive"))
    {
        let looked = attribute.parse_nested_meta(|meta| {
            is_printed |= meta.path.is_ident("Serialize");
            Ok(())
        });
        looked.ok()?;
    }
    is_printed.then(|| name.to_string())
}

fn printed(item: &syn::Item) -> Result<Printed> {
    match item {
        syn::Item::Struct(item) => {
            let of = item.generics.type_params().next();
            let generic = of.map(|one| one.ident.to_string());
            Ok(Printed {
                doc: doc_of(&item.attrs)?,
                body: body(&item.fields, generic.as_deref())?,
            })
        }
        syn::Item::Enum(item) => Ok(Printed {
            doc: doc_of(&item.attrs)?,
            body: variants(item)?,
        }),
        _ => bail!("neither a struct nor an enum"),
    }
}

fn body(fields: &Fields, generic: Option<&str>) -> Result<Body> {
    let mut above = None;
    let mut own = Vec::new();
    for field in fields {
        let name = field
            .ident
            .as_ref()
            .context("a field without a name")?
            .to_string();
        let options = serde_of(&field.attrs)?;
        if options.contains_key("skip") {
            continue;
        }
        let mut shape = shape(&field.ty, generic).with_context(|| name.clone())?;
        match options.get("serialize_with").map(String::as_str) {
            None if shape == Shape::Id || shape == Shape::Redundancy => {
                bail!("{name} is printed as bytes: it needs a serialize_with")
            }
            None | Some("redundancy") => {}
            Some("hex_id") => shape = Shape::Id,
            Some(other) => bail!("{name}: what {other} prints is not known here"),
        }
        if options.contains_key("flatten") {
            let Shape::Named(name, None) = shape else {
                bail!("{name} can't be flattened here");
            };
            above = Some(name);
            continue;
        }
        let doc = doc_of(&field.attrs).with_context(|| name.clone())?;
        own.push(Field { name, shape, doc });
    }
    Ok(Body::Fields(above, own))
}

fn variants(item: &syn::ItemEnum) -> Result<Body> {
    let options = serde_of(&item.attrs)?;
    let case = options.get("rename_all").map(String::as_str);
    let mut events = Vec::new();
    for variant in &item.variants {
        let name = renamed(&variant.ident.to_string(), case)?;
        let doc = doc_of(&variant.attrs).with_context(|| name.clone())?;
        let mut event = Event {
            name,
            doc,
            fields: Vec::new(),
            of: None,
        };
        match &variant.fields {
            Fields::Unit => {}
            Fields::Unnamed(of) => {
                let first = of.unnamed.first().context("a variant of nothing")?;
                if let Shape::Named(name, None) = shape(&first.ty, None)? {
                    event.of = Some(name);
                }
            }
            Fields::Named(_) => {
                if let Body::Fields(_, fields) = body(&variant.fields, None)? {
                    event.fields = fields;
                }
            }
        }
        events.push(event);
    }
    Ok(match options.get("tag").map(String::as_str) {
        Some("event") => Body::Events(events),
        Some(tag) => bail!("the tag {tag} is not known here"),
        None => {
            let with_fields = events
                .iter()
                .find(|one| one.of.is_some() || !one.fields.is_empty());
            ensure!(with_fields.is_none(), "variants with fields need a tag");
            Body::Values(events.into_iter().map(|one| (one.name, one.doc)).collect())
        }
    })
}

/// The name of a variant in JSON.
fn renamed(name: &str, case: Option<&str>) -> Result<String> {
    match case {
        Some("lowercase") => Ok(name.to_lowercase()),
        Some("snake_case") => {
            let mut snake = String::new();
            for letter in name.chars() {
                if letter.is_uppercase() && !snake.is_empty() {
                    snake.push('_');
                }
                snake.extend(letter.to_lowercase());
            }
            Ok(snake)
        }
        other => bail!("variants in the case {other:?} are not known here"),
    }
}

/// The options of `#[serde(...)]`, with their values.
fn serde_of(attributes: &[Attribute]) -> Result<BTreeMap<String, String>> {
    const KNOWN: [&str; 6] = [
        "skip",
        "flatten",
        "serialize_with",
        "rename_all",
        "tag",
        "default",
    ];
    let mut options = BTreeMap::new();
    for attribute in attributes.iter().filter(|one| one.path().is_ident("serde")) {
        attribute.parse_nested_meta(|meta| {
            let name = meta.path.require_ident()?.to_string();
            let value = match meta.value() {
                Ok(value) => value.parse::<syn::LitStr>()?.value(),
                Err(_) => String::new(),
            };
            options.insert(name, value);
            Ok(())
        })?;
    }
    let unknown = options.keys().find(|name| !KNOWN.contains(&name.as_str()));
    ensure!(unknown.is_none(), "serde({unknown:?}) is not known here");
    Ok(options)
}

/// A docstring as one line for each paragraph, with `None` as JSON writes it.
fn doc_of(attributes: &[Attribute]) -> Result<String> {
    let mut doc = String::new();
    for attribute in attributes {
        let syn::Meta::NameValue(meta) = &attribute.meta else {
            continue;
        };
        if let (true, Expr::Lit(value)) = (meta.path.is_ident("doc"), &meta.value)
            && let Lit::Str(line) = &value.lit
        {
            let line = line.value();
            let line = line.trim();
            if !(doc.is_empty() || doc.ends_with('\n') || line.is_empty()) {
                doc.push(' ');
            }
            doc.push_str(if line.is_empty() { "\n\n" } else { line });
        }
    }
    ensure!(!doc.is_empty(), "it has no docstring");
    let plain = doc.replace("[`", "`").replace("`]", "`");
    let plain = plain
        .replace(". `None`", ". Null")
        .replace("`None`", "null");
    Ok(plain.replace("`true`", "true").replace("`false`", "false"))
}

fn shape(of: &Type, generic: Option<&str>) -> Result<Shape> {
    match of {
        Type::Reference(of) => shape(&of.elem, generic),
        Type::Array(of) => {
            let Expr::Lit(length) = &of.len else {
                bail!("an array of unknown length");
            };
            let Lit::Int(length) = &length.lit else {
                bail!("an array of unknown length");
            };
            let each = Box::new(shape(&of.elem, generic)?);
            Ok(Shape::Several(length.base10_parse()?, each))
        }
        Type::Tuple(of) => {
            let shapes = of.elems.iter().map(|one| shape(one, generic));
            let shapes = shapes.collect::<Result<Vec<_>>>()?;
            let first = shapes.first().context("an empty tuple")?.clone();
            ensure!(
                shapes.iter().all(|one| *one == first),
                "a tuple of several types"
            );
            Ok(Shape::Several(shapes.len(), Box::new(first)))
        }
        Type::Path(of) => {
            let last = of.path.segments.last().context("a type without a name")?;
            named_shape(last, generic)
        }
        _ => bail!("a type that is not known here"),
    }
}

fn named_shape(of: &syn::PathSegment, generic: Option<&str>) -> Result<Shape> {
    let name = name_of(of);
    let mut inner = Vec::new();
    if let PathArguments::AngleBracketed(arguments) = &of.arguments {
        for argument in &arguments.args {
            if let GenericArgument::Type(of) = argument {
                inner.push(shape(of, generic)?);
            }
        }
    }
    let first = || {
        inner
            .first()
            .cloned()
            .context("a type of nothing")
            .map(Box::new)
    };
    Ok(match name.as_str() {
        "String" | "str" | "PathBuf" | "JobId" => Shape::Text,
        "CheckpointId" => Shape::Id,
        "Redundancy" => Shape::Redundancy,
        "bool" => Shape::Truth,
        "u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64" | "Version" => Shape::Whole,
        "f64" => Shape::Real,
        "Box" => *first()?,
        "Option" => Shape::Optional(first()?),
        "Vec" => Shape::List(first()?),
        "BTreeMap" if inner == [Shape::Text, Shape::Text] => Shape::Texts,
        name if Some(name) == generic => Shape::Any,
        name => Shape::Named(name.to_owned(), inner.into_iter().next().map(Box::new)),
    })
}
