//! Keeps on disk which donors the registry knows, so that a registry that starts again knows at once who
//! belongs to the grid, and where the silent ones were.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use protocol::grid::Grid;
use protocol::identity::{CardVerifier, MemberCard};
use tokio::time::Instant;
use tracing::{info, warn};

use super::Shared;
use crate::core::known_donors::{self, FILE_BYTES_MAX};
use crate::core::registry::{KnownDonor, Registry};
use crate::json_file;

/// Name of the file in the data directory.
const FILE: &str = "known-donors";

/// What is added to the name of a damaged file.
const DAMAGED: &str = "damaged";

/// How often it is checked whether there is something to write.
const LOOK_PERIOD: Duration = Duration::from_secs(5);

/// Least time between two writes, for each donor: of 6,000 donors, at most one a minute.
const WRITE_PERIOD_OF_A_DONOR: Duration = Duration::from_millis(10);

/// The file is written after this time even if no donor came, went or fell silent, for the times at which
/// the donors were heard.
const WRITE_AT_LEAST: Duration = Duration::from_secs(600);

/// The file of known donors.
#[derive(Clone, Debug)]
pub(super) struct KnownDonorsFile(PathBuf);

impl KnownDonorsFile {
    pub(super) fn in_directory(data_dir: &Path) -> Self {
        Self(data_dir.join(FILE))
    }

    /// Enters the donors of the file into `registry`. A file that can't be used is set aside, because a
    /// registry has to start in any case: donors bring what was lost.
    pub(super) fn recall_into(
        &self,
        registry: &mut Registry,
        grid: &Grid,
        verifier: &CardVerifier,
    ) {
        let donors = match self.read() {
            Ok(donors) => donors,
            Err(cause) => {
                let aside = self.0.with_extension(DAMAGED);
                let moved = fs::rename(&self.0, &aside).is_ok();
                warn!(file = %self.0.display(), %cause, moved, "known donors can't be read; starting without them");
                return;
            }
        };
        let mut known = 0_usize;
        let mut left_out = 0_usize;
        for donor in donors {
            let card = good_card(&donor, grid, verifier);
            if grid.revoked.contains(&donor.id) || registry.recall(donor, card.as_ref()).is_err() {
                left_out += 1;
            } else {
                known += 1;
            }
        }
        if known + left_out > 0 {
            info!(known, left_out, "read the known donors");
        }
    }

    fn read(&self) -> io::Result<Vec<KnownDonor>> {
        let invalid = |cause: &dyn std::fmt::Display| {
            io::Error::new(io::ErrorKind::InvalidData, cause.to_string())
        };
        match fs::metadata(&self.0) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(cause) => Err(cause),
            Ok(found) if found.len() > FILE_BYTES_MAX => Err(invalid(&"too large")),
            Ok(_) => known_donors::decode(&fs::read(&self.0)?).map_err(|cause| invalid(&cause)),
        }
    }

    /// Replaces the file in one step.
    fn write(&self, donors: &[KnownDonor]) -> io::Result<()> {
        let dir = protocol::identity::directory_of(&self.0);
        json_file::replace(dir, &self.0, &known_donors::encode(donors))
    }
}

/// The card of a donor that was written down, if it is good.
fn good_card(donor: &KnownDonor, grid: &Grid, verifier: &CardVerifier) -> Option<MemberCard> {
    let card = verifier.read_at(&donor.card, donor.addr, &grid.revoked)?;
    (card.id() == donor.id).then_some(card)
}

