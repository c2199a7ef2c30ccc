//! Keeps the keys of a program out of its core dumps.

use std::io;

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit,
};

/// Makes this process leave no core dumps, which would have keys and images, and keeps other processes of
/// the same user from reading its memory. Of this, programs that it starts inherit only the limit of core
/// dumps, which they may raise again.
///
/// # Errors
/// When the system refuses one of these settings.
pub fn keep_out_of_dumps() -> io::Result<()> {
    let limit = getrlimit(Resource::Core);
    let none = Rlimit {
        current: Some(0),
        ..limit
    };
    setrlimit(Resource::Core, none)?;
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

#[cfg(test)]
mod tests {
    use rustix::process::dumpable_behavior;

    use super::*;

    #[test]
    fn nothing_of_this_process_is_dumped() {
        keep_out_of_dumps().unwrap();
        let state = dumpable_behavior().unwrap();
        assert!(matches!(state, DumpableBehavior::NotDumpable));
        assert_eq!(getrlimit(Resource::Core).current, Some(0));
    }
}
