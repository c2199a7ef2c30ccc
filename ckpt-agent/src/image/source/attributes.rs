//! What a file has besides its bytes, mode and time: access control lists, extended attributes, an owner.
//!
//! With an access control list, the bits of the group in a file's mode are the list's mask, not what the group
//! may do. A list that is not kept must not leave the group with more rights than it had.

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use codec::index::Attributes;
use rustix::fs::{Stat, fgetxattr, lgetxattr, llistxattr};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};
use serde_bytes::ByteBuf;

use super::SourceOptions;

/// The extended attribute in which Linux shows a file's access control list.
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// Attributes of which each file has one on some systems, and which belong to the machine, not to the file.
const OF_THE_MACHINE: [&[u8]; 2] = [b"security.selinux", b"security.ima"];

/// Most bytes of the names, and of one value, of a file's attributes, as on Linux.
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

/// Numbers of the entries of an access control list that are for the owning group, and for the mask.
const GROUP: u16 = 0x04;
const MASK: u16 = 0x10;

/// The bits of a mode that are the group's.
const GROUP_BITS: u32 = 0o070;

/// What a look at a file's attributes found.
pub(super) struct Looked {
    /// Its mode without rights that only a mask gives.
    pub(super) mode: u32,
    /// What the user asked to be kept.
    pub(super) attributes: Option<Attributes>,
}

/// What a save does not keep, counted over all files.
#[derive(Debug, Default)]
pub(super) struct NotKept {
    options: SourceOptions,
    lists: Counted,
    attributes: Counted,
    owners: Counted,
}

/// A number of files, and the first of them.
#[derive(Debug, Default)]
struct Counted {
    count: u64,
    first: Option<PathBuf>,
}

impl Counted {
    fn add(&mut self, path: impl FnOnce() -> PathBuf) {
        self.count += 1;
        self.first.get_or_insert_with(path);
    }

    fn text(&self, what: &str) -> Option<String> {
        let first = self.first.as_ref()?;
        Some(match self.count {
            1 => format!("{what} of {first:?}"),
            count => format!("{what} of {count} files, such as {first:?}"),
        })
    }
}

impl NotKept {
    pub(super) fn new(options: SourceOptions) -> Self {
        Self {
            options,
            ..Self::default()
        }
    }

    /// Looks at the attributes of the file `name` in `directory`, or else at `path`.
    pub(super) fn look(
        &mut self,
        directory: Option<&impl AsRawFd>,
        name: &Path,
        path: impl Fn() -> PathBuf,
        stat: &Stat,
    ) -> Looked {
        let mut kept = Attributes::default();
        if self.options.owners {
            kept.owner = Some((stat.st_uid, stat.st_gid));
        } else if stat.st_uid != geteuid().as_raw() || stat.st_gid != getegid().as_raw() {
            self.owners.add(&path);
        }
        let mode = mode_bits(stat);
        let itself = directory.map(|directory| {
            let place = format!("/proc/self/fd/{}", directory.as_raw_fd());
            Path::new(&place).join(name)
        });
        let names = itself.and_then(|itself| Some((names(&itself).ok()?, itself)));
        let names = match names {
            Some((names, itself)) => Ok((names, itself)),
            None => names_or_none(&path()).map(|names| (names, path())),
        };
        // What can't be looked at may have a list.
        let Ok((names, itself)) = names else {
            self.lists.add(&path);
            return Looked {
                mode: mode & !GROUP_BITS,
                attributes: kept.owner.map(|_| kept),
            };
        };
        let names = names.iter().map(|name| name.as_bytes());
        let names: Vec<&[u8]> = names
            .filter(|name| !OF_THE_MACHINE.contains(name))
            .collect();
        for name in &names {
            let value = self
                .options
                .extended_attributes
                .then(|| value(&itself, name));
            match value.flatten() {
                Some(value) => kept
                    .extended
                    .push((ByteBuf::from(name.to_vec()), ByteBuf::from(value))),
                None if name.starts_with(b"system.posix_acl") => self.lists.add(&path),
                None => self.attributes.add(&path),
            }
        }
        let is_kept = kept.owner.is_some() || !kept.extended.is_empty();
        let attributes = is_kept.then_some(kept);
        if !names.contains(&ACCESS_LIST) {
            return Looked { mode, attributes };
        }
        let group = value(&itself, ACCESS_LIST).and_then(|list| group_of(&list));
        let mode = mode & !GROUP_BITS | group.unwrap_or(0) << 3;
        Looked { mode, attributes }
    }

