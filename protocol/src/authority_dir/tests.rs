use super::*;

const NOW: u64 = 1_800_000_000;

fn lasting(seconds: u64) -> Validity {
    Validity {
        from: NOW,
        lasting: Duration::from_secs(seconds),
    }
}

fn lab() -> (tempfile::TempDir, AuthorityDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lab");
    let secret = OwnerSecret::new([1; 32]);
    let lab = AuthorityDir::create(&path, "lab", secret, lasting(1_000_000)).unwrap();
    (dir, lab)
}

fn key(seed: u8) -> OwnerId {
    OwnerSecret::new([seed; 32]).id()
}

fn submitter(name: &str, seed: u8) -> Certify {
    Certify {
        roles: vec![Role::Submitter],
        name: name.into(),
        key: key(seed),
        validity: lasting(1000),
        host: None,
    }
}

fn donor(name: &str, seed: u8, port: u16) -> Certify {
    Certify {
        roles: vec![Role::Donor],
        host: Some(HostEntry {
            addr: Address::Ip(([10, 0, 0, 1], port).into()),
            site: Some("west".into()),
            owner: None,
        }),
        ..submitter(name, seed)
    }
}

#[test]
fn signed_certificates_are_recorded_and_donors_are_entered() {
    let (dir, mut lab) = lab();
    let certificate = lab.certify(&submitter("ada", 2)).unwrap();
    let peer = Peer::from_certificate(&certificate).unwrap();
    assert_eq!((peer.name.as_str(), peer.id), ("ada", key(2)));
    assert_eq!(peer.not_after, NOW + 1000);
    lab.certify(&donor("h1", 3, 7)).unwrap();
    lab.certify(&donor("h1", 3, 8)).unwrap();
    drop(lab);

    let roll = Roll::load(&dir.path().join("lab")).unwrap();
    let names: Vec<_> = roll.issued.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["ada", "h1", "h1"]);
    assert_eq!(roll.issued[0].roles, [Role::Submitter]);
    assert_eq!(roll.issued[0].expires, NOW + 1000);
    assert_eq!(roll.grid.hosts.len(), 1);
    assert_eq!(roll.grid.hosts[0].addr.port(), 8);
    let again = AuthorityDir::open(&dir.path().join("lab")).unwrap();
    assert_eq!(again.issued, roll.issued);
}

#[test]
fn a_revoked_member_is_listed_leaves_the_grid_file_and_is_not_signed_again() {
    let (dir, mut lab) = lab();
    lab.certify(&donor("h1", 3, 7)).unwrap();
    lab.certify(&submitter("ada", 2)).unwrap();
    lab.certify(&submitter("bob", 4)).unwrap();
    let revoked = |key, was_already| Revoked { key, was_already };
    let first = lab.revoke("ada", &[], NOW + 5).unwrap();
    assert_eq!(first, revoked(key(2), false));
    let number = lab.grid().number();
    let again = lab.revoke("ada", &[], NOW + 6).unwrap();
    assert_eq!(
        (again, lab.grid().number()),
        (revoked(key(2), true), number)
    );
    assert_eq!(
        lab.revoke("nobody", &[], NOW + 6).unwrap_err().to_string(),
        "no member nobody: it is neither a member's name nor its key (8 digits or more)"
    );
    let digits = key(3).hex()[..8].to_owned();
    assert_eq!(
        lab.revoke(&digits, &[], NOW + 7).unwrap(),
        revoked(key(3), false)
    );
    let whole = key(3).hex();
    assert_eq!(
        lab.revoke(&whole, &[], NOW + 8).unwrap(),
        revoked(key(3), true)
    );
    let again = lab.certify(&submitter("eve", 2)).unwrap_err();
    assert!(matches!(again, AuthorityDirError::Revoked(_)), "{again}");
    // The name is free again, for another key.
    lab.certify(&submitter("ada", 5)).unwrap();
    drop(lab);

    let roll = Roll::load(&dir.path().join("lab")).unwrap();
    let revoked: Vec<_> = roll.issued.iter().map(|one| one.revoked).collect();
    assert_eq!(revoked, [Some(NOW + 7), Some(NOW + 5), None, None]);
    assert_eq!(roll.grid.hosts, []);
    assert_eq!(roll.grid.revoked.number(), 2);
    assert!(roll.grid.revoked.contains(&key(2)) && roll.grid.revoked.contains(&key(3)));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let (dir, mut lab) = lab();
    lab.certify(&submitter("ada", 2)).unwrap();
    let address = donor("eve", 4, 7).host;
    let refused = [
        Certify {
            key: key(3),
            ..submitter("ada", 3)
        },
        submitter("../ada", 3),
        submitter("eve", 1),
        Certify {
            roles: vec![],
            ..submitter("eve", 4)
        },
        Certify {
            host: address,
            ..submitter("eve", 4)
        },
        Certify {
            validity: lasting(1_000_001),
            ..submitter("eve", 4)
        },
    ];
    let expected = [
        "another member",
        "1 to 63",
        "own key",
        "at least one role",
        "not a donor",
        "outlive",
    ];
    for (wish, expected) in refused.iter().zip(expected) {
        let cause = lab.certify(wish).unwrap_err().to_string();
        assert!(cause.contains(expected), "{cause}");
    }
    assert_eq!(lab.issued.len(), 1);
    // The same key may be certified again with the same name.
    lab.certify(&submitter("ada", 2)).unwrap();
    let twice = AuthorityDir::create(
        &dir.path().join("lab"),
        "lab",
        OwnerSecret::new([9; 32]),
        lasting(10),
    );
    assert!(matches!(twice, Err(AuthorityDirError::Exists(_))));
    let nothing = AuthorityDir::open(dir.path());
    assert!(matches!(nothing, Err(AuthorityDirError::Missing(_))));
}

