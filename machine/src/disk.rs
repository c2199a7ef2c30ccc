//! The free space of a file system.

use rustix::fs::StatVfs;

/// Bytes that programs without privileges may still write; `None` if the file system reports no sizes, as some in user
/// space do.
#[must_use]
pub fn free_bytes(found: &StatVfs) -> Option<u64> {
    (found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_sizes_is_not_a_full_one() {
        let mut found = rustix::fs::statvfs("/").unwrap();
        found.f_frsize = 4096;
        found.f_blocks = 100;
        found.f_bavail = 0;
        assert_eq!(free_bytes(&found), Some(0));
        found.f_bavail = 7;
        assert_eq!(free_bytes(&found), Some(7 * 4096));
        found.f_blocks = 0;
        assert_eq!(free_bytes(&found), None);
    }
}
