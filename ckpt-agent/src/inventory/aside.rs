//! A file without a name for the manifests of long lists, which memory would not hold.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Most bytes of manifests in the file.
const BYTES_MAX: u64 = 8 << 30;

/// Most bytes of manifests in the file once those that come are signed with job keys, which may be stolen.
const BYTES_OF_KEYS_MAX: u64 = 1 << 30;

/// Bytes that were put aside.
#[derive(Clone, Debug)]
pub(super) struct Part {
    file: Arc<File>,
    at: u64,
    len: usize,
}

impl Part {
    /// Reads them.
    pub(super) fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.len];
        self.file.read_exact_at(&mut bytes, self.at)?;
        Ok(bytes)
    }
}

/// The file, which is made when it is first needed, and gone when nobody has it open any more.
#[derive(Debug, Default)]
pub(super) struct Aside {
    /// Where to make the file; nothing is put aside without it.
    dir: Option<PathBuf>,
    file: Option<Arc<File>>,
    end: u64,
}

impl Aside {
    /// Puts bytes aside in a file in `dir`.
    pub(super) fn in_dir(dir: Option<PathBuf>) -> Self {
        Self {
            dir,
            ..Self::default()
        }
    }

    /// Whether there is room for these bytes, which a job key signed or not.
    pub(super) fn has_room(&self, bytes: usize, is_of_key: bool) -> bool {
        let most = if is_of_key {
            BYTES_OF_KEYS_MAX
        } else {
            BYTES_MAX
        };
        self.dir.is_some() && self.end.saturating_add(bytes as u64) <= most
    }

    /// Puts bytes aside. `None` if the file can't be written: after that, nothing more is put aside.
    pub(super) fn put(&mut self, bytes: &[u8]) -> Option<Part> {
        let put = self.try_put(bytes);
        put.inspect_err(|cause| {
            tracing::warn!(%cause, "a long list stays in memory, because a file for it can't be written");
            self.dir = None;
        })
        .ok()
    }

    fn try_put(&mut self, bytes: &[u8]) -> io::Result<Part> {
        let file = match &self.file {
            Some(file) => Arc::clone(file),
            None => {
                let dir = self.dir.as_ref().ok_or(io::ErrorKind::NotFound)?;
                std::fs::create_dir_all(dir)?;
                let file = Arc::new(tempfile::tempfile_in(dir)?);
                self.file = Some(Arc::clone(&file));
                file
            }
        };
        file.write_all_at(bytes, self.end)?;
        let at = self.end;
        self.end += bytes.len() as u64;
        let len = bytes.len();
        Ok(Part { file, at, len })
    }
}
