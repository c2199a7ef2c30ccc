use super::*;
use crate::geometry::Redundancy;
use crate::hash::ShardRoot;
use crate::keys::{JobKeys, NewJobKeys};
use crate::manifest::NewManifest;
use crate::manifest::tests::summary;
use crate::seal::{Cipher, OwnerSecret};

const AFTER: CheckpointId = CheckpointId([3; 16]);

fn owner() -> Keys {
    Keys::from(OwnerSecret::new([9; 32]))
}

fn job_keys(rights: Rights, scope: &str) -> Keys {
    let new = NewJobKeys {
        grid: [1; 32],
        scope: scope.parse().unwrap(),
        rights,
        serial: 7,
        not_before: 0,
        not_after: 2_000_000,
    };
    Keys::from(JobKeys::issue(&OwnerSecret::new([9; 32]), [2; 32], new).unwrap())
}

fn ballot(round: u64) -> Ballot {
    Ballot {
        round,
        proposer: CheckpointId([8; 16]),
    }
}

fn job() -> JobId {
    summary().job
}

fn manifest(keys: &Keys) -> Manifest {
    let redundancy = Redundancy::new(3, 2).unwrap();
    let new = NewManifest {
        checkpoint: CheckpointId([8; 16]),
        version: Version::new(4).unwrap(),
        created: 1_000,
        previous: None,
        redundancy,
        cipher: Cipher::Aes256Gcm,
        rows: 4,
        block_bytes: 1,
        roots: vec![ShardRoot([0; 32]); redundancy.total()],
    };
    Manifest::sign(keys, new, &summary()).unwrap()
}

#[test]
fn a_proposal_comes_back_and_only_the_owners_programs_see_what_is_proposed() {
    for keys in [owner(), job_keys(Rights::SAVE, job().as_str())] {
        let manifest = manifest(&keys);
        let proposal = Proposal::sign(&keys, &job(), (AFTER, ballot(1)), &manifest).unwrap();
        let read = Proposal::parse(proposal.bytes().to_vec()).unwrap();
        assert_eq!(read, proposal);
        assert_eq!(read.proposed().after, AFTER);
        assert_eq!(read.proposed().successor.version, Version::new(4).unwrap());
        assert_eq!(read.manifest(&owner(), &job()).unwrap(), manifest);
        let stranger = Keys::from(OwnerSecret::new([1; 32]));
        assert!(read.manifest(&stranger, &job()).is_err());
        let shown = manifest.bytes();
        let hidden = proposal.bytes().windows(64);
        assert!(hidden.clone().all(|part| part != &shown[..64]));
        // Another program of the owner's proposes the same successor in an attempt of its own.
        let again = read.again(&owner(), &job(), ballot(2)).unwrap();
        assert_eq!(again.proposed().ballot, ballot(2));
        assert_eq!(again.proposed().successor, read.proposed().successor);
        assert_eq!(again.manifest(&owner(), &job()).unwrap(), manifest);
    }
}

#[test]
fn every_flipped_byte_is_refused() {
    let keys = owner();
    let proposal = Proposal::sign(&keys, &job(), (AFTER, ballot(1)), &manifest(&keys)).unwrap();
    for at in 0..proposal.bytes().len() {
        let mut bytes = proposal.bytes().to_vec();
        bytes[at] ^= 1;
        assert!(Proposal::parse(bytes).is_err(), "byte {at}");
    }
    assert!(Proposal::parse(proposal.bytes()[1..].to_vec()).is_err());
    assert!(Proposal::parse(Vec::new()).is_err());
}

#[test]
fn a_key_without_the_right_to_save_proposes_nothing() {
    let manifest = manifest(&owner());
    let reader = job_keys(Rights::RESTORE, job().as_str());
    let refused = Proposal::sign(&reader, &job(), (AFTER, ballot(1)), &manifest);
    let why = ProposalError::NotGranted(Refused::Right(Rights::SAVE));
    assert_eq!(refused.map(|_| ()), Err(why));
    let other = job_keys(Rights::SAVE, "another");
    let refused = Proposal::sign(&other, &job(), (AFTER, ballot(1)), &manifest);
    assert_eq!(refused.map(|_| ()), Err(ProposalError::OtherJob(job())));
}

#[test]
fn ballots_go_by_round_and_then_by_proposer() {
    assert!(Ballot::NONE < ballot(0) && ballot(1) < ballot(2));
    let other = Ballot {
        proposer: CheckpointId([9; 16]),
        ..ballot(1)
    };
    assert!(ballot(1) < other && other < ballot(2));
}
