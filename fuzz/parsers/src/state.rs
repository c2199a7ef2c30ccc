//! Parsers of files that the programs keep between two runs, and of texts that users and other programs
//! write.

use ckpt_agent::knowledge::Knowledge;
use ckpt_store::core::known_donors;
use ckpt_store::monitor::history::{Run, parse};
use ckpt_store::monitor::preferences::{Calibration, settings};
use ckpt_store::shards::FenceFile;
use condor::address::Address;
use condor::classad::{ClassAd, Value, parse_ads, parse_lines};
use condor::environment::variables;
use runner::notice::{JobNotice, NOTICE_BYTES_MAX, NOTICE_LINES_MAX};

pub(crate) fn history(input: &[u8]) -> bool {
    let Ok(runs) = parse(Some(input)) else {
        return false;
    };
    let runs: Vec<Run> = runs.collect();
    let records: Vec<u8> = runs.iter().flat_map(Run::encode).collect();
    let accepted = input.get(8..8 + records.len());
    assert_eq!(
        accepted.unwrap_or_default(),
        records,
        "what is read is what is written"
    );
    !runs.is_empty()
}

pub(crate) fn preferences(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else {
        return false;
    };
    let Ok(preferences) = toml::from_str(text) else {
        return false;
    };
    let Ok(settings) = settings(&preferences, &Calibration::default()) else {
        return false;
    };
    for hour in [0.0, 7.5, 23.99] {
        assert!(settings.hours.seconds_until(hour) <= 86_400);
    }
    assert!(settings.slow_rate > 0.0);
    assert!(
        settings
            .disk_use
            .most(1 << 40)
            .is_none_or(|most| most <= 1 << 63)
    );
    true
}

pub(crate) fn knowledge(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else {
        return false;
    };
    let Ok(knowledge) = Knowledge::parse(text) else {
        return false;
    };
    // The text may leave out older entries, and can be read again.
    let again = Knowledge::parse(&knowledge.to_text());
    for now in [0, 1_795_000_000, u64::MAX] {
        let watched = knowledge.watched(now);
        assert!(watched.days <= 28.0 && watched.incidents <= 16);
        assert_eq!(again.as_ref().map(|again| again.watched(now)), Ok(watched));
    }
    true
}

/// Takes the input for the file of a promise, and then for such a file without its hash, which is added.
pub(crate) fn fence(input: &[u8]) -> bool {
    let mut accepted = false;
    for bytes in [input.to_vec(), FenceFile::hashed(input.to_vec())] {
        let Ok(file) = FenceFile::decode(&bytes) else {
            continue;
        };
        let acceptor = &file.fence.acceptor;
        assert_eq!(acceptor.acceptances().len(), file.accepted.len());
        for ((ballot, _, successor), proposal) in acceptor.acceptances().iter().zip(&file.accepted)
        {
            assert!(*ballot <= acceptor.promised());
            assert_eq!(*successor, proposal.proposed().successor);
        }
        // The file is the same after it was written and read again.
        let again = file.encode().ok().map(|bytes| FenceFile::decode(&bytes));
        assert_eq!(again, Some(Ok(file)));
        accepted = true;
    }
    accepted
}

/// Takes the input for the file of known donors, and then for such a file without its hash.
pub(crate) fn known_donors(input: &[u8]) -> bool {
    let mut accepted = false;
    for bytes in [input.to_vec(), known_donors::hashed(input.to_vec())] {
        if let Ok(donors) = known_donors::decode(&bytes) {
            assert_eq!(
                known_donors::decode(&known_donors::encode(&donors)),
                Ok(donors)
            );
            accepted = true;
        }
    }
    accepted
}

pub(crate) fn job_notice(input: &[u8]) -> bool {
    let Ok(notices) = JobNotice::parse(input) else {
        return false;
    };
    assert!(input.len() <= NOTICE_BYTES_MAX && notices.len() <= NOTICE_LINES_MAX);
    for notice in &notices {
        if let JobNotice::Progress(share) = notice {
            assert!((0.0..=1.0).contains(share));
        }
    }
    // Notices are the same after they were written and read again.
    let written: String = notices.iter().map(|notice| format!("{notice}\n")).collect();
    assert_eq!(JobNotice::parse(written.as_bytes()), Ok(notices));
    true
}

/// Takes the input for ads between brackets, then for one ad line by line, then for an address.
pub(crate) fn class_ad(input: &[u8]) -> bool {
    let check = |ad: &ClassAd| {
        for (name, value) in ad.iter() {
            assert_eq!(ad.get(&name.to_ascii_uppercase()), Some(value));
            if let Value::Text(text) = value {
                assert!(text.len() < input.len() && !text.contains(&0));
            }
        }
        let _ = variables(ad);
    };
    let ads = parse_ads(input);
    let lines = parse_lines(input);
    ads.iter().flatten().for_each(check);
    lines.iter().for_each(check);
    let address = Address::parse(input);
    if let Ok(address) = &address {
        let mut parts = address.file.split(|&byte| byte == b'/');
        assert!(parts.all(|part| !matches!(part, b"" | b"." | b"..")));
    }
    ads.is_ok() || lines.is_ok() || address.is_ok()
}
