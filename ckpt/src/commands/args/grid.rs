//! The commands for grids as users type them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use command_line::time;
use protocol::address::Address;
use protocol::identity::Role;

use crate::commands::args::options::PassphraseArgs;

/// A role, as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleName {
    /// Lends disk space.
    Donor,
    /// Saves and restores.
    Submitter,
    /// Keeps the addresses of hosts for clients.
    Registry,
    /// Reads the health of the whole grid.
    Admin,
}

impl From<RoleName> for Role {
    fn from(name: RoleName) -> Self {
        match name {
            RoleName::Donor => Self::Donor,
            RoleName::Submitter => Self::Submitter,
            RoleName::Registry => Self::Registry,
            RoleName::Admin => Self::Admin,
        }
    }
}

/// A role that a registry can give to whoever comes with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TokenRoleName {
    /// Lends disk space.
    Donor,
    /// Saves and restores.
    Submitter,
}

impl From<TokenRoleName> for Role {
    fn from(name: TokenRoleName) -> Self {
        match name {
            TokenRoleName::Donor => Self::Donor,
            TokenRoleName::Submitter => Self::Submitter,
        }
    }
}

/// Which authority.
#[derive(Clone, Debug, Args)]
pub struct AuthorityArgs {
    /// Directory of the authority [default: ckpt/authority below $XDG_DATA_HOME; without that /var/lib
    /// for root and ~/.local/share for others].
    #[arg(long, env = "CKPT_AUTHORITY")]
    pub dir: Option<PathBuf>,
}

/// Which authority, and whether it speaks to anybody.
#[derive(Clone, Debug, Args)]
pub struct SpeakingArgs {
    /// Which authority.
    #[command(flatten)]
    pub authority: AuthorityArgs,
    /// Contact no member. Members learn of the change once you copy grid.members from the authority's
    /// directory to where one of them keeps its grid file.
    #[arg(long)]
    pub offline: bool,
}

/// Whom a command of the authority contacts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// The members: it asks them for their lists, and sends them the new one.
    Members,
    /// Nobody.
    Nobody,
}

impl SpeakingArgs {
    /// Whom the command contacts.
    pub const fn audience(&self) -> Audience {
        if self.offline {
            Audience::Nobody
        } else {
            Audience::Members
        }
    }
}

