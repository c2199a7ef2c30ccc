//! `ckpt cat`: writes bytes of a file to standard output.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;

use super::args::Cat;
use ckpt_agent::agent::CatRequest;
use ckpt_agent::report::Failure;

/// Makes the request. `./` before a path and slashes behind it are ignored.
///
/// # Errors
/// When the words name no job.
pub(super) fn request(cat: Cat) -> Result<CatRequest, Failure> {
    let (job, path) = cat.job_and_path()?;
    let path = path.map(|path| {
        let mut path = path.into_vec();
        while path.starts_with(b"./") {
            path.drain(..2);
        }
        while path.len() > 1 && path.ends_with(b"/") {
            path.pop();
        }
        path
    });
    Ok(CatRequest {
        job,
        which: super::which(cat.version),
        path,
        range: cat.range.unwrap_or_default(),
    })
}

/// Standard output without its line buffer.
pub(super) fn standard_output() -> Result<File, Failure> {
    let out = io::stdout().as_fd().try_clone_to_owned();
    out.map(File::from)
        .map_err(|cause| Failure::local("standard output", &cause))
}
