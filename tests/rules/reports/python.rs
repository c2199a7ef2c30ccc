//! The module `ckpt.reports` of the Python package: each report as a `TypedDict`.

use super::source::{Body, Field, Reports, Shape};

/// Longest line of the module, characters.
const WIDTH: usize = 110;

/// Fields that can't be written as variables of a class.
const KEYWORDS: [&str; 1] = ["from"];

/// What the types are imported from, and what the module is.
const HEAD: &str = "\"\"\"The reports of the program and of this package, as dictionaries with types.

``docs/use/json.md`` says the same. This file is written by ``CKPT_WRITE_TABLES=1 cargo test -p rules reports``.
\"\"\"

from __future__ import annotations

from typing import Literal, TypedDict
";

/// The text of the module.
pub(super) fn module(reports: &Reports) -> String {
    let mut text = HEAD.to_owned();
    let types = || reports.types.iter();
    for (name, of) in types() {
        if let Body::Values(values) = &of.body {
            text += &format!("\n{}{name} = Literal[\n", comment("", &of.doc));
            for (value, doc) in values {
                text += &format!("{}    \"{value}\",\n", comment("    ", doc));
            }
            text += "]\n";
        }
    }
    // A class comes after the one whose fields it has. What has the fields of an event is none.
    for is_below in [false, true] {
        for (name, of) in types() {
            let Body::Fields(above, fields) = &of.body else {
                continue;
            };
            let above = above.as_deref();
            let of_event = above.and_then(|above| reports.types.get(above));
            let of_event = of_event.is_some_and(|above| matches!(above.body, Body::Events(_)));
            if above.is_some() == is_below && !of_event {
                text += &class(name, &of.doc, above, fields);
            }
        }
    }
    text
}

fn class(name: &str, doc: &str, above: Option<&str>, fields: &[Field]) -> String {
    let is_keyword = |field: &Field| KEYWORDS.contains(&field.name.as_str());
    if fields.iter().any(is_keyword) {
        let mut text = format!(
            "\n\n{}{name} = TypedDict(\n    \"{name}\",\n    {{\n",
            comment("", doc)
        );
        for field in fields {
            text += &comment("        ", &field.doc);
            text += &format!("        \"{}\": \"{}\",\n", field.name, kind(&field.shape));
        }
        return text + "    },\n)\n";
    }
    let above = above.unwrap_or("TypedDict");
    let doc = wrapped("    ", &format!("\"\"\"{doc}"));
    let end = if doc.trim_end().contains('\n') {
        "\n    "
    } else {
        ""
    };
    let mut text = format!(
        "\n\nclass {name}({above}):\n{}{end}\"\"\"\n\n",
        doc.trim_end()
    );
    for field in fields {
        text += &format!(
            "{}    {}: {}\n",
            comment("    ", &field.doc),
            field.name,
            kind(&field.shape)
        );
    }
    text
}

fn comment(indent: &str, text: &str) -> String {
    wrapped(&format!("{indent}#: "), text)
}

/// The words in lines that begin with this, and null as Python has it.
fn wrapped(start: &str, text: &str) -> String {
    let text = text.replace("null", "None").replace("Null", "None");
    let mut lines = String::new();
    let mut line = start.to_owned();
    for word in text.split_whitespace() {
        if line.chars().count() + word.chars().count() > WIDTH {
            lines += &format!("{}\n", line.trim_end());
            line = start.to_owned();
        }
        line += word;
        line.push(' ');
    }
    lines + &format!("{}\n", line.trim_end())
}

/// The type in Python.
fn kind(shape: &Shape) -> String {
    match shape {
        Shape::Text | Shape::Id | Shape::Redundancy => "str".into(),
        Shape::Whole => "int".into(),
        Shape::Real => "float".into(),
        Shape::Truth => "bool".into(),
        Shape::Any => "float | None".into(),
        Shape::Texts => "dict[str, str]".into(),
        Shape::Optional(of) => format!("{} | None", kind(of)),
        Shape::List(of) | Shape::Several(_, of) => format!("list[{}]", kind(of)),
        Shape::Named(name, _) => name.clone(),
    }
}