/// Writes the donors down when one came, went or fell silent, but not too often; does not return.
pub(super) async fn keep(shared: Arc<Shared>) {
    let mut looks = tokio::time::interval(LOOK_PERIOD);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut written = Instant::now();
    loop {
        looks.tick().await;
        keep_joiners(&shared, false).await;
        let count = u32::try_from(shared.registry().counts().0).unwrap_or(u32::MAX);
        if written.elapsed() < WRITE_PERIOD_OF_A_DONOR.saturating_mul(count) {
            continue;
        }
        let at = shared.moment();
        let is_due = written.elapsed() >= WRITE_AT_LEAST && count > 0;
        let donors = {
            let mut registry = shared.registry();
            match is_due {
                true => Some(registry.all_to_write_down(at)),
                false => registry.to_write_down(at),
            }
        };
        let Some(donors) = donors else { continue };
        written = Instant::now();
        write_down(&shared, donors).await;
    }
}

/// Writes down when members that joined here were heard, if the file is far behind or `always`.
async fn keep_joiners(shared: &Shared, always: bool) {
    let redeemed = Arc::clone(shared.enrolments.redeemed());
    let kept = tokio::task::spawn_blocking(move || redeemed.keep(always)).await;
    let kept = kept.unwrap_or_else(|cause| Err(io::Error::other(cause)));
    if let Err(cause) = kept {
        warn!(%cause, "when members were heard can't be written down");
    }
}

/// Writes down the donors, and when members were heard, when the registry stops.
pub(super) async fn keep_at_stop(shared: Arc<Shared>) {
    keep_joiners(&shared, true).await;
    let donors = shared.registry().all_to_write_down(shared.moment());
    write_down(&shared, donors).await;
}

async fn write_down(shared: &Shared, donors: Vec<KnownDonor>) {
    let file = shared.known_donors.clone();
    let writing = tokio::task::spawn_blocking(move || file.write(&donors));
    let written = writing
        .await
        .unwrap_or_else(|cause| Err(io::Error::other(cause)));
    if let Err(cause) = written {
        let file = shared.known_donors.0.display();
        warn!(%file, %cause, "can't write down which donors are known");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use codec::OwnerId;
    use codec::seal::OwnerSecret;
    use protocol::identity::{Authority, Validity};

    use super::*;
    use crate::core::Millis;
    use crate::core::registry::Moment;
    use crate::registry::RegistryPlan;

    fn grid() -> Grid {
        let validity = Validity {
            from: 0,
            lasting: Duration::from_secs(1 << 32),
        };
        let lab = Authority::create(OwnerSecret::new([1; 32]), "lab", validity).unwrap();
        Grid::new("lab", lab.certificate().clone())
    }

    fn donor(number: u8, name: &str) -> KnownDonor {
        KnownDonor {
            id: OwnerId([number; 32]),
            seen_at: 1000,
            name: name.into(),
            addr: ([10, 0, 0, 1], 7600).into(),
            site: None,
            owner: None,
            capacity_bytes: 5,
            free_bytes: 4,
            card: Vec::new(),
        }
    }

    #[test]
    fn donors_come_back_and_a_damaged_file_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let grid = grid();
        let verifier = CardVerifier::new(&grid.authority).unwrap();
        let file = KnownDonorsFile::in_directory(dir.path());
        let at = Moment {
            now: Millis(7),
            unix: 4000,
        };
        let known = || {
            let mut registry = Registry::new(RegistryPlan::new(0).limits);
            file.recall_into(&mut registry, &grid, &verifier);
            registry.members(at, None, 10).0
        };
        assert!(known().is_empty());
        file.write(&[donor(1, "h1"), donor(2, "../x"), donor(3, "h3")])
            .unwrap();
        let found = known();
        let names: Vec<&str> = found.iter().map(|one| one.presence.name.as_str()).collect();
        assert_eq!(names, ["h1", "h3"]);
        assert!(
            found
                .iter()
                .all(|one| !one.alive && one.silent_ms == 3_000_000)
        );
        fs::write(dir.path().join(FILE), b"nonsense").unwrap();
        assert!(known().is_empty());
        let aside = fs::read(dir.path().join("known-donors.damaged")).unwrap();
        assert_eq!(aside, b"nonsense");
        assert!(!dir.path().join(FILE).exists());
    }
}
