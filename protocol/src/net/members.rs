//! The members of the grid, from the newest list that this program has seen: where they are, and which keys
//! were revoked. A peer's membership is checked when a connection is made, and again while it is open.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use codec::OwnerId;
use rustls_pki_types::CertificateDer;
use tokio::sync::watch;
use tracing::{info, warn};

use super::trust::CertificateFault;
use crate::grid::Grid;
use crate::identity::{Peer, Revocations};
use crate::list::{Contents, GridList, ListFiles};

/// How often the grid file and the list are checked for changes.
const LOOK_PERIOD: Duration = Duration::from_secs(2);

/// Longest sleep before the end of a certificate is checked again: the machine's clock may be set meanwhile.
const EXPIRY_LOOK_PERIOD: Duration = Duration::from_secs(30);

/// What this program knows of the grid's members. Clones share it.
#[derive(Clone, Debug)]
pub struct Members(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    grid: watch::Sender<Arc<Grid>>,
    /// Files to which newer lists are written; `None` if no files are followed.
    files: Option<ListFiles>,
}

impl Members {
    /// Knows these revoked keys and nothing else, and never changes.
    pub fn fixed(revoked: Revocations) -> Self {
        let nobody = Grid::new("grid", CertificateDer::from(Vec::new()));
        Self::of(&Grid { revoked, ..nobody })
    }

    /// Begins with `grid`. Newer lists that are received are not written to a file.
    pub fn of(grid: &Grid) -> Self {
        Self(Arc::new(Inner {
            grid: watch::Sender::new(Arc::new(grid.clone())),
            files: None,
        }))
    }

    /// Begins with `grid`, and follows the grid file at `path`, its list, and the list at `own`, until the
    /// last clone is dropped: a list with a higher number is taken over, anything else is logged and left
    /// aside. Has to be called within a tokio runtime.
    pub fn follow(path: PathBuf, grid: &Grid, own: Option<PathBuf>) -> Self {
        let files = ListFiles::new(grid.list_path(&path), own);
        let inner = Arc::new(Inner {
            grid: watch::Sender::new(Arc::new(grid.clone())),
            files: Some(files.clone()),
        });
        tokio::spawn(follow(path, files, Arc::downgrade(&inner)));
        Self(inner)
    }

    /// The grid as this program knows it now.
    pub fn grid(&self) -> Arc<Grid> {
        Arc::clone(&self.0.grid.borrow())
    }

    /// A receiver that is notified when the grid changes.
    pub fn changes(&self) -> watch::Receiver<Arc<Grid>> {
        self.0.grid.subscribe()
    }

    /// Takes over a list that was checked, if it is newer than the one that is known, and writes it to its
    /// file. Returns whether it was newer.
    pub async fn take_over(&self, list: GridList, contents: Contents) -> bool {
        let number = list.number();
        let authority = self.grid().authority.clone();
        let written = list.clone();
        let is_news = self.0.grid.send_if_modified(|grid| {
            let is_news = number > grid.number();
            if is_news {
                Arc::make_mut(grid).follow(list, contents);
            }
            is_news
        });
        let Some(files) = self.0.files.clone().filter(|_| is_news) else {
            return is_news;
        };
        let hosts = self.grid().hosts.len();
        let keep = move || files.keep(&authority, &written);
        match tokio::task::spawn_blocking(keep).await {
            Ok(Ok(_)) => info!(number, hosts, "using a newer list of the grid"),
            Ok(Err(cause)) => {
                warn!(number, %cause, "the list of the grid can't be written: it is used until this program ends")
            }
            Err(cause) => warn!(number, %cause, "a thread ended"),
        }
        true
    }

    /// Checks that the certificate of `peer`, which the authority signed, is still good at `now`, Unix
    /// seconds.
    ///
    /// # Errors
    /// When the key was revoked, or the certificate is not valid at that time.
    pub fn check(&self, peer: &Peer, now: u64) -> Result<(), CertificateFault> {
        if self.is_revoked(&peer.id) || self.is_revoked(&peer.account()) {
            return Err(CertificateFault::Revoked);
        }
        if !peer.is_valid_at(now) {
            return Err(CertificateFault::Expired);
        }
        Ok(())
    }

    /// Whether the authority revoked this key.
    pub fn is_revoked(&self, key: &OwnerId) -> bool {
        self.0.grid.borrow().revoked.contains(key)
    }

