//! Parsers of what comes over the network, and of grid files, tokens and job ids.

use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

use codec::JobId;
use codec::seal::OwnerSecret;
use protocol::grid::Grid;
use protocol::identity::{
    Authority, CARD_BYTES_MAX, CardVerifier, JoinToken, MemberCard, Peer, Validity, is_label,
    is_name,
};
use protocol::list::GridList;
use protocol::wire::announcement::Announcement;
use protocol::wire::message::{MemberRecord, Message, PutEnd, Record, Request, Response};
use rustls_pki_types::CertificateDer;

fn check<M: Message + PartialEq + Debug>(input: &[u8]) -> Option<M> {
    let message = M::from_frame(input).ok()?;
    let Ok(frame) = message.to_frame() else {
        panic!("it was short enough to be read: {message:?}")
    };
    assert!(frame.len() <= input.len(), "its shortest form is written");
    assert_eq!(M::from_frame(&frame).as_ref(), Ok(&message));
    Some(message)
}

pub(crate) fn request(input: &[u8]) -> bool {
    let request = check::<Request>(input);
    if let Some(Request::PutShard(put)) = &request
        && let Some(shard) = put.shard()
    {
        assert!(shard.at() < put.redundancy.total());
    }
    request.is_some()
}

pub(crate) fn response(input: &[u8]) -> bool {
    let response = check::<Response>(input);
    if let Some(Response::Refused(refusal)) = &response {
        let text = refusal.to_string();
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
    if let Some(Response::Announcement(announcement)) = &response
        && let Ok(announced) = Announcement::from((**announcement).clone()).check()
    {
        let curves = [&announced.presence, &announced.guest];
        let mut values = curves.iter().flat_map(|curve| curve.values());
        assert!(values.all(|value| (0.0..=1.0).contains(value)));
        assert!(announced.to_wire().check().is_ok());
    }
    response.is_some()
}

pub(crate) fn record(input: &[u8]) -> bool {
    check::<Record>(input).is_some()
}

pub(crate) fn member(input: &[u8]) -> bool {
    check::<MemberRecord>(input).is_some()
}

/// A stranger's certificate is read for the log before its signature is checked.
pub(crate) fn certificate(input: &[u8]) -> bool {
    let certificate = CertificateDer::from(input);
    let delegates = Peer::may_delegate(&certificate);
    let Ok(peer) = Peer::from_certificate(&certificate) else {
        return false;
    };
    assert!(delegates.is_ok() || peer.roles.len() <= 4);
    true
}

pub(crate) fn join_token(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else {
        return false;
    };
    let Ok(token) = JoinToken::parse(text) else {
        return false;
    };
    assert_eq!(token.to_text(), text.trim());
    true
}

pub(crate) fn put_end(input: &[u8]) -> bool {
    let Some(bytes) = input.first_chunk() else {
        return false;
    };
    assert_eq!(PutEnd::decode(bytes).encode(), *bytes);
    true
}

pub(crate) fn grid(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else {
        return false;
    };
    let base = Path::new("/base");
    let Ok(grid) = Grid::parse(text, base) else {
        return false;
    };
    let written = grid.to_text(base);
    let again = written.and_then(|text| Grid::parse(&text, base));
    assert_eq!(again.as_ref(), Ok(&grid));
    true
}

/// The body of a list is parsed only after its signature was checked, so the input is signed first.
pub(crate) fn grid_list(input: &[u8]) -> bool {
    let validity = Validity {
        from: 1_800_000_000,
        lasting: Duration::from_secs(3600),
    };
    let Ok(authority) = Authority::create(OwnerSecret::new([1; 32]), "lab", validity) else {
        panic!("an authority can be made")
    };
    let unsigned = GridList::check(authority.certificate(), input.to_vec().into());
    assert!(unsigned.is_err(), "nobody signed it");
    let bytes = GridList::sign_body(&authority, 7, input);
    let Ok((list, contents)) = GridList::check(authority.certificate(), bytes.into()) else {
        return false;
    };
    assert_eq!(list.number(), 7);
    let Ok(again) = GridList::sign(&authority, 8, &contents) else {
        panic!("it was short enough to be read")
    };
    let read = GridList::check(authority.certificate(), again.bytes().clone());
    assert_eq!(read.map(|(_, contents)| contents), Ok(contents));
    true
}

/// The body of a card is read only if the key in its certificate signed it, so the input is signed first.
pub(crate) fn card(input: &[u8]) -> bool {
    let validity = Validity {
        from: 1_800_000_000,
        lasting: Duration::from_secs(3600),
    };
    let Ok(authority) = Authority::create(OwnerSecret::new([1; 32]), "lab", validity) else {
        panic!("an authority can be made")
    };
    let Ok(verifier) = CardVerifier::new(authority.certificate()) else {
        panic!("its certificate can be used")
    };
    assert!(verifier.read(input).is_err(), "nobody signed it");
    let bytes = MemberCard::sign_body(&OwnerSecret::new([2; 32]), input);
    let Ok(card) = verifier.read(&bytes) else {
        return false;
    };
    assert_eq!(card.bytes(), bytes);
    assert!(bytes.len() <= CARD_BYTES_MAX && is_name(card.name()));
    let labels = [&card.whereabouts().site, &card.whereabouts().owner];
    assert!(labels.into_iter().flatten().all(|label| is_label(label)));
    true
}

pub(crate) fn job_id(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else {
        return false;
    };
    let Ok(job) = text.parse::<JobId>() else {
        return false;
    };
    assert_eq!(job.as_str(), text);
    assert!(!text.is_empty() && text.len() <= 255 && !text.contains(['\0', '\n', '%']));
    assert!(
        job.components()
            .all(|part| !matches!(part, "" | "." | ".."))
    );
    let name = job.file_name();
    assert!(!name.contains('/') && name.len() <= 255 && name != "." && name != "..");
    true
}
