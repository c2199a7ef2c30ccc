//! Authorities, keys and certificates of grids that exist only in tests.

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

/// How long certificates are valid before and after now. Programs warn in the last 30 days, so a test may
/// set clocks wrong by 30 days less than this without a warning or an expired certificate.
const CLOCK_SLACK: Duration = Duration::from_secs(60 * 86_400);

/// An authority that enrols the members of a grid, with keys that are the same in each run.
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

    /// Enrols a daemon, makes its data directory `data`, and writes its key and certificate there.
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

    /// Enrols a submitter, and writes the key and the certificate to `dir`.
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

/// An entry of the grid file for a host without a site and an owner.
pub(crate) fn host(name: impl Into<String>, addr: SocketAddr, id: HostId) -> GridHost {
    GridHost {
        name: name.into(),
        addr: addr.into(),
        id,
        site: None,
        owner: None,
    }
}

/// The record of a registry about a host that announced itself 5 s ago.
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