    /// One line about all that is not kept.
    pub(super) fn note(&self) -> Option<String> {
        let all = [
            self.lists.text("the access control list"),
            self.attributes.text("extended attributes"),
            self.owners.text("the owner or group"),
        ];
        let all: Vec<String> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| format!("not kept: {}", all.join("; ")))
    }
}

/// The bits of a file's mode, without its kind.
#[allow(
    clippy::unnecessary_cast,
    reason = "the type of this field differs between processors"
)]
pub(super) const fn mode_bits(stat: &Stat) -> u32 {
    stat.st_mode as u32 & 0o7777
}

/// The mode of an open file without rights that only a mask gives.
pub(super) fn mode_of_open(file: BorrowedFd<'_>, stat: &Stat) -> u32 {
    let mode = mode_bits(stat);
    let mut list = vec![0_u8; ATTRIBUTE_BYTES_MAX];
    let group = match fgetxattr(file, ACCESS_LIST, list.as_mut_slice()) {
        Ok(len) => group_of(list.get(..len).unwrap_or_default()),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => return mode,
        Err(_) => None,
    };
    mode & !GROUP_BITS | group.unwrap_or(0) << 3
}

fn names(path: &Path) -> Result<Vec<CString>, Errno> {
    let mut list = vec![0_u8; 256];
    loop {
        match llistxattr(path, list.as_mut_slice()) {
            Ok(len) => {
                let list = list.get(..len).unwrap_or_default();
                let names = list
                    .split(|byte| *byte == 0)
                    .filter(|name| !name.is_empty());
                return Ok(names.filter_map(|name| CString::new(name).ok()).collect());
            }
            Err(Errno::RANGE) if list.len() < ATTRIBUTE_BYTES_MAX => {
                list.resize(ATTRIBUTE_BYTES_MAX, 0);
            }
            // The file system knows no attributes.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODATA) => return Ok(Vec::new()),
            Err(cause) => return Err(cause),
        }
    }
}

/// As [`names`]; none if the file is gone, which is noticed elsewhere.
fn names_or_none(path: &Path) -> Result<Vec<CString>, Errno> {
    match names(path) {
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(Vec::new()),
        names => names,
    }
}

fn value(path: &Path, name: &[u8]) -> Option<Vec<u8>> {
    let mut value = vec![0_u8; ATTRIBUTE_BYTES_MAX];
    let len = lgetxattr(path, name, value.as_mut_slice()).ok()?;
    value.truncate(len);
    Some(value)
}

/// What the owning group may do according to an access control list: its entry, and no more than the mask. The
/// list is a number of its version, and entries of a kind, rights and an id, in the byte order of x86.
fn group_of(list: &[u8]) -> Option<u32> {
    let entries = list.get(4..)?.chunks_exact(8);
    let rights = |wanted: u16| {
        let mut entries = entries.clone();
        entries.find_map(|entry| match entry {
            [low, high, rights, _, ..] if u16::from_le_bytes([*low, *high]) == wanted => {
                Some(u32::from(rights & 7))
            }
            _ => None,
        })
    };
    Some(rights(GROUP)? & rights(MASK).unwrap_or(7))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list with the rights of owner, a user, the owning group, the mask, others.
    fn list(group: u8, mask: Option<u8>) -> Vec<u8> {
        let entries = [(1_u8, 6), (2, 4), (4, group), (0x20, 0)].into_iter();
        let entries = entries.chain(mask.map(|mask| (0x10, mask)));
        let entries = entries.flat_map(|(kind, rights)| [kind, 0, rights, 0, 7, 0, 0, 0]);
        [2, 0, 0, 0].into_iter().chain(entries).collect()
    }

    #[test]
    fn a_group_has_the_rights_of_its_entry_and_of_the_mask() {
        assert_eq!(group_of(&list(0, Some(4))), Some(0));
        assert_eq!(group_of(&list(6, Some(4))), Some(4));
        assert_eq!(group_of(&list(4, Some(7))), Some(4));
        assert_eq!(group_of(&list(5, None)), Some(5));
        assert_eq!(group_of(&[2, 0, 0, 0]), None);
        assert_eq!(group_of(&[]), None);
    }
}
