//! ClassAds as HTCondor writes them: the list of files for a transfer plug-in, and the ad of a job.
//!
//! There are two notations. Between brackets, any number of ads: `[ Url = "ckpt://lab/a"; Size = 3 ]`. By
//! lines, one ad with one attribute in each line: `Size = 3`. Only texts, whole numbers and truth values
//! are read; other expressions are skipped. Text that HTCondor never writes is refused.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Longest text that is read, bytes: enough for some 100,000 files of one checkpoint.
pub const CLASSADS_BYTES_MAX: usize = 64 << 20;

/// Deepest nesting of brackets.
const DEPTH_MAX: usize = 64;

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Any bytes but NUL, since names of files need not be UTF-8.
    Text(Vec<u8>),
    /// A whole number, such as `42`.
    Integer(i64),
    /// `true` or `false`.
    Boolean(bool),
    /// Another expression, which is not read.
    Expression,
}

/// Attributes by name. Upper and lower case are the same in names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassAd(BTreeMap<String, Value>);

/// Why a text is no ClassAd.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at}: {what}")]
pub struct ClassAdError {
    /// The offset of the error in bytes, counted from 0.
    pub at: usize,
    /// What is wrong there.
    pub what: &'static str,
}

impl ClassAd {
    /// The attribute with this name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(&name.to_ascii_lowercase())
    }

    /// The attribute with this name, if it is a text.
    pub fn text(&self, name: &str) -> Option<&[u8]> {
        match self.get(name)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// All attributes by name, in lower case.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }

    fn enter(&mut self, name: &str, value: Value, at: usize) -> Result<(), ClassAdError> {
        match self.0.insert(name.to_ascii_lowercase(), value) {
            None => Ok(()),
            Some(_) => Err(ClassAdError {
                at,
                what: "an attribute occurs twice",
            }),
        }
    }
}

/// Reads any number of ads, each between brackets.
///
/// # Errors
/// When the text is something else, or too long.
pub fn parse_ads(bytes: &[u8]) -> Result<Vec<ClassAd>, ClassAdError> {
    let mut reader = Reader::new(bytes)?;
    let mut ads = Vec::new();
    loop {
        reader.blank();
        if reader.peek().is_none() {
            return Ok(ads);
        }
        ads.push(reader.ad()?);
    }
}

