//! Why a host takes no new shards now, in numbers and words that all programs share.

use std::fmt;

use super::parts::Parts;

/// Number of the part of an announcement that gives the reason for which new shards are refused: one
/// byte, a number of [`Withheld`].
pub const WITHHELD_PART: u16 = 1;

/// The reason that a host gives for taking no new shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Withheld {
    /// Its owner allows no use of the network at this hour.
    NetworkHours,
    /// Its owner allows no new shards at this hour.
    Hours,
    /// The machine runs on its battery.
    Battery,
    /// Its owner needs the CPU.
    Cpu,
    /// Its owner needs the memory.
    Memory,
    /// Its owner needs the disk.
    Disk,
    /// It hands its shards over to other hosts, and stops after that.
    Leaving,
    /// Its owner has paused it.
    Paused,
    /// A program runs that its owner wants to have the machine alone.
    Program,
    /// It has moved as many bytes as its owner allows within a number of days.
    Transfers,
}

impl Withheld {
    /// All reasons in the order of their numbers, which begin with 1.
    pub const ALL: [Self; 10] = [
        Self::NetworkHours,
        Self::Hours,
        Self::Battery,
        Self::Cpu,
        Self::Memory,
        Self::Disk,
        Self::Leaving,
        Self::Paused,
        Self::Program,
        Self::Transfers,
    ];

    /// The reason's number on the wire; never 0.
    pub fn number(self) -> u8 {
        let place = Self::ALL.iter().position(|one| *one == self);
        place.map_or(0, |place| u8::try_from(place + 1).unwrap_or(0))
    }

    /// The reason with this number; `None` for a number that this program does not know.
    pub fn from_number(number: u8) -> Option<Self> {
        let place = usize::from(number).checked_sub(1)?;
        Self::ALL.get(place).copied()
    }

    /// The reason in words that fit after "the host stands back:".
    pub const fn why(self) -> &'static str {
        match self {
            Self::NetworkHours => "its owner allows no network at this hour",
            Self::Hours => "its owner allows no new shards at this hour",
            Self::Battery => "it runs on its battery",
            Self::Cpu => "its owner needs the CPU",
            Self::Memory => "its owner needs the memory",
            Self::Disk => "its owner needs the disk",
            Self::Leaving => "it is leaving",
            Self::Paused => "its owner has paused it",
            Self::Program => "its owner runs a program that needs the machine alone",
            Self::Transfers => "it has transferred as many bytes as its owner allows for now",
        }
    }

    /// The parts of an announcement with this reason.
    pub(super) fn to_parts(this: Option<Self>) -> Parts {
        let part = this.map(|reason| (WITHHELD_PART, vec![reason.number()]));
        // One part of one byte is within all limits.
        Parts::new(part).unwrap_or_default()
    }

    /// The reason in the parts of an announcement, if there is one that this program knows.
    pub(super) fn in_parts(parts: &Parts) -> Option<Self> {
        let number = parts.get(WITHHELD_PART)?.first()?;
        Self::from_number(*number)
    }
}

impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.why())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_found_by_their_numbers() {
        for (place, reason) in Withheld::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(reason.number()), place + 1);
            let parts = Withheld::to_parts(Some(reason));
            assert_eq!(Withheld::in_parts(&parts), Some(reason));
        }
        assert!(Withheld::to_parts(None).is_empty());
        let unknown = Parts::new([(WITHHELD_PART, vec![200])]).unwrap();
        let empty = Parts::new([(WITHHELD_PART, vec![])]).unwrap();
        assert_eq!(Withheld::in_parts(&unknown), None);
        assert_eq!(Withheld::in_parts(&empty), None);
        assert_eq!(Withheld::from_number(0), None);
    }
}
