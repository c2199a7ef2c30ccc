//! Texts that others chose, made safe for a terminal, and tables of them.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

/// At most `width` characters of a text, in one line. An ellipsis marks what is left out.
pub fn shortened(text: &str, width: usize) -> String {
    let line = one_line(text);
    if line.chars().count() <= width {
        return line.into_owned();
    }
    let kept: String = line.chars().take(width.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// A text for standard output: at most `width` characters on a terminal, and the whole line for a program that
/// searches it.
pub fn shown(text: &str, width: usize) -> String {
    match io::stdout().is_terminal() {
        true => shortened(text, width),
        false => one_line(text).into_owned(),
    }
}

/// A table whose columns are as wide as their longest cells.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub fn new(head: &[&str]) -> Self {
        Self {
            rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()],
        }
    }

    /// Adds a row. Cells are made safe for a terminal.
    pub fn row(&mut self, cells: Vec<String>) {
        let cells = cells.iter().map(|cell| one_line(cell).into_owned());
        self.rows.push(cells.collect());
    }

    /// Writes the table.
    ///
    /// # Errors
    /// When `out` can't be written.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&format!("{cell:width$}  "));
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A text that strangers may have chosen, made safe for a terminal: in one line, and without characters
/// that a terminal interprets or that change the direction of writing. Such characters are escaped, as in
/// `\u{1b}`.
pub fn one_line(text: &str) -> Cow<'_, str> {
    let is_obeyed = |c: char| {
        let format = ['\u{ad}', '\u{61c}', '\u{feff}'].contains(&c)
            || ('\u{200b}'..='\u{200f}').contains(&c)
            || ('\u{2028}'..='\u{202e}').contains(&c)
            || ('\u{2060}'..='\u{206f}').contains(&c);
        c.is_control() || format
    };
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_obeyed(c) {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    Cow::Owned(line)
}

/// A number with a noun: `1 file`, `2 files`.
pub fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_stays_in_its_row() {
        let mut table = Table::new(&["HOST", "SITE"]);
        table.row(vec![
            "h01".to_owned(),
            "\u{1b}[2J\nh09  up\u{202e}".to_owned(),
        ]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(
            text.contains(r"\u{1b}[2J") && text.contains(r"\u{202e}"),
            "{text}"
        );
        assert_eq!(shortened("a longer text", 9), "a longer…");
        assert_eq!(
            (count(1, "file"), count(2, "file")),
            ("1 file".into(), "2 files".into())
        );
    }
}
