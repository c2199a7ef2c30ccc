//! The directory of a grid's authority: its key, the grid file, and a record of all certificates.
//!
//! ```text
//! DIR/authority.key    the secret key, 0600; whoever has it decides who belongs to the grid
//! DIR/authority.crt    its certificate
//! DIR/grid.toml        the grid file that members get
//! DIR/grid.members     the list of hosts, registries and revoked keys, signed; members pass it on
//! DIR/members.toml     every certificate that was signed
//! ```
//!
//! One process at a time changes it. What is written first is what does no harm alone: the record
//! before the certificate, the list of revoked keys before the record of it.

mod lists;
mod members;

use std::collections::BTreeSet;
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

/// Why something can't be done with an authority's directory.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityDirError {
    /// A file.
    #[error("{path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// There is an authority already.
    #[error("{0} has an authority already")]
    Exists(PathBuf),
    /// There is none.
    #[error("{0} has no authority: authority.key and grid.toml are not there")]
    Missing(PathBuf),
    /// Another process changes it.
    #[error("{0} is being changed by another process")]
    Locked(PathBuf),
    /// The key.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// The grid file.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// The authority's certificate.
    #[error("authority's certificate: {0}")]
    Certificate(#[from] PeerError),
    /// The key is not that of the grid file's authority.
    #[error("{0}: authority.key, authority.crt and grid.toml do not belong together")]
    Mixed(PathBuf),
    /// The record.
    #[error("{path}: {what}")]
    Members {
        /// The file.
        path: PathBuf,
        /// What is wrong and where.
        what: String,
    },
    /// A certificate can't be made.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// A list can't be made.
    #[error(transparent)]
    Revocation(#[from] RevocationError),
    /// A name that is none.
    #[error(
        "name {0:?}: 1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 . _ - are allowed, not beginning with . \
         or -"
    )]
    Name(String),
    /// A certificate for nothing.
    #[error("{0}: no role")]
    NoRole(String),
    /// Somebody else is called so.
    #[error(
        "{name} is the name of another member, with key {key}; revoke that one first or choose another name"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// Whose it is.
        key: OwnerId,
    },
    /// The key was taken back.
    #[error("key {} was revoked: its holder has to make a new one", .0.hex())]
    Revoked(OwnerId),
    /// The key is the authority's own.
    #[error("that is the authority's own key; members make keys of their own")]
    OwnKey,
    /// It would outlive the authority.
    #[error("the certificate would outlive the authority, whose own ends in {} days", .0 / 86_400)]
    Outlives(u64),
    /// Another host or registry is there.
    #[error("{addr} is the address of {name}: give another one, or take {name} out first")]
    AddressTaken {
        /// The address.
        addr: Address,
        /// Whose it is.
        name: String,
    },
    /// The list of the grid can't be made or must not be believed.
    #[error(transparent)]
    List(#[from] ListError),
    /// The system.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// It is not in the list.
    #[error("{0} is no host or registry of the list")]
    NotListed(String),
    /// Nobody is called so.
    #[error("no member {0}: neither a name nor a key (its first 8 digits or more) of one")]
    Unknown(String),
    /// More than one is.
    #[error("{0} can be one of {1} members: give the key")]
    Ambiguous(String, usize),
    /// A registry that is not there.
    #[error("{0} is no registry of the grid file; ckpt grid sign --role registry --addr makes one")]
    NoRegistry(String),
    /// A registry whose name has no address, which a token needs.
    #[error(transparent)]
    Unresolved(#[from] ResolveError),
    /// An authority whose certificate does not let it delegate.
    #[error("this authority can't let registries sign: it was made before there were join tokens")]
    NoDelegation,
    /// An address for what is no host.
    #[error("{0} is no donor or registry: only these have an address in the grid file")]
    NoDonor(String),
}

/// What is to be certified.
#[derive(Clone, Debug)]
pub struct Certify {
    /// What the member may do.
    pub roles: Vec<Role>,
    /// Its name.
    pub name: String,
    /// Its public key.
    pub key: OwnerId,
    /// From when and for how long.
    pub validity: Validity,
    /// Entry in the grid file, for donors.
    pub host: Option<HostEntry>,
}

/// Where a donor is.
#[derive(Clone, Debug)]
pub struct HostEntry {
    /// Where it listens.
    pub addr: Address,
    /// What fails together: building, campus, cloud zone.
    pub site: Option<String>,
    /// Whose machine it is.
    pub owner: Option<String>,
}

/// An authority's directory that this process alone may change.
#[derive(Debug)]
pub struct AuthorityDir {
    dir: PathBuf,
    authority: Authority,
    expires: u64,
    grid: Grid,
    issued: Vec<Issued>,
    _lock: File,
}

/// A member that is in no record of the authority's: a registry let it in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joiner {
    /// Its name, as it says.
    pub name: String,
    /// Its public key.
    pub key: OwnerId,
}

/// What came of taking a key back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// The key.
    pub key: OwnerId,
    /// Whether it was on the list before.
    pub was_already: bool,
}

