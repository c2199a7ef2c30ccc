//! The commands for grids as users type them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use command_line::time;
use protocol::address::Address;
use protocol::identity::Role;

/// A role, as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleName {
    /// Lends disk space.
    Donor,
    /// Saves and restores.
    Submitter,
    /// Tells members of each other.
    Registry,
    /// Looks after the grid.
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
    /// Ask and send nothing: members hear of it once grid.members of the authority's directory is beside
    /// the grid file of one of them.
    #[arg(long)]
    pub offline: bool,
}

/// Where the passphrase of a backup is.
#[derive(Clone, Debug, Args)]
pub struct PassphraseArgs {
    /// File whose first line is the passphrase [default: it is asked for].
    #[arg(long, value_name = "FILE", env = "CKPT_PASSPHRASE_FILE")]
    pub passphrase_file: Option<PathBuf>,
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
    /// For how long the certificate is valid.
    #[arg(long, default_value = "365d", value_parser = time::parse_with_unit, value_name = "TIME")]
    pub ttl: Duration,
    /// Where a donor or registry listens, ADDRESS:PORT or HOSTNAME:PORT: enters it in the list of the
    /// grid.
    #[arg(long)]
    pub addr: Option<Address>,
    /// What fails together with the donor: building, campus, cloud zone.
    #[arg(long, requires = "addr")]
    pub site: Option<String>,
    /// Whose machine the donor is.
    #[arg(long, requires = "addr")]
    pub owner: Option<String>,
    /// Where to write the certificate [default: NAME.crt, here].
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Commands for a grid.
#[derive(Debug, Subcommand)]
pub enum GridCommand {
    /// Make the authority of a new grid: a key that decides who belongs to it.
    #[command(
        after_help = "Example:\n  ckpt grid init --name lab --registry 10.0.0.9:7601\n  ckpt-store registry\n  ckpt grid invite --count 3 --submitters 1"
    )]
    Init {
        /// Which authority.
        #[command(flatten)]
        authority: AuthorityArgs,
        /// Name of the grid.
        #[arg(long)]
        name: String,
        /// For how long the authority is valid.
        #[arg(long, default_value = "3650d", value_parser = time::parse_with_unit, value_name = "TIME")]
        ttl: Duration,
        /// Make a registry on this machine, too, that listens here, ADDRESS:PORT or HOSTNAME:PORT, and
        /// signs whoever comes with a token.
        #[arg(long, value_name = "ADDR")]
        registry: Option<Address>,
        /// Data directory of that registry [default: ckpt/registry, as that of the authority].
        #[arg(long, value_name = "DIR", requires = "registry")]
        registry_data: Option<PathBuf>,
    },
    /// Sign the certificate of a member, of the public part of its key.
    #[command(
        after_help = "Example:\n  ckpt grid sign --role donor --pubkey h1.pub --addr 10.0.0.1:7600 --site lab\n  ckpt grid sign --role submitter --pubkey ada.pub"
    )]
    Sign(Box<SignArgs>),
    /// Let a registry sign certificates of members that come with a token.
    Delegate {
        /// Which authority.
        #[command(flatten)]
        authority: AuthorityArgs,
        /// Name of the registry, as in the list of the grid.
        registry: String,
        /// Whom it may sign; can be given more than once.
        #[arg(long, value_enum, value_delimiter = ',', default_value = "donor")]
        role: Vec<TokenRoleName>,
        /// For how long it may.
        #[arg(long, default_value = "365d", value_parser = time::parse_with_unit, value_name = "TIME")]
        ttl: Duration,
        /// Where to write the certificate [default: REGISTRY.enrol.crt, here].
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Make tokens, each of which lets one machine or person join.
    #[command(
        after_help = "Example:\n  ckpt grid invite --count 20 --submitters 2 --ttl 2d\n\nOn each donor's machine: ckpt-store join TOKEN. Each submitter: ckpt join TOKEN"
    )]
    Invite {
        /// Which authority.
        #[command(flatten)]
        authority: AuthorityArgs,
        /// Name of the registry that redeems them [default: the only one].
        #[arg(long)]
        registry: Option<String>,
        /// How many for donors [default: 1, or 0 with --submitters].
        #[arg(long, value_parser = clap::value_parser!(u16).range(0..=1000))]
        count: Option<u16>,
        /// How many for submitters.
        #[arg(long, default_value_t = 0, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(0..=1000))]
        submitters: u16,
        /// For how long they are good.
        #[arg(long, default_value = "1d", value_parser = time::parse_with_unit, value_name = "TIME")]
        ttl: Duration,
    },
    /// Take back all certificates of a member, for ever.
    Revoke {
        /// Which authority.
        #[command(flatten)]
        speaking: SpeakingArgs,
        /// Name or key of the member, or the first 8 digits or more of its key.
        member: String,
    },
    /// Take a host or a registry out of the list of the grid; its key stays good.
    Remove {
        /// Which authority.
        #[command(flatten)]
        speaking: SpeakingArgs,
        /// Name of the host, or the first 8 digits or more of its key.
        host: String,
    },
    /// Sign anew all certificates that end soon, and send them to their members in the list of the grid.
    Renew {
        /// Which authority.
        #[command(flatten)]
        speaking: SpeakingArgs,
        /// Those that end within this time.
        #[arg(long, default_value = "30d", value_parser = time::parse_with_unit, value_name = "TIME")]
        within: Duration,
        /// For how long the new ones are valid.
        #[arg(long, default_value = "365d", value_parser = time::parse_with_unit, value_name = "TIME")]
        ttl: Duration,
        /// Where to write them, too [default: renewed, in the authority's directory].
        #[arg(long, short, value_name = "DIR")]
        output: Option<PathBuf>,
    },
    /// List the members of a grid.
    Show {
        /// Which authority.
        #[command(flatten)]
        speaking: SpeakingArgs,
    },
    /// Write a copy of the authority's directory, encrypted with a passphrase (age format).
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
    /// Make an authority's directory of a copy that `backup` wrote, and take over what members have
    /// heard since.
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
    /// Start hosts in the background; what does not run is started again.
    Up {
        /// Directory of the grid.
        #[arg(long)]
        dir: PathBuf,
        /// Number of hosts of a new grid [default: 5].
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..=200))]
        hosts: Option<u16>,
        /// Space that each host lends, such as 10GiB [default: what the disk has].
        #[arg(long, value_name = "SIZE")]
        capacity: Option<String>,
    },
    /// Say which hosts run.
    Status {
        /// Directory of the grid.
        #[arg(long)]
        dir: PathBuf,
    },
    /// Stop all hosts; what they store stays.
    Down {
        /// Directory of the grid.
        #[arg(long)]
        dir: PathBuf,
    },
    /// Make key, certificate and entry in the list for one more host, to be started by hand.
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
