//! What a host announces about its own availability. An announcement is a claim: what a client itself saw
//! of the host counts for more.
//!
//! The fields of [`Announcement`] are fixed. What came later travels as a numbered
//! part ([`super::parts`]), such as [`MachineClaim`], and is a field of [`Announced`].

use std::num::NonZeroU32;

use placement::state::{AvailabilityState, ModelState, StorageState};
use placement::{AvailabilityBitmap, SurvivalCurve};
use serde::{Deserialize, Serialize};

use super::Withheld;
use super::forecast::ForecastBy;
use super::machine::MachineClaim;
use super::parts::Parts;

/// Most steps of a survival curve in an announcement.
pub const CURVE_STEPS_MAX: usize = 256;

/// Value on the wire of the probability 1.
const CERTAIN: f64 = u16::MAX as f64;

/// A host's announcement as it travels, before it is checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// When it was made by the host's clock, Unix seconds.
    pub at: u64,
    /// State of the disk: index in [`StorageState::ALL`].
    pub storage_state: u8,
    /// State of the machine as a guest job sees it: index in [`AvailabilityState::ALL`].
    pub guest_state: u8,
    /// Seconds after which new shards may be welcome again; 0 when they are now.
    pub refuses_for_s: u32,
    /// Bytes per second that it can receive, from what it received lately and what its owner allows;
    /// 0 when it does not know.
    pub receives_bytes_per_s: u64,
    /// Seconds between two values of the curves.
    pub curve_step_s: u32,
    /// Probability that the host stays reachable for 1, 2, ... steps, in units of 1/65535.
    pub presence: Vec<u16>,
    /// Probability that a guest job on the host stays alive for 1, 2, ... steps, in units of 1/65535.
    pub guest: Vec<u16>,
    /// When the host was reachable in the last 28 days ([`AvailabilityBitmap::to_bytes`]).
    #[serde(with = "serde_bytes")]
    pub presence_bitmap: Vec<u8>,
    /// When a guest could have run in the last 28 days ([`AvailabilityBitmap::to_bytes`]).
    #[serde(with = "serde_bytes")]
    pub guest_bitmap: Vec<u8>,
    /// Fields that were added later; they travel in [`ExtendedAnnouncement`] alone.
    #[serde(skip)]
    pub parts: Parts,
}

/// An announcement with its parts, as a host itself sends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtendedAnnouncement {
    /// The announcement.
    body: Announcement,
    /// Fields that were added later.
    parts: Parts,
}

impl From<Announcement> for ExtendedAnnouncement {
    fn from(mut body: Announcement) -> Self {
        let parts = std::mem::take(&mut body.parts);
        Self { body, parts }
    }
}

impl From<ExtendedAnnouncement> for Announcement {
    fn from(extended: ExtendedAnnouncement) -> Self {
        let ExtendedAnnouncement { body, parts } = extended;
        Self { parts, ..body }
    }
}

/// An announcement whose fields were checked, made by [`Announcement::check`].
#[derive(Clone, Debug, PartialEq)]
pub struct Announced {
    /// When it was made by the host's clock, Unix seconds.
    pub at: u64,
    /// State of the disk.
    pub storage_state: StorageState,
    /// State of the machine as a guest job sees it.
    pub guest_state: AvailabilityState,
    /// Seconds after which new shards may be welcome again; 0 when they are now.
    pub refuses_for_s: u32,
    /// Why new shards are not welcome now, if the host gives a reason.
    pub withheld: Option<Withheld>,
    /// What the host claims of its machine, if anything.
    pub machine: Option<MachineClaim>,
    /// Which model makes the curves, if the host names one that this program knows.
    pub forecast_by: Option<ForecastBy>,
    /// Bytes per second that the host claims to be able to receive, if it knows.
    pub receives_bytes_per_s: Option<u64>,
    /// Probability that the host stays reachable, over time.
    pub presence: SurvivalCurve,
    /// Probability that a guest job on the host stays alive, over time.
    pub guest: SurvivalCurve,
    /// When the host was reachable in the last 28 days.
    pub presence_bitmap: AvailabilityBitmap,
    /// When a guest could have run in the last 28 days.
    pub guest_bitmap: AvailabilityBitmap,
}

/// Why an announcement is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnnouncementError {
    /// No state has this number.
    #[error("unknown state {0}")]
    State(u8),
    /// A survival curve has too many steps, steps of length 0, or values that grow.
    #[error("survival curve: {0}")]
    Curve(String),
    /// A bitmap can't be decoded.
    #[error(transparent)]
    Bitmap(#[from] placement::bitmap::BitmapDecodeError),
}