/// Options of `grid sign`.
#[derive(Debug, Args)]
pub struct SignArgs {
    /// Which authority.
    #[command(flatten)]
    pub speaking: SpeakingArgs,
    /// What the member may do; can be given more than once.
    #[arg(long, value_enum, required = true, value_delimiter = ',')]
    pub role: Vec<RoleName>,
    /// The member's .pub file, or its public key in hexadecimal.
    #[arg(long, value_name = "FILE")]
    pub pubkey: String,
    /// Name of the member [default: the one in the file].
    #[arg(long)]
    pub name: Option<String>,
    /// How long the certificate is valid.
    #[arg(long, default_value = "365d", value_parser = time::parse_with_unit, value_name = "TIME")]
    pub ttl: Duration,
    /// Where the donor or registry listens, ADDRESS:PORT or HOSTNAME:PORT; adds it to the grid's list.
    #[arg(long)]
    pub addr: Option<Address>,
    /// The donor's building, campus or cloud zone: machines at one site may fail together.
    #[arg(long, requires = "addr")]
    pub site: Option<String>,
    /// Owner of the donor's machine.
    #[arg(long, requires = "addr")]
    pub owner: Option<String>,
    /// File to write the certificate to [default: NAME.crt, in the current directory].
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Options of `grid init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// Which authority.
    #[command(flatten)]
    pub authority: AuthorityArgs,
    /// Name of the grid.
    #[arg(long)]
    pub name: String,
    /// How long the authority's certificate is valid.
    #[arg(long, default_value = "3650d", value_parser = time::parse_with_unit, value_name = "TIME")]
    pub ttl: Duration,
    /// Also create a registry on this machine, which listens at ADDRESS:PORT or HOSTNAME:PORT and
    /// certifies machines and users that present a token.
    #[arg(long, value_name = "ADDR")]
    pub registry: Option<Address>,
    /// Data directory of that registry [default: ckpt/registry below $XDG_DATA_HOME or its default].
    #[arg(long, value_name = "DIR", requires = "registry")]
    pub registry_data: Option<PathBuf>,
}

/// Options of `grid delegate`.
#[derive(Debug, Args)]
pub struct DelegateArgs {
    /// Which authority.
    #[command(flatten)]
    pub authority: AuthorityArgs,
    /// Name of the registry, as in the list of the grid.
    pub registry: String,
    /// Roles that it may certify; can be given more than once.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "donor")]
    pub role: Vec<TokenRoleName>,
    /// How long the permission is valid.
    #[arg(long, default_value = "365d", value_parser = time::parse_with_unit, value_name = "TIME")]
    pub ttl: Duration,
    /// File to write the certificate to [default: REGISTRY.enrol.crt, in the current directory].
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Options of `grid invite`.
#[derive(Debug, Args)]
pub struct InviteArgs {
    /// Which authority.
    #[command(flatten)]
    pub authority: AuthorityArgs,
    /// Name of the registry that accepts the tokens [default: the first one that answers and may].
    #[arg(long)]
    pub registry: Option<String>,
    /// Make a token for a member with a new disk or key, which gets the name of this one (its name, or 8
    /// digits or more of its key). The old key is revoked for good.
    #[arg(long, value_name = "MEMBER", conflicts_with_all = ["count", "submitters"])]
    pub replace: Option<String>,
    /// Number of tokens for donors [default: 1, or 0 with --submitters].
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub count: Option<u16>,
    /// Number of tokens for submitters.
    #[arg(long, default_value_t = 0, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub submitters: u16,
    /// How long the tokens are valid.
    #[arg(long, default_value = "1d", value_parser = time::parse_with_unit, value_name = "TIME")]
    pub ttl: Duration,
}

/// Options of `grid renew`.
#[derive(Debug, Args)]
pub struct RenewArgs {
    /// Which authority.
    #[command(flatten)]
    pub speaking: SpeakingArgs,
    /// Renew certificates that expire within this time.
    #[arg(long, default_value = "30d", value_parser = time::parse_with_unit, value_name = "TIME")]
    pub within: Duration,
    /// How long the new certificates are valid.
    #[arg(long, default_value = "365d", value_parser = time::parse_with_unit, value_name = "TIME")]
    pub ttl: Duration,
    /// Directory to write copies to [default: renewed, in the authority's directory].
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// Commands for a grid.
#[derive(Debug, Subcommand)]
pub enum GridCommand {
    /// Create a new grid: an authority, the key that certifies its members.
    #[command(
        after_help = "Example:\n  ckpt grid init --name lab --registry 10.0.0.9:7601\n  ckpt-store registry\n  ckpt grid invite --count 3 --submitters 1"
    )]
    Init(InitArgs),
    /// Sign a member's certificate for its public key.
    #[command(
        after_help = "Example:\n  ckpt grid sign --role donor --pubkey h1.pub --addr 10.0.0.1:7600 --site lab\n  ckpt grid sign --role submitter --pubkey ada.pub"
    )]
    Sign(Box<SignArgs>),
    /// Permit a registry to certify new members that present a token.
    Delegate(DelegateArgs),
    /// Print tokens, each of which lets one machine or user join the grid.
    #[command(
        after_help = "Example:\n  ckpt grid invite --count 20 --submitters 2 --ttl 2d\n\nOn each donor's machine: ckpt-store join TOKEN. Each submitter: ckpt join TOKEN"
    )]
    Invite(InviteArgs),
    /// Revoke all certificates of a member, for good.
    Revoke {
        /// Which authority.
        #[command(flatten)]
        speaking: SpeakingArgs,
        /// Key of the member, or its first 8 digits or more, or the name of a member that the authority
        /// certified, if no other key has had that name.
        member: String,
        /// Ask nothing. Without a terminal nothing is asked anyway.
        #[arg(long, short)]
        yes: bool,
    },
    /// Remove a host or registry from the list of the grid; its certificate stays valid.
    Remove {
        /// Which authority.
        #[command(flatten)]
        speaking: SpeakingArgs,
        /// Name of the host or registry, or the first 8 digits or more of its key.
        host: String,
    },
    /// Renew all certificates that expire soon, and send them out with the list of the grid.
    Renew(RenewArgs),
    /// List the members of a grid.
    Show {
        /// Which authority.
        #[command(flatten)]
        speaking: SpeakingArgs,
    },
    /// Write a copy of the authority's directory, encrypted with a passphrase.
    Backup {
        /// Which authority.
        #[command(flatten)]
        authority: AuthorityArgs,
        /// The passphrase.
        #[command(flatten)]
        passphrase: PassphraseArgs,
        /// The file to write.
        file: PathBuf,
    },
    /// Restore an authority's directory from a copy that `backup` wrote.
    ///
    /// Then fetches from members what has changed in the list of the grid since the backup.
    Restore {
        /// Which authority.
        #[command(flatten)]
        speaking: SpeakingArgs,
        /// The passphrase.
        #[command(flatten)]
        passphrase: PassphraseArgs,
        /// The file to read.
        file: PathBuf,
    },
    /// Start a local grid: hosts in the background. Hosts that run already are left alone.
    Up {
        /// Directory of the grid.
        #[arg(long)]
        dir: PathBuf,
        /// Number of hosts of a new grid [default: 5].
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..=200))]
        hosts: Option<u16>,
        /// Space that each host lends, such as 10GiB [default: 90% of the free disk space less a reserve].
        #[arg(long, value_name = "SIZE")]
        capacity: Option<String>,
    },
    /// Show which hosts of a local grid run.
    Status {
        /// Directory of the grid.
        #[arg(long)]
        dir: PathBuf,
    },
    /// Stop all hosts of a local grid; they keep what they store.
    Down {
        /// Directory of the grid.
        #[arg(long)]
        dir: PathBuf,
    },
    /// Prepare one more host of a local grid, with key, certificate and list entry.
    ///
    /// Prints the command that starts the host.
    Add {
        /// Directory of the grid.
        #[arg(long)]
        dir: PathBuf,
        /// Name of the host.
        #[arg(long)]
        name: String,
        /// Data directory of the host.
        #[arg(long)]
        data: PathBuf,
        /// Where it will listen: ADDRESS:PORT or HOSTNAME:PORT.
        #[arg(long)]
        listen: Address,
    },
}
