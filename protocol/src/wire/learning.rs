//! What a grid refits its model from: the basis of a host's forecasts, and the sums of its past. Both are
//! claims of the host.

use placement::hazard::summary::COVARIATE_NUMBERS;
use placement::hazard::sums::NUMBERS;
use placement::hazard::{Covariates, HazardModel, Sums, SumsError};
use serde::{Deserialize, Serialize};

use super::parts::Parts;

/// Number of the part of an announcement that has the basis of its curves.
pub const BASIS_PART: u16 = 3;

/// First byte of the part. If the fields have another meaning, it is another one, and the part is passed over.
const FORM: u8 = 1;

/// Bytes of the part: the form, the number of the model, and for presence and guest whether the host is in a
/// failure state and the covariates.
const PART_BYTES: usize = 1 + 8 + 2 * (1 + 4 * COVARIATE_NUMBERS);

/// The number of a model: the first 8 bytes, little-endian, of the hash of its parameters. Hosts and clients of
/// different programs may ship different models, and sums at the weights of one say nothing about another.
#[must_use]
pub fn model_number(model: &HazardModel) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("ckpt v1 hazard model");
    for parameter in model.parameters() {
        hasher.update(&parameter.to_le_bytes());
    }
    let mut number = [0; 8];
    hasher.finalize_xof().fill(&mut number);
    u64::from_le_bytes(number)
}

/// What a host's forecasts are made from, so that a client can make them with another model.
#[derive(Clone, Debug, PartialEq)]
pub struct Basis {
    /// Number of the model to whose pool the covariates refer.
    pub model: u64,
    /// Whether the host is there.
    pub presence: Covariates,
    /// The machine as a guest job sees it.
    pub guest: Covariates,
}

impl Basis {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(PART_BYTES);
        bytes.push(FORM);
        bytes.extend(self.model.to_le_bytes());
        for covariates in [&self.presence, &self.guest] {
            bytes.push(u8::from(covariates.failed()));
            for number in covariates.to_numbers() {
                bytes.extend(number.to_le_bytes());
            }
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let [form] = take(&mut rest)?;
        if form != FORM {
            return None;
        }
        let model = u64::from_le_bytes(take(&mut rest)?);
        let mut covariates = || {
            let [failed] = take(&mut rest)?;
            let mut numbers = [0.0; COVARIATE_NUMBERS];
            for number in &mut numbers {
                *number = f32::from_le_bytes(take(&mut rest)?);
            }
            Covariates::from_numbers(failed != 0, &numbers)
        };
        Some(Self {
            model,
            presence: covariates()?,
            guest: covariates()?,
        })
    }

    /// Adds this basis, if there is one, to the parts of an announcement.
    pub(super) fn add_to(this: Option<&Self>, parts: Parts) -> Parts {
        match this {
            Some(basis) => parts.with(BASIS_PART, basis.to_bytes()),
            None => parts,
        }
    }

    /// The basis in the parts of an announcement, if there is one that this program understands.
    pub(super) fn in_parts(parts: &Parts) -> Option<Self> {
        Self::from_bytes(parts.get(BASIS_PART)?)
    }
}

/// Takes the first bytes off `rest`.
fn take<const COUNT: usize>(rest: &mut &[u8]) -> Option<[u8; COUNT]> {
    let (taken, left) = rest.split_first_chunk::<COUNT>()?;
    *rest = left;
    Some(*taken)
}

/// The sums of a host's past as they travel, before they are checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSums {
    /// Number of the model at whose weights they were taken.
    pub model: u64,
    /// Whether the host is there: [`Sums::to_numbers`] in single precision, little-endian.
    #[serde(with = "serde_bytes")]
    pub presence: Vec<u8>,
    /// The machine as a guest job sees it, in the same form.
    #[serde(with = "serde_bytes")]
    pub guest: Vec<u8>,
}

fn bytes(sums: &Sums) -> Vec<u8> {
    let numbers = sums.to_numbers().into_iter();
    numbers.flat_map(f32::to_le_bytes).collect()
}

