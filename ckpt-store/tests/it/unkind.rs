//! Clients that break the rules, break off, or belong to another grid.

use std::net::UdpSocket;
use std::time::Duration;

use ckpt_store::StartError;
use protocol::identity::Role;
use protocol::net::stream::ExchangeError;
use protocol::net::{ConnectError, EndpointConfig, client, connect, read_frame};
use protocol::wire::Code;
use protocol::wire::message::{Request, Response};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::client::{Client, LIMIT, code};
use crate::lab::{Lab, MIB};
use crate::sample::Sample;

/// What the host answers to these bytes at the beginning of a stream.
async fn answer(client: &Client, bytes: &[u8]) -> Result<Response, ExchangeError> {
    let (mut send, mut recv) = client.connection.open_bi().await.unwrap();
    send.write_all(bytes).await.unwrap();
    send.finish().unwrap();
    match read_frame(&mut recv, LIMIT).await? {
        Response::Refused(refusal) => Err(ExchangeError::Refused(refusal)),
        response => Ok(response),
    }
}

#[tokio::test]
async fn an_earlier_client_that_asks_for_sums_is_refused_and_served_on() {
    let lab = Lab::new();
    let daemon = lab.start().await;
    let owner = lab.member(Role::Submitter);
    let client = Client::connect(&lab, &owner, daemon.local_addr()).await;
    // The frame of the request as earlier programs send it, on a connection that they go on to use.
    let asked = answer(&client, &[1, 0, 0, 0, 33]).await;
    assert_eq!(code(asked), Code::BadRequest);
    let announced = client.ask(&Request::Announcement).await;
    assert!(matches!(announced, Ok((Response::Announcement(_), _))));
}

#[tokio::test]
async fn garbage_is_refused_and_others_are_served() {
    let lab = Lab::new();
    let daemon = lab.start().await;
    let owner = lab.member(Role::Submitter);
    let client = Client::connect(&lab, &owner, daemon.local_addr()).await;
    let mut rng = SmallRng::seed_from_u64(1);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..2000 {
        let mut packet = vec![0; rng.random_range(1..1400)];
        rng.fill(packet.as_mut_slice());
        socket.send_to(&packet, daemon.local_addr()).unwrap();
    }
    assert_eq!(
        code(answer(&client, &[5, 0, 0, 0, 99, 1, 2, 3, 4]).await),
        Code::BadRequest
    );
    assert_eq!(
        code(answer(&client, &[2, 0, 0, 0, 0, 0]).await),
        Code::BadRequest
    );
    let four_gib = u32::MAX.to_le_bytes();
    assert_eq!(code(answer(&client, &four_gib).await), Code::BadRequest);
    assert!(answer(&client, &[3, 0, 0]).await.is_err());
    for _ in 0..200 {
        let mut frame = vec![0; rng.random_range(4..100)];
        rng.fill(frame.as_mut_slice());
        let len = (frame.len() as u32 - 4).to_le_bytes();
        frame[..4].copy_from_slice(&len);
        let _ = answer(&client, &frame).await;
    }
    let sample = Sample::new(&owner.secret, "42", 1, 1);
    client.put(&sample, 0).await.unwrap();
    assert!(client.holds(&sample, 0).await.unwrap());
    daemon.stop().await;
}

#[tokio::test]
async fn broken_transfers_leave_nothing() {
    let lab = Lab::new();
    let daemon = lab.start().await;
    let owner = lab.member(Role::Submitter);
    let client = Client::connect(&lab, &owner, daemon.local_addr()).await;
    let sample = Sample::with_rows(&owner.secret, "42", 1, 1, &[100, 200]);

    let mut too_long = client.begin(sample.put(0)).await.unwrap();
    let len = (2 * MIB as u32).to_le_bytes();
    too_long.exchange.send.write_all(&len).await.unwrap();
    assert_eq!(code(too_long.answer().await), Code::BadRequest);

    let mut wrong = client.begin(sample.put(0)).await.unwrap();
    wrong.block(b"something else").await.unwrap();
    wrong.block(b"than was promised").await.unwrap();
    assert_eq!(code(wrong.end(&sample, 0).await), Code::Mismatch);

    let mut ended = client.begin(sample.put(0)).await.unwrap();
    ended.block(&sample.blocks[0][0]).await.unwrap();
    ended.exchange.send.finish().unwrap();
    assert!(ended.answer().await.is_err());

    let mut cut = client.begin(sample.put(0)).await.unwrap();
    cut.block(&sample.blocks[0][0]).await.unwrap();
    assert_eq!(
        code(client.begin(sample.put(0)).await.map(drop)),
        Code::Exists
    );
    client.connection.close(0_u32.into(), b"");

    let client = Client::connect(&lab, &owner, daemon.local_addr()).await;
    let incoming = lab.data().join("incoming");
    let deadline = tokio::time::Instant::now() + LIMIT;
    while client.status().await.used_bytes > 0 || incoming.read_dir().unwrap().count() > 0 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "space is not given back"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    client.put(&sample, 0).await.unwrap();
    assert!(client.holds(&sample, 0).await.unwrap());
    daemon.stop().await;
}