impl Announced {
    /// The form that travels. Both curves get the step of `presence` and at most [`CURVE_STEPS_MAX`] steps.
    pub fn to_wire(&self) -> Announcement {
        let step = self.presence.step_seconds();
        let steps = self.presence.steps();
        let guest = if self.guest.step_seconds() == step {
            quantised(&self.guest)
        } else {
            quantised(&self.guest.resampled(step, steps.min(CURVE_STEPS_MAX)))
        };
        Announcement {
            at: self.at,
            storage_state: number(self.storage_state.index()),
            guest_state: number(self.guest_state.index()),
            refuses_for_s: self.refuses_for_s,
            receives_bytes_per_s: self.receives_bytes_per_s.unwrap_or(0),
            curve_step_s: step.get(),
            presence: quantised(&self.presence),
            guest,
            presence_bitmap: self.presence_bitmap.to_bytes(),
            guest_bitmap: self.guest_bitmap.to_bytes(),
            parts: ForecastBy::add_to(
                self.forecast_by,
                MachineClaim::add_to(self.machine.as_ref(), Withheld::to_parts(self.withheld)),
            ),
        }
    }
}

impl Announcement {
    /// The announcement with every field checked. Parts that this program does not understand are left out.
    ///
    /// # Errors
    /// When a state, a curve or a bitmap is not valid.
    pub fn check(&self) -> Result<Announced, AnnouncementError> {
        Ok(Announced {
            at: self.at,
            storage_state: state(self.storage_state)?,
            guest_state: state(self.guest_state)?,
            refuses_for_s: self.refuses_for_s,
            withheld: Withheld::in_parts(&self.parts),
            machine: MachineClaim::in_parts(&self.parts),
            forecast_by: ForecastBy::in_parts(&self.parts),
            receives_bytes_per_s: Some(self.receives_bytes_per_s).filter(|rate| *rate > 0),
            presence: curve(self.curve_step_s, &self.presence)?,
            guest: curve(self.curve_step_s, &self.guest)?,
            presence_bitmap: AvailabilityBitmap::from_bytes(&self.presence_bitmap)?,
            guest_bitmap: AvailabilityBitmap::from_bytes(&self.guest_bitmap)?,
        })
    }
}

/// The number of a state on the wire. Every list of states has far fewer than 255.
fn number(index: usize) -> u8 {
    u8::try_from(index).unwrap_or(u8::MAX)
}

fn state<S: ModelState>(index: u8) -> Result<S, AnnouncementError> {
    let found = S::ALL.get(usize::from(index)).copied();
    found.ok_or(AnnouncementError::State(index))
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "a survival curve has values of 0 to 1, and CERTAIN fits"
)]
fn quantised(curve: &SurvivalCurve) -> Vec<u16> {
    let values = curve.values().iter().skip(1).take(CURVE_STEPS_MAX);
    values
        .map(|value| (value * CERTAIN).round() as u16)
        .collect()
}

fn curve(step_s: u32, values: &[u16]) -> Result<SurvivalCurve, AnnouncementError> {
    let bad = AnnouncementError::Curve;
    let step = NonZeroU32::new(step_s).ok_or_else(|| bad("steps of length 0".into()))?;
    if values.len() > CURVE_STEPS_MAX {
        let found = values.len();
        return Err(bad(format!(
            "{found} steps, at most {CURVE_STEPS_MAX} are allowed"
        )));
    }
    let values = values.iter().map(|value| f64::from(*value) / CERTAIN);
    SurvivalCurve::new(step, std::iter::once(1.0).chain(values).collect())
        .map_err(|cause| bad(cause.to_string()))
}

#[cfg(test)]
mod tests {
    use placement::bitmap::Slot;
    use placement::rank::LoadForecast;
    use proptest::prelude::*;

    use super::*;
    use crate::wire::limits::FRAME_BYTES_MAX;
    use crate::wire::message::{Message, Response};

    fn announced() -> Announced {
        let step = NonZeroU32::new(300).unwrap();
        Announced {
            at: 1_700_000_000,
            storage_state: StorageState::Limited,
            guest_state: AvailabilityState::Thrashing,
            refuses_for_s: 60,
            withheld: None,
            machine: None,
            forecast_by: Some(ForecastBy::Hazard),
            receives_bytes_per_s: Some(12_500_000),
            presence: SurvivalCurve::exponential(step, 120, 1e-5),
            guest: SurvivalCurve::exponential(step, 120, 1e-4),
            presence_bitmap: AvailabilityBitmap::unknown(Slot(77)),
            guest_bitmap: AvailabilityBitmap::unknown(Slot(77)),
        }
    }

