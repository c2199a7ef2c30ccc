//! The grid file: the authority, the hosts and the registries of a grid.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use codec::OwnerId;
use codec::hex;
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::address::Address;
use crate::identity::{
    GridId, HostId, NAME_BYTES_MAX, Peer, Revocations, certificate_from_pem, certificate_to_pem,
    is_name, replace_public,
};
use crate::list::entries::is_etcd;
use crate::list::{Contents, GridList, ListFiles};

pub use crate::list::entries::{GridHost, GridRegistry};

/// Most bytes of a grid file.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// A grid, as its file and its signed list describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Name of the grid.
    pub name: String,
    /// Certificate of the authority.
    pub authority: CertificateDer<'static>,
    /// Hosts that the grid file or the signed list names. Hosts that joined with a token are found through
    /// registries.
    pub hosts: Vec<GridHost>,
    /// Registries, in the order of the grid file.
    pub registries: Vec<GridRegistry>,
    /// `host:port` of the members of an etcd cluster that serves as a registry, too.
    pub etcd: Vec<String>,
    /// Files of the submitter that `ckpt` acts for by default.
    pub owner: Option<OwnerFiles>,
    /// Keys that the authority revoked.
    pub revoked: Revocations,
    /// Path of the signed list, if the grid file names one.
    pub list_file: Option<PathBuf>,
    /// Certificates that the authority renewed, from the signed list.
    pub renewed: Vec<CertificateDer<'static>>,
    /// The signed list that hosts, registries and revoked keys were taken from; `None` if they are from
    /// the grid file itself.
    pub list: Option<GridList>,
}

/// Paths of a submitter's key and certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerFiles {
    /// Path of the key file.
    pub key: PathBuf,
    /// Path of the certificate, which is PEM.
    pub certificate: PathBuf,
}

/// Why a grid file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum GridError {
    /// Reading or writing failed.
    #[error("grid file {path}")]
    Io {
        /// Path of the grid file.
        path: PathBuf,
        /// Why the system refused it.
        #[source]
        cause: io::Error,
    },
    /// The file is larger than a grid file may be.
    #[error("grid file {0} is larger than {FILE_BYTES_MAX} bytes")]
    TooLarge(PathBuf),
    /// The file is not a grid file.
    #[error("grid file {path}: {what}")]
    Malformed {
        /// Path of the grid file.
        path: PathBuf,
        /// What is wrong and where.
        what: String,
    },
}

/// The TOML text of a grid file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    name: Spanned<String>,
    authority: Spanned<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    members: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    registry: Vec<Spanned<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<OwnerText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revoked: Option<Spanned<RevokedText>>,
    #[serde(default)]
    registries: Vec<RegistryText>,
    #[serde(default)]
    hosts: Vec<HostText>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RevokedText {
    number: u64,
    keys: Vec<String>,
    signature: String,
}

impl RevokedText {
    fn write(revoked: &Revocations) -> Option<Self> {
        Some(Self {
            number: revoked.number(),
            keys: revoked.keys().map(OwnerId::hex).collect(),
            signature: hex::encode(revoked.signature()?),
        })
    }

