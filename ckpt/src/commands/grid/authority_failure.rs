//! Which exit status a fault of the authority's directory has, and what helps.

use ckpt_agent::report::{ExitStatus, Failure};
use protocol::authority_dir::AuthorityDirError;
use protocol::errors::chain;
use protocol::grid::GridError;

pub(super) fn failure(cause: &AuthorityDirError) -> Failure {
    let status = match cause {
        AuthorityDirError::Io { .. } => ExitStatus::LocalIo,
        AuthorityDirError::Key(_) | AuthorityDirError::Mixed(_) => ExitStatus::Denied,
        AuthorityDirError::Unknown(_) | AuthorityDirError::NotListed(_) => ExitStatus::NotFound,
        AuthorityDirError::Locked(_) => ExitStatus::Failed,
        _ => ExitStatus::Usage,
    };
    let failure = Failure::new(status, chain(cause));
    match cause {
        AuthorityDirError::Missing(dir) => failure.next(format!(
            "--dir DIR (CKPT_AUTHORITY) of the grid's authority, on its machine; for a new grid, ckpt grid init --dir {} --name GRID",
            dir.display()
        )),
        AuthorityDirError::Unknown(_) => failure.next("ckpt grid show"),
        AuthorityDirError::NotListed(_) => {
            failure.next("ckpt grid revoke KEY, if it joined with a token; its key: ckpt grid show")
        }
        AuthorityDirError::ManyKeys { .. } | AuthorityDirError::Unrecorded { .. } => failure
            .next("ckpt grid revoke KEY; names and keys as hosts prove them: ckpt hosts"),
        AuthorityDirError::Grid(GridError::Io { .. }) => {
            failure.next("--dir DIR, or CKPT_AUTHORITY=DIR, of the grid's authority")
        }
        _ => failure,
    }
}
