//! Parsers of the messages between a daemon and the guests of its machine.

use machine::local::{FromDaemon, FromGuest, LINE_BYTES_MAX, Lines, Message};

fn check<M: Message>(input: &[u8]) -> bool {
    // The buffer of unfinished lines is bounded for any input.
    let mut lines = Lines::default();
    for line in lines.take(input).unwrap_or_default() {
        assert!(line.len() < LINE_BYTES_MAX);
    }
    let Ok(message) = M::parse(input) else {
        return false;
    };
    assert!(message.check().is_ok());
    if let Ok(line) = message.line() {
        let text = line.strip_suffix(b"\n").unwrap_or_default();
        assert!(M::parse(text).is_ok(), "what is written is read");
    }
    true
}

pub(crate) fn guest_line(input: &[u8]) -> bool {
    check::<FromGuest>(input)
}

pub(crate) fn daemon_line(input: &[u8]) -> bool {
    check::<FromDaemon>(input)
}