    /// Waits until the certificate of `peer` is not good any more, and returns the reason.
    pub async fn until_gone(self, peer: &Peer) -> CertificateFault {
        let mut changes = self.changes();
        loop {
            let now = unix_seconds();
            if let Err(fault) = self.check(peer, now) {
                return fault;
            }
            // A certificate is valid up to and including its last second.
            let left = Duration::from_secs(peer.not_after.saturating_sub(now).saturating_add(1));
            let sleep = tokio::time::sleep(left.min(EXPIRY_LOOK_PERIOD));
            tokio::select! {
                () = sleep => {}
                Ok(()) = changes.changed() => {}
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

/// Time of the last change, length and inode number of a file: these differ when it has changed.
type Stamp = Option<(SystemTime, u64, u64)>;

fn stamp(path: &Path) -> Stamp {
    use std::os::unix::fs::MetadataExt;
    let data = std::fs::metadata(path).ok()?;
    Some((data.modified().ok()?, data.len(), data.ino()))
}

async fn follow(path: PathBuf, files: ListFiles, inner: Weak<Inner>) {
    // The first check reads all files, which may have changed since the caller read them.
    let mut seen: Vec<Stamp> = Vec::new();
    let mut looks = tokio::time::interval(LOOK_PERIOD);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let Some(authority) = inner.upgrade().map(|it| it.grid.borrow().authority.clone()) else {
            return;
        };
        let at = path.clone();
        let files = files.clone();
        let last = seen.clone();
        let looked = tokio::task::spawn_blocking(move || {
            let now: Vec<Stamp> = std::iter::once(&*at)
                .chain(files.paths())
                .map(stamp)
                .collect();
            let is_new = now != last;
            (now, is_new.then(|| read(&at, &files, &authority)))
        });
        let Ok((now, read)) = looked.await else {
            continue;
        };
        seen = now;
        let file = path.display();
        match (read, inner.upgrade()) {
            (_, None) => return,
            (None, _) => {}
            (Some(Err(why)), _) => {
                warn!(%file, why, "ignored a changed grid file; the previous one is used");
            }
            (Some(Ok(grid)), Some(inner)) => take_over(&inner.grid, grid, &path),
        }
    }
}

fn read(path: &Path, files: &ListFiles, authority: &CertificateDer<'_>) -> Result<Grid, String> {
    let grid = Grid::load(path).map_err(|cause| match std::error::Error::source(&cause) {
        Some(source) => format!("{cause}: {source}"),
        None => cause.to_string(),
    })?;
    if grid.authority != *authority {
        return Err("it is for another grid".to_owned());
    }
    Ok(match files.newest(authority) {
        Some((list, contents)) if list.number() > grid.number() => {
            let mut grid = grid;
            grid.follow(list, contents);
            grid
        }
        _ => grid,
    })
}

/// Takes over the grid that was read, but keeps lists that are known and newer.
fn take_over(sender: &watch::Sender<Arc<Grid>>, mut grid: Grid, path: &Path) {
    let current = Arc::clone(&sender.borrow());
    let file = path.display();
    let was = current.revoked.number();
    let is = grid.revoked.number();
    if is < was {
        warn!(%file, number = is, current = was, "the grid file has an older list of revoked keys; the newer one is used");
        grid.revoked = current.revoked.clone();
    }
    match &current.list {
        Some(list) if list.number() > grid.number() => {
            warn!(%file, number = grid.number(), current = list.number(), "ignored an older list of the grid; the newer one is used");
            grid.follow(list.clone(), current.contents());
        }
        _ => {}
    }
    if is > was {
        let keys = grid.revoked.keys().count();
        info!(%file, number = is, keys, "read the list of revoked keys");
    }
    sender.send_if_modified(|known| {
        // A newer list may have been received meanwhile; then the next check compares again.
        let is_other = **known != grid && known.number() <= grid.number();
        if is_other {
            *known = Arc::new(grid);
        }
        is_other
    });
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
        let peer = peer(10);
        let now = unix_seconds();
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
        let lab = authority(1);
        let other = authority(2);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("grid.toml");
        let none = Revocations::default();
        let first = list(&lab, &none, &[9]);
        let second = list(&lab, &first, &[3]);
        grid(&lab, first.clone()).save(&path).unwrap();
        let members = Members::follow(path.clone(), &grid(&lab, first.clone()), None);

        for harmless in [
            grid(&lab, none.clone()),
            grid(&other, list(&other, &list(&other, &none, &[3]), &[3])),
        ] {
            harmless.save(&path).unwrap();
            let files = ListFiles::new(harmless.list_path(&path), None);
            if let Ok(read) = read(&path, &files, lab.certificate()) {
                assert!(read.revoked.number() < first.number());
            }
        }
        std::fs::write(&path, "nonsense").unwrap();
        let peer = peer(3600);
        let waiting = tokio::spawn({
            let members = members.clone();
            let peer = peer.clone();
            async move { members.until_gone(&peer).await }
        });
        tokio::time::sleep(2 * LOOK_PERIOD).await;
        assert_eq!(members.check(&peer, unix_seconds()), Ok(()));
        assert!(members.is_revoked(&OwnerId([9; 32])));

        grid(&lab, second).save(&path).unwrap();
        let gone = tokio::time::timeout(LIMIT, waiting).await;
        assert_eq!(gone.unwrap().unwrap(), CertificateFault::Revoked);
        assert!(members.check(&peer, unix_seconds()).is_err());
    }

    #[tokio::test]
    async fn a_newer_list_of_the_grid_holds_at_once_and_an_older_one_never() {
        let lab = authority(1);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("grid.toml");
        let plain = grid(&lab, Revocations::default());
        plain.save(&path).unwrap();
        let members = Members::follow(path.clone(), &plain, None);
        let revoked = list(&lab, &Revocations::default(), &[3]);
        let newer = Contents {
            revoked,
            ..Contents::default()
        };
        let signed = |number, contents: &Contents| GridList::sign(&lab, number, contents).unwrap();
        assert!(members.take_over(signed(7, &newer), newer.clone()).await);
        let peer = peer(3600);
        assert_eq!(
            members.check(&peer, unix_seconds()),
            Err(CertificateFault::Revoked)
        );
        let older = Contents::default();
        assert!(!members.take_over(signed(7, &older), older.clone()).await);
        assert!(!members.take_over(signed(6, &older), older.clone()).await);
        // The list is written to its file, and an older list in that file changes nothing.
        assert_eq!(Grid::load(&path).unwrap().number(), 7);
        std::fs::write(dir.path().join("grid.members"), signed(5, &older).bytes()).unwrap();
        tokio::time::sleep(2 * LOOK_PERIOD).await;
        assert!(members.check(&peer, unix_seconds()).is_err());
        assert_eq!(members.grid().number(), 7);
    }
}