/// What everybody may know of an authority: read without its key.
#[derive(Clone, Debug)]
pub struct Roll {
    /// The grid file.
    pub grid: Grid,
    /// All certificates that were signed, in that order.
    pub issued: Vec<Issued>,
}

impl Roll {
    /// Reads an authority's directory.
    ///
    /// # Errors
    /// When it is none.
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
    /// When there is one already, or the directory can't be written.
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

    /// Opens a directory for changes.
    ///
    /// # Errors
    /// When it has no authority, or another process changes it and does not stop.
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

    /// The grid file as it is now.
    pub const fn grid(&self) -> &Grid {
        &self.grid
    }

    /// When the authority's certificate ends, Unix seconds.
    pub const fn expires(&self) -> u64 {
        self.expires
    }

    /// Signs a certificate, records it, and enters a donor with an address in the grid file.
    ///
    /// # Errors
    /// When the wish can't be granted; the error says why.
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

    /// Signs a certificate and enters it in the record, which is not written yet.
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
        let (from, lasting) = (wish.validity.from, wish.validity.lasting.as_secs());
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

    /// Two members can't be at one address. Port 0 stands for one that is not known yet.
    fn check_address(&self, key: OwnerId, addr: &Address) -> Result<(), AuthorityDirError> {
        let hosts = self
            .grid
            .hosts
            .iter()
            .map(|one| (one.id, &one.addr, &one.name));
        let registries = self.grid.registries.iter();
        let registries = registries.map(|one| (one.id, &one.addr, &one.name));
        let mut others = hosts.chain(registries).filter(|(id, ..)| id.0 != key);
        match others.find(|(_, at, _)| **at == *addr && addr.port() != 0) {
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

    /// Certifies that a registry of the grid file may itself sign members with these roles that join
    /// with a token, for as long as `validity` says.
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

    /// Makes a token with which one member with this role can join through a registry of the grid file.
    /// It has the number of the present list: whoever joins with it takes no older one.
    ///
    /// # Errors
    /// When there is no such registry.
    pub fn invite(
        &self,
        registry: &str,
        role: TokenRole,
        expires: u64,
        nonce: [u8; 16],
    ) -> Result<JoinToken, AuthorityDirError> {
        let registry = self.registry(registry)?;
        // A token is an announcement: it has an address, whatever the registry is called.
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

    /// Takes back all that was certified for a member, which is named by name or key: its key goes
    /// on the list of revoked keys, and its host out of the list. `joined` are those whom registries
    /// know beside those whom the authority signed.
    ///
    /// # Errors
    /// When nobody, or more than one, is meant.
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
        let is_recorded = self.issued.iter().any(|one| one.key == key);
        if let Some(joiner) = joiner.filter(|one| !is_recorded && is_name(&one.name)) {
            // A registry signed it; from now on it is in the record, as one that was taken back.
            self.issued.push(Issued {
                name: joiner.name.clone(),
                key,
                roles: vec![Role::Donor],
                issued: now,
                expires: now,
                revoked: None,
            });
        }
        for issued in self.issued.iter_mut().filter(|issued| issued.key == key) {
            issued.revoked = issued.revoked.or(Some(now));
        }
        self.save_members()?;
        Ok(Revoked { key, was_already })
    }

    /// Whom `who` means: somebody of that name who is not revoked, any key that begins with these
    /// digits, or somebody of that name who is revoked. A whole key need not be in the record.
    fn find(&self, who: &str, joined: &[Joiner]) -> Result<OwnerId, AuthorityDirError> {
        if let Some(key) = OwnerId::from_hex(who) {
            return Ok(key);
        }
        let digits = who.to_ascii_lowercase();
        let issued = self.issued.iter().map(|one| (&one.name, one.key));
        let listed = self.grid.hosts.iter().map(|one| (&one.name, one.id.0));
        let joined = joined.iter().map(|one| (&one.name, one.key));
        let all: Vec<(&String, OwnerId)> = issued.chain(listed).chain(joined).collect();
        let of = |is_meant: &dyn Fn(&str, &OwnerId) -> bool| -> BTreeSet<OwnerId> {
            let meant = all.iter().filter(|(name, key)| is_meant(name, key));
            meant.map(|(_, key)| *key).collect()
        };
        let is_revoked = |key: &OwnerId| self.grid.revoked.contains(key);
        let is_key = |key: &OwnerId| digits.len() >= 8 && key.hex().starts_with(&digits);
        let mut found = of(&|name, key| name == who && !is_revoked(key));
        if found.is_empty() {
            found = of(&|_, key| is_key(key));
        }
        if found.is_empty() {
            found = of(&|name, _| name == who);
        }
        match (found.pop_first(), found.len()) {
            (None, _) => Err(AuthorityDirError::Unknown(who.to_owned())),
            (Some(key), 0) => Ok(key),
            (Some(_), more) => Err(AuthorityDirError::Ambiguous(who.to_owned(), more + 1)),
        }
    }

    fn save_members(&self) -> Result<(), AuthorityDirError> {
        members::save(&self.dir.join("members.toml"), &self.issued)
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> AuthorityDirError {
    let path = path.to_owned();
    move |cause| AuthorityDirError::Io { path, cause }
}

/// Waits until no other process changes the directory.
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