#[test]
fn processes_that_sign_at_once_lose_nothing() {
    let (dir, lab) = lab();
    drop(lab);
    let path = dir.path().join("lab");
    std::thread::scope(|scope| {
        for seed in 10..18 {
            let path = &path;
            scope.spawn(move || {
                let mut lab = AuthorityDir::open(path).unwrap();
                let wish = donor(&format!("h{seed}"), seed, seed.into());
                lab.certify(&wish).unwrap();
            });
        }
    });
    let roll = Roll::load(&path).unwrap();
    assert_eq!((roll.issued.len(), roll.grid.hosts.len()), (8, 8));
}

#[test]
fn a_record_that_is_none_is_named() {
    let (dir, lab) = lab();
    drop(lab);
    let path = dir.path().join("lab");
    fs::write(path.join("members.toml"), "[[certificates]]\nname = 7\n").unwrap();
    let refused = AuthorityDir::open(&path).unwrap_err().to_string();
    assert!(refused.contains("members.toml"), "{refused}");
    let other = Authority::create(OwnerSecret::new([9; 32]), "lab", lasting(10)).unwrap();
    fs::write(path.join("members.toml"), "").unwrap();
    fs::write(
        path.join("authority.crt"),
        certificate_to_pem(other.certificate()),
    )
    .unwrap();
    let mixed = AuthorityDir::open(&path);
    assert!(matches!(mixed, Err(AuthorityDirError::Mixed(_))));
}

fn joiner(name: &str, seed: u8) -> Joiner {
    Joiner {
        name: name.into(),
        key: key(seed),
        role: Role::Donor,
        addr: None,
        joined: None,
    }
}

#[test]
fn who_joined_stays_in_the_record_and_is_still_revoked_by_its_key_only() {
    let (dir, mut lab) = lab();
    let with = JoinedWith {
        token: [7; 16],
        at: NOW,
        until: NOW + 100,
    };
    let ada = Joiner {
        role: Role::Submitter,
        joined: Some(with),
        ..joiner("ada", 9)
    };
    lab.note_joined(std::slice::from_ref(&ada)).unwrap();
    // A registry that reports another name or another time later changes nothing.
    let renamed = Joiner {
        name: "bob".into(),
        ..ada.clone()
    };
    lab.note_joined(&[renamed]).unwrap();
    let path = lab.dir.clone();
    drop(lab);
    let record = Roll::load(&path).unwrap().issued;
    let found: Vec<_> = record.iter().filter(|one| one.key == key(9)).collect();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].name, "ada");
    assert_eq!(found[0].roles, [Role::Submitter]);
    assert_eq!(found[0].token, Some([7; 16]));
    // No registry answers, and the member is still found.
    let mut lab = AuthorityDir::open(&path).unwrap();
    let unclear = lab.revoke("ada", &[], NOW).unwrap_err();
    assert!(
        matches!(&unclear, AuthorityDirError::Unrecorded { .. }),
        "{unclear}"
    );
    let digits = key(9).hex()[..8].to_owned();
    assert_eq!(lab.revoke(&digits, &[], NOW).unwrap().key, key(9));
    drop(dir);
}

#[test]
fn a_donor_that_a_registry_let_in_is_taken_back_by_its_key_or_digits_and_not_by_name() {
    let (_dir, mut lab) = lab();
    lab.certify(&submitter("ada", 2)).unwrap();
    lab.certify(&donor("h1", 3, 7)).unwrap();
    let joined = [joiner("h4", 8), joiner("ada", 9)];
    // Nobody but a registry says who has this name.
    let unclear = lab.revoke("h4", &joined, NOW).unwrap_err();
    assert!(
        matches!(&unclear, AuthorityDirError::Unrecorded { keys, .. } if keys[0].0 == key(8)),
        "{unclear}"
    );
    assert!(unclear.to_string().contains(&key(8).hex()), "{unclear}");
    let whole = key(8).hex();
    assert_eq!(lab.revoke(&whole, &joined, NOW).unwrap().key, key(8));
    let digits = key(9).hex()[..8].to_owned();
    assert_eq!(lab.revoke(&digits, &joined, NOW).unwrap().key, key(9));
    // A machine that joins under another member's name can't cause that member to be revoked.
    let joined = [joiner("ada", 10), joiner("h1", 11)];
    for (name, keys) in [("ada", [2, 9, 10].as_slice()), ("h1", &[3, 11])] {
        let unclear = lab.revoke(name, &joined, NOW).unwrap_err();
        let AuthorityDirError::ManyKeys { keys: found, .. } = &unclear else {
            panic!("{unclear}");
        };
        let found: BTreeSet<OwnerId> = found.iter().map(|one| one.0).collect();
        let keys: BTreeSet<OwnerId> = keys.iter().map(|seed| key(*seed)).collect();
        assert_eq!(found, keys);
    }
    // Nor can one whose name has the first digits of that member's key.
    let joined = [joiner(&key(3).hex()[..8], 12)];
    let unclear = lab.revoke(&joined[0].name, &joined, NOW).unwrap_err();
    assert!(
        matches!(&unclear, AuthorityDirError::ManyKeys { keys, .. } if keys.len() == 2),
        "{unclear}"
    );
    // The name alone is in the list, and no registry reports another key of it.
    assert_eq!(lab.revoke("h1", &[], NOW).unwrap().key, key(3));
}