    fn received(sent: &Announced) -> Announced {
        let response = Response::Announcement(Box::new(sent.to_wire().into()));
        let frame = response.to_frame().unwrap();
        let Response::Announcement(wire) = Response::from_frame(&frame).unwrap() else {
            panic!("another response");
        };
        Announcement::from(*wire).check().unwrap()
    }

    #[test]
    fn what_earlier_hosts_add_for_refits_is_passed_over() {
        let mut sent = announced().to_wire();
        sent.parts = Parts::default().with(3, vec![1; 433]);
        let extended = Response::Announcement(Box::new(sent.into()));
        let frame = extended.to_frame().unwrap();
        let Ok(Response::Announcement(read)) = Response::from_frame(&frame) else {
            panic!("another response");
        };
        let read = Announcement::from(*read).check().unwrap();
        assert_eq!((read.forecast_by, read.at), (None, announced().at));
    }

    #[test]
    fn an_announcement_arrives() {
        let sent = announced();
        let mut received = received(&sent);
        let near = |a: &SurvivalCurve, b: &SurvivalCurve| {
            let pairs = a.values().iter().zip(b.values());
            a.steps() == b.steps() && pairs.clone().all(|(a, b)| (a - b).abs() < 1e-5)
        };
        assert!(near(&received.presence, &sent.presence));
        assert!(near(&received.guest, &sent.guest));
        received.presence = sent.presence.clone();
        received.guest = sent.guest.clone();
        assert_eq!(received, sent);
    }

    #[test]
    fn why_shards_are_refused_and_the_machine_arrive() {
        let machine = MachineClaim {
            cores: 4,
            speed: 1.5,
            memory_bytes: 1 << 33,
            places: 3,
            load: LoadForecast::constant(1.0),
        };
        let sent = Announced {
            withheld: Some(Withheld::Paused),
            machine: Some(machine),
            ..announced()
        };
        let received = received(&sent);
        assert_eq!(received.withheld, Some(Withheld::Paused));
        assert_eq!(received.machine, Some(machine));
    }

    #[test]
    fn curves_of_other_steps_are_brought_to_the_same() {
        let mut sent = announced();
        sent.guest = SurvivalCurve::exponential(NonZeroU32::new(60).unwrap(), 600, 1e-4);
        let received = sent.to_wire().check().unwrap();
        let expected = sent.guest.at(3000.0).value();
        assert!((received.guest.at(3000.0).value() - expected).abs() < 1e-4);
    }

    #[test]
    fn nonsense_is_refused() {
        let good = announced().to_wire();
        type Damage = fn(&mut Announcement);
        let damages: [Damage; 6] = [
            |a| a.storage_state = 5,
            |a| a.guest_state = 255,
            |a| a.curve_step_s = 0,
            |a| a.presence = vec![1, 2],
            |a| a.guest = vec![0; CURVE_STEPS_MAX + 1],
            |a| a.presence_bitmap = vec![9; 40],
        ];
        for damage in damages {
            let mut bad = good.clone();
            damage(&mut bad);
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_longest_announcement_fits_into_a_frame() {
        let mut longest = announced().to_wire();
        longest.presence = (0..CURVE_STEPS_MAX as u16).map(|i| 60_000 - i).collect();
        longest.guest = longest.presence.clone();
        longest.presence_bitmap = vec![0; 2025];
        longest.guest_bitmap = vec![0; 2025];
        let frame = Response::Announcement(Box::new(longest.into()))
            .to_frame()
            .unwrap();
        assert!(frame.len() < 6_000 && frame.len() < FRAME_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn any_numbers_are_checked_without_harm(
            states in any::<(u8, u8)>(),
            step in any::<u32>(),
            curve in prop::collection::vec(any::<u16>(), 0..300),
            bitmap in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let announcement = Announcement {
                storage_state: states.0,
                guest_state: states.1,
                curve_step_s: step,
                presence: curve.clone(),
                guest: curve,
                presence_bitmap: bitmap.clone(),
                guest_bitmap: bitmap,
                ..Announcement::default()
            };
            let _ = announcement.check();
        }
    }
}
