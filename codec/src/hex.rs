//! Bytes as hexadecimal digits.

/// The bytes as lower-case hexadecimal digits.
pub fn encode(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let text = String::with_capacity(bytes.len() * 2);
    bytes.iter().fold(text, |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes that these digits stand for; `None` for other characters, or an odd number of digits.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    pairs.iter().map(byte).collect()
}

/// As [`decode()`], for a fixed number of bytes.
pub fn decode_exact<const N: usize>(text: &str) -> Option<[u8; N]> {
    decode(text)
        .filter(|_| text.len() == 2 * N)?
        .try_into()
        .ok()
}

const fn digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        b'A'..=b'F' => Some(character - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        let all: Vec<u8> = (0..=255).collect();
        let text = encode(&all);
        assert_eq!(&text[..8], "00010203");
        assert_eq!(decode(&text), Some(all.clone()));
        assert_eq!(decode(&text.to_ascii_uppercase()), Some(all));
        assert_eq!(decode_exact("00fF"), Some([0, 255]));
        for bad in ["0", "+1", "g0", "\u{e9}", "0x10"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
        assert_eq!(decode_exact::<2>("00"), None);
        assert_eq!(decode(""), Some(Vec::new()));
    }
}
