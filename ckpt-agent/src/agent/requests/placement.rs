//! The user's wishes for the choice of hosts.

use placement::Probability;

/// On which grounds hosts are chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choose {
    /// By forecasts of their rate and availability.
    #[default]
    Forecast,
    /// Drawn at random, whatever is known of them.
    Random,
    /// These alone, by name.
    Hosts(Vec<String>),
}

/// The user's wishes for the choice of hosts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlacementWish {
    /// On which grounds hosts are chosen.
    pub choose: Choose,
    /// Probability of being able to restart, from which the number of shards follows. `None` when the
    /// redundancy is given, or the usual one is wanted.
    pub target: Option<Probability>,
    /// Name of the host of the grid on which the job runs; `None`: it is found by its address.
    pub compute_host: Option<String>,
    /// Whether the report has the table behind the choice.
    pub explain: bool,
}
