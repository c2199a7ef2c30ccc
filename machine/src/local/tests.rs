use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;

fn report() -> Report {
    Report {
        at: 1_795_334_400,
        state: State::CpuTaken,
        load: 0.8,
        contended_load: 0.2,
        thresholds: [0.2, 0.6],
        free_memory_bytes: 1 << 30,
        withheld: Some(Withheld {
            why: Why::Hours,
            for_s: 3600,
        }),
        leaving: Some(Leaving {
            how: How::Drain,
            within_s: 600,
        }),
    }
}

#[test]
fn messages_are_as_the_page_has_them() {
    let line = FromDaemon::Report(report()).line().unwrap();
    let expected = r#"{"report":{"at":1795334400,"state":"cpu_taken","load":0.8,"contended_load":0.2,"thresholds":[0.2,0.6],"free_memory_bytes":1073741824,"withheld":{"why":"hours","for_s":3600},"leaving":{"how":"drain","within_s":600}}}"#;
    assert_eq!(String::from_utf8(line).unwrap(), format!("{expected}\n"));
    assert_eq!(
        FromDaemon::parse(expected.as_bytes()).unwrap(),
        FromDaemon::Report(report())
    );
    let uses = r#"{"uses":{"cores":2,"memory_bytes":5,"disk_bytes":7,"of_a_later_version":1}}"#;
    let parsed = FromGuest::parse(uses.as_bytes()).unwrap();
    let expected = Uses {
        cores: 2.0,
        memory_bytes: 5,
        disk_bytes: 7,
    };
    assert_eq!(parsed, FromGuest::Uses(expected));
    assert_eq!(
        FromGuest::parse(br#"{"uses":{}}"#).unwrap(),
        FromGuest::Uses(Uses::default())
    );
}

#[test]
fn reasons_of_later_versions_are_read() {
    let mut text = String::from_utf8(FromDaemon::Report(report()).line().unwrap()).unwrap();
    text = text
        .replace("\"hours\"", "\"full_moon\"")
        .replace("\"drain\"", "\"vanish\"");
    let FromDaemon::Report(read) = FromDaemon::parse(text.trim().as_bytes()).unwrap() else {
        panic!("no report");
    };
    assert_eq!(read.withheld.unwrap().why, Why::Other);
    assert_eq!(read.leaving.unwrap().how, How::Other);
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    for wrong in [
        r#"{"uses":{"cores":-1}}"#,
        r#"{"uses":{"cores":1e9}}"#,
        r#"{"uses":{"memory_bytes":-1}}"#,
        r#"{"uses":{"disk_bytes":1e99}}"#,
        r#"{"claims":{}}"#,
        "[]",
        "",
    ] {
        assert!(FromGuest::parse(wrong.as_bytes()).is_err(), "{wrong}");
    }
    let text = String::from_utf8(FromDaemon::Report(report()).line().unwrap()).unwrap();
    for (from, to) in [
        ("0.8", "1.8"),
        ("[0.2,0.6]", "[0.6,0.2]"),
        ("0.2,\"thr", "-0.2,\"thr"),
    ] {
        let wrong = text.replace(from, to);
        assert_ne!(wrong, text);
        assert!(
            FromDaemon::parse(wrong.trim().as_bytes()).is_err(),
            "{wrong}"
        );
    }
}

#[test]
fn a_line_without_end_is_given_up() {
    let mut lines = Lines::default();
    assert!(lines.take(&[b'x'; LINE_BYTES_MAX]).unwrap().is_empty());
    assert!(lines.take(b"x").is_err());
    assert!(Lines::default().take(&[b'x'; LINE_BYTES_MAX + 1]).is_err());
}

#[test]
fn a_guest_sees_the_newest_report_and_that_the_daemon_has_ended() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut link = Link::over(ours).unwrap();
    assert_eq!(link.poll().unwrap(), None);
    let say = |load: f64| {
        let line = FromDaemon::Report(Report { load, ..report() })
            .line()
            .unwrap();
        std::io::Write::write_all(&mut &theirs, &line).unwrap();
    };
    say(0.1);
    say(0.3);
    assert_eq!(link.poll().unwrap().unwrap().load, 0.3);
    assert_eq!(link.poll().unwrap(), None);
    drop(theirs);
    assert!(matches!(link.poll(), Err(LinkError::Closed)));
    assert!(link.send(&Uses::default()).is_err());
}

#[test]
fn a_daemon_that_does_not_read_holds_no_guest_up() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut link = Link::over(ours).unwrap();
    let mut sent: u64 = 0;
    while link
        .send(&Uses {
            disk_bytes: sent,
            ..Uses::default()
        })
        .unwrap()
    {
        sent += 1;
        assert!(sent < 1_000_000);
    }
    // Every message that was sent arrives whole when the daemon reads again.
    let mut lines = Lines::default();
    let mut heard = 0;
    let mut bytes = [0; 1024];
    theirs.set_nonblocking(true).unwrap();
    while let Ok(read) = std::io::Read::read(&mut &theirs, &mut bytes) {
        for line in lines.take(&bytes[..read]).unwrap() {
            let FromGuest::Uses(uses) = FromGuest::parse(&line).unwrap();
            assert_eq!(uses.disk_bytes, heard);
            heard += 1;
        }
        link.write_unsent().unwrap();
    }
    assert_eq!(heard, sent);
}

#[test]
fn a_socket_in_a_directory_with_a_long_name_is_reached() {
    let dir = tempfile::tempdir().unwrap();
    let long: PathBuf = dir.path().join("x".repeat(120));
    std::fs::create_dir(&long).unwrap();
    let path = socket_in(&long);
    let short = Shortened::of(&path).unwrap();
    let _listener = UnixListener::bind(short.path()).unwrap();
    Link::connect(&path).unwrap();
    assert!(Link::connect(Path::new("/nowhere/at/all.sock")).is_err());
}

#[test]
fn the_variable_outranks_the_usual_places() {
    let data = Path::new("/data");
    let none = usual_sockets(|_| None, Some(data));
    assert_eq!(
        none,
        [Path::new(SYSTEM_SOCKET), Path::new("/data/guests.sock")]
    );
    let named = usual_sockets(
        |name| (name == SOCKET_VARIABLE).then(|| "/x".into()),
        Some(data),
    );
    assert_eq!(named, [Path::new("/x")]);
    let of_user = |directory: &'static str| {
        move |name: &str| (name == "XDG_RUNTIME_DIR").then(|| directory.into())
    };
    assert_eq!(
        usual_sockets(of_user("/run/user/7"), None),
        [
            Path::new(SYSTEM_SOCKET),
            Path::new("/run/user/7/ckpt-store/guests.sock")
        ]
    );
    assert_eq!(user_socket(of_user("not/absolute")), None);
}

proptest! {
    #[test]
    fn lines_are_the_same_however_they_arrive(
        text in prop::collection::vec(prop::sample::select(b"ab\n".to_vec()), 0..200),
        cut in 1_usize..20,
    ) {
        let whole = Lines::default().take(&text).unwrap();
        let mut lines = Lines::default();
        let mut parts = Vec::new();
        for part in text.chunks(cut) {
            parts.extend(lines.take(part).unwrap());
        }
        prop_assert_eq!(whole, parts);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = FromGuest::parse(&bytes);
        let _ = FromDaemon::parse(&bytes);
    }
}
