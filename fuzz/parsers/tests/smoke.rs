//! Runs every target with a bounded number of mutations of its seeds, the same in every run.
//!
//! `CKPT_FUZZ_SEED` and `CKPT_FUZZ_ITERATIONS` choose another run.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::str::FromStr;

use fuzz_parsers::{TARGETS, Target};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// Most bytes of an input.
const INPUT_BYTES_MAX: usize = 1 << 16;

/// Numbers at which arithmetic is likely to go wrong.
const EDGES: [u64; 12] = [
    0,
    1,
    0x7F,
    0xFF,
    250,
    251,
    0xFFFF,
    1 << 20,
    0x7FFF_FFFF,
    0xFFFF_FFFF,
    1 << 63,
    u64::MAX,
];

fn setting<T: FromStr>(name: &str, default: T) -> T {
    let value = std::env::var(name).ok();
    value.and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn seeds(target: &Target) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../seeds");
    let entries = std::fs::read_dir(directory.join(target.name)).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: &std::path::PathBuf| std::fs::read(path).unwrap();
    paths.iter().map(read).collect()
}

/// Makes one to eight changes to a seed: flips, cuts, repetitions, splices with another seed, and numbers
/// (plain, or as bincode writes them) in any place, where a length may be.
fn mutate(rng: &mut SmallRng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut input = seeds.choose(rng).cloned().unwrap_or_default();
    for _ in 0..rng.random_range(1..=8) {
        let at = rng.random_range(0..=input.len());
        let end = rng.random_range(at..=input.len());
        match rng.random_range(0..9) {
            0 if at < input.len() => input[at] ^= 1 << rng.random_range(0..8),
            1 if at < input.len() => input[at] = rng.random(),
            2 => input.truncate(at),
            3 => drop(input.drain(at..end)),
            4 => {
                let part = input[at..end].to_vec();
                input.splice(at..at, part);
            }
            5 => {
                let other = seeds.choose(rng).cloned().unwrap_or_default();
                let from = rng.random_range(0..=other.len());
                input.splice(at..end, other[from..].iter().copied());
            }
            6 => input.insert(at, rng.random()),
            7 => overwrite(&mut input, at, &plain_number(rng)),
            _ => {
                let number = bincode_number(rng);
                let replaced = rng.random_range(at..=input.len().min(at + 9));
                input.splice(at..replaced, number);
            }
        }
    }
    input.truncate(INPUT_BYTES_MAX);
    input
}

fn overwrite(input: &mut [u8], at: usize, number: &[u8]) {
    for (byte, new) in input[at..].iter_mut().zip(number) {
        *byte = *new;
    }
}

fn number(rng: &mut SmallRng) -> u64 {
    let edge = *EDGES.choose(rng).unwrap_or(&0);
    edge.wrapping_add(rng.random_range(0..3)).wrapping_sub(1)
}

fn plain_number(rng: &mut SmallRng) -> Vec<u8> {
    let width = 1 << rng.random_range(0..4);
    number(rng).to_le_bytes()[..width].to_vec()
}

fn bincode_number(rng: &mut SmallRng) -> Vec<u8> {
    let bytes = number(rng).to_le_bytes();
    let (marker, width) = [(251, 2), (252, 4), (253, 8)][rng.random_range(0..3)];
    [&[marker], &bytes[..width]].concat()
}

fn smoke(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let seed: u64 = setting("CKPT_FUZZ_SEED", 1);
    let iterations: u64 = setting("CKPT_FUZZ_ITERATIONS", 20_000);
    println!("{name}: CKPT_FUZZ_SEED={seed} CKPT_FUZZ_ITERATIONS={iterations}");
    let seeds = seeds(target);
    assert!(!seeds.is_empty(), "{name} has no seeds");
    for seed in &seeds {
        assert!((target.run)(seed), "{name}: a seed is refused: {seed:?}");
    }
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut accepted = 0_u64;
    let mutations = (0..iterations).map(|_| mutate(&mut rng, &seeds));
    for input in mutations {
        let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(&input)));
        let panic = match outcome {
            Ok(is_accepted) => {
                accepted += u64::from(is_accepted);
                continue;
            }
            Err(panic) => panic,
        };
        let hex = codec::hex::encode(&input);
        println!("{name} (CKPT_FUZZ_SEED={seed}) panics for {hex}");
        resume_unwind(panic);
    }
    println!("{name}: {accepted} of {iterations} accepted");
}

macro_rules! smoke_tests {
    ($($name:ident),*) => {
        $(
            #[test]
            fn $name() {
                smoke(stringify!($name));
            }
        )*

        #[test]
        fn every_target_is_run_here_and_by_cargo_fuzz() {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
            let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz_targets");
            for name in names {
                let path = directory.join(format!("{name}.rs"));
                let source = std::fs::read_to_string(&path).unwrap();
                assert!(source.contains(&format!("run({name:?}, ")), "{}", path.display());
            }
        }
    };
}
smoke_tests!(
    card,
    certificate,
    class_ad,
    daemon_line,
    decompress,
    fence,
    footer,
    grant,
    grid,
    grid_list,
    guest_line,
    header,
    history,
    index,
    job_id,
    job_keys,
    job_notice,
    join_token,
    knowledge,
    known_donors,
    manifest,
    manifest_body,
    member,
    notice,
    page,
    preferences,
    proof,
    proposal,
    put_end,
    record,
    request,
    response
);
