//! Members that keep the places for lists of the grid, and members that bring one.

use std::time::Duration;

use protocol::identity::Role;
use protocol::net::stream::{Exchange, write_frame};
use protocol::net::{Offered, offer_list, read_frame};
use protocol::wire::Code;
use protocol::wire::message::{Refusal, Request, Response};

use crate::client::{Client, LIMIT, code};
use crate::lab::Lab;

/// Offers a list of which only `bytes` come.
pub(crate) async fn unfinished(client: &Client, bytes: &[u8]) -> Exchange {
    let (send, recv) = client.connection.open_bi().await.unwrap();
    let mut exchange = Exchange { send, recv };
    let offer = Request::PutList {
        number: u64::MAX,
        bytes: 8 << 20,
    };
    write_frame(&mut exchange.send, &offer).await.unwrap();
    exchange.send.write_all(bytes).await.unwrap();
    exchange
}

/// Waits until all places for lists of members are taken.
pub(crate) async fn crowded(lab: &Lab, client: &Client) {
    for number in 1..50 {
        match offer_list(&client.connection, &lab.list(number)).await {
            Ok(_) => {}
            refused => return assert_eq!(code(refused), Code::Busy),
        }
    }
    panic!("there is always a place");
}

#[tokio::test]
async fn nobody_keeps_the_authoritys_list_out_of_a_host() {
    let lab = Lab::new();
    let daemon = lab.start().await;
    let addr = daemon.local_addr();
    let ann = lab.member(Role::Submitter);
    let bob = lab.member(Role::Donor);
    let mut held = Vec::new();
    for who in [lab.job_key(&ann), ann.clone(), bob] {
        let client = Client::connect(&lab, &who, addr).await;
        for _ in 0..32 {
            held.push(unfinished(&client, &[1]).await);
        }
    }
    let cyd = Client::connect(&lab, &lab.member(Role::Submitter), addr).await;
    crowded(&lab, &cyd).await;
    // The places of small changes, such as commits, are not taken.
    let removal = Request::Forget {
        checkpoint: codec::CheckpointId([1; 16]),
    };
    cyd.ask(&removal).await.unwrap();
    let authority = lab.named(Role::Admin, "authority");
    let authority = Client::connect(&lab, &authority, addr).await;
    let taken = offer_list(&authority.connection, &lab.list(100)).await;
    assert_eq!(taken.unwrap(), Offered::Taken);
    drop(held);
    daemon.stop().await;
}

#[tokio::test]
async fn a_list_that_does_not_move_gives_way_to_one_that_waits() {
    let lab = Lab::new();
    let mut config = lab.config();
    config.gives_way_after = Duration::from_millis(100);
    let daemon = ckpt_store::Daemon::start(&config).await.unwrap();
    let addr = daemon.local_addr();
    let mut held = Vec::new();
    for _ in 0..2 {
        let client = Client::connect(&lab, &lab.member(Role::Submitter), addr).await;
        held.push((unfinished(&client, &[]).await, client));
    }
    let cyd = Client::connect(&lab, &lab.member(Role::Submitter), addr).await;
    let taken = offer_list(&cyd.connection, &lab.list(5)).await;
    assert_eq!(taken.unwrap(), Offered::Taken);
    // One of the two lost its place, and hears that it may try again.
    let mut answers = held.iter_mut();
    let first = answers.next().unwrap();
    let second = answers.next().unwrap();
    let answer = tokio::select! {
        answer = read_frame(&mut first.0.recv, LIMIT) => answer.unwrap(),
        answer = read_frame(&mut second.0.recv, LIMIT) => answer.unwrap(),
    };
    assert!(
        matches!(
            answer,
            Response::Refused(Refusal {
                code: Code::Busy,
                retry_after_ms: 1..,
                ..
            })
        ),
        "{answer:?}"
    );
    daemon.stop().await;
}
