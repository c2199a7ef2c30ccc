//! Clients without a certificate at a registry that redeems tokens, and what they get.

use std::time::Duration;

use ckpt_store::registry::RegistryServer;
use protocol::identity::{HostId, Role};
use protocol::net::stream::request;
use protocol::net::{EndpointConfig, client, connect_as, join};
use protocol::wire::Code;
use protocol::wire::announcement::Announcement;
use protocol::wire::message::{JoinRequest, Presence, Request};
use protocol::wire::parts::Parts;

use crate::client::{LIMIT, code};
use crate::lab::Lab;

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

#[tokio::test]
async fn without_a_token_nobody_learns_which_names_there_are() {
    let lab = Lab::new();
    let config = lab.registry();
    let id = config.identity.secret.id();
    let registry = RegistryServer::start(config).unwrap();
    let addr = registry.local_addr();
    let donor = lab.member(Role::Donor);
    let settings = EndpointConfig::new(donor, lab.grid.authority.clone());
    let member = client(&settings, ([127, 0, 0, 1], 0).into()).unwrap();
    let connection = connect_as(&member, addr, HostId(id), Role::Registry)
        .await
        .unwrap();
    let presence = Presence {
        name: "secret-host".into(),
        addr: ([127, 0, 0, 1], 7600).into(),
        site: None,
        owner: None,
        capacity_bytes: 1,
        free_bytes: 1,
        epoch: 1,
        announcement: Announcement::default(),
        parts: Parts::default(),
    };
    let announce = Request::Announce(Box::new(presence));
    request(&connection, &announce, LIMIT).await.unwrap();

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
        });
        request(&connection, &asked, LIMIT).await.map(|_| ())
    };
    let text = |refused: Result<(), _>| format!("{:?}", refused.err());
    let (there, not_there) = (
        ask(&forged, "secret-host").await,
        ask(&forged, "nobody").await,
    );
    assert_eq!(text(there), text(not_there));
    // With a valid token, the name is checked.
    assert_eq!(
        code(ask(&good.to_text(), "secret-host").await),
        Code::Exists
    );
    ask(&good.to_text(), "another").await.unwrap();
    registry.stop().await;
}
