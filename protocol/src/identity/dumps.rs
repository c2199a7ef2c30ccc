//! What a program that holds keys leaves behind when it crashes.

use std::io;

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit,
};

/// Keeps keys and images out of core dumps, and other programs of the same user from reading the
/// memory of this one. Programs that it starts are not affected, but for the size of core dumps that
/// they begin with.
///
/// # Errors
/// When the system does not let it.
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
