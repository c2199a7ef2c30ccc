//! Clients without a certificate at a registry that redeems tokens, and what they get.

use std::time::Duration;

use ckpt_store::registry::RegistryServer;
use protocol::identity::{HostId, Role};
use protocol::net::stream::{read_frame, request};
use protocol::net::{EndpointConfig, Offered, client, connect_as, join, offer_list};
use protocol::wire::Code;
use protocol::wire::announcement::Announcement;
use protocol::wire::message::{JoinRequest, MemberRecord, Presence, Request, Response};
use protocol::wire::parts::Parts;

use crate::client::{Client, LIMIT, code};
use crate::lab::Lab;
use crate::lists;

#[tokio::test]
async fn strangers_get_little_and_not_for_long() {
    let lab = Lab::new();
    let config = lab.registry();
    let id = config.identity.secret.id();
    let registry = RegistryServer::start(config).unwrap();
    let addr = registry.local_addr();
    let endpoint = join::stranger(id, ([127, 0, 0, 1], 0).into()).unwrap();
    let mut strangers = Vec::new();
    for _ in 0..100 {
        let connecting = endpoint.connect(addr, Role::Registry.dns_name()).unwrap();
        let connection = connecting.await.unwrap();
        let (mut send, recv) = connection.open_bi().await.unwrap();
        // The beginning of a frame that never ends.
        send.write_all(&[100, 0]).await.unwrap();
        strangers.push((connection, send, recv));
    }
    let newest = &strangers.last().unwrap().0;
    let second = tokio::time::timeout(Duration::from_millis(300), newest.open_bi()).await;
    assert!(second.is_err(), "one request is all that a stranger needs");
    let open = || {
        strangers
            .iter()
            .filter(|one| one.0.close_reason().is_none())
            .count()
    };
    let crowd = async {
        while open() > 64 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), crowd)
        .await
        .expect("64 at once");
    // A member is served meanwhile.
    let donor = lab.member(Role::Donor);
    let settings = EndpointConfig::new(donor, lab.grid.authority.clone());
    let member = client(&settings, ([127, 0, 0, 1], 0).into()).unwrap();
    let connection = connect_as(&member, addr, HostId(id), Role::Registry)
        .await
        .unwrap();
    let asked = Request::Heartbeat {
        epoch: 1,
        holdings: 1,
    };
    for _ in 0..40 {
        request(&connection, &asked, LIMIT).await.unwrap();
    }
    let gone = async {
        while open() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(15), gone)
        .await
        .expect("nobody stays for long");
    assert!(connection.close_reason().is_none());
    registry.stop().await;
}

/// An announcement of a host under this name.
fn announcement(name: &str) -> Request {
    let presence = Presence {
        name: name.into(),
        addr: ([127, 0, 0, 1], 7600).into(),
        site: None,
        owner: None,
        capacity_bytes: 1,
        free_bytes: 1,
        epoch: 1,
        announcement: Announcement::default(),
        parts: Parts::default(),
    };
    Request::Announce(Box::new(presence))
}

/// The names of the hosts that a registry knows.
async fn names(client: &Client) -> Vec<String> {
    let (answer, mut exchange) = client.ask(&Request::Members { after: None }).await.unwrap();
    let Response::Members { count, .. } = answer else {
        panic!("{answer:?}");
    };
    let mut names = Vec::new();
    for _ in 0..count {
        let record: MemberRecord = read_frame(&mut exchange.recv, LIMIT).await.unwrap();
        names.push(record.presence.name);
    }
    names.sort();
    names
}

