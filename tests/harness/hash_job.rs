//! A job whose state can be checked. Each step hashes the step before, and the rest of the state is bytes
//! that follow from the last hash. A state that is torn or mixed from two does not match its own number of
//! steps.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::image;

/// The bytes of a state after its first line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filler {
    /// Bytes that do not compress.
    #[default]
    Noise,
    /// Bytes like those of a process ([`image::memory`]).
    Memory,
}

/// A step of the job: its number and its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Steps done.
    pub number: u64,
    hash: u64,
}

impl Steps {
    /// Before the first step.
    pub const START: Self = Self {
        number: 0,
        hash: 0x9E37_79B9_7F4A_7C15,
    };

    /// The next step. The hash is mixed as by SplitMix64's finalizer.
    #[must_use]
    pub const fn next(self) -> Self {
        let mut hash = self.hash ^ self.number;
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Self {
            number: self.number + 1,
            hash: hash ^ (hash >> 31),
        }
    }

    /// The state at this step: a line with number, hash and `bytes`, then filler up to about `bytes` bytes.
    pub fn state(self, bytes: usize, filler: Filler) -> Vec<u8> {
        let mut text = format!("{} {:016x} {bytes}", self.number, self.hash);
        if filler == Filler::Memory {
            let _ = writeln!(text, " memory");
            let mut state = image::memory(bytes.max(text.len()), self.hash);
            state[..text.len()].copy_from_slice(text.as_bytes());
            return state;
        }
        text.push('\n');
        let mut state = text.into_bytes();
        let mut filler = self.hash | 1;
        while state.len() < bytes {
            filler ^= filler << 13;
            filler ^= filler >> 7;
            filler ^= filler << 17;
            state.extend(filler.to_le_bytes());
        }
        state
    }

    /// Reads the step from a state, and checks all bytes of the state.
    ///
    /// # Errors
    /// When the state is not one that the job wrote as a whole.
    pub fn of_state(state: &[u8]) -> Result<Self> {
        let line = state.split(|&byte| byte == b'\n').next().context("empty")?;
        let line = std::str::from_utf8(line)?;
        let mut words = line.split(' ');
        let number: u64 = words.next().context("no number")?.parse()?;
        let hash = u64::from_str_radix(words.next().context("no hash")?, 16)?;
        let bytes: usize = words.next().context("no length")?.parse()?;
        let filler = match words.next() {
            None => Filler::Noise,
            Some("memory") => Filler::Memory,
            Some(other) => bail!("{other:?}?"),
        };
        let mut steps = Self::START;
        while steps.number < number {
            steps = steps.next();
        }
        ensure!(steps.hash == hash, "step {number} has another hash");
        if state != steps.state(bytes, filler) {
            bail!("step {number}: {} bytes that do not fit", state.len());
        }
        Ok(steps)
    }

    /// Reads the step from the state in a file.
    ///
    /// # Errors
    /// As [`Self::of_state`], and when the file can't be read.
    pub fn read(path: &Path) -> Result<Self> {
        let state = std::fs::read(path).with_context(|| path.display().to_string())?;
        Self::of_state(&state).with_context(|| path.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_comes_back_and_a_torn_one_does_not() {
        let steps = Steps::START.next().next();
        for filler in [Filler::Noise, Filler::Memory] {
            let state = steps.state(100_000, filler);
            assert_eq!(Steps::of_state(&state).unwrap(), steps);
            assert!(Steps::of_state(&state[..99_990]).is_err());
            let mut mixed = steps.next().state(100_000, filler);
            mixed.truncate(50_000);
            mixed.extend(&state[50_000..]);
            assert!(Steps::of_state(&mixed).is_err());
        }
    }
}
