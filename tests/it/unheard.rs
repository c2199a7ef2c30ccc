//! Changes of the grid of which not all members hear: exit statuses, busy members, and members that keep
//! the list out.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use codec::seal::OwnerSecret;
use protocol::authority_dir::{AuthorityDir, Certify, HostEntry};
use protocol::grid::{Grid as GridFile, GridRegistry};
use protocol::identity::{AnyKey, Identity, Role, Validity, read_any_key};
use protocol::net::{EndpointConfig, client, connect_as, read_frame, server, write_frame};
use protocol::wire::Code;
use protocol::wire::message::{Refusal, Request, Response};
use quinn::{Connection, SendStream};
use tests::machines::Machines;
use tests::port::free_address;
use tests::program::wait_until;
use transfer::herald::{Herald, OnBusy};

use crate::lists::{authority, by_hand, sign, text, up};

const LIMIT: Duration = Duration::from_secs(60);

/// Of a command that sends a list: how many members were asked, answered and have it.
pub(crate) fn counts(report: &serde_json::Value) -> [u64; 3] {
    let sent = &report["sent"];
    ["asked", "answered", "have"].map(|name| sent[name].as_u64().unwrap_or(u64::MAX))
}

#[test]
fn a_revocation_that_nobody_hears_of_ends_with_1_and_says_so() -> Result<()> {
    let mut machines = by_hand(2)?;
    let list = authority(&machines).join("grid.members");
    let before = fs::read(&list)?;
    for host in ["h1", "h2"] {
        machines.stop(host)?;
    }
    let failed = machines
        .ckpt("admin", &["--json", "grid", "revoke", "bob"])?
        .expect(1)?
        .json()?;
    ensure!(counts(&failed) == [2, 0, 0], "{failed}");
    let written = fs::read(&list)?;
    ensure!(written != before, "the list was written nevertheless");
    // The same again: it says what holds, and the next step.
    let again = machines
        .ckpt("admin", &["grid", "revoke", "bob"])?
        .expect(1)?;
    let said = String::from_utf8_lossy(&again.stdout).into_owned();
    for part in [
        "NO MEMBER HAS IT",
        "none of 2 members answered",
        "all of them go by the list before it",
        text(&list)?,
        "next: the same command again",
    ] {
        ensure!(said.contains(part), "{part:?} is not in {said}");
    }
    // Once a host is up, the same command informs it.
    let addr = machines.address("h1")?;
    machines.serve("h1", &["--listen", &addr])?;
    let some = machines
        .ckpt("admin", &["--json", "grid", "revoke", "bob"])?
        .expect(3)?
        .json()?;
    ensure!(counts(&some) == [2, 1, 1], "{some}");
    ensure!(some["sent"]["silent"][0]["host"] == "h2", "{some}");
    ensure!(machines.ckpt("bob", &["list"])?.code == Some(6));
    // A host that is gone need not hear that it was removed.
    let all = machines.json("admin", &["grid", "remove", "h2"])?;
    ensure!(counts(&all) == [1, 1, 1], "{all}");
    Ok(())
}

#[test]
fn other_changes_that_nobody_hears_of_end_with_1_and_a_new_host_brings_the_list_along() -> Result<()>
{
    let mut machines = by_hand(2)?;
    for host in ["h1", "h2"] {
        machines.stop(host)?;
    }
    let renew = [
        "--json", "grid", "renew", "--within", "400d", "--ttl", "500d",
    ];
    let renewed = machines.ckpt("admin", &renew)?.expect(1)?.json()?;
    ensure!(counts(&renewed) == [2, 0, 0], "{renewed}");
    // Now nothing is left to renew, and the list is sent again.
    let again = machines.ckpt("admin", &["--json", "grid", "renew"])?;
    ensure!(counts(&again.expect(1)?.json()?) == [2, 0, 0]);
    let removed = machines.ckpt("admin", &["--json", "grid", "remove", "h2"])?;
    ensure!(counts(&removed.expect(1)?.json()?) == [1, 0, 0]);
    // Nobody has to be up for a new host: it is given the list.
    machines.store("h3", &["init", "--name", "h3"])?.expect(0)?;
    let addr = free_address()?.to_string();
    let signed = sign(&machines, "h3", &addr, &["--json"])?.expect(0)?;
    ensure!(counts(&signed.json()?) == [1, 0, 0]);
    Ok(())
}

