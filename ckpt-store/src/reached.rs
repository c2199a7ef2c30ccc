//! Which registries reach this host from outside.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// What one registry found when it tried this host's announced address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// Name of the registry.
    pub registry: String,
    /// Whether this host answered it.
    pub answered: bool,
}

/// What the registries of the grid found last. Those that have not tried yet, or whose programs do not try, are not
/// in it.
#[derive(Debug, Default)]
pub struct Ways(Mutex<BTreeMap<String, bool>>);

impl Ways {
    /// Notes what a registry answered, and returns whether that differs from before.
    pub fn note(&self, registry: &str, answered: Option<bool>) -> bool {
        let mut all = self.all();
        let before = match answered {
            Some(answered) => all.insert(registry.to_owned(), answered),
            None => all.remove(registry),
        };
        before != answered
    }

    /// Forgets all: the grid has other registries.
    pub fn clear(&self) {
        self.all().clear();
    }

    /// What is known, by the names of registries.
    pub fn list(&self) -> Vec<Way> {
        let all = self.all();
        let all = all.iter().map(|(registry, answered)| Way {
            registry: registry.clone(),
            answered: *answered,
        });
        all.collect()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_news() {
        let ways = Ways::default();
        assert!(!ways.note("r1", None));
        assert!(ways.note("r1", Some(false)));
        assert!(!ways.note("r1", Some(false)));
        assert!(ways.note("r1", Some(true)));
        let r1 = Way {
            registry: "r1".into(),
            answered: true,
        };
        assert_eq!(ways.list(), [r1]);
        assert!(ways.note("r1", None));
        assert!(ways.list().is_empty());
    }
}
