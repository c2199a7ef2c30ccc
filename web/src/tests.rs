use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

async fn started(token: Option<&str>) -> Server {
    let settings = Settings {
        listen: ([127, 0, 0, 1], 0).into(),
        token: token.map(|text| Token::new(text).unwrap()),
    };
    let pages = Pages::default().with("/", async |_| of_kind("text/plain", "here".into()));
    Server::start(&settings, pages).unwrap()
}

/// Sends `bytes`, and returns all that comes until the connection ends.
async fn said(server: &Server, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
    // The listener may answer and hang up before it has read all.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn asking(path: &str, more: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{more}\r\n").into_bytes()
}

#[tokio::test]
async fn a_request_is_answered_once_and_the_connection_ends() {
    let server = started(None).await;
    let answer = said(&server, &asking("/", "")).await;
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("here"),
        "{answer}"
    );
    assert!(
        answer.contains("content-security-policy: default-src 'none'"),
        "{answer}"
    );
    assert!(
        said(&server, &asking("/else", ""))
            .await
            .starts_with("HTTP/1.1 404")
    );
    let posted = said(&server, b"POST / HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert!(posted.starts_with("HTTP/1.1 405"), "{posted}");
    let head = said(&server, b"HEAD / HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert!(
        head.starts_with("HTTP/1.1 200")
            && head.contains("content-length: 4")
            && !head.contains("here"),
        "{head}"
    );
}

#[tokio::test]
async fn a_client_without_a_token_sees_nothing() {
    let server = started(Some("0123456789abcdef")).await;
    let refused = said(&server, &asking("/", "")).await;
    assert!(
        refused.starts_with("HTTP/1.1 401") && !refused.contains("here"),
        "{refused}"
    );
    let shown = asking("/", "authorization: Bearer 0123456789abcdef\r\n");
    assert!(said(&server, &shown).await.ends_with("here"));
}

#[tokio::test]
async fn an_address_is_free_again_after_a_stop() {
    let server = started(None).await;
    let settings = Settings {
        listen: server.local_addr(),
        token: None,
    };
    assert!(Server::start(&settings, Pages::default()).is_err());
    server.stop().await;
    Server::start(&settings, Pages::default()).unwrap();
}

#[tokio::test]
async fn other_machines_need_a_token() {
    let settings = Settings {
        listen: ([0, 0, 0, 0], 0).into(),
        token: None,
    };
    let refused = Server::start(&settings, Pages::default());
    assert!(matches!(refused, Err(StartError::NoToken(_))));
}

#[tokio::test]
async fn a_head_that_is_too_long_or_has_too_many_headers_is_refused() {
    let server = started(None).await;
    let long = format!("x: {}\r\n", "y".repeat(2 * HEAD_BYTES_MAX));
    let many = "x: y\r\n".repeat(HEADERS_MAX + 1);
    for more in [long, many] {
        let answer = said(&server, &asking("/", &more)).await;
        assert!(!answer.contains("here"), "{answer}");
    }
    assert!(said(&server, &asking("/", "")).await.ends_with("here"));
}

#[tokio::test]
async fn silent_clients_keep_no_other_out_for_long() {
    let server = started(None).await;
    let mut silent = Vec::new();
    for _ in 0..2 * CONNECTIONS_MAX {
        silent.push(TcpStream::connect(server.local_addr()).await.unwrap());
    }
    // The silent ones lose their places after HEAD_TIMEOUT, in two turns.
    let patience = HEAD_TIMEOUT * 2 + Duration::from_secs(3);
    let answer = tokio::time::timeout(patience, said(&server, &asking("/", ""))).await;
    assert!(answer.unwrap().ends_with("here"));
}

#[tokio::test]
async fn a_client_that_reads_no_answer_loses_its_place() {
    const LARGE: usize = 32 << 20;
    let settings = Settings {
        listen: ([127, 0, 0, 1], 0).into(),
        token: None,
    };
    let pages = Pages::default()
        .with("/", async |_| of_kind("text/plain", "here".into()))
        .with("/large", async |_| {
            of_kind("text/plain", "x".repeat(LARGE).into())
        });
    let server = Server::start(&settings, pages).unwrap();
    let mut unread = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
        stream.write_all(&asking("/large", "")).await.unwrap();
        unread.push(stream);
    }
    let patience = CONNECTION_TIMEOUT * 2;
    let answer = tokio::time::timeout(patience, said(&server, &asking("/", ""))).await;
    assert!(answer.unwrap().ends_with("here"));
    let mut rest = Vec::new();
    // The connection ends with an error or early.
    let _ = unread.remove(0).read_to_end(&mut rest).await;
    assert!(rest.len() < LARGE, "{}", rest.len());
}

#[test]
fn one_machine_has_a_share_of_the_connections() {
    let clients = Clients::default();
    let other: IpAddr = [192, 0, 2, 1].into();
    let mut taken: Vec<_> = (0..CONNECTIONS_OF_ONE_MAX)
        .map(|_| clients.enter(other).unwrap())
        .collect();
    assert!(clients.enter(other).is_none());
    assert!(clients.enter([192, 0, 2, 2].into()).is_some());
    taken.pop();
    assert!(clients.enter(other).is_some());
    // With IPv6, a machine has many addresses.
    let v6 = |text: &str| text.parse::<IpAddr>().unwrap();
    taken.extend((1..=CONNECTIONS_OF_ONE_MAX).map(|at| {
        let from = v6(&format!("2001:db8::{at:x}"));
        clients.enter(from).unwrap()
    }));
    assert!(clients.enter(v6("2001:db8::ffff")).is_none());
    assert!(clients.enter(v6("2001:db8:0:1::1")).is_some());
    drop(taken);
    assert!(clients.0.lock().unwrap().is_empty());
}

#[test]
fn a_token_file_is_read_with_care() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let write = |text: &str, mode| {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    };
    write("0123456789abcdef\n", 0o600);
    assert!(Token::read(&path).unwrap().is(b"0123456789abcdef"));
    write("0123456789abcdef", 0o640);
    assert!(Token::read(&path).is_ok());
    for open in [0o644, 0o660, 0o602, 0o601] {
        write("0123456789abcdef", open);
        assert!(
            matches!(Token::read(&path), Err(TokenError::Public(_))),
            "{open:o}"
        );
    }
    for unfit in ["short", "", "0123456789 abcdef", &"x".repeat(600)] {
        write(unfit, 0o600);
        assert!(
            matches!(Token::read(&path), Err(TokenError::Unfit(_))),
            "{unfit}"
        );
    }
    assert!(matches!(
        Token::read(&dir.path().join("none")),
        Err(TokenError::Io { .. })
    ));
    let shown = format!("{:?}", Token::new("0123456789abcdef"));
    assert!(!shown.contains("0123"), "{shown}");
}

#[test]
fn an_address_may_be_a_port_alone() {
    let own: SocketAddr = ([127, 0, 0, 1], 7480).into();
    for text in ["127.0.0.1:7480", "localhost:7480", ":7480", "7480"] {
        assert_eq!(parse_listen(text), Ok(own), "{text}");
    }
    assert_eq!(parse_listen("[::1]:80"), Ok("[::1]:80".parse().unwrap()));
    for text in ["", "host:80", "127.0.0.1", "99999", "localhost"] {
        assert!(parse_listen(text).is_err(), "{text}");
    }
}
