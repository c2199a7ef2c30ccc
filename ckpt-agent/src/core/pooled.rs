//! The forecasts of hosts mixed with a model of their pool.

use placement::pool_model::PoolModel;
use protocol::wire::announcement::Announced;
use protocol::wire::forecast::ForecastBy;

/// Gives the announcements whose hosts leave it to this machine the mean of the presence that they announce and
/// of the model of the pool: all that are given here. Whether a guest stays depends on the load just now, which
/// bitmaps do not have; there the mean is worse than what hosts announce (`docs/research/prediction.md`).
pub(crate) fn blend<'a>(announced: impl IntoIterator<Item = &'a mut Announced>) {
    let mut all: Vec<&mut Announced> = announced.into_iter().collect();
    let pool = PoolModel::of(
        &all.iter()
            .map(|said| &said.presence_bitmap)
            .collect::<Vec<_>>(),
    );
    for said in &mut all {
        if said.forecast_by == Some(ForecastBy::Blend) {
            said.presence = pool.blended(&said.presence, &said.presence_bitmap);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use placement::bitmap::{Availability, Slot};
    use placement::state::{AvailabilityState, StorageState};
    use placement::{AvailabilityBitmap, SurvivalCurve};

    use super::*;

    /// A host that fails every `period` slots, and whose own model foresees a failure in ten hours.
    fn announced(forecast_by: ForecastBy, period: u64) -> Announced {
        let mut past = AvailabilityBitmap::unknown(Slot(0));
        for slot in 1..4000 {
            let seen = if slot % period == 0 {
                Availability::NotUsable
            } else {
                Availability::Usable
            };
            past.record(Slot(slot), seen);
        }
        let curve = SurvivalCurve::exponential(NonZeroU32::new(300).unwrap(), 120, 1.0 / 36_000.0);
        Announced {
            at: 1_200_000,
            storage_state: StorageState::FullRate,
            guest_state: AvailabilityState::Idle,
            refuses_for_s: 0,
            withheld: None,
            machine: None,
            forecast_by: Some(forecast_by),
            receives_bytes_per_s: None,
            presence: curve.clone(),
            guest: curve,
            presence_bitmap: past.clone(),
            guest_bitmap: past,
        }
    }

    #[test]
    fn curves_are_mixed_where_hosts_leave_it_to_the_client_and_nowhere_else() {
        let models = [
            ForecastBy::Blend,
            ForecastBy::Blend,
            ForecastBy::Hazard,
            ForecastBy::SemiMarkov,
        ];
        let periods = [10_000, 12, 12, 12];
        let before: Vec<Announced> = models
            .into_iter()
            .zip(periods)
            .map(|(by, n)| announced(by, n))
            .collect();
        let mut after = before.clone();
        blend(&mut after);
        let in_an_hour = |said: &Announced| said.presence.at(3600.0).value();
        // The first host never failed, so it is surer than it announces; the second fails every hour.
        assert!(in_an_hour(&after[0]) > in_an_hour(&before[0]) + 0.01);
        assert!(in_an_hour(&after[1]) < in_an_hour(&before[1]) - 0.1);
        assert_eq!(after[2..], before[2..]);
        assert!((0..2).all(|host| after[host].guest == before[host].guest));
    }
}
