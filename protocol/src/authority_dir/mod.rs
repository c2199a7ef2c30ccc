//! The directory of a grid's authority: its key, the grid file, and a record of all certificates.
//!
//! ```text
//! DIR/authority.key    the secret key, mode 0600; its holder decides who belongs to the grid
//! DIR/authority.crt    its certificate
//! DIR/grid.toml        the grid file that members get
//! DIR/grid.members     the list of hosts, registries and revoked keys, signed; members pass it on
//! DIR/members.toml     the record of every certificate that was signed
//! ```
//!
//! Only one process at a time may change the directory. Files are written in an order in which a crash
//! between two of them does no harm: the record before the certificate is handed out, the list of revoked
//! keys before their entries in the record.

mod lists;
mod members;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use codec::OwnerId;
use codec::seal::OwnerSecret;
use rustls_pki_types::CertificateDer;

use crate::address::Address;
use crate::grid::{Grid, GridError, GridHost, GridRegistry};
use crate::identity::{
    Authority, AuthorityError, HostId, JoinToken, KeyFileError, NAME_BYTES_MAX, Peer, PeerError,
    RandomError, RevocationError, Role, TokenRole, TokenTerms, Validity, certificate_from_pem,
    certificate_to_pem, is_name, read_key, replace_public, write_key,
};
use crate::list::ListError;
use crate::net::{ResolveError, resolve_here};

pub use members::{Issued, MEMBERS_BYTES_MAX, parse_members};

/// How long to wait for another process that changes the same directory.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Why an operation on an authority's directory fails.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityDirError {
    /// A file can't be read or written.
    #[error("{path}")]
    Io {
        /// Path of the file or directory.
        path: PathBuf,
        /// Why the system refused it.
        #[source]
        cause: io::Error,
    },
    /// The directory has an authority already.
    #[error("{0} has an authority already")]
    Exists(PathBuf),
    /// The directory has no authority.
    #[error("{0} has no authority: authority.key and grid.toml do not exist")]
    Missing(PathBuf),
    /// Another process has the directory locked.
    #[error("{0} is being changed by another process")]
    Locked(PathBuf),
    /// The key file can't be used.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// The grid file can't be used.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// A certificate can't be read.
    #[error("authority's certificate: {0}")]
    Certificate(#[from] PeerError),
    /// Key, certificate and grid file are of different authorities.
    #[error("{0}: authority.key, authority.crt and grid.toml do not belong together")]
    Mixed(PathBuf),
    /// The record can't be read or written.
    #[error("{path}: {what}")]
    Members {
        /// Path of the record.
        path: PathBuf,
        /// What is wrong and where.
        what: String,
    },
    /// A certificate can't be made.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The list of revoked keys can't be made.
    #[error(transparent)]
    Revocation(#[from] RevocationError),
    /// The name is not allowed.
    #[error(
        "name {0:?}: 1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 . _ - are allowed, not beginning with . \
         or -"
    )]
    Name(String),
    /// No role was given.
    #[error("{0}: a certificate needs at least one role")]
    NoRole(String),
    /// Another member has the name.
    #[error(
        "{name} is the name of another member, with key {key}; revoke that one first or choose another name"
    )]
    NameTaken {
        /// The name that was asked for.
        name: String,
        /// Key of the member that has it.
        key: OwnerId,
    },
    /// The key is revoked.
    #[error("key {} was revoked: its holder has to create a new one", .0.hex())]
    Revoked(OwnerId),
    /// The key is the authority's own.
    #[error("that is the authority's own key; members have keys of their own")]
    OwnKey,
    /// The certificate would end after the authority's own, which ends in this many seconds.
    #[error("the certificate would outlive the authority, whose own ends in {} days", .0 / 86_400)]
    Outlives(u64),
    /// Another host or registry has the address.
    #[error(
        "{addr} is the address of {name}: use another one, or first remove {name} (ckpt grid remove)"
    )]
    AddressTaken {
        /// The address that was asked for.
        addr: Address,
        /// Name of the host or registry that has it.
        name: String,
    },
    /// Nobody can be reached at port 0.
    #[error("{0}: nobody can be reached at port 0; name the port at which the member listens")]
    NoPort(Address),
    /// The list of the grid can't be made or must not be believed.
    #[error(transparent)]
    List(#[from] ListError),
    /// The system has no random numbers.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// No host or registry of the list has this name or key.
    #[error("{0} is not a host or registry of the list")]
    NotListed(String),
    /// No member has this name or key.
    #[error("no member {0}: it is neither a member's name nor its key (8 digits or more)")]
    Unknown(String),
    /// This many members have this name, or a key that begins so.
    #[error("{0} matches {1} members: use the key")]
    Ambiguous(String, usize),
    /// Several keys have had this name, or begin so.
    #[error("{who} means one of {} keys, so name the key: {}", .keys.len(), of_keys(.keys))]
    ManyKeys {
        /// What was asked for.
        who: String,
        /// The keys, each with its name and what is known of it.
        keys: Vec<(OwnerId, String)>,
    },
    /// Only registries report a member of this name.
    #[error(
        "the authority's record has no member {who}; registries report that name, which they may get wrong, so name the key: {}",
        of_keys(.keys)
    )]
    Unrecorded {
        /// What was asked for.
        who: String,
        /// The keys, each with its name and what is known of it.
        keys: Vec<(OwnerId, String)>,
    },
    /// The grid file has no registry of this name.
    #[error(
        "{0} is not a registry of the grid file; add one with ckpt grid sign --role registry --addr"
    )]
    NoRegistry(String),
    /// The host name of a registry has no IP address, which a token needs.
    #[error(transparent)]
    Unresolved(#[from] ResolveError),
    /// The authority's certificate does not allow it to delegate.
    #[error("this authority can't permit registries to sign: it is older than join tokens")]
    NoDelegation,
    /// An address was given for a member that is neither donor nor registry.
    #[error("{0} is not a donor or registry: only these have an address in the grid file")]
    NoDonor(String),
}

