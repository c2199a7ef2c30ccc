//! Texts that another machine has chosen.

/// A text from another machine, safe for a terminal and a log. Control characters, characters that change the
/// direction of writing and backslashes are escaped, as in `\u{1b}`; quotes stay as they are.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\'' | '"' => safe.push(c),
            _ => safe.extend(c.escape_debug()),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Code;
    use crate::wire::message::Refusal;

    #[test]
    fn a_refusal_shows_the_hosts_text_with_its_quotes_and_without_control_characters() {
        let refusal = Refusal::new(Code::NoSpace, "this host's disk\x1b[2J");
        let shown = refusal.to_string();
        assert!(shown.ends_with("(this host's disk\\u{1b}[2J)"), "{shown}");
    }

    #[test]
    fn quotes_stay_and_what_a_terminal_interprets_is_escaped() {
        let plain = "this host's \"share\" is used up: 5 °C, größer";
        assert_eq!(escaped(plain), plain);
        let cases = [
            ("a\x1b[2Jb", "a\\u{1b}[2Jb"),
            ("two\nlines\r", "two\\nlines\\r"),
            ("bell\x07 and \u{9b}31m", "bell\\u{7} and \\u{9b}31m"),
            ("gpj.\u{202e}exe", "gpj.\\u{202e}exe"),
            ("\u{2066}a\u{2069}\u{200f}", "\\u{2066}a\\u{2069}\\u{200f}"),
            ("a\\u{1b}", "a\\\\u{1b}"),
        ];
        for (text, safe) in cases {
            assert_eq!(escaped(text), safe);
        }
    }
}
