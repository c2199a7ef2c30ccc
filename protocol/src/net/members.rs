//! Who still belongs to the grid: checked when a connection is made, and again while it lives.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use codec::OwnerId;
use rustls_pki_types::CertificateDer;
use tokio::sync::watch;
use tracing::{info, warn};

use super::trust::CertificateFault;
use crate::grid::Grid;
use crate::identity::{Peer, Revocations};

/// How often the grid file is looked at.
const LOOK_PERIOD: Duration = Duration::from_secs(2);

/// Longest sleep until a certificate expires: the clock of the machine can be set meanwhile.
const EXPIRY_LOOK_PERIOD: Duration = Duration::from_secs(30);

/// What is known of revoked members; all copies know the same.
#[derive(Clone, Debug)]
pub struct Members(watch::Receiver<Arc<Revocations>>);

impl Members {
    /// What is known will not change.
    pub fn fixed(revoked: Revocations) -> Self {
        Self(watch::channel(Arc::new(revoked)).1)
    }

    /// Begins with what `grid` says and follows the grid file at `path` until nobody asks any more:
    /// a list of a higher number is taken over, anything else is logged and left. Has to be called
    /// within a tokio runtime.
    pub fn follow(path: PathBuf, grid: &Grid) -> Self {
        let (sender, receiver) = watch::channel(Arc::new(grid.revoked.clone()));
        tokio::spawn(follow(path, grid.authority.clone(), sender));
        Self(receiver)
    }

    /// Checks whether the certificate of `peer`, which the authority signed, is still good at `now`,
    /// Unix seconds.
    ///
    /// # Errors
    /// When it is not; the error says why.
    pub fn check(&self, peer: &Peer, now: u64) -> Result<(), CertificateFault> {
        let revoked = self.0.borrow();
        if revoked.contains(&peer.id) || revoked.contains(&peer.account()) {
            return Err(CertificateFault::Revoked);
        }
        if !peer.is_valid_at(now) {
            return Err(CertificateFault::Expired);
        }
        Ok(())
    }

    /// Whether the authority took this key back.
    pub fn is_revoked(&self, key: &OwnerId) -> bool {
        self.0.borrow().contains(key)
    }

    /// Waits until the certificate of `peer` is not good any more, and says why.
    pub async fn until_gone(mut self, peer: &Peer) -> CertificateFault {
        loop {
            let now = unix_seconds();
            if let Err(fault) = self.check(peer, now) {
                return fault;
            }
            // The last second counts.
            let left = Duration::from_secs(peer.not_after.saturating_sub(now).saturating_add(1));
            let sleep = tokio::time::sleep(left.min(EXPIRY_LOOK_PERIOD));
            tokio::select! {
                () = sleep => {}
                Ok(()) = self.0.changed() => {}
            }
        }
    }
}

/// The time of day, Unix seconds.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// What tells one state of a file from another.
type Stamp = Option<(SystemTime, u64, u64)>;

fn stamp(path: &Path) -> Stamp {
    use std::os::unix::fs::MetadataExt;
    let data = std::fs::metadata(path).ok()?;
    Some((data.modified().ok()?, data.len(), data.ino()))
}

async fn follow(
    path: PathBuf,
    authority: CertificateDer<'static>,
    sender: watch::Sender<Arc<Revocations>>,
) {
    // The file may have changed since it was read: the first look always reads it.
    let mut seen: Stamp = None;
    let mut looks = tokio::time::interval(LOOK_PERIOD);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = sender.closed() => return,
            _ = looks.tick() => {}
        }
        let (at, authority) = (path.clone(), authority.clone());
        let last = seen;
        let looked = tokio::task::spawn_blocking(move || {
            let now = stamp(&at);
            (now, (now != last).then(|| read(&at, &authority)))
        });
        let Ok((now, read)) = looked.await else {
            continue;
        };
        seen = now;
        let file = path.display();
        match read {
            None => {}
            Some(Err(why)) => warn!(%file, why, "grid file left aside; what it said before holds"),
            Some(Ok(list)) => take_over(&sender, list, &path),
        }
    }
}

fn read(path: &Path, authority: &CertificateDer<'_>) -> Result<Revocations, String> {
    let grid = Grid::load(path).map_err(|cause| match std::error::Error::source(&cause) {
        Some(source) => format!("{cause}: {source}"),
        None => cause.to_string(),
    })?;
    if grid.authority != *authority {
        return Err("it is of another grid".to_owned());
    }
    Ok(grid.revoked)
}