#[tokio::test]
async fn a_donor_is_known_by_the_name_in_its_certificate_and_by_no_other() {
    let lab = Lab::new();
    let config = lab.registry();
    let id = HostId(config.identity.secret.id());
    let registry = RegistryServer::start(config).unwrap();
    let addr = registry.local_addr();
    let evil = lab.named(Role::Donor, "evil");
    let h1 = lab.named(Role::Donor, "h1");
    let first = Client::connect_to_registry(&lab, &h1, id, addr).await;
    first.ask(&announcement("h1")).await.unwrap();
    let other = Client::connect_to_registry(&lab, &evil, id, addr).await;
    let suffixed = format!("evil-{}", evil.secret.id());
    for name in ["h1", "Evil", &suffixed, "evil ", ""] {
        let refused = other.ask(&announcement(name)).await;
        assert_eq!(code(refused), Code::Forbidden, "{name:?}");
    }
    assert_eq!(names(&first).await, ["h1"]);
    other.ask(&announcement("evil")).await.unwrap();
    assert_eq!(names(&first).await, ["evil", "h1"]);
    // A host that is known does not change its name either.
    let refused = other.ask(&announcement("h1")).await;
    assert_eq!(code(refused), Code::Forbidden);
    assert_eq!(names(&first).await, ["evil", "h1"]);
    // A renewed certificate has the same name, and the host goes on.
    let renewed = lab.renewed(h1.secret.clone(), Role::Donor, "h1");
    assert_ne!(renewed.certificate, h1.certificate);
    let again = Client::connect_to_registry(&lab, &renewed, id, addr).await;
    again.ask(&announcement("h1")).await.unwrap();
    assert_eq!(names(&again).await, ["evil", "h1"]);
    registry.stop().await;
}

#[tokio::test]
async fn nobody_keeps_the_authoritys_list_out_of_a_registry() {
    let lab = Lab::new();
    let config = lab.registry();
    let id = HostId(config.identity.secret.id());
    let registry = RegistryServer::start(config).unwrap();
    let addr = registry.local_addr();
    let ann = lab.member(Role::Submitter);
    let bob = lab.member(Role::Donor);
    let mut held = Vec::new();
    let members = [lab.job_key(&ann), ann.clone(), bob];
    for who in members.iter().chain(&members) {
        let client = Client::connect_to_registry(&lab, who, id, addr).await;
        // As many as one connection may have: some are received and others wait, as far as there is room.
        for _ in 0..8 {
            held.push(lists::unfinished(&client, &[1]).await);
        }
    }
    let cyd = lab.member(Role::Submitter);
    let cyd = Client::connect_to_registry(&lab, &cyd, id, addr).await;
    lists::crowded(&lab, &cyd).await;
    let authority = lab.named(Role::Admin, "authority");
    let authority = Client::connect_to_registry(&lab, &authority, id, addr).await;
    let taken = offer_list(&authority.connection, &lab.list(100)).await;
    assert_eq!(taken.unwrap(), Offered::Taken);
    assert_eq!(registry.members().grid().number(), 100);
    drop(held);
    registry.stop().await;
}

#[tokio::test]
async fn without_a_token_nobody_learns_which_names_there_are() {
    let lab = Lab::new();
    let config = lab.registry();
    let id = config.identity.secret.id();
    let registry = RegistryServer::start(config).unwrap();
    let addr = registry.local_addr();
    let donor = lab.named(Role::Donor, "secret-host");
    let connection = Client::connect_to_registry(&lab, &donor, HostId(id), addr).await;
    connection.ask(&announcement("secret-host")).await.unwrap();

    let key = lab.member(Role::Donor).secret;
    let good = lab.token(HostId(id), addr);
    let mut forged = good.to_text();
    let last = forged.pop().unwrap();
    forged.push(if last == '0' { '1' } else { '0' });
    let ask = async |token: &str, name: &str| {
        let endpoint = join::stranger(id, ([127, 0, 0, 1], 0).into()).unwrap();
        let connecting = endpoint.connect(addr, Role::Registry.dns_name()).unwrap();
        let connection = connecting.await.unwrap();
        let asked = Request::Join(JoinRequest {
            signature: key.sign(&JoinRequest::signed(token, name)).to_vec(),
            token: token.to_owned(),
            name: name.to_owned(),
            key: key.id(),
            numbered: false,
        });
        request(&connection, &asked, LIMIT).await.map(|_| ())
    };
    let text = |refused: Result<(), _>| format!("{:?}", refused.err());
    let there = ask(&forged, "secret-host").await;
    let not_there = ask(&forged, "nobody").await;
    assert_eq!(text(there), text(not_there));
    // With a valid token, the name is checked.
    assert_eq!(
        code(ask(&good.to_text(), "secret-host").await),
        Code::Exists
    );
    ask(&good.to_text(), "another").await.unwrap();
    registry.stop().await;
}
