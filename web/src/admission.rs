//! Which requests are answered, and what every answer says to browsers.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, HOST, REFERRER_POLICY,
    TRANSFER_ENCODING, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::{HeaderMap, StatusCode, http::HeaderValue};

use crate::{Answer, Token};

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It shows no token, or another one.
    NoToken,
    /// It was sent to another name than this machine's: a page elsewhere may have made a browser send it
    /// (DNS rebinding).
    ForeignName,
    /// It has a body.
    HasBody,
}

impl Refused {
    pub(crate) fn answer(self) -> Answer {
        let (status, text) = match self {
            Self::NoToken => (
                StatusCode::UNAUTHORIZED,
                "send the token: Authorization: Bearer TOKEN; in a browser, the token is the password\n",
            ),
            Self::ForeignName => (
                StatusCode::MISDIRECTED_REQUEST,
                "ask for localhost or 127.0.0.1\n",
            ),
            Self::HasBody => (StatusCode::PAYLOAD_TOO_LARGE, "send no body\n"),
        };
        let mut response = Answer::new(text.into());
        *response.status_mut() = status;
        if self == Self::NoToken {
            let ways = HeaderValue::from_static("Basic realm=\"ckpt\", charset=\"UTF-8\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, ways);
        }
        protect(response.headers_mut());
        response
    }
}

/// Checks the headers of a request. `token` is what it has to show, if anything.
pub(crate) fn check(headers: &HeaderMap, token: Option<&Token>) -> Result<(), Refused> {
    match token {
        Some(token) => {
            let shown = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
            if !shown.is_some_and(|shown| shows(shown, token)) {
                return Err(Refused::NoToken);
            }
        }
        None => {
            let mut names = headers.get_all(HOST).iter().peekable();
            let is_named = names.peek().is_some();
            let is_own = |name: &HeaderValue| name.to_str().is_ok_and(is_own_name);
            if !is_named || !names.all(is_own) {
                return Err(Refused::ForeignName);
            }
        }
    }
    let length = headers.get(CONTENT_LENGTH).map(HeaderValue::as_bytes);
    if length.is_some_and(|length| length != b"0") || headers.contains_key(TRANSFER_ENCODING) {
        return Err(Refused::HasBody);
    }
    Ok(())
}

/// Whether an `Authorization` header shows the token: `Bearer TOKEN`, or as browsers do it, as the
/// password of any user.
fn shows(header: &[u8], token: &Token) -> bool {
    let Some(space) = header.iter().position(|byte| *byte == b' ') else {
        return false;
    };
    let (scheme, shown) = header.split_at(space);
    let shown = shown.trim_ascii();
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return token.is(shown);
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return false;
    }
    let Ok(pair) = STANDARD.decode(shown) else {
        return false;
    };
    let password = pair.iter().position(|byte| *byte == b':');
    let password = password.and_then(|colon| pair.get(colon + 1..));
    password.is_some_and(|password| token.is(password))
}

/// Whether a `Host` header names this machine itself.
fn is_own_name(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').unwrap_or_default(),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
        return false;
    }
    let is_loopback = |ip: IpAddr| ip.to_canonical().is_loopback();
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_loopback)
}

/// Adds what keeps a browser from running, framing or keeping a page.
pub(crate) fn protect(headers: &mut HeaderMap) {
    let policy = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, policy),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            let name = hyper::header::HeaderName::from_static(name);
            (name, HeaderValue::from_str(value).unwrap())
        });
        pairs.collect()
    }

    #[test]
    fn without_a_token_only_names_of_this_machine_are_answered() {
        for good in [
            "localhost:7480",
            "127.0.0.1",
            "127.0.0.2:1",
            "[::1]:7480",
            "LOCALHOST",
        ] {
            assert_eq!(check(&headers(&[("host", good)]), None), Ok(()), "{good}");
        }
        for bad in [
            "attacker.example:7480",
            "127.0.0.1.attacker.example",
            "10.0.0.1:7480",
            "",
            "[::2]",
            "[::1]attacker.example",
            "[::1",
            "localhost:attacker.example",
        ] {
            let checked = check(&headers(&[("host", bad)]), None);
            assert_eq!(checked, Err(Refused::ForeignName), "{bad}");
        }
        assert_eq!(check(&headers(&[]), None), Err(Refused::ForeignName));
        let mut two = headers(&[("host", "localhost")]);
        two.append(HOST, HeaderValue::from_static("attacker.example"));
        assert_eq!(check(&two, None), Err(Refused::ForeignName));
    }

    #[test]
    fn a_token_is_shown_as_a_bearer_or_as_a_password() {
        let token = Token::new("0123456789abcdef").unwrap();
        let basic = |pair: &str| format!("Basic {}", STANDARD.encode(pair));
        let good = ["Bearer 0123456789abcdef", "bearer  0123456789abcdef"].map(str::to_owned);
        for good in good
            .into_iter()
            .chain([basic("x:0123456789abcdef"), basic(":0123456789abcdef")])
        {
            let shown = headers(&[("authorization", &good)]);
            assert_eq!(check(&shown, Some(&token)), Ok(()), "{good}");
        }
        let bad = [
            "Bearer 0123456789abcdeF",
            "Bearer 0123456789abcde",
            "0123456789abcdef",
            "Bearer",
            "Basic !",
        ];
        let bad = bad.map(str::to_owned).into_iter();
        for bad in bad.chain([basic("0123456789abcdef"), basic("x:y:0123456789abcdef")]) {
            let shown = headers(&[("authorization", &bad), ("host", "localhost")]);
            assert_eq!(check(&shown, Some(&token)), Err(Refused::NoToken), "{bad}");
        }
        assert_eq!(
            check(&headers(&[("host", "localhost")]), Some(&token)),
            Err(Refused::NoToken)
        );
    }

    #[test]
    fn a_request_brings_no_body() {
        for (length, expected) in [
            ("0", Ok(())),
            ("1", Err(Refused::HasBody)),
            ("+0", Err(Refused::HasBody)),
        ] {
            let sent = headers(&[("host", "localhost"), ("content-length", length)]);
            assert_eq!(check(&sent, None), expected, "{length}");
        }
        let sent = headers(&[("host", "localhost"), ("transfer-encoding", "chunked")]);
        assert_eq!(check(&sent, None), Err(Refused::HasBody));
    }
}
