//! Which model makes the curves of an announcement. This is a claim of the host, like the curves.

use super::parts::Parts;

/// Number of the part of an announcement that names the model. Number 3 is no longer in use: earlier programs
/// put there what their curves were made from, and it is passed over.
pub const FORECAST_PART: u16 = 6;

/// A model that makes curves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForecastBy {
    /// Hazard regression (`placement::hazard`).
    Hazard,
    /// The semi-Markov process of the papers (`placement::semi_markov`).
    SemiMarkov,
    /// Hazard regression. The reader mixes the curve of presence with the model of the pool
    /// (`placement::pool_model`), which a host alone can't make.
    Blend,
}

impl ForecastBy {
    const fn number(self) -> u8 {
        match self {
            Self::Hazard => 1,
            Self::SemiMarkov => 2,
            Self::Blend => 3,
        }
    }

    /// Adds the name of the model, if there is one, to the parts of an announcement.
    pub(super) fn add_to(this: Option<Self>, parts: Parts) -> Parts {
        match this {
            Some(by) => parts.with(FORECAST_PART, vec![by.number()]),
            None => parts,
        }
    }

    /// The model that the parts of an announcement name, if this program knows it.
    pub(super) fn in_parts(parts: &Parts) -> Option<Self> {
        let number = parts.get(FORECAST_PART)?.first()?;
        let mut known = [Self::Hazard, Self::SemiMarkov, Self::Blend].into_iter();
        known.find(|by| by.number() == *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_known_by_its_number_and_others_are_passed_over() {
        for by in [
            ForecastBy::Hazard,
            ForecastBy::SemiMarkov,
            ForecastBy::Blend,
        ] {
            let parts = ForecastBy::add_to(Some(by), Parts::default());
            assert_eq!(ForecastBy::in_parts(&parts), Some(by));
        }
        assert!(ForecastBy::add_to(None, Parts::default()).is_empty());
        for of_others in [vec![], vec![0], vec![200]] {
            let parts = Parts::new([(FORECAST_PART, of_others)]).unwrap();
            assert_eq!(ForecastBy::in_parts(&parts), None);
        }
    }
}