/// Reads one ad with one attribute in each line.
///
/// # Errors
/// When the text is something else, or too long.
pub fn parse_lines(bytes: &[u8]) -> Result<ClassAd, ClassAdError> {
    Reader::new(bytes)?;
    let mut ad = ClassAd::default();
    let mut at = 0;
    for line in bytes.split(|&byte| byte == b'\n') {
        if !line.trim_ascii().is_empty() {
            let mut reader = Reader { bytes: line, at: 0 };
            let entered = reader.line(&mut ad);
            entered.map_err(|error| ClassAdError {
                at: at + error.at,
                ..error
            })?;
        }
        at += line.len() + 1;
    }
    Ok(ad)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    const fn new(bytes: &'a [u8]) -> Result<Self, ClassAdError> {
        if bytes.len() > CLASSADS_BYTES_MAX {
            return Err(ClassAdError {
                at: CLASSADS_BYTES_MAX,
                what: "longer than 64 MiB",
            });
        }
        Ok(Self { bytes, at: 0 })
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    const fn wrong<T>(&self, what: &'static str) -> Result<T, ClassAdError> {
        Err(ClassAdError { at: self.at, what })
    }

    fn blank(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn take(&mut self, wanted: u8, what: &'static str) -> Result<(), ClassAdError> {
        if self.peek() != Some(wanted) {
            return self.wrong(what);
        }
        self.at += 1;
        Ok(())
    }

    fn ad(&mut self) -> Result<ClassAd, ClassAdError> {
        self.take(b'[', "an ad begins with [")?;
        let mut ad = ClassAd::default();
        loop {
            self.blank();
            if self.peek() == Some(b']') {
                self.at += 1;
                return Ok(ad);
            }
            let at = self.at;
            let name = self.name()?;
            self.blank();
            self.take(b'=', "= follows a name")?;
            self.blank();
            let value = self.value()?;
            ad.enter(&name, value, at)?;
            if self.peek() == Some(b';') {
                self.at += 1;
            }
        }
    }

    /// Reads a name; it may be in single quotes.
    fn name(&mut self) -> Result<String, ClassAdError> {
        if self.peek() == Some(b'\'') {
            let name = self.quoted(b'\'')?;
            return match String::from_utf8(name) {
                Ok(name) if !name.is_empty() => Ok(name),
                _ => self.wrong("a name is text"),
            };
        }
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let name: String = rest
            .iter()
            .take_while(|byte| is_part(byte))
            .map(|&byte| char::from(byte))
            .collect();
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            return self.wrong("a name begins with a letter");
        }
        self.at += name.len();
        Ok(name)
    }

    /// Reads a value, which ends before `;` or `]`.
    fn value(&mut self) -> Result<Value, ClassAdError> {
        let begin = self.at;
        if self.peek() == Some(b'"') {
            let text = self.quoted(b'"')?;
            self.blank();
            if matches!(self.peek(), Some(b';' | b']')) {
                return Ok(Value::Text(text));
            }
            self.at = begin;
        }
        self.skip()?;
        let text = self.bytes.get(begin..self.at).unwrap_or_default();
        if text.trim_ascii().is_empty() {
            self.at = begin;
            return self.wrong("a value follows =");
        }
        Ok(plain(text.trim_ascii()))
    }

    /// Skips an expression, which ends before `;` or `]`.
    fn skip(&mut self) -> Result<(), ClassAdError> {
        let mut open = Vec::new();
        loop {
            match self.peek() {
                None => return self.wrong("it ends in an expression"),
                Some(0) => return self.wrong("a byte is 0"),
                Some(quote @ (b'"' | b'\'')) => {
                    self.quoted(quote)?;
                    continue;
                }
                Some(b';' | b']') if open.is_empty() => return Ok(()),
                Some(b'[') => open.push(b']'),
                Some(b'{') => open.push(b'}'),
                Some(b'(') => open.push(b')'),
                Some(close @ (b']' | b'}' | b')')) => {
                    if open.pop() != Some(close) {
                        return self.wrong("a bracket closes another one");
                    }
                }
                Some(_) => {}
            }
            if open.len() > DEPTH_MAX {
                return self.wrong("too many brackets within each other");
            }
            self.at += 1;
        }
    }

    /// Reads a text between quotes and resolves its escapes.
    fn quoted(&mut self, quote: u8) -> Result<Vec<u8>, ClassAdError> {
        self.take(quote, "a quote begins")?;
        let mut text = Vec::new();
        loop {
            let Some(byte) = self.next() else {
                return self.wrong("it ends between quotes");
            };
            match byte {
                b'\\' => text.push(self.escaped()?),
                0 | b'\n' | b'\r' => {
                    self.at -= 1;
                    return self.wrong("a line ends, or a byte is 0, between quotes");
                }
                byte if byte == quote => return Ok(text),
                byte => text.push(byte),
            }
        }
    }

    /// Reads what follows a backslash.
    fn escaped(&mut self) -> Result<u8, ClassAdError> {
        match self.next() {
            Some(byte @ (b'"' | b'\'' | b'\\')) => Ok(byte),
            Some(b'n') => Ok(b'\n'),
            Some(b't') => Ok(b'\t'),
            Some(b'r') => Ok(b'\r'),
            Some(b'b') => Ok(8),
            Some(b'f') => Ok(12),
            Some(digit @ b'0'..=b'7') => {
                let mut value = u32::from(digit - b'0');
                // An octal escape has up to three digits if the first is at most 3, otherwise up to two.
                let more = if digit <= b'3' { 2 } else { 1 };
                for _ in 0..more {
                    let Some(digit @ b'0'..=b'7') = self.peek() else {
                        break;
                    };
                    value = value * 8 + u32::from(digit - b'0');
                    self.at += 1;
                }
                match u8::try_from(value) {
                    Ok(byte @ 1..) => Ok(byte),
                    _ => self.wrong("an escaped byte is 0"),
                }
            }
            _ => self.wrong("an escape that there is not"),
        }
    }

    /// Reads an attribute that has a line of its own.
    fn line(&mut self, ad: &mut ClassAd) -> Result<(), ClassAdError> {
        self.blank();
        let at = self.at;
        let name = self.name()?;
        self.blank();
        self.take(b'=', "= follows a name")?;
        let text = self.bytes.get(self.at..).unwrap_or_default().trim_ascii();
        if text.is_empty() {
            return self.wrong("a value follows =");
        }
        if text.contains(&0) {
            return self.wrong("a byte is 0");
        }
        let value = match text.strip_prefix(b"\"") {
            Some(rest) => match text_of_line(rest) {
                Some(value) => value,
                None => return self.wrong("it ends between quotes"),
            },
            None => plain(text),
        };
        ad.enter(&name, value, at)
    }
}

/// Interprets a value that is not in quotes.
fn plain(text: &[u8]) -> Value {
    let text = std::str::from_utf8(text).unwrap_or_default();
    if text.eq_ignore_ascii_case("true") {
        return Value::Boolean(true);
    }
    if text.eq_ignore_ascii_case("false") {
        return Value::Boolean(false);
    }
    text.parse().map_or(Value::Expression, Value::Integer)
}

/// Reads the rest of a quoted value that has a line of its own, after its first quote. In this notation a
/// backslash is an ordinary byte, except before a quote that does not end the line. `None` if no quote
/// ends the value.
fn text_of_line(rest: &[u8]) -> Option<Value> {
    let mut text = Vec::new();
    let mut at = 0;
    loop {
        let is_last = at + 1 == rest.len();
        match rest.get(at..)? {
            [b'\\', b'"', _, ..] => {
                text.push(b'"');
                at += 2;
            }
            [b'"', ..] if is_last => return Some(Value::Text(text)),
            // The value is an expression that only begins with a text.
            [b'"', ..] => return Some(Value::Expression),
            [byte, ..] => {
                text.push(*byte);
                at += 1;
            }
            [] => return None,
        }
    }
}

/// A value to write.
#[derive(Clone, Debug, PartialEq)]
pub enum Written {
    /// A text. Bytes that are not UTF-8 are escaped.
    Text(Vec<u8>),
    /// A whole number, such as `42`.
    Integer(i64),
    /// A number with a decimal point.
    Real(f64),
    /// `true` or `false`.
    Boolean(bool),
    /// A list with one ad in it.
    List(Vec<(&'static str, Self)>),
}

/// Writes an ad between brackets, in one line.
pub fn ad(attributes: &[(&'static str, Written)]) -> String {
    let parts = attributes.iter().map(|(name, value)| match value {
        Written::Text(text) => format!("{name} = {}", quoted(text)),
        Written::Integer(number) => format!("{name} = {number}"),
        Written::Real(number) => format!("{name} = {number:.6}"),
        Written::Boolean(truth) => format!("{name} = {truth}"),
        Written::List(attributes) => format!("{name} = {{ {} }}", ad(attributes)),
    });
    let parts: Vec<String> = parts.collect();
    format!("[ {} ]", parts.join("; "))
}

fn quoted(text: &[u8]) -> String {
    let mut quoted = String::from("\"");
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' | '\\' => quoted.extend(['\\', c]),
                '\0' => {}
                c if c.is_ascii_control() => {
                    let _ = write!(quoted, "\\{:03o}", u32::from(c));
                }
                c => quoted.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(quoted, "\\{byte:03o}");
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(text: &str) -> ClassAd {
        let mut ads = parse_ads(text.as_bytes()).unwrap();
        assert_eq!(ads.len(), 1, "{text}");
        ads.remove(0)
    }

    #[test]
    fn files_to_move_are_read_as_a_starter_writes_them() {
        let text = "[ LocalFileName = \"/x/dir_7/out\"; Url = \"ckpt://lab/a/b_1.0_17/0002/out\" ]\n\
                    [\n  url = \"ckpt://lab/b\";\n  LocalFileName = \"./a\\\"b\\\\c\\101\";\n]\n";
        let ads = parse_ads(text.as_bytes()).unwrap();
        assert_eq!(ads.len(), 2);
        assert_eq!(ads[0].text("localfilename"), Some(&b"/x/dir_7/out"[..]));
        assert_eq!(ads[1].text("URL"), Some(&b"ckpt://lab/b"[..]));
        assert_eq!(ads[1].text("LocalFileName"), Some(&b"./a\"b\\cA"[..]));
        assert_eq!(parse_ads(b" \n"), Ok(Vec::new()));
    }

    #[test]
    fn expressions_are_skipped_and_what_follows_them_is_read() {
        let ad = one(
            "[ a = 3 + ifThenElse(x, {1, \"];\"}, [b = 2; c = ']']); d = -7; e = TRUE; f = 1.5; \
             g = \"x\" + \"y\"; 'h i' = false; j = { [ k = 1 ] } ]",
        );
        assert_eq!(ad.get("a"), Some(&Value::Expression));
        assert_eq!(ad.get("d"), Some(&Value::Integer(-7)));
        assert_eq!(ad.get("e"), Some(&Value::Boolean(true)));
        assert_eq!(ad.get("f"), Some(&Value::Expression));
        assert_eq!(ad.get("g"), Some(&Value::Expression));
        assert_eq!(ad.get("H I"), Some(&Value::Boolean(false)));
        assert_eq!(ad.get("j"), Some(&Value::Expression));
        assert_eq!((ad.get("b"), ad.get("k")), (None, None));
    }

    #[test]
    fn text_that_is_no_ad_is_refused() {
        for wrong in [
            "[",
            "]",
            "[ a ]",
            "[ a = ]",
            "[ a = ; ]",
            "[ a = 1; a = 2 ]",
            "[ a = 1; A = 2 ]",
            "[ 1a = 2 ]",
            "[ a = \"x ]",
            "[ a = \"\\q\" ]",
            "[ a = \"\\0\" ]",
            "[ a = \"x\ny\" ]",
            "[ a = (] ) ]",
            "a = 1",
            "[ a = 1 ] x",
            "[ a = \"\0\" ]",
            "[ a = \0 ]",
            "[ '' = 1 ]",
        ] {
            assert!(parse_ads(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
        let deep = format!("[ a = {}1{} ]", "(".repeat(65), ")".repeat(65));
        assert!(parse_ads(deep.as_bytes()).is_err());
        let error = parse_ads(b"[ a = 1 ] [ b ]").unwrap_err();
        assert_eq!((error.at, error.what), (14, "= follows a name"));
    }

    #[test]
    fn the_ad_of_a_job_is_read_line_by_line() {
        let text = "Environment = \"CKPT_GRID=/g A='b c' Q=\\\"\"\nClusterId = 12\n\
                    Requirements = (TARGET.Arch == \"X86_64\")\nGlobalJobId = \"s#12.0#17\"\n\
                    Path = \"C:\\dir\\\"\nCmd = \"a\" + \"b\"\n\nTransferIn = false\n";
        let ad = parse_lines(text.as_bytes()).unwrap();
        assert_eq!(
            ad.text("environment"),
            Some(&b"CKPT_GRID=/g A='b c' Q=\""[..])
        );
        assert_eq!(ad.get("ClusterId"), Some(&Value::Integer(12)));
        assert_eq!(ad.get("Requirements"), Some(&Value::Expression));
        assert_eq!(ad.get("Cmd"), Some(&Value::Expression));
        assert_eq!(ad.text("Path"), Some(&b"C:\\dir\\"[..]));
        assert_eq!(ad.get("TransferIn"), Some(&Value::Boolean(false)));
        for wrong in ["a", "a =", "a = \"x", "= 1", "[ a = 1 ]", "a = 1\na = 2"] {
            assert!(parse_lines(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
        let error = parse_lines(b"a = 1\n\nb c").unwrap_err();
        assert_eq!((error.at, error.what), (9, "= follows a name"));
    }

    proptest! {
        #[test]
        fn written_ads_are_read_again(text in proptest::collection::vec(1_u8.., 0..40), number: i64) {
            let written = ad(&[
                ("A", Written::Text(text.clone())),
                ("B", Written::Integer(number)),
                ("C", Written::List(vec![("D", Written::Real(1.5)), ("E", Written::Text(text.clone()))])),
                ("F", Written::Boolean(true)),
            ]);
            let ad = one(&written);
            prop_assert_eq!(ad.text("A"), Some(text.as_slice()));
            prop_assert_eq!(ad.get("B"), Some(&Value::Integer(number)));
            prop_assert_eq!(ad.get("C"), Some(&Value::Expression));
            prop_assert_eq!(ad.get("F"), Some(&Value::Boolean(true)));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(
            proptest::sample::select(&b"[]{}();='\"\\ \n\x00ab1-."[..]), 0..60,
        )) {
            let _ = parse_ads(&bytes);
            let _ = parse_lines(&bytes);
        }
    }
}