/// A request for a certificate.
#[derive(Clone, Debug)]
pub struct Certify {
    /// Roles of the member.
    pub roles: Vec<Role>,
    /// Name of the member.
    pub name: String,
    /// Public key of the member.
    pub key: OwnerId,
    /// When the certificate begins, and how long it lasts.
    pub validity: Validity,
    /// Entry in the grid file, for donors and registries.
    pub host: Option<HostEntry>,
}

/// Where a donor or a registry is.
#[derive(Clone, Debug)]
pub struct HostEntry {
    /// Address at which it listens.
    pub addr: Address,
    /// Site, such as a building, a campus or a cloud zone: machines of one site tend to fail together.
    pub site: Option<String>,
    /// Owner of the machine.
    pub owner: Option<String>,
}

/// An authority's directory, locked so that only this process may change it.
#[derive(Debug)]
pub struct AuthorityDir {
    dir: PathBuf,
    authority: Authority,
    expires: u64,
    grid: Grid,
    issued: Vec<Issued>,
    _lock: File,
}

/// A member that joined with a token: a registry signed its certificate, and reported this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joiner {
    /// Name, as the registry reports it.
    pub name: String,
    /// Public key of the member's certificate.
    pub key: OwnerId,
    /// The role that its token gave.
    pub role: Role,
    /// Where it is, as the registry reports it.
    pub addr: Option<String>,
    /// The number of its token, and when it joined and its certificate ends, Unix seconds. `None` of a member
    /// of which a registry knows only that it is there.
    pub joined: Option<JoinedWith>,
}

/// With which token a member joined, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinedWith {
    /// The number of the token.
    pub token: [u8; 16],
    /// When the member joined, Unix seconds.
    pub at: u64,
    /// When its certificate ends, Unix seconds.
    pub until: u64,
}

/// The result of revoking a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// The key that is revoked now.
    pub key: OwnerId,
    /// Whether the key was revoked before.
    pub was_already: bool,
}

/// The public content of an authority's directory, which is read without its key.
#[derive(Clone, Debug)]
pub struct Roll {
    /// The grid file of the directory.
    pub grid: Grid,
    /// All certificates that were signed, in the order of signing.
    pub issued: Vec<Issued>,
}

