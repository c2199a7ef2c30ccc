//! What a host announces about its machine, for choosing where a job runs: processors, speed, memory,
//! load. All of it is a claim of the host.

use placement::rank::{LOAD_HOURS, LoadForecast};

use super::parts::Parts;

/// Number of the part of an announcement that describes the machine.
pub const MACHINE_PART: u16 = 2;

/// First byte of the part. A later program that has more fields adds them at the end, and they are passed
/// over here. If the fields have another meaning, it uses another first byte, and the part is passed over.
const FORM: u8 = 1;

/// Bytes of the part: the form, and the fields of [`MachineClaim`] in order.
const PART_BYTES: usize = 1 + 2 + 4 + 8 + 2 + 2 * LOAD_HOURS.len();

/// Value on the wire of the load 1, which takes all processors.
const WHOLE_MACHINE: f64 = u16::MAX as f64;

/// Highest speed that is believed. A machine that claims more could draw all jobs.
pub const SPEED_MAX: f64 = 100.0;

/// The properties of a machine on which the run time of a job depends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MachineClaim {
    /// Processors that the machine has.
    pub cores: u16,
    /// Speed of one processor, in units of this program's reference.
    pub speed: f64,
    /// Memory that a guest could have now, bytes.
    pub memory_bytes: u64,
    /// Guests that the machine would take now, beside those that it has.
    pub places: u16,
    /// Expected mean load of the owner while a guest can run; 1 is all processors.
    pub load: LoadForecast,
}

impl MachineClaim {
    /// The bytes of the part.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "speeds and loads are brought into the range of the field before"
    )]
    fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(PART_BYTES);
        bytes.push(FORM);
        bytes.extend(self.cores.to_le_bytes());
        let thousandths = (self.speed.clamp(0.0, SPEED_MAX) * 1000.0).round() as u32;
        bytes.extend(thousandths.to_le_bytes());
        bytes.extend(self.memory_bytes.to_le_bytes());
        bytes.extend(self.places.to_le_bytes());
        for mean in self.load.means() {
            bytes.extend(((mean * WHOLE_MACHINE).round() as u16).to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let [form] = take(&mut rest)?;
        let cores = u16::from_le_bytes(take(&mut rest)?);
        let thousandths = u32::from_le_bytes(take(&mut rest)?);
        let memory_bytes = u64::from_le_bytes(take(&mut rest)?);
        let places = u16::from_le_bytes(take(&mut rest)?);
        let mut means = [0.0; LOAD_HOURS.len()];
        for mean in &mut means {
            *mean = f64::from(u16::from_le_bytes(take(&mut rest)?)) / WHOLE_MACHINE;
        }
        let speed = f64::from(thousandths) / 1000.0;
        let is_sound = form == FORM && cores > 0 && speed > 0.0;
        is_sound.then(|| Self {
            cores,
            speed: speed.min(SPEED_MAX),
            memory_bytes,
            places,
            load: LoadForecast::new(means),
        })
    }

    /// Adds this claim, if there is one, to the parts of an announcement.
    pub(super) fn add_to(this: Option<&Self>, parts: Parts) -> Parts {
        match this {
            Some(claim) => parts.with(MACHINE_PART, claim.to_bytes()),
            None => parts,
        }
    }

    /// The claim in the parts of an announcement, if there is one that this program understands.
    pub(super) fn in_parts(parts: &Parts) -> Option<Self> {
        Self::from_bytes(parts.get(MACHINE_PART)?)
    }
}

/// Takes the first bytes off `rest`.
fn take<const COUNT: usize>(rest: &mut &[u8]) -> Option<[u8; COUNT]> {
    let (taken, left) = rest.split_first_chunk::<COUNT>()?;
    *rest = left;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> MachineClaim {
        MachineClaim {
            cores: 8,
            speed: 1.25,
            memory_bytes: 5 << 30,
            places: 7,
            load: LoadForecast::new([0.0, 1.0, 0.0, 1.0, 0.0]),
        }
    }

    #[test]
    fn a_machine_arrives_and_what_a_later_program_adds_is_passed_over() {
        let bytes = claim().to_bytes();
        assert_eq!(bytes.len(), PART_BYTES);
        assert_eq!(MachineClaim::from_bytes(&bytes), Some(claim()));
        let longer = [bytes.as_slice(), &[1, 2, 3]].concat();
        assert_eq!(MachineClaim::from_bytes(&longer), Some(claim()));
    }

    #[test]
    fn bytes_that_are_no_machine_give_none_and_wild_claims_are_limited() {
        let bytes = claim().to_bytes();
        for length in 0..PART_BYTES {
            assert_eq!(MachineClaim::from_bytes(&bytes[..length]), None);
        }
        let mut other = bytes.clone();
        other[0] = 2;
        assert_eq!(MachineClaim::from_bytes(&other), None);
        for no_cores_or_speed in [1..3, 3..7] {
            let mut bad = bytes.clone();
            bad[no_cores_or_speed].fill(0);
            assert_eq!(MachineClaim::from_bytes(&bad), None);
        }
        let mut fast = bytes;
        fast[3..7].fill(255);
        assert_eq!(MachineClaim::from_bytes(&fast).unwrap().speed, SPEED_MAX);
        let wild = MachineClaim {
            speed: f64::NAN,
            ..claim()
        };
        assert_eq!(MachineClaim::from_bytes(&wild.to_bytes()), None);
    }
}
