//! The key and certificate of this machine: creates them, gets them with a token, and loads them.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use codec::seal::OwnerSecret;
use command_line::secret::secret;
use protocol::errors::chain;
use protocol::grid::Grid;
use protocol::identity::{
    JoinToken, Peer, PublicPart, Role, TokenRole, certificate_to_pem, is_name, new_key, read_key,
    replace_public, write_key,
};
use protocol::net::join::{NameWish, NewMember};
use protocol::places::UsualDir;
use tracing::warn;

use super::refusal::Refusal;
use crate::clock::Clock;

/// The default address of a daemon that no list names.
pub(super) const LISTEN_USUAL: SocketAddr =
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 7600));

/// What a machine can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ServerRole {
    /// Lends disk space.
    Donor,
    /// Keeps the addresses of donors for clients.
    Registry,
}

impl ServerRole {
    const fn role(self) -> Role {
        match self {
            Self::Donor => Role::Donor,
            Self::Registry => Role::Registry,
        }
    }

    const fn place(self) -> UsualDir {
        match self {
            Self::Donor => UsualDir::Store,
            Self::Registry => UsualDir::Registry,
        }
    }
}

/// The data directory: the given one, or the default.
pub(super) fn data_dir(said: Option<PathBuf>, place: UsualDir) -> Result<PathBuf> {
    let usual = || {
        let is_root = rustix::process::geteuid().is_root();
        place.usual(|name| std::env::var_os(name), is_root)
    };
    said.or_else(usual)
        .context(Refusal::new("there is no home directory", "--data DIR"))
}

/// The grid file: the given one, or the one in the data directory. An empty path, as from an empty
/// environment variable, counts as none.
pub(super) fn grid_file(said: Option<PathBuf>, data: &Path) -> PathBuf {
    let said = said.filter(|path| !path.as_os_str().is_empty());
    said.unwrap_or_else(|| data.join("grid.toml"))
}

/// Logs a warning if the certificate ends soon.
pub(super) fn warn_of_end(peer: &Peer) {
    if let Some(days) = peer.ends_within_days(Clock::start().unix_seconds()) {
        warn!(
            name = peer.name,
            days, "the certificate ends soon: ask the grid's admin to renew it (ckpt grid renew)"
        );
    }
}

/// Creates this machine's key, and the file from which the admin makes its certificate.
pub(super) fn init(
    data: Option<PathBuf>,
    name: Option<String>,
    role: ServerRole,
) -> Result<ExitCode> {
    let data = data_dir(data, role.place())?;
    let key = make_key(&data)?.id();
    let name = checked_name(name)?;
    let public = data.join("identity.pub");
    let part = PublicPart { key, name };
    part.write(&public)?;
    writeln!(std::io::stdout(), "{}", key.hex())?;
    // For people only; scripts read the key from standard output.
    let _ = writeln!(
        std::io::stderr(),
        "next: give {} to the grid's admin (ckpt grid sign --role {} --pubkey {}.pub --addr ADDRESS:PORT); then put the certificate from the admin at {}",
        public.display(),
        role.role(),
        part.name,
        data.join("identity.crt").display()
    );
    Ok(ExitCode::SUCCESS)
}

fn make_key(data: &Path) -> Result<OwnerSecret> {
    fs::create_dir_all(data).with_context(|| format!("data directory {}", data.display()))?;
    let path = data.join("identity.key");
    if !path.exists() {
        write_key(&path, &new_key()?)?;
    }
    Ok(read_key(&path)?)
}

fn checked_name(name: Option<String>) -> Result<String> {
    let name = name.unwrap_or_else(machine_name);
    if !is_name(&name) {
        let message = format!("name {name:?}: only letters, digits, . _ - are allowed");
        bail!(Refusal::new(message, "--name NAME"));
    }
    Ok(name)
}

fn donor_token(token: &str) -> Result<JoinToken> {
    let token = secret(token).with_context(|| format!("token {token}"))?;
    let token = JoinToken::parse(&token).map_err(|cause| {
        Refusal::new(
            cause.to_string(),
            "the whole token, as ckpt grid invite printed it",
        )
    })?;
    ensure!(
        token.terms.role == TokenRole::Donor,
        Refusal::new("the token is for a submitter", "ckpt join TOKEN")
    );
    Ok(token)
}

/// Redeems a token: becomes a member of its grid, and writes key, certificate and grid file.
pub(super) fn join(token: &str, data: Option<PathBuf>, name: Option<String>) -> Result<ExitCode> {
    let is_usual = data.is_none();
    let data = data_dir(data, UsualDir::Store)?;
    let token = donor_token(token)?;
    // Machines of one image have one name: a name that nobody chose gets a number if it is taken.
    let numbered = name.is_none();
    let wanted = checked_name(name)?;
    let certificate = data.join("identity.crt");
    if certificate.exists() {
        let message = format!(
            "{} exists already: this machine belongs to a grid",
            certificate.display()
        );
        bail!(Refusal::new(
            message,
            "ckpt-store serve; to join another grid: --data DIR"
        ));
    }
    let secret = make_key(&data)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let wish = NameWish {
        name: &wanted,
        numbered,
    };
    let joined = runtime.block_on(protocol::net::join::join(&token, secret, wish));
    let joined = joined.map_err(|cause| match cause.next() {
        Some(next) => Refusal::new(chain(&cause), next).into(),
        None => anyhow::Error::from(cause),
    })?;
    let grid_file = data.join("grid.toml");
    write_grid(&joined, &grid_file)?;
    let identity = &joined.identity;
    let chain = std::iter::once(&identity.certificate).chain(&identity.issuer);
    // The certificate is written last: a machine that has it has everything.
    write(
        &certificate,
        chain.map(certificate_to_pem).collect::<String>().as_bytes(),
    )?;
    let key = identity.secret.id().hex();
    let name = identity
        .peer()
        .map_or_else(|_| wanted.clone(), |peer| peer.name);
    writeln!(std::io::stdout(), "{name} joined; key {key}")?;
    if name != wanted {
        // For people only.
        let _ = writeln!(
            std::io::stderr(),
            "{wanted} is another member's name, so this machine is {name}; the name stays with this machine's key"
        );
    }
    let options = match is_usual {
        true => String::new(),
        false => format!(" --data {}", data.display()),
    };
    // For people only.
    let _ = writeln!(std::io::stderr(), "next: ckpt-store serve{options}");
    Ok(ExitCode::SUCCESS)
}

/// Writes the grid file and the list.
fn write_grid(joined: &NewMember, grid_file: &Path) -> Result<()> {
    let grid: &Grid = &joined.grid;
    if let Some(list) = &grid.list {
        write(&grid.list_path(grid_file), list.bytes())?;
    }
    Ok(grid.save(grid_file)?)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    replace_public(path, bytes).with_context(|| path.display().to_string())
}

fn machine_name() -> String {
    let node = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let name: String = node.split('.').next().unwrap_or_default().into();
    if is_name(&name) { name } else { "host".into() }
}
