//! Man pages: one for the program and one for each command.

use std::io;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;

/// What `clap_mangen` calls a section of examples.
const EXTRA: &str = ".SH EXTRA\n";

/// Writes the pages of `command` and of all its commands to a directory, which is made.
pub(super) fn write(mut command: Command, dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    command.build();
    write_page(&command, dir)
}

fn write_page(command: &Command, dir: &Path) -> io::Result<()> {
    let commands = command.get_subcommands();
    for below in commands.filter(|one| !one.is_hide_set() && one.get_name() != "help") {
        write_page(below, dir)?;
    }
    let page = Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    let text = String::from_utf8_lossy(&text).replace(EXTRA, ".SH \"EXAMPLES AND NOTES\"\n");
    std::fs::write(dir.join(page.get_filename()), text)
}
