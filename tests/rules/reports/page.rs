//! The part of `docs/use/json.md` that says what fields reports have.

use super::source::{Body, Event, Field, Printed, Reports, Shape};

/// A section for each type, by name.
pub(super) fn sections(reports: &Reports) -> String {
    let sections = reports.types.iter().map(|(name, of)| section(name, of));
    sections.collect::<Vec<_>>().join("\n")
}

fn section(name: &str, of: &Printed) -> String {
    let mut text = format!("## {name}\n\n{}\n", of.doc);
    match &of.body {
        Body::Fields(above, fields) => {
            if let Some(above) = above {
                text += &format!("\nIt has the fields of {}, and these:\n", link(above));
            }
            text += "\n| field | type | meaning |\n|---|---|---|\n";
            for Field { name, shape, doc } in fields {
                text += &format!("| `{name}` | {} | {} |\n", kind(shape), cell(doc));
            }
        }
        Body::Values(values) => {
            text += "\n| value | meaning |\n|---|---|\n";
            for (value, doc) in values {
                text += &format!("| `{value}` | {} |\n", cell(doc));
            }
        }
        Body::Events(events) => {
            text += "\n| `event` | fields | meaning |\n|---|---|---|\n";
            for event in events {
                let fields = fields_of(event);
                text += &format!("| `{}` | {fields} | {} |\n", event.name, cell(&event.doc));
            }
        }
    }
    text
}

fn fields_of(event: &Event) -> String {
    if let Some(of) = &event.of {
        return format!("those of {}", link(of));
    }
    let fields = event.fields.iter().map(|field| {
        let kind = kind(&field.shape);
        format!("`{}`: {kind}. {}", field.name, cell(&field.doc))
    });
    fields.collect::<Vec<_>>().join("<br>")
}

fn link(name: &str) -> String {
    format!("[{name}](#{})", name.to_lowercase())
}

/// A text that does not end a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace("\n\n", " ")
}

/// The type in words.
fn kind(shape: &Shape) -> String {
    match shape {
        Shape::Text => "text".into(),
        Shape::Id => "text, 32 hexadecimal digits".into(),
        Shape::Redundancy => "text such as `3+2`".into(),
        Shape::Whole | Shape::Real => "number".into(),
        Shape::Truth => "true or false".into(),
        Shape::Any => "number or null".into(),
        Shape::Texts => "object of texts".into(),
        Shape::Optional(of) => match **of {
            Shape::Truth => "true, false or null".into(),
            _ => format!("{} or null", kind(of)),
        },
        Shape::List(of) => format!("list of {}", plural(of)),
        Shape::Several(2, of) => format!("two {}", plural(of)),
        Shape::Several(count, of) => format!("{count} {}", plural(of)),
        Shape::Named(name, None) => link(name),
        Shape::Named(name, Some(of)) => format!("{} of {}", link(name), kind(of)),
    }
}

fn plural(shape: &Shape) -> String {
    match shape {
        Shape::Text | Shape::Whole | Shape::Real => format!("{}s", kind(shape)),
        _ => kind(shape),
    }
}