#[test]
fn with_one_of_two_registries_up_a_revocation_ends_with_3() -> Result<()> {
    let mut machines = Machines::new()?;
    machines.found(&free_address()?.to_string())?;
    let tokens = machines.invite(0, 1)?;
    machines.ckpt("ada", &["join", &tokens[0]])?.expect(0)?;
    let made = machines.store("r2", &["init", "--role", "registry", "--name", "r2"])?;
    made.expect(0)?;
    let public = machines.usual("r2", "registry/identity.pub");
    let addr = free_address()?.to_string();
    let sign = ["grid", "sign", "--role", "registry", "--pubkey"];
    let more = [text(&public)?, "--addr", &addr];
    machines
        .ckpt("admin", &[&sign, more.as_slice()].concat())?
        .expect(0)?;
    let key = machines.json("ada", &["init"])?["id"]
        .as_str()
        .context("id")?
        .to_owned();
    let revoke = ["grid", "revoke", &key];
    let some = machines.ckpt("admin", &revoke)?.expect(3)?;
    let said = String::from_utf8_lossy(&some.stdout).into_owned();
    ensure!(said.contains("1 of 2 members have it"), "{said}");
    ensure!(
        said.lines().any(|line| line.starts_with("  r2: ")),
        "{said}"
    );
    machines.stop("admin")?;
    machines.ckpt("admin", &revoke)?.expect(1)?;
    Ok(())
}

/// Offers a list of which only the first byte comes, as often as a connection may.
async fn keep_lists_out(
    who: &Identity,
    grid: &GridFile,
    registry: &GridRegistry,
) -> Result<(Connection, Vec<SendStream>)> {
    let config = EndpointConfig::new(who.clone(), grid.authority.clone());
    let endpoint = client(&config, ([127, 0, 0, 1], 0).into())?;
    let addr = registry.addr.ip().context("an address")?;
    let connection = connect_as(&endpoint, addr, registry.id, Role::Registry).await?;
    let mut held = Vec::new();
    for _ in 0..8 {
        let (mut send, _) = connection.open_bi().await?;
        let offer = Request::PutList {
            number: u64::MAX,
            bytes: 8 << 20,
        };
        write_frame(&mut send, &offer).await?;
        send.write_all(&[1]).await?;
        held.push(send);
    }
    Ok((connection, held))
}

/// The holder of a job key takes all places for lists at the only registry.
#[test]
fn whoever_is_revoked_does_not_keep_the_list_out() -> Result<()> {
    let mut machines = Machines::new()?;
    machines.found(&free_address()?.to_string())?;
    let tokens = machines.invite(1, 1)?;
    machines.join("h1", &tokens[0])?;
    machines.ckpt("ada", &["join", &tokens[1]])?.expect(0)?;
    wait_until("the host is announced", LIMIT, || {
        Ok(up(&machines, "ada")?.len() == 1)
    })?;
    machines
        .ckpt("ada", &["key", "for-job", "--job", "42", "-o", "job.key"])?
        .expect(0)?;
    let AnyKey::Job(thief) = read_any_key(&machines.path("ada", "job.key"))? else {
        bail!("not a job key");
    };
    let grid = GridFile::load(&authority(&machines).join("grid.toml"))?;
    let registry = grid.registries.first().context("no registry")?;
    let runtime = tokio::runtime::Runtime::new()?;
    let held = runtime.block_on(keep_lists_out(&thief, &grid, registry))?;
    let key = machines.json("ada", &["init"])?["id"]
        .as_str()
        .context("id")?
        .to_owned();
    let revoked = machines.json("admin", &["grid", "revoke", &key])?;
    ensure!(counts(&revoked) == [1, 1, 1], "{revoked}");
    wait_until("ada is refused", LIMIT, || {
        Ok(machines.ckpt("ada", &["list"])?.code == Some(6))
    })?;
    drop(held);
    Ok(())
}

