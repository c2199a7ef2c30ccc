//! The man page of the grid file.

use command_line::man::{FilePage, FileTable};

/// The grid file.
pub(crate) const GRID_FILE: FilePage = FilePage {
    name: "ckpt-grid-file",
    about: "who belongs to a grid, and where they are",
    description: &[
        "A TOML file, usually grid.toml. ckpt reads the file that --grid or CKPT_GRID names, otherwise $XDG_CONFIG_HOME/ckpt/grid.toml (~/.config/ckpt/grid.toml); ckpt-store reads the file that --grid or CKPT_GRID names, otherwise grid.toml in its data directory. ckpt grid init, ckpt grid up and join tokens write it. Nothing in it is secret.",
        "Where the authority has signed a list of the grid, that list counts for hosts, registries and revoked keys, and the tables here are for earlier programs. It is a binary file beside the grid file, under the same name with .members at the end, which members bring up to date by themselves. [owner] is only ever read here.",
        "Paths are relative to the directory of the file. A key that is not on this page is an error.",
    ],
    tables: &[
        FileTable {
            heading: "",
            about: "Before the first table:",
            keys: &[
                (
                    "name",
                    "Text, required. Name of the grid: 1 to 63 of A-Z a-z 0-9 . _ -",
                ),
                (
                    "authority",
                    "Text, required. Certificate of the grid's authority, PEM. All that it certified are members.",
                ),
                (
                    "members",
                    "Path. Where the signed list is [default: beside the grid file].",
                ),
                (
                    "registry",
                    "List of texts such as etcd://10.0.0.5:2379. Members of an etcd cluster that is a registry, too; other registries are [[registries]].",
                ),
            ],
        },
        FileTable {
            heading: "[owner]",
            about: "The submitter that ckpt acts for on this machine, unless --key-file and --cert-file say otherwise.",
            keys: &[
                ("key", "Path, required. The key file, or a job key."),
                ("certificate", "Path, required. The certificate, PEM."),
            ],
        },
        FileTable {
            heading: "[[hosts]]",
            about: "A storage host; one table for each.",
            keys: &[
                ("name", "Text, required. Its name, as that of the grid."),
                (
                    "addr",
                    "Text, required. Where it listens: ADDRESS:PORT or HOSTNAME:PORT.",
                ),
                (
                    "id",
                    "Text, required. Its public key, 64 hexadecimal digits.",
                ),
                (
                    "site",
                    "Text. Its building, campus or cloud zone: machines at one site may fail together.",
                ),
                ("owner", "Text. Owner of the machine."),
            ],
        },
        FileTable {
            heading: "[[registries]]",
            about: "A registry; one table for each.",
            keys: &[
                ("name", "Text, required. Its name, as that of the grid."),
                (
                    "addr",
                    "Text, required. Where it listens: ADDRESS:PORT or HOSTNAME:PORT.",
                ),
                (
                    "id",
                    "Text, required. Its public key, 64 hexadecimal digits.",
                ),
            ],
        },
        FileTable {
            heading: "[revoked]",
            about: "Keys that the authority revoked, signed by it. ckpt grid revoke writes this table.",
            keys: &[
                (
                    "number",
                    "Number, required. Number of this list; it grows with each revocation.",
                ),
                (
                    "keys",
                    "List of texts, required. Public keys, 64 hexadecimal digits each.",
                ),
                (
                    "signature",
                    "Text, required. The authority's signature, 128 hexadecimal digits.",
                ),
            ],
        },
    ],
    example: "name = \"lab\"\nauthority = \"\"\"\n-----BEGIN CERTIFICATE-----\n...\n-----END CERTIFICATE-----\n\"\"\"\n\n[owner]\nkey = \"owner.key\"\ncertificate = \"owner.crt\"\n\n[[hosts]]\nname = \"h1\"\naddr = \"10.0.0.1:7600\"\nid = \"0f3a77c1...\"\nsite = \"west\"",
    see_also: &[
        "ckpt(1)",
        "ckpt-grid(1)",
        "ckpt-store(1)",
        "ckpt-store-preferences(5)",
    ],
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use protocol::grid::Grid;

    use super::*;

    /// The keys that the parser lists when it meets an unknown one.
    fn taken(text: &str) -> BTreeSet<String> {
        let refused = Grid::parse(text, Path::new("")).unwrap_err();
        let names = refused.split("expected").nth(1).unwrap();
        names
            .split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn the_page_has_the_keys_that_the_parser_takes_and_no_others() {
        for table in GRID_FILE.tables {
            let mut said: BTreeSet<String> =
                table.keys.iter().map(|(key, _)| (*key).into()).collect();
            if table.heading.is_empty() {
                let tables = GRID_FILE.tables.iter().map(|one| one.heading);
                let names = tables.map(|one| one.trim_matches(['[', ']']).to_owned());
                said.extend(names.filter(|name| !name.is_empty()));
            }
            let head = "name = \"x\"\nauthority = \"x\"\n";
            let text = match table.heading {
                "" => format!("{head}no-key = 1"),
                heading => format!("{head}{heading}\nno-key = 1"),
            };
            assert_eq!(said, taken(&text), "{}", table.heading);
        }
    }
}
