//! Man pages: one for the program, one for each of its commands, and one for each kind of file that people
//! write for it.

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// The heading under which `clap_mangen` writes examples, to be replaced by a better one.
const CLAP_EXTRA_SECTION: &str = ".SH EXTRA\n";

/// The page of section 5 for a file that people write.
#[derive(Clone, Copy, Debug)]
pub struct FilePage {
    /// Name of the page, without section, such as `ckpt-grid-file`.
    pub name: &'static str,
    /// What the file is, in a few words.
    pub about: &'static str,
    /// Paragraphs before the list of keys.
    pub description: &'static [&'static str],
    /// Tables of the file, the one without a name first.
    pub tables: &'static [FileTable],
    /// Text of an example file.
    pub example: &'static str,
    /// Other pages, such as `ckpt(1)`.
    pub see_also: &'static [&'static str],
}

/// A table of a TOML file.
#[derive(Clone, Copy, Debug)]
pub struct FileTable {
    /// Heading as in the file, such as `[[hosts]]`; empty for the keys before the first table.
    pub heading: &'static str,
    /// What the table is for.
    pub about: &'static str,
    /// Keys, each with its meaning: type, unit, default.
    pub keys: &'static [(&'static str, &'static str)],
}

/// Writes the pages of `command`, of all its subcommands and of `files` to a directory. Makes the directory
/// if there is none.
///
/// # Errors
/// When a file can't be written.
pub fn write(mut command: Command, files: &[FilePage], dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    command.build();
    write_page(&command, dir)?;
    for page in files {
        fs::write(dir.join(format!("{}.5", page.name)), page.roff())?;
    }
    Ok(())
}

fn write_page(command: &Command, dir: &Path) -> io::Result<()> {
    let commands = command.get_subcommands();
    for below in commands.filter(|one| !one.is_hide_set() && one.get_name() != "help") {
        write_page(below, dir)?;
    }
    let page = Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    let text =
        String::from_utf8_lossy(&text).replace(CLAP_EXTRA_SECTION, ".SH \"EXAMPLES AND NOTES\"\n");
    fs::write(dir.join(page.get_filename()), text)
}

impl FilePage {
    /// The page in roff, which `man` reads.
    pub fn roff(&self) -> String {
        let mut page = Roff::new();
        page.control("TH", [self.name, "5"]);
        page.control("SH", ["NAME"]);
        page.text([roman(format!("{} - {}", self.name, self.about))]);
        page.control("SH", ["DESCRIPTION"]);
        for paragraph in self.description {
            page.control("PP", []);
            page.text([roman(*paragraph)]);
        }
        for table in self.tables {
            match table.heading {
                "" => page.control("SH", ["KEYS"]),
                heading => page.control("SH", [heading]),
            };
            page.text([roman(table.about)]);
            for (key, meaning) in table.keys {
                page.control("TP", []);
                page.text([bold(*key)]);
                page.text([roman(*meaning)]);
            }
        }
        page.control("SH", ["EXAMPLE"]);
        page.control("nf", []);
        for line in self.example.lines() {
            page.text([roman(line)]);
        }
        page.control("fi", []);
        page.control("SH", ["SEE ALSO"]);
        page.text([roman(self.see_also.join(", "))]);
        page.render()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: FilePage = FilePage {
        name: "some-file",
        about: "a file",
        description: &[".what begins with a dot is no command"],
        tables: &[FileTable {
            heading: "[[hosts]]",
            about: "Hosts.",
            keys: &[("addr", "Where it listens.")],
        }],
        example: "[[hosts]]\n.addr = \"a-b\"",
        see_also: &["ckpt(1)"],
    };

    #[test]
    fn a_page_of_a_file_has_its_keys_and_obeys_no_text() {
        let page = PAGE.roff();
        assert!(
            page.contains(".TH some\\-file 5\n") || page.contains(".TH some-file 5\n"),
            "{page}"
        );
        assert!(page.contains("\\fBaddr\\fR\n"), "{page}");
        assert!(
            !page.contains("\n.what") && !page.contains("\n.addr"),
            "{page}"
        );
        assert_eq!(page.matches(".SH").count(), 5, "{page}");
    }
}