fn take_over(sender: &watch::Sender<Arc<Revocations>>, list: Revocations, path: &Path) {
    let current = Arc::clone(&sender.borrow());
    let file = path.display();
    match list.number().cmp(&current.number()) {
        std::cmp::Ordering::Equal => {}
        std::cmp::Ordering::Less => warn!(
            %file, number = list.number(), current = current.number(),
            "grid file has an older list of revoked keys; the newer one holds"
        ),
        std::cmp::Ordering::Greater => {
            let (number, keys) = (list.number(), list.keys().count());
            info!(%file, number, keys, "revoked keys read");
            sender.send_replace(Arc::new(list));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use codec::OwnerId;
    use codec::seal::OwnerSecret;

    use super::*;
    use crate::identity::{Authority, Role, Validity};

    const LIMIT: Duration = Duration::from_secs(20);

    fn authority(seed: u8) -> Authority {
        let validity = Validity {
            from: unix_seconds(),
            lasting: Duration::from_secs(3600),
        };
        Authority::create(OwnerSecret::new([seed; 32]), "lab", validity).unwrap()
    }

    fn grid(authority: &Authority, revoked: Revocations) -> Grid {
        Grid {
            revoked,
            ..Grid::new("lab", authority.certificate().clone())
        }
    }

    fn peer(seconds: u64) -> Peer {
        let now = unix_seconds();
        Peer {
            id: OwnerId([3; 32]),
            name: "ada".into(),
            roles: vec![Role::Submitter],
            not_before: now - 10,
            not_after: now + seconds,
            grant: None,
        }
    }

    fn list(authority: &Authority, after: &Revocations, keys: &[u8]) -> Revocations {
        let keys: BTreeSet<_> = keys.iter().map(|byte| OwnerId([*byte; 32])).collect();
        authority.revoke(after, keys).unwrap()
    }

    #[test]
    fn a_member_is_good_until_it_expires_or_is_revoked() {
        let lab = authority(1);
        let (peer, now) = (peer(10), unix_seconds());
        let all = Members::fixed(Revocations::default());
        assert_eq!(all.check(&peer, now), Ok(()));
        assert_eq!(all.check(&peer, peer.not_after), Ok(()));
        let late = peer.not_after + 1;
        assert_eq!(all.check(&peer, late), Err(CertificateFault::Expired));
        let early = peer.not_before - 1;
        assert_eq!(all.check(&peer, early), Err(CertificateFault::Expired));
        let fewer = Members::fixed(list(&lab, &Revocations::default(), &[3]));
        assert_eq!(fewer.check(&peer, now), Err(CertificateFault::Revoked));
    }

    #[tokio::test]
    async fn expiry_is_noticed_while_nothing_happens() {
        let members = Members::fixed(Revocations::default());
        let gone = tokio::time::timeout(LIMIT, members.until_gone(&peer(1))).await;
        assert_eq!(gone, Ok(CertificateFault::Expired));
    }

    #[tokio::test]
    async fn a_newer_list_in_the_grid_file_is_taken_over_and_nothing_else() {
        let (lab, other) = (authority(1), authority(2));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("grid.toml");
        let none = Revocations::default();
        let first = list(&lab, &none, &[9]);
        let second = list(&lab, &first, &[3]);
        grid(&lab, first.clone()).save(&path).unwrap();
        let members = Members::follow(path.clone(), &grid(&lab, first.clone()));

        for harmless in [
            grid(&lab, none.clone()),
            grid(&other, list(&other, &list(&other, &none, &[3]), &[3])),
        ] {
            harmless.save(&path).unwrap();
            let look = read(&path, lab.certificate());
            if let Ok(list) = look {
                assert!(list.number() < first.number());
            }
        }
        std::fs::write(&path, "nonsense").unwrap();
        let peer = peer(3600);
        let waiting = tokio::spawn({
            let (members, peer) = (members.clone(), peer.clone());
            async move { members.until_gone(&peer).await }
        });
        tokio::time::sleep(2 * LOOK_PERIOD).await;
        assert_eq!(members.check(&peer, unix_seconds()), Ok(()));
        assert!(members.0.borrow().contains(&OwnerId([9; 32])));

        grid(&lab, second).save(&path).unwrap();
        let gone = tokio::time::timeout(LIMIT, waiting).await;
        assert_eq!(gone.unwrap().unwrap(), CertificateFault::Revoked);
        assert!(members.check(&peer, unix_seconds()).is_err());
    }
}