impl Roll {
    /// Reads an authority's directory.
    ///
    /// # Errors
    /// When the directory has no authority, or a file can't be read.
    pub fn load(dir: &Path) -> Result<Self, AuthorityDirError> {
        if !grid_path(dir).exists() {
            return Err(AuthorityDirError::Missing(dir.to_owned()));
        }
        Ok(Self {
            grid: Grid::load(&grid_path(dir))?,
            issued: members::load(&dir.join("members.toml"))?,
        })
    }
}

/// The grid file in an authority's directory.
pub fn grid_path(dir: &Path) -> PathBuf {
    dir.join("grid.toml")
}

impl AuthorityDir {
    /// Makes an authority for a new grid, with a grid file that names no hosts.
    ///
    /// # Errors
    /// When the directory has an authority already, or can't be written.
    pub fn create(
        dir: &Path,
        name: &str,
        secret: OwnerSecret,
        validity: Validity,
    ) -> Result<Self, AuthorityDirError> {
        if !is_name(name) {
            return Err(AuthorityDirError::Name(name.to_owned()));
        }
        fs::create_dir_all(dir).map_err(at(dir))?;
        let key = dir.join("authority.key");
        if key.exists() || grid_path(dir).exists() {
            return Err(AuthorityDirError::Exists(dir.to_owned()));
        }
        let authority = Authority::create(secret, name, validity)?;
        write_key(&key, authority.secret())?;
        let certificate = dir.join("authority.crt");
        let pem = certificate_to_pem(authority.certificate());
        replace_public(&certificate, pem.as_bytes()).map_err(at(&certificate))?;
        let grid = Grid::new(name, authority.certificate().clone());
        grid.save(&grid_path(dir))?;
        let mut made = Self::open(dir)?;
        made.publish()?;
        Ok(made)
    }

    /// Opens a directory for changes, and waits for another process that has it locked.
    ///
    /// # Errors
    /// When the directory has no authority, its files can't be used, or it stays locked for too long.
    pub fn open(dir: &Path) -> Result<Self, AuthorityDirError> {
        let key = dir.join("authority.key");
        if !key.exists() {
            return Err(AuthorityDirError::Missing(dir.to_owned()));
        }
        let lock = lock(&key, dir)?;
        let secret = read_key(&key)?;
        let path = dir.join("authority.crt");
        let pem = fs::read_to_string(&path).map_err(at(&path))?;
        let certificate = certificate_from_pem(&pem)?;
        let own = Peer::from_certificate(&certificate)?;
        let Roll { grid, issued } = Roll::load(dir)?;
        if own.id != secret.id() || grid.authority != certificate {
            return Err(AuthorityDirError::Mixed(dir.to_owned()));
        }
        Ok(Self {
            dir: dir.to_owned(),
            authority: Authority::load(secret, certificate),
            expires: own.not_after,
            grid,
            issued,
            _lock: lock,
        })
    }

    /// The content of the grid file.
    pub const fn grid(&self) -> &Grid {
        &self.grid
    }

    /// When the authority's certificate ends, Unix seconds.
    pub const fn expires(&self) -> u64 {
        self.expires
    }

