//! Members of grids that are made up for tests.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use codec::seal::OwnerSecret;
use protocol::grid::{Grid, GridHost, OwnerFiles};
use protocol::identity::{
    Authority, HostId, Identity, Role, Validity, certificate_to_pem, write_key,
};
use protocol::wire::announcement::Announcement;
use protocol::wire::message::{MemberRecord, Presence};
use protocol::wire::parts::Parts;

/// Clocks may be set wrong by 30 days less than this without ending a certificate, or having programs warn
/// of its end.
const CLOCK_SLACK: Duration = Duration::from_secs(60 * 86_400);

/// Signs members of a grid.
#[derive(Debug)]
pub(crate) struct Members {
    grid: Grid,
    authority: Authority,
    keys: std::ops::RangeInclusive<u8>,
}

impl Members {
    pub(crate) fn of(grid: &str) -> Result<Self> {
        let authority = Authority::create(OwnerSecret::new([0; 32]), grid, validity()?)?;
        Ok(Self {
            grid: Grid::new(grid, authority.certificate().clone()),
            authority,
            keys: 1..=u8::MAX,
        })
    }

    /// The grid without its members.
    pub(crate) fn grid(&self) -> Grid {
        self.grid.clone()
    }

    pub(crate) fn enrol(&mut self, name: &str, role: Role) -> Result<Identity> {
        let number = self.keys.next().context("too many members")?;
        let secret = OwnerSecret::new([number; 32]);
        let id = secret.id();
        let certificate = self.authority.sign(&[role], name, id, validity()?)?;
        Ok(Identity::new(secret, certificate)?)
    }

    /// Enrols a daemon whose data directory is this; it is made.
    pub(crate) fn enrol_in(&mut self, data: &Path, name: &str, role: Role) -> Result<HostId> {
        std::fs::create_dir_all(data)?;
        let identity = self.enrol(name, role)?;
        let files = OwnerFiles {
            key: data.join("identity.key"),
            certificate: data.join("identity.crt"),
        };
        write(&identity, &files)?;
        Ok(HostId(identity.secret.id()))
    }

    /// A submitter with files in `dir`.
    pub(crate) fn owner_in(&mut self, dir: &Path) -> Result<OwnerFiles> {
        let identity = self.enrol("owner", Role::Submitter)?;
        let files = OwnerFiles {
            key: dir.join("owner.key"),
            certificate: dir.join("owner.crt"),
        };
        write(&identity, &files)?;
        Ok(files)
    }
}

/// A host about which nothing more is known.
pub(crate) fn host(name: impl Into<String>, addr: SocketAddr, id: HostId) -> GridHost {
    GridHost {
        name: name.into(),
        addr: addr.into(),
        id,
        site: None,
        owner: None,
    }
}

/// What a registry says of a host that it heard of 5 s ago.
pub(crate) fn record(host: &GridHost, addr: SocketAddr) -> MemberRecord {
    MemberRecord {
        id: host.id.0,
        silent_ms: 5_000,
        alive: true,
        presence: Presence {
            name: host.name.clone(),
            addr,
            site: host.site.clone(),
            owner: host.owner.clone(),
            capacity_bytes: 1 << 30,
            free_bytes: 1 << 30,
            epoch: 1,
            announcement: Announcement::default(),
            parts: Parts::default(),
        },
    }
}

fn write(identity: &Identity, files: &OwnerFiles) -> Result<()> {
    write_key(&files.key, &identity.secret)?;
    let pem = certificate_to_pem(&identity.certificate);
    Ok(std::fs::write(&files.certificate, pem)?)
}

fn validity() -> Result<Validity> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    ensure!(now > CLOCK_SLACK, "the clock of this machine is not set");
    Ok(Validity {
        from: (now - CLOCK_SLACK).as_secs(),
        lasting: 2 * CLOCK_SLACK,
    })
}
