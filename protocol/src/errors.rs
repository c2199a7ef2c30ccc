//! Errors as text for people.

use std::error::Error;

/// An error and its causes, in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("can't save")]
    struct Outer(#[source] std::num::ParseIntError);

    #[test]
    fn every_cause_is_named_once() {
        let cause = "x".parse::<u8>().unwrap_err();
        let text = format!("can't save: {cause}");
        assert_eq!(chain(&Outer(cause)), text);
    }
}