#[test]
fn a_name_that_two_keys_have_had_asks_for_the_key() {
    let (_dir, mut lab) = lab();
    lab.certify(&donor("h1", 3, 7)).unwrap();
    lab.revoke("h1", &[], NOW + 1).unwrap();
    lab.certify(&donor("h1", 4, 7)).unwrap();
    let unclear = lab.revoke("h1", &[], NOW + 2).unwrap_err();
    let text = unclear.to_string();
    assert!(
        matches!(unclear, AuthorityDirError::ManyKeys { .. }),
        "{text}"
    );
    assert!(
        text.contains(&format!("{} (h1, revoked)", key(3).hex())),
        "{text}"
    );
    assert!(text.contains(&format!("{} (h1)", key(4).hex())), "{text}");
    assert_eq!(lab.revoke(&key(4).hex(), &[], NOW + 2).unwrap().key, key(4));
}

#[test]
fn each_change_is_a_list_with_the_next_number() {
    let (dir, mut lab) = lab();
    let path = dir.path().join("lab");
    assert_eq!(lab.grid().number(), 1);
    lab.certify(&submitter("ada", 2)).unwrap();
    assert_eq!(lab.grid().number(), 1, "a submitter is in no list");
    lab.certify(&donor("h1", 3, 7)).unwrap();
    lab.certify(&donor("h2", 4, 8)).unwrap();
    assert_eq!(lab.grid().number(), 3);
    let moved = [(HostId(key(4)), Address::Ip(([10, 0, 0, 1], 9).into()))].into();
    lab.relocate(&moved).unwrap();
    lab.relocate(&moved).unwrap();
    assert_eq!(
        (lab.grid().number(), lab.grid().hosts[1].addr.port()),
        (4, 9)
    );
    lab.remove("h2").unwrap();
    let missing = lab.remove("h2").unwrap_err();
    assert!(
        matches!(missing, AuthorityDirError::NotListed(_)),
        "{missing}"
    );
    lab.revoke("h1", &[], NOW).unwrap();
    assert_eq!((lab.grid().number(), lab.grid().hosts.len()), (6, 0));
    // A host that was taken out of the list is not revoked, and can be listed again.
    lab.certify(&donor("h2", 4, 8)).unwrap();
    drop(lab);
    let again = Roll::load(&path).unwrap().grid;
    assert_eq!((again.number(), again.hosts.len()), (7, 1));
}

#[test]
fn a_newer_list_of_the_members_is_taken_over() {
    let (dir, mut lab) = lab();
    lab.certify(&donor("h1", 3, 7)).unwrap();
    let path = dir.path().join("lab");
    let copy = dir.path().join("copy");
    fs::create_dir(&copy).unwrap();
    for file in fs::read_dir(&path).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), copy.join(file.file_name())).unwrap();
    }
    lab.revoke("h1", &[], NOW).unwrap();
    let list = lab.grid().list.clone().unwrap();
    let contents = lab.grid().contents();
    let mut older = AuthorityDir::open(&copy).unwrap();
    assert!(older.adopt(list.clone(), contents.clone()).unwrap());
    assert!(!older.adopt(list, contents).unwrap());
    assert!(older.grid().revoked.contains(&key(3)) && older.grid().hosts.is_empty());
    older.certify(&donor("h2", 4, 8)).unwrap();
    assert_eq!(older.grid().number(), 4);
}

#[test]
fn two_members_are_not_at_one_address() {
    let (_dir, mut lab) = lab();
    lab.certify(&donor("h1", 3, 7)).unwrap();
    let taken = lab.certify(&donor("h2", 4, 7)).unwrap_err();
    assert_eq!(
        taken.to_string(),
        "10.0.0.1:7 is the address of h1: use another one, or first remove h1 (ckpt grid remove)"
    );
    // A host that is signed again keeps its address.
    lab.certify(&donor("h1", 3, 7)).unwrap();
}

#[test]
fn nobody_is_entered_with_port_0() {
    let (_dir, mut lab) = lab();
    let refused = lab.certify(&donor("h1", 3, 0)).unwrap_err();
    assert!(matches!(refused, AuthorityDirError::NoPort(_)), "{refused}");
    assert!(lab.grid().hosts.is_empty());
}