    fn read(self, authority: &CertificateDer<'_>) -> Result<Revocations, String> {
        let key = |text: &String| {
            OwnerId::from_hex(text).ok_or_else(|| format!("{text:?} is not 64 hexadecimal digits"))
        };
        let keys = self
            .keys
            .iter()
            .map(key)
            .collect::<Result<BTreeSet<_>, _>>()?;
        let signature =
            hex::decode_exact(&self.signature).ok_or("signature is not 128 hexadecimal digits")?;
        Revocations::check(authority, self.number, keys, signature)
            .map_err(|cause| cause.to_string())
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnerText {
    key: PathBuf,
    certificate: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostText {
    name: Spanned<String>,
    addr: Address,
    id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    site: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RegistryText {
    name: Spanned<String>,
    addr: Address,
    id: String,
}

impl RegistryText {
    fn read(self) -> Result<GridRegistry, String> {
        let name = self.name.into_inner();
        check_name("registry", &name)?;
        let id = HostId::from_hex(&self.id)
            .ok_or_else(|| format!("registry {name}: id is not 64 hexadecimal digits"))?;
        Ok(GridRegistry {
            name,
            addr: self.addr,
            id,
        })
    }
}

impl HostText {
    fn read(self) -> Result<GridHost, String> {
        let name = self.name.into_inner();
        check_name("host", &name)?;
        let id = HostId::from_hex(&self.id)
            .ok_or_else(|| format!("host {name}: id is not 64 hexadecimal digits"))?;
        Ok(GridHost {
            name,
            addr: self.addr,
            id,
            site: self.site,
            owner: self.owner,
        })
    }
}

/// A text to be written, which has no place in a file yet.
fn unplaced(text: String) -> Spanned<String> {
    Spanned::new(0..0, text)
}

fn line_of(text: &str, offset: usize) -> String {
    let before = text.as_bytes().iter().take(offset);
    format!("line {}", 1 + before.filter(|&&byte| byte == b'\n').count())
}

impl Grid {
    /// A grid without members.
    pub fn new(name: impl Into<String>, authority: CertificateDer<'static>) -> Self {
        Self {
            name: name.into(),
            authority,
            hosts: Vec::new(),
            registries: Vec::new(),
            etcd: Vec::new(),
            owner: None,
            revoked: Revocations::default(),
            list_file: None,
            renewed: Vec::new(),
            list: None,
        }
    }

    /// Reads a grid file and its signed list. Relative paths in the file are relative to its directory.
    ///
    /// # Errors
    /// When the file can't be read, or is not a grid file; the error names the line.
    pub fn load(path: &Path) -> Result<Self, GridError> {
        Self::load_with(path, None)
    }

    /// As [`Self::load`], with a list of the program's own beside the one that the grid file names; the
    /// newer list counts.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_with(path: &Path, own: Option<PathBuf>) -> Result<Self, GridError> {
        let mut grid = Self::load_alone(path)?;
        let files = ListFiles::new(grid.list_path(path), own);
        if let Some((list, contents)) = files.newest(&grid.authority) {
            grid.follow(list, contents);
        }
        Ok(grid)
    }

    /// Reads a grid file without the list.
    fn load_alone(path: &Path) -> Result<Self, GridError> {
        let failed = |cause| GridError::Io {
            path: path.to_owned(),
            cause,
        };
        if fs::metadata(path).map_err(failed)?.len() > FILE_BYTES_MAX {
            return Err(GridError::TooLarge(path.to_owned()));
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        let base = path.parent().unwrap_or(Path::new(""));
        Self::parse(&text, base).map_err(|what| GridError::Malformed {
            path: path.to_owned(),
            what,
        })
    }

    /// Reads the text of a grid file; relative paths in it are joined to `base`.
    ///
    /// # Errors
    /// A description of the mistake, with its line.
    pub fn parse(text: &str, base: &Path) -> Result<Self, String> {
        let at = |span: std::ops::Range<usize>| line_of(text, span.start);
        let file: FileText = toml::from_str(text).map_err(|cause| match cause.span() {
            Some(span) => format!("{}: {}", at(span), cause.message()),
            None => cause.message().to_owned(),
        })?;
        check_name("grid", file.name.as_ref())
            .map_err(|cause| format!("{}: {cause}", at(file.name.span())))?;
        let authority = certificate_from_pem(file.authority.as_ref())
            .map_err(|cause| format!("{}: authority: {cause}", at(file.authority.span())))?;
        let revoked = match file.revoked {
            None => Revocations::default(),
            Some(text) => {
                let line = at(text.span());
                let read = text.into_inner().read(&authority);
                read.map_err(|cause| format!("{line}: revoked: {cause}"))?
            }
        };
        let mut hosts = Vec::with_capacity(file.hosts.len());
        let mut names = BTreeMap::new();
        let mut ids = BTreeMap::new();
        for host in file.hosts {
            let line = at(host.name.span());
            let host = host.read().map_err(|cause| format!("{line}: {cause}"))?;
            let same_name = names.insert(host.name.clone(), host.name.clone());
            let same_id = ids.insert(host.id, host.name.clone());
            if let Some(other) = same_name.or(same_id) {
                let name = host.name;
                return Err(format!(
                    "{line}: host {name}: same name or id as host {other}"
                ));
            }
            // Revoked hosts must not be trusted, even if the file still lists them.
            if !revoked.contains(&host.id.0) {
                hosts.push(host);
            }
        }
        let mut registries = Vec::with_capacity(file.registries.len());
        for registry in file.registries {
            let line = at(registry.name.span());
            let registry = registry
                .read()
                .map_err(|cause| format!("{line}: {cause}"))?;
            if !revoked.contains(&registry.id.0) {
                registries.push(registry);
            }
        }
        let mut etcd = Vec::with_capacity(file.registry.len());
        for url in file.registry {
            let line = at(url.span());
            let read = read_etcd(url.as_ref());
            etcd.push(read.map_err(|cause| format!("{line}: {cause}"))?);
        }
        Ok(Self {
            etcd,
            name: file.name.into_inner(),
            authority,
            hosts,
            registries,
            revoked,
            list_file: file.members.map(|path| base.join(path)),
            renewed: Vec::new(),
            list: None,
            owner: file.owner.map(|owner| OwnerFiles {
                key: base.join(owner.key),
                certificate: base.join(owner.certificate),
            }),
        })
    }

    /// The text of a grid file that describes this grid. Paths below `base` become relative.
    ///
    /// # Errors
    /// When a value can't be written as TOML.
    pub fn to_text(&self, base: &Path) -> Result<String, String> {
        let relative = |path: &Path| path.strip_prefix(base).unwrap_or(path).to_owned();
        let file = FileText {
            name: unplaced(self.name.clone()),
            authority: unplaced(certificate_to_pem(&self.authority)),
            members: self.list_file.as_deref().map(relative),
            owner: self.owner.as_ref().map(|owner| OwnerText {
                key: relative(&owner.key),
                certificate: relative(&owner.certificate),
            }),
            registry: self
                .etcd
                .iter()
                .map(|addr| unplaced(format!("{ETCD_SCHEME}{addr}")))
                .collect(),
            revoked: RevokedText::write(&self.revoked).map(|text| Spanned::new(0..0, text)),
            registries: self
                .registries
                .iter()
                .map(|registry| RegistryText {
                    name: unplaced(registry.name.clone()),
                    addr: registry.addr.clone(),
                    id: registry.id.hex(),
                })
                .collect(),
            hosts: self
                .hosts
                .iter()
                .map(|host| HostText {
                    name: unplaced(host.name.clone()),
                    addr: host.addr.clone(),
                    id: host.id.hex(),
                    site: host.site.clone(),
                    owner: host.owner.clone(),
                })
                .collect(),
        };
        toml::to_string(&file).map_err(|cause| cause.to_string())
    }

    /// Writes the grid file in one step: readers see the old or the new content.
    ///
    /// # Errors
    /// When the file can't be written; the old one then stays.
    pub fn save(&self, path: &Path) -> Result<(), GridError> {
        let failed = |cause| GridError::Io {
            path: path.to_owned(),
            cause,
        };
        let base = path.parent().unwrap_or(Path::new(""));
        let text = self.to_text(base).map_err(|what| GridError::Malformed {
            path: path.to_owned(),
            what,
        })?;
        // A grid file has no secrets, and every submitter of the machine needs it.
        replace_public(path, text.as_bytes()).map_err(failed)
    }

    /// Id of the grid.
    pub fn id(&self) -> GridId {
        GridId::of(&self.authority)
    }

    /// Number of the signed list that this description is from; 0 without a list.
    pub fn number(&self) -> u64 {
        self.list.as_ref().map_or(0, GridList::number)
    }

    /// Path of the signed list for the grid file at `grid_file`: the one that the grid file names, or the
    /// grid file's own path with the ending `.members`.
    pub fn list_path(&self, grid_file: &Path) -> PathBuf {
        let beside = || grid_file.with_extension("members");
        self.list_file.clone().unwrap_or_else(beside)
    }

    /// The content of a list that describes this grid.
    pub fn contents(&self) -> Contents {
        Contents {
            hosts: self.hosts.clone(),
            registries: self.registries.clone(),
            etcd: self.etcd.clone(),
            revoked: self.revoked.clone(),
            renewed: self.renewed.clone(),
        }
    }

    /// Takes over the content of a signed list. Of two lists of revoked keys the newer one counts. Port 0 in
    /// a list stands for a port that was not known when it was signed: an address that is known here stays.
    pub fn follow(&mut self, list: GridList, contents: Contents) {
        self.list = Some(list);
        let known = std::mem::replace(&mut self.hosts, contents.hosts);
        for host in self.hosts.iter_mut().filter(|host| host.addr.port() == 0) {
            if let Some(known) = known.iter().find(|known| known.id == host.id) {
                host.addr = known.addr.clone();
            }
        }
        self.registries = contents.registries;
        self.etcd = contents.etcd;
        self.renewed = contents.renewed;
        if contents.revoked.number() >= self.revoked.number() {
            self.revoked = contents.revoked;
        } else {
            let revoked = &self.revoked;
            self.hosts.retain(|host| !revoked.contains(&host.id.0));
            self.registries
                .retain(|registry| !revoked.contains(&registry.id.0));
        }
    }

    /// The renewed certificate for this key that ends last, if it ends later than `after`, Unix seconds.
    pub fn renewed_for(&self, key: &OwnerId, after: u64) -> Option<&CertificateDer<'static>> {
        let renewed = self.renewed.iter().filter_map(|one| {
            let peer = Peer::from_certificate(one).ok()?;
            let is_meant = peer.id == *key && !self.revoked.contains(key);
            (is_meant && peer.not_after > after).then_some((peer.not_after, one))
        });
        renewed.max_by_key(|(end, _)| *end).map(|(_, one)| one)
    }

    /// The text of a grid file for another machine: without the settings that are about this machine.
    ///
    /// # Errors
    /// When a value can't be written as TOML.
    pub fn to_send(&self) -> Result<String, String> {
        let sent = Self {
            owner: None,
            list_file: None,
            ..self.clone()
        };
        sent.to_text(Path::new(""))
    }
}

/// The beginning of the URL of an etcd member.
const ETCD_SCHEME: &str = "etcd://";

/// `host:port` of `etcd://host:port`.
fn read_etcd(url: &str) -> Result<String, String> {
    let addr = url
        .strip_prefix(ETCD_SCHEME)
        .map(|addr| addr.trim_end_matches('/'));
    let addr = addr.filter(|addr| is_etcd(addr));
    addr.map(str::to_owned).ok_or_else(|| {
        format!(
            "registry {url:?}: etcd://HOST:PORT is expected; other registries are [[registries]]"
        )
    })
}

fn check_name(what: &str, name: &str) -> Result<(), String> {
    if is_name(name) {
        return Ok(());
    }
    Err(format!(
        "{what} name {name:?}: 1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 . _ - are allowed"
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use codec::seal::OwnerSecret;

    use super::*;
    use crate::identity::{Authority, Validity};

    fn grid() -> Grid {
        let validity = Validity {
            from: 1_800_000_000,
            lasting: Duration::from_secs(3600),
        };
        let authority = Authority::create(OwnerSecret::new([1; 32]), "lab", validity).unwrap();
        Grid {
            hosts: vec![GridHost {
                name: "h1".into(),
                addr: "127.0.0.1:7000".parse().unwrap(),
                id: HostId(OwnerSecret::new([2; 32]).id()),
                site: Some("west".into()),
                owner: None,
            }],
            owner: Some(OwnerFiles {
                key: "/grid/owner.key".into(),
                certificate: "/elsewhere/owner.crt".into(),
            }),
            revoked: authority
                .revoke(
                    &Revocations::default(),
                    BTreeSet::from([OwnerSecret::new([3; 32]).id()]),
                )
                .unwrap(),
            ..Grid::new("lab", authority.certificate().clone())
        }
    }

    #[test]
    fn a_grid_file_comes_back() {
        let text = grid().to_text(Path::new("/grid")).unwrap();
        assert!(text.contains("key = \"owner.key\""), "{text}");
        assert_eq!(Grid::parse(&text, Path::new("/grid")), Ok(grid()));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("grid.toml");
        grid().save(&path).unwrap();
        assert_eq!(Grid::load(&path).unwrap().hosts, grid().hosts);
        grid().save(&path).unwrap();
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        let plain = dir.path().join("plain");
        fs::write(&plain, "").unwrap();
        let plain = fs::metadata(&plain).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, plain & 0o644);
    }

    #[test]
    fn a_wrong_entry_is_named() {
        let text = grid().to_text(Path::new("/grid")).unwrap();
        let base = Path::new("/grid");
        for (from, to, expected) in [
            ("name = \"h1\"", "name = \"../h1\"", "host name"),
            ("site = ", "sight = ", "sight"),
            ("127.0.0.1:7000", "localhost", "address"),
            ("name = \"lab\"", "name = 7", "string"),
            (
                "[revoked]\nnumber = 1",
                "[revoked]\nnumber = 2",
                "not signed",
            ),
            ("BEGIN", "BEGUN", "authority"),
        ] {
            let wrong = Grid::parse(&text.replace(from, to), base).unwrap_err();
            assert!(wrong.contains(expected), "{wrong}");
            // The error names the first line of a value that has several.
            let from = match from {
                "BEGIN" => "authority",
                from => from.lines().next().unwrap(),
            };
            let line = text.lines().position(|line| line.contains(from)).unwrap() + 1;
            assert!(wrong.starts_with(&format!("line {line}: ")), "{wrong}");
            assert!(!wrong.contains('\n'), "{wrong}");
        }
        let host = &text[text.find("[[hosts]]").unwrap()..];
        let twice = Grid::parse(&format!("{text}\n{host}"), base).unwrap_err();
        assert!(twice.contains("same name"), "{twice}");
    }

    #[test]
    fn hosts_are_at_addresses_or_names() {
        let text = grid().to_text(Path::new("/grid")).unwrap();
        let named = text.replace("127.0.0.1:7000", "lab-3.example:7000");
        let read = Grid::parse(&named, Path::new("/grid")).unwrap();
        assert_eq!(read.hosts[0].addr, "lab-3.example:7000".parse().unwrap());
        assert_eq!(read.to_text(Path::new("/grid")).unwrap(), named);
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Grid::load(Path::new("/nowhere/grid.toml")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/grid.toml"));
    }
}