#[tokio::test]
async fn more_shards_than_places_are_asked_to_come_back() {
    let lab = Lab::new();
    let mut config = lab.config();
    config.memory_bytes = 0;
    let daemon = ckpt_store::Daemon::start(&config).await.unwrap();
    let owner = lab.member(Role::Submitter);
    let client = Client::connect(&lab, &owner, daemon.local_addr()).await;
    let sample = |version| Sample::new(&owner.secret, "42", version, version);
    let mut first = client.begin(sample(1).put(0)).await.unwrap();
    match client.begin(sample(2).put(0)).await.err() {
        Some(ExchangeError::Refused(refusal)) => {
            assert_eq!(refusal.code, Code::Busy);
            assert!(refusal.retry_after_ms > 0);
        }
        other => panic!("{other:?}"),
    }
    first.blocks(&sample(1), 0).await.unwrap();
    first.end(&sample(1), 0).await.unwrap();
    client.put(&sample(2), 0).await.unwrap();
    daemon.stop().await;
}

#[tokio::test]
async fn another_grid_gets_no_byte() {
    let lab = Lab::new();
    let daemon = lab.start().await;
    let mut elsewhere = Lab::new();
    // The member trusts our authority, but its certificate is from another one.
    let foreign = {
        let authority = protocol::identity::Authority::create(
            codec::seal::OwnerSecret::new([201; 32]),
            "elsewhere",
            protocol::identity::Validity {
                from: 0,
                lasting: Duration::from_secs(4_000_000_000),
            },
        )
        .unwrap();
        let secret = codec::seal::OwnerSecret::new([50; 32]);
        let validity = protocol::identity::Validity {
            from: 0,
            lasting: Duration::from_secs(4_000_000_000),
        };
        let certificate = authority.sign(&[Role::Submitter], "foreign", secret.id(), validity);
        elsewhere.grid.authority = authority.certificate().clone();
        protocol::identity::Identity::new(secret, certificate.unwrap()).unwrap()
    };
    let config = EndpointConfig::new(foreign.clone(), lab.grid.authority.clone());
    let endpoint = client(&config, ([127, 0, 0, 1], 0).into()).unwrap();
    // In TLS 1.3 a client learns only with the first answer that it is not accepted.
    if let Ok(connection) = connect(&endpoint, daemon.local_addr(), lab.host_id()).await {
        let asked = protocol::net::stream::request(&connection, &Request::Status, LIMIT);
        assert!(matches!(asked.await, Err(ExchangeError::Lost(_))));
    }
    let config = EndpointConfig::new(foreign, elsewhere.grid.authority.clone());
    let endpoint = client(&config, ([127, 0, 0, 1], 0).into()).unwrap();
    let refused = connect(&endpoint, daemon.local_addr(), lab.host_id()).await;
    assert!(
        matches!(refused, Err(ConnectError::Certificate(_))),
        "{refused:?}"
    );
    let owner = lab.member(Role::Submitter);
    let client = Client::connect(&lab, &owner, daemon.local_addr()).await;
    client.status().await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_data_directory_has_one_daemon() {
    let lab = Lab::new();
    let daemon = lab.start().await;
    let second = ckpt_store::Daemon::start(&lab.config()).await;
    assert!(matches!(second, Err(StartError::Locked(_))), "{second:?}");
    daemon.stop().await;
    lab.start().await.stop().await;
}
