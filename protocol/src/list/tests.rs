use std::collections::BTreeSet;
use std::time::Duration;

use codec::seal::OwnerSecret;
use proptest::prelude::*;

use super::*;
use crate::grid::Grid;
use crate::identity::Validity;

fn authority(seed: u8) -> Authority {
    let validity = Validity {
        from: 1_800_000_000,
        lasting: Duration::from_secs(3600),
    };
    Authority::create(OwnerSecret::new([seed; 32]), "lab", validity).unwrap()
}

fn host(number: u8) -> GridHost {
    GridHost {
        name: format!("h{number}"),
        addr: Address::Ip(([10, 0, 0, number], 7600).into()),
        id: HostId(OwnerId([number; 32])),
        site: Some("west".into()),
        owner: None,
    }
}

fn contents(authority: &Authority) -> Contents {
    let revoked = BTreeSet::from([OwnerId([9; 32])]);
    Contents {
        hosts: vec![host(1), host(2)],
        registries: vec![GridRegistry {
            name: "r1".into(),
            addr: "[2001:db8::1]:7601".parse().unwrap(),
            id: HostId(OwnerId([7; 32])),
        }],
        etcd: vec!["10.0.0.5:2379".into()],
        revoked: authority.revoke(&Revocations::default(), revoked).unwrap(),
        renewed: Vec::new(),
    }
}

#[test]
fn a_list_is_believed_only_as_the_authority_signed_it() {
    let lab = authority(1);
    let list = GridList::sign(&lab, 7, &contents(&lab)).unwrap();
    let read = GridList::check(lab.certificate(), list.bytes().clone());
    assert_eq!(read, Ok((list.clone(), contents(&lab))));

    for at in 0..list.bytes().len() {
        let mut bytes = list.bytes().to_vec();
        bytes[at] ^= 1;
        let refused = GridList::check(lab.certificate(), bytes.into()).unwrap_err();
        let expected = match at {
            0..8 => ListError::NoList,
            8..40 => ListError::OtherGrid,
            40 => ListError::Signature(6),
            _ => ListError::Signature(refused_number(&refused)),
        };
        assert_eq!(refused, expected, "byte {at}");
    }
    for kept in 0..list.bytes().len() {
        let cut = list.bytes().slice(..kept);
        assert!(GridList::check(lab.certificate(), cut).is_err(), "{kept}");
    }
    let other = GridList::check(authority(2).certificate(), list.bytes().clone());
    assert_eq!(other, Err(ListError::OtherGrid));
}

#[test]
fn a_name_is_said_as_it_is() {
    let lab = authority(1);
    let mut named = contents(&lab);
    named.hosts[1].addr = "lab-3.example:7600".parse().unwrap();
    let list = GridList::sign(&lab, 7, &named).unwrap();
    let (_, read) = GridList::check(lab.certificate(), list.bytes().clone()).unwrap();
    assert_eq!(read, named);
}

#[test]
fn renewed_certificates_travel_but_for_those_of_revoked_keys_and_nonsense() {
    let lab = authority(1);
    let validity = Validity {
        from: 1_800_000_000,
        lasting: Duration::from_secs(60),
    };
    let sign = |seed: u8| {
        let key = OwnerSecret::new([seed; 32]).id();
        lab.sign(&[crate::identity::Role::Donor], "h", key, validity)
            .unwrap()
    };
    let good = sign(5);
    let mut said = contents(&lab);
    let bad = OwnerSecret::new([6; 32]).id();
    said.revoked = lab
        .revoke(&Revocations::default(), BTreeSet::from([bad]))
        .unwrap();
    said.renewed = vec![good.clone(), sign(6), CertificateDer::from(vec![1, 2, 3])];
    let list = GridList::sign(&lab, 7, &said).unwrap();
    let (list, read) = GridList::check(lab.certificate(), list.bytes().clone()).unwrap();
    assert_eq!(read.renewed, std::slice::from_ref(&good));
    let mut grid = Grid::new("lab", lab.certificate().clone());
    grid.follow(list, read);
    let key = OwnerSecret::new([5; 32]).id();
    assert_eq!(grid.renewed_for(&key, 1_800_000_059), Some(&good));
    assert_eq!(
        grid.renewed_for(&key, 1_800_000_060),
        None,
        "it is not newer"
    );
    assert_eq!(grid.renewed_for(&bad, 0), None);
}

