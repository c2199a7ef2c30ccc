//! The environment of a job, read from the job's ad: up to version 23 HTCondor does not pass it to
//! plug-ins.

use std::collections::BTreeMap;

use super::classad::ClassAd;

/// The variables of a job, by name.
pub type Variables = BTreeMap<Vec<u8>, Vec<u8>>;

/// Reads the variables from the ad of a job; empty if the ad has no environment.
///
/// # Errors
/// When a quote is not closed.
pub fn variables(ad: &ClassAd) -> Result<Variables, &'static str> {
    let pairs = match (ad.text("Environment"), ad.text("Env")) {
        (Some(text), _) => words(text)?,
        // The notation of HTCondor before version 6.7.
        (None, Some(text)) => text
            .split(|&byte| byte == b';')
            .map(<[u8]>::to_vec)
            .collect(),
        (None, None) => Vec::new(),
    };
    let pair = |pair: Vec<u8>| {
        let at = pair.iter().position(|&byte| byte == b'=')?;
        Some((pair.get(..at)?.to_vec(), pair.get(at + 1..)?.to_vec()))
    };
    Ok(pairs.into_iter().filter_map(pair).collect())
}

/// Splits a text at blanks. Between single quotes blanks are part of the word, and two single quotes are
/// one.
fn words(text: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
    let mut words = Vec::new();
    let mut word = None::<Vec<u8>>;
    let mut is_quoted = false;
    let mut bytes = text.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\'' if is_quoted && bytes.peek() == Some(&b'\'') => {
                bytes.next();
                word.get_or_insert_default().push(b'\'');
            }
            b'\'' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            b' ' | b'\t' | b'\n' | b'\r' if !is_quoted => words.extend(word.take()),
            byte => word.get_or_insert_default().push(byte),
        }
    }
    words.extend(word);
    if is_quoted {
        return Err("a quote in the job's environment is not closed");
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classad::parse_lines;

    fn of(line: &str) -> Result<Vec<(String, String)>, &'static str> {
        let ad = parse_lines(line.as_bytes()).unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let variables = variables(&ad)?.into_iter();
        Ok(variables
            .map(|(name, value)| (text(name), text(value)))
            .collect())
    }

    #[test]
    fn variables_are_read_as_condor_submit_writes_them() {
        let pairs = |pairs: &[(&str, &str)]| {
            let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            Ok(pairs.iter().map(owned).collect())
        };
        assert_eq!(
            of("Environment = \"CKPT_GRID=/g.toml A='b  c' B= C='it''s' D=x=y E='' F=a'b c'd\""),
            pairs(&[
                ("A", "b  c"),
                ("B", ""),
                ("C", "it's"),
                ("CKPT_GRID", "/g.toml"),
                ("D", "x=y"),
                ("E", ""),
                ("F", "ab cd"),
            ])
        );
        assert_eq!(
            of("Env = \"A=b;C=d e\""),
            pairs(&[("A", "b"), ("C", "d e")])
        );
        assert_eq!(of("ClusterId = 1"), pairs(&[]));
        assert_eq!(of("Environment = \"\""), pairs(&[]));
        assert!(of("Environment = \"A='b\"").is_err());
    }
}