fn sums(bytes: &[u8]) -> Result<Sums, SumsError> {
    let (numbers, rest) = bytes.as_chunks::<4>();
    let found = numbers.len();
    if found != NUMBERS || !rest.is_empty() {
        return Err(SumsError::Count { found });
    }
    let numbers: Vec<f32> = numbers.iter().copied().map(f32::from_le_bytes).collect();
    Sums::from_numbers(&numbers)
}

/// Sums that any past of a host could have led to.
#[derive(Clone, Debug, PartialEq)]
pub struct Learnt {
    /// Number of the model at whose weights they were taken.
    pub model: u64,
    /// Whether the host is there.
    pub presence: Sums,
    /// The machine as a guest job sees it.
    pub guest: Sums,
}

impl Learnt {
    /// The form that travels.
    #[must_use]
    pub fn to_wire(&self) -> HostSums {
        HostSums {
            model: self.model,
            presence: bytes(&self.presence),
            guest: bytes(&self.guest),
        }
    }
}

impl HostSums {
    /// The sums, checked.
    ///
    /// # Errors
    /// When no past of a host leads to them.
    pub fn check(&self) -> Result<Learnt, SumsError> {
        Ok(Learnt {
            model: self.model,
            presence: sums(&self.presence)?,
            guest: sums(&self.guest)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use placement::hazard::HostSummary;
    use placement::state::Presence;

    use super::super::limits::PARTS_BYTES_MAX;
    use super::super::message::{Message, Response};
    use super::*;

    fn basis() -> Basis {
        let model = HazardModel::pretrained();
        let mut host = HostSummary::<Presence>::new(0);
        let covariates = |host: &HostSummary<Presence>| host.covariates(model.pool());
        let guest = covariates(&host);
        host.observe(0..900_000, Some(Presence::Here), Some(0.25));
        host.observe(900_000..900_100, Some(Presence::Away), None);
        Basis {
            model: model_number(&model),
            presence: covariates(&host),
            guest,
        }
    }

    #[test]
    fn a_basis_arrives_and_what_a_later_program_adds_is_passed_over() {
        let bytes = basis().to_bytes();
        assert_eq!(bytes.len(), PART_BYTES);
        const { assert!(PART_BYTES < PARTS_BYTES_MAX / 2) };
        assert_eq!(Basis::from_bytes(&bytes), Some(basis()));
        assert!(basis().presence.failed() && !basis().guest.failed());
        let longer = [bytes.as_slice(), &[1, 2, 3]].concat();
        assert_eq!(Basis::from_bytes(&longer), Some(basis()));
    }

    #[test]
    fn bytes_that_are_no_basis_give_none() {
        let bytes = basis().to_bytes();
        for length in 0..PART_BYTES {
            assert_eq!(Basis::from_bytes(&bytes[..length]), None);
        }
        let mut other = bytes.clone();
        other[0] = 2;
        assert_eq!(Basis::from_bytes(&other), None);
        for wild in [f32::NAN, f32::INFINITY, 1e6] {
            let mut bad = bytes.clone();
            bad[10..14].copy_from_slice(&wild.to_le_bytes());
            assert_eq!(Basis::from_bytes(&bad), None, "{wild}");
        }
    }

    #[test]
    fn sums_are_short_enough_to_be_asked_for_every_day() {
        let sums = HostSums {
            model: u64::MAX,
            presence: vec![7; 4 * NUMBERS],
            guest: vec![7; 4 * NUMBERS],
        };
        let frame = Response::Sums(Box::new(sums)).to_frame().unwrap();
        assert!(frame.len() <= 16 << 10, "{}", frame.len());
        assert!(HostSums::default().check().is_err());
    }

    #[test]
    fn another_model_has_another_number() {
        let number = model_number(&HazardModel::pretrained());
        assert_ne!(number, model_number(&HazardModel::default()));
    }
}