#[test]
fn port_0_in_a_list_replaces_no_address() {
    let lab = authority(1);
    let mut said = contents(&lab);
    for host in &mut said.hosts {
        host.addr = "10.0.0.7:0".parse().unwrap();
    }
    let list = GridList::sign(&lab, 7, &said).unwrap();
    let (list, read) = GridList::check(lab.certificate(), list.bytes().clone()).unwrap();
    let mut grid = Grid::new("lab", lab.certificate().clone());
    let mut known = said.hosts[0].clone();
    known.addr = "10.0.0.7:7600".parse().unwrap();
    grid.hosts = vec![known.clone()];
    grid.follow(list, read);
    assert_eq!(grid.hosts[0], known);
    let mut others = grid.hosts.iter().skip(1);
    assert!(others.all(|host| host.addr.port() == 0));
}

fn refused_number(refused: &ListError) -> u64 {
    match refused {
        ListError::Signature(number) => *number,
        other => panic!("{other}"),
    }
}

#[test]
fn a_revoked_member_is_left_out() {
    let lab = authority(1);
    let said = Contents {
        hosts: vec![host(1), host(9)],
        ..contents(&lab)
    };
    let list = GridList::sign(&lab, 1, &said).unwrap();
    let (_, read) = GridList::check(lab.certificate(), list.bytes().clone()).unwrap();
    assert_eq!(read.hosts, [host(1)]);
}

#[test]
fn an_older_list_never_replaces_a_newer_one_in_a_file() {
    let lab = authority(1);
    let dir = tempfile::tempdir().unwrap();
    let grid_file = dir.path().join("grid.toml");
    let grid = Grid::new("lab", lab.certificate().clone());
    grid.save(&grid_file).unwrap();
    let own = dir.path().join("own");
    let files = ListFiles::new(grid.list_path(&grid_file), Some(own.clone()));
    let list = |number| GridList::sign(&lab, number, &contents(&lab)).unwrap();
    let keep = |number| files.keep(lab.certificate(), &list(number)).unwrap();
    assert!(Grid::load(&grid_file).unwrap().hosts.is_empty());
    assert!(keep(5) && !keep(5) && !keep(4));
    let read = Grid::load(&grid_file).unwrap();
    assert_eq!((read.number(), read.hosts.len()), (5, 2));
    // Of two lists the newer one counts, and a file that is no list is left aside.
    std::fs::write(&own, list(8).bytes()).unwrap();
    let newest = |files: &ListFiles| files.newest(lab.certificate()).map(|(one, _)| one.number());
    assert_eq!(newest(&files), Some(8));
    std::fs::write(&own, b"nonsense").unwrap();
    assert_eq!(newest(&files), Some(5));
    // A list of another grid in the place of ours is replaced.
    let other = authority(2);
    let foreign = GridList::sign(&other, 99, &contents(&other)).unwrap();
    std::fs::write(dir.path().join("grid.members"), foreign.bytes()).unwrap();
    assert_eq!(newest(&files), None);
    assert!(keep(6));
    assert_eq!(newest(&files), Some(6));
}

#[test]
fn if_the_named_file_can_not_be_written_the_own_one_is() {
    let lab = authority(1);
    let dir = tempfile::tempdir().unwrap();
    let mut grid = Grid::new("lab", lab.certificate().clone());
    grid.list_file = Some(dir.path().join("nowhere/list"));
    let own = dir.path().join("own");
    let files = ListFiles::new(
        grid.list_path(&dir.path().join("grid.toml")),
        Some(own.clone()),
    );
    let list = GridList::sign(&lab, 3, &contents(&lab)).unwrap();
    assert!(files.keep(lab.certificate(), &list).unwrap());
    assert!(own.exists());
    let (newest, said) = files.newest(lab.certificate()).unwrap();
    assert_eq!((newest, said), (list, contents(&lab)));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let lab = authority(1);
        prop_assert!(GridList::check(lab.certificate(), bytes.into()).is_err());
    }
}
