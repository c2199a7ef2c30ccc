//! What is said of a source that can't be read.

use crate::agent::ALLOW_EMPTY;
use crate::image::SourceError;
use crate::report::{ExitStatus, Failure};
use protocol::errors::chain;

/// The failure of a save whose source can't be read.
pub(super) fn source_failure(doing: &str, cause: &SourceError) -> Failure {
    let failure = Failure::new(ExitStatus::LocalIo, format!("{doing}: {}", chain(cause)));
    match cause {
        SourceError::Changed { .. } => {
            failure.next("save while no program writes to it, or use --accept-changed")
        }
        // A path that the user named and that does not exist was probably mistyped.
        SourceError::Io { cause, .. } if cause.kind() == std::io::ErrorKind::NotFound => {
            failure.next("a path that exists")
        }
        SourceError::Io {
            can_be_left_out: true,
            ..
        } => failure.next("leave out what can't be read: --skip-unreadable"),
        SourceError::Empty(_) => Failure {
            status: ExitStatus::Usage,
            ..failure.next(ALLOW_EMPTY)
        },
        SourceError::TooLong { pattern, .. } => Failure {
            status: ExitStatus::Usage,
            ..failure.next(format!("leave it out: --exclude {pattern:?}"))
        },
        SourceError::SameName(_)
        | SourceError::NameTaken { .. }
        | SourceError::NamedLink(_)
        | SourceError::Name(_) => Failure {
            status: ExitStatus::Usage,
            ..failure.next("PATH=NAME, with another name; or the directory above")
        },
        SourceError::NotAFile { path, .. } => Failure {
            status: ExitStatus::Usage,
            ..failure.next(format!("ckpt save JOB - < {path:?}"))
        },
        SourceError::CommandFailed { .. } => failure.next("the command alone, to see why it fails"),
        cause => failure.next_for(cause),
    }
}