    /// Signs a certificate and records it. Enters a donor or registry with an address in the grid file.
    ///
    /// # Errors
    /// When the certificate must not be signed, or a file can't be written.
    pub fn certify(
        &mut self,
        wish: &Certify,
    ) -> Result<CertificateDer<'static>, AuthorityDirError> {
        let certificate = self.sign_and_record(wish)?;
        self.save_members()?;
        let Certify {
            roles,
            name,
            key,
            host,
            ..
        } = wish;
        if let Some(host) = host {
            if roles.contains(&Role::Registry) {
                self.enter_registry(name, *key, host.addr.clone());
            }
            if roles.contains(&Role::Donor) {
                self.enter_host(name, *key, host);
            }
            self.publish()?;
        }
        Ok(certificate)
    }

    /// Signs a certificate and enters it in the record in memory. The caller writes the record.
    fn sign_and_record(
        &mut self,
        wish: &Certify,
    ) -> Result<CertificateDer<'static>, AuthorityDirError> {
        self.check(wish)?;
        let Certify {
            roles,
            name,
            key,
            validity,
            ..
        } = wish;
        let certificate = self.authority.sign(roles, name, *key, *validity)?;
        let peer = Peer::from_certificate(&certificate)?;
        self.issued.push(Issued {
            name: name.clone(),
            key: *key,
            roles: peer.roles,
            issued: validity.from,
            expires: peer.not_after,
            revoked: None,
            token: None,
        });
        Ok(certificate)
    }

    fn check(&self, wish: &Certify) -> Result<(), AuthorityDirError> {
        let name = &wish.name;
        if !is_name(name) {
            return Err(AuthorityDirError::Name(name.clone()));
        }
        if wish.roles.is_empty() {
            return Err(AuthorityDirError::NoRole(name.clone()));
        }
        if wish.key == self.authority.secret().id() {
            return Err(AuthorityDirError::OwnKey);
        }
        if self.grid.revoked.contains(&wish.key) {
            return Err(AuthorityDirError::Revoked(wish.key));
        }
        let listens = |role| wish.roles.contains(&role);
        if wish.host.is_some() && !listens(Role::Donor) && !listens(Role::Registry) {
            return Err(AuthorityDirError::NoDonor(name.clone()));
        }
        let from = wish.validity.from;
        let lasting = wish.validity.lasting.as_secs();
        if from.saturating_add(lasting) > self.expires {
            return Err(AuthorityDirError::Outlives(
                self.expires.saturating_sub(from),
            ));
        }
        let taken = self.issued.iter().find(|other| {
            other.name == *name
                && other.key != wish.key
                && other.expires >= from
                && !self.grid.revoked.contains(&other.key)
        });
        let listed = self
            .grid
            .hosts
            .iter()
            .find(|host| wish.host.is_some() && host.name == *name && host.id.0 != wish.key);
        let taken = taken.map(|other| other.key);
        if let Some(key) = taken.or(listed.map(|host| host.id.0)) {
            let name = name.clone();
            return Err(AuthorityDirError::NameTaken { name, key });
        }
        match &wish.host {
            Some(host) => self.check_address(wish.key, &host.addr),
            None => Ok(()),
        }
    }

    /// Checks that a member can be reached at the address, and that no other one has it.
    fn check_address(&self, key: OwnerId, addr: &Address) -> Result<(), AuthorityDirError> {
        if addr.port() == 0 {
            return Err(AuthorityDirError::NoPort(addr.clone()));
        }
        let hosts = self
            .grid
            .hosts
            .iter()
            .map(|one| (one.id, &one.addr, &one.name));
        let registries = self.grid.registries.iter();
        let registries = registries.map(|one| (one.id, &one.addr, &one.name));
        let mut others = hosts.chain(registries).filter(|(id, ..)| id.0 != key);
        match others.find(|(_, at, _)| **at == *addr) {
            None => Ok(()),
            Some((_, addr, name)) => Err(AuthorityDirError::AddressTaken {
                addr: addr.clone(),
                name: name.clone(),
            }),
        }
    }

    fn enter_host(&mut self, name: &str, key: OwnerId, entry: &HostEntry) {
        let host = GridHost {
            name: name.to_owned(),
            addr: entry.addr.clone(),
            id: HostId(key),
            site: entry.site.clone(),
            owner: entry.owner.clone(),
        };
        match self.grid.hosts.iter_mut().find(|host| host.id.0 == key) {
            Some(known) => *known = host,
            None => self.grid.hosts.push(host),
        }
    }

    fn enter_registry(&mut self, name: &str, key: OwnerId, addr: Address) {
        let registry = GridRegistry {
            name: name.to_owned(),
            addr,
            id: HostId(key),
        };
        let known = self.grid.registries.iter_mut().find(|one| one.id.0 == key);
        match known {
            Some(known) => *known = registry,
            None => self.grid.registries.push(registry),
        }
    }

    /// Certifies that a registry of the grid file may itself sign certificates of members that join with a
    /// token, with these roles and for this time.
    ///
    /// # Errors
    /// When there is no such registry, or the authority was made before there were tokens.
    pub fn delegate(
        &self,
        registry: &str,
        roles: &[Role],
        validity: Validity,
    ) -> Result<CertificateDer<'static>, AuthorityDirError> {
        let registry = self.registry(registry)?;
        if !Peer::may_delegate(self.authority.certificate())? {
            return Err(AuthorityDirError::NoDelegation);
        }
        let key = registry.id.0;
        Ok(self
            .authority
            .delegate(&registry.name, key, roles, validity)?)
    }

    /// Makes a token with which one member with this role can join through a registry of the grid file. The
    /// token has the number of the present list, and the member that joins accepts no older one.
    ///
    /// # Errors
    /// When there is no such registry, or its host name does not resolve.
    pub fn invite(
        &self,
        registry: &str,
        role: TokenRole,
        expires: u64,
        nonce: [u8; 16],
    ) -> Result<JoinToken, AuthorityDirError> {
        let registry = self.registry(registry)?;
        // A token has an IP address, even if the grid file has a host name.
        let addr = resolve_here(&registry.addr)?.first().copied();
        let addr = addr.ok_or_else(|| AuthorityDirError::NoRegistry(registry.name.clone()))?;
        let terms = TokenTerms {
            registry: registry.id,
            addr,
            role,
            list: self.grid.number(),
            expires,
            nonce,
        };
        Ok(JoinToken::sign(&self.authority, terms))
    }

    fn registry(&self, name: &str) -> Result<&GridRegistry, AuthorityDirError> {
        let found = self.grid.registries.iter().find(|one| one.name == name);
        found.ok_or_else(|| AuthorityDirError::NoRegistry(name.to_owned()))
    }

    /// Revokes a member, which `who` gives by name or key: its key goes on the list of revoked keys, and
    /// its hosts leave the list of the grid. `joined` are members that registries know, and the authority
    /// does not.
    ///
    /// # Errors
    /// When no member is meant or several are, or a file can't be written.
    pub fn revoke(
        &mut self,
        who: &str,
        joined: &[Joiner],
        now: u64,
    ) -> Result<Revoked, AuthorityDirError> {
        let key = self.find(who, joined)?;
        let mut keys: BTreeSet<OwnerId> = self.grid.revoked.keys().copied().collect();
        let was_already = !keys.insert(key);
        if was_already && !self.is_listed(key) {
            return Ok(Revoked { key, was_already });
        }
        if !was_already {
            self.grid.revoked = self.authority.revoke(&self.grid.revoked, keys)?;
        }
        self.take_out(key);
        self.publish()?;
        let joiner = joined.iter().find(|one| one.key == key);
        let joiner = joiner.filter(|one| is_name(&one.name) && !self.is_issued(key));
        // A registry signed this member. It gets an entry in the record, as a revoked one.
        self.issued.extend(joiner.map(|one| Issued {
            name: one.name.clone(),
            key,
            roles: vec![one.role],
            issued: one.joined.map_or(now, |with| with.at),
            expires: one.joined.map_or(now, |with| with.until),
            revoked: None,
            token: one.joined.map(|with| with.token),
        }));
        for issued in self.issued.iter_mut().filter(|issued| issued.key == key) {
            issued.revoked = issued.revoked.or(Some(now));
        }
        self.save_members()?;
        Ok(Revoked { key, was_already })
    }

    fn is_issued(&self, key: OwnerId) -> bool {
        self.issued.iter().any(|one| one.key == key)
    }

    /// Enters members that joined with a token into the record, so that it outlives the registry that signed
    /// them. What the record has stays as it is: a name belongs to the key that had it first.
    ///
    /// # Errors
    /// When the record can't be written.
    pub fn note_joined(&mut self, joined: &[Joiner]) -> Result<(), AuthorityDirError> {
        let before = self.issued.len();
        for one in joined {
            let with = one.joined.filter(|_| !self.is_issued(one.key));
            self.issued.extend(with.map(|with| Issued {
                name: one.name.clone(),
                key: one.key,
                roles: vec![one.role],
                issued: with.at,
                expires: with.until,
                revoked: None,
                token: Some(with.token),
            }));
        }
        match self.issued.len() == before {
            true => Ok(()),
            false => self.save_members(),
        }
    }

    /// The key of the member that `who` means: a whole key, which need not be in the record; the first 8
    /// digits or more of a key; or a name that only one key has had. A name counts if the authority
    /// certified it or the list has it. Registries may be wrong about names.
    ///
    /// # Errors
    /// When that is no member, or not one alone.
    pub fn find(&self, who: &str, joined: &[Joiner]) -> Result<OwnerId, AuthorityDirError> {
        if let Some(key) = OwnerId::from_hex(who) {
            return Ok(key);
        }
        let digits = who.to_ascii_lowercase();
        let is_key = |key: &OwnerId| digits.len() >= 8 && key.hex().starts_with(&digits);
        let signed_here = |one: &&Issued| one.token.is_none();
        let issued = self.issued.iter().filter(signed_here);
        let issued = issued.map(|one| (&one.name, one.key));
        let by_token = self.issued.iter().filter(|one| !signed_here(one));
        let by_token = by_token.map(|one| (&one.name, one.key));
        let hosts = self.grid.hosts.iter().map(|one| (&one.name, one.id.0));
        let registries = self.grid.registries.iter();
        let registries = registries.map(|one| (&one.name, one.id.0));
        let recorded: Vec<_> = issued.chain(hosts).chain(registries).collect();
        let places: BTreeMap<OwnerId, &str> = joined
            .iter()
            .filter_map(|one| Some((one.key, one.addr.as_deref()?)))
            .collect();
        let joined = joined
            .iter()
            .map(|one| (&one.name, one.key))
            .chain(by_token);
        let mut keys: BTreeMap<OwnerId, String> = BTreeMap::new();
        for (name, key) in recorded.iter().copied().chain(joined) {
            if name == who || is_key(&key) {
                keys.entry(key).or_insert_with(|| match () {
                    () if self.grid.revoked.contains(&key) => format!("{name}, revoked"),
                    () if recorded.contains(&(name, key)) => name.clone(),
                    () => match places.get(&key) {
                        Some(addr) => format!("{name}, joined with a token, at {addr}"),
                        None => format!("{name}, joined with a token"),
                    },
                });
            }
        }
        let is_named = |key: OwnerId| recorded.iter().any(|one| *one.0 == who && one.1 == key);
        let who = || who.to_owned();
        let all = || keys.clone().into_iter().collect();
        match (keys.first_key_value(), keys.len()) {
            (None, _) => Err(AuthorityDirError::Unknown(who())),
            (Some((key, _)), 1) if is_key(key) || is_named(*key) => Ok(*key),
            (Some(_), 1) => Err(AuthorityDirError::Unrecorded {
                who: who(),
                keys: all(),
            }),
            _ => Err(AuthorityDirError::ManyKeys {
                who: who(),
                keys: all(),
            }),
        }
    }

    fn save_members(&self) -> Result<(), AuthorityDirError> {
        members::save(&self.dir.join("members.toml"), &self.issued)
    }
}

/// Keys with what is known of each, for a message.
fn of_keys(keys: &[(OwnerId, String)]) -> String {
    let keys = keys
        .iter()
        .map(|(key, what)| format!("{} ({what})", key.hex()));
    keys.collect::<Vec<_>>().join(", ")
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> AuthorityDirError {
    let path = path.to_owned();
    move |cause| AuthorityDirError::Io { path, cause }
}

/// Locks the key file, and waits for another process that has it locked.
fn lock(key: &Path, dir: &Path) -> Result<File, AuthorityDirError> {
    let file = File::open(key).map_err(at(key))?;
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(AuthorityDirError::Locked(dir.to_owned()));
            }
            Err(TryLockError::Error(cause)) => return Err(at(key)(cause)),
        }
    }
}

#[cfg(test)]
mod tests;
