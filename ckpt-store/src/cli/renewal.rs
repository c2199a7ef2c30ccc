//! Takes over a renewed certificate, which arrives with the list of the grid.

use std::path::Path;
use std::time::Duration;

use codec::OwnerId;
use protocol::grid::Grid;
use protocol::identity::{Identity, certificate_to_pem, replace_public};
use protocol::net::Members;
use rand::Rng;
use tracing::{info, warn};

/// Hosts that get renewed certificates at the same time restart at different times, spread over this many
/// periods of comparing lists.
const SPREAD_PERIODS: u32 = 20;

/// The identity with the certificate that the list has for it, if that certificate ends later than the
/// present one. The certificate is also written to the data directory.
pub(super) fn newer(grid: &Grid, identity: &Identity, data: &Path) -> Option<Identity> {
    let own = identity.peer().ok()?;
    let key: OwnerId = identity.secret.id();
    let certificate = grid.renewed_for(&key, own.not_after)?;
    let pem = certificate_to_pem(certificate);
    let renewed = Identity::from_pem(identity.secret.clone(), &pem);
    let renewed = renewed
        .inspect_err(|cause| warn!(%cause, "the list contains a certificate for another key"))
        .ok()?;
    let path = data.join("identity.crt");
    match replace_public(&path, pem.as_bytes()) {
        Ok(()) => info!(path = %path.display(), "the certificate was renewed"),
        Err(cause) => {
            warn!(path = %path.display(), %cause, "can't write the renewed certificate: it is used only until this program ends");
        }
    }
    Some(renewed)
}

/// Waits until the list has a newer certificate, and then for a random time, so that not all hosts
/// restart at once. `period` is the time after which lists are compared.
pub(super) async fn renewed(
    members: &Members,
    identity: &Identity,
    data: &Path,
    period: Duration,
) -> Identity {
    let mut changes = members.changes();
    loop {
        let grid = changes.borrow_and_update().clone();
        if let Some(identity) = newer(&grid, identity, data) {
            let spread = u64::try_from((period * SPREAD_PERIODS).as_millis()).unwrap_or(u64::MAX);
            let rest = rand::rng().random_range(0..=spread);
            tokio::time::sleep(Duration::from_millis(rest)).await;
            return identity;
        }
        if changes.changed().await.is_err() {
            // No more changes will come.
            std::future::pending::<()>().await;
        }
    }
}

/// The socket of a server that has just stopped may stay open for this long.
const PORT_PATIENCE: Duration = Duration::from_secs(5);

/// Pause between two tries meanwhile.
const PORT_RETRY: Duration = Duration::from_millis(50);

/// Starts a server anew on the port of the one that has just stopped. `is_taken` distinguishes
/// errors about that port from others.
pub(super) async fn begin_again<T, E>(
    start: impl AsyncFn() -> Result<T, E>,
    is_taken: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let begun = tokio::time::Instant::now();
    loop {
        match start().await {
            Err(cause) if is_taken(&cause) && begun.elapsed() < PORT_PATIENCE => {
                tokio::time::sleep(PORT_RETRY).await;
            }
            done => return done,
        }
    }
}
