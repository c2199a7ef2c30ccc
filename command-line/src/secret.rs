//! Secrets that need not stand in the list of processes: read from standard input or from a file.

use std::fs::File;
use std::io::{self, Read};

/// Most bytes of a secret.
const SECRET_BYTES_MAX: u64 = 4096;

/// The secret that an argument means: the first line of standard input for `-`, the first line of a file for
/// `@FILE`, and otherwise the argument itself.
///
/// # Errors
/// When standard input or the file can't be read.
pub fn secret(argument: &str) -> io::Result<String> {
    let text = match argument.strip_prefix('@') {
        _ if argument == "-" => first_bytes(io::stdin().lock())?,
        Some(path) => first_bytes(File::open(path)?)?,
        None => return Ok(argument.to_owned()),
    };
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

fn first_bytes(from: impl Read) -> io::Result<String> {
    let mut text = String::new();
    from.take(SECRET_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_from_a_file_or_is_the_argument() {
        let path = std::env::temp_dir().join(format!("ckpt-secret-{}", std::process::id()));
        std::fs::write(&path, "token\nmore\n").unwrap();
        let named = format!("@{}", path.display());
        assert_eq!(secret(&named).unwrap(), "token");
        std::fs::remove_file(&path).unwrap();
        assert!(secret(&named).is_err());
        assert_eq!(secret("token").unwrap(), "token");
    }
}