/// A registry that is busy as often as `busy` says, and then takes the list. `known` is the number of its
/// own list.
async fn busy_registry(endpoint: quinn::Endpoint, mut busy: u32, known: u64) -> Result<()> {
    let connection = endpoint.accept().await.context("nobody came")?.await?;
    loop {
        let (mut send, mut recv) = connection.accept_bi().await?;
        let asked: Request = read_frame(&mut recv, LIMIT).await?;
        let answer = match asked {
            Request::List { .. } => Response::List {
                number: 0,
                bytes: 0,
            },
            Request::PutList { number, .. } if number <= known => Response::List {
                number: known,
                bytes: 0,
            },
            Request::PutList { .. } if busy > 0 => {
                busy -= 1;
                Response::Refused(Refusal {
                    retry_after_ms: 1,
                    ..Refusal::new(Code::Busy, "other lists are being received")
                })
            }
            _ => Response::Noted,
        };
        write_frame(&mut send, &answer).await?;
        send.finish()?;
    }
}

#[tokio::test]
async fn a_busy_member_is_asked_again_and_one_that_stays_busy_did_answer() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let validity = Validity {
        from: now,
        lasting: Duration::from_secs(3600),
    };
    let mut lab = AuthorityDir::create(dir.path(), "lab", OwnerSecret::new([9; 32]), validity)?;
    // How often it is busy, and the number of its list; what is said of it, and who is reported as busy.
    let cases = [
        (2, 0, None, 1),
        (u32::MAX, 0, Some("answered, but was busy"), 1),
        (0, 1_000, Some("has list number 1000, which is newer"), 0),
    ];
    for (number, (busy, known, why, reported)) in (1_u8..).zip(cases) {
        let secret = OwnerSecret::new([number; 32]);
        let name = format!("r{number}");
        let wish = |addr: std::net::SocketAddr| Certify {
            roles: vec![Role::Registry],
            name: name.clone(),
            key: secret.id(),
            validity,
            host: Some(HostEntry {
                addr: addr.into(),
                site: None,
                owner: None,
            }),
        };
        // The port is known once the endpoint is open, which needs a certificate.
        let any = ([127, 0, 0, 1], 0).into();
        let unlisted = Certify {
            host: None,
            ..wish(any)
        };
        let identity = Identity::new(secret.clone(), lab.certify(&unlisted)?)?;
        let config = EndpointConfig::new(identity, lab.grid().authority.clone());
        let endpoint = server(&config, any)?;
        lab.certify(&wish(endpoint.local_addr()?))?;
        let serving = tokio::spawn(busy_registry(endpoint, busy, known));
        let herald = Herald::reach(lab.grid(), &lab.herald(now)?).await;
        let again = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&again);
        let on_busy: OnBusy = Arc::new(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let list = lab.grid().list.clone().context("no list")?;
        let patience = match busy {
            u32::MAX => Duration::from_millis(600),
            _ => LIMIT,
        };
        let delivery = herald.send(&list, patience, &on_busy).await;
        serving.abort();
        match why {
            None => ensure!(delivery.by.len() == 1, "{delivery:?}"),
            Some(why) => {
                let [without] = delivery.without.as_slice() else {
                    bail!("{delivery:?}");
                };
                ensure!(without.answered && without.why.contains(why), "{without:?}");
            }
        }
        ensure!(again.load(Ordering::Relaxed) == reported, "{delivery:?}");
        lab.remove(&name)?;
    }
    Ok(())
}
