//! A map from checkpoints to values, in the order of their keys and in little memory.

use std::collections::BTreeMap;
use std::ops::Bound;

use codec::{CheckpointId, OwnerId};

use super::key::Key;

/// A map with checkpoints as keys. A host knows many checkpoints of few owners. The owner takes two
/// thirds of a key, so each owner is stored once for all of its checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByKey<V>(BTreeMap<OwnerId, BTreeMap<CheckpointId, V>>);

impl<V> Default for ByKey<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> ByKey<V> {
    /// A map without entries.
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many checkpoints have a value.
    pub fn len(&self) -> usize {
        self.0.values().map(BTreeMap::len).sum()
    }

    /// Whether a checkpoint has a value.
    pub fn contains_key(&self, key: &Key) -> bool {
        self.get(key).is_some()
    }

    /// The value of a checkpoint.
    pub fn get(&self, key: &Key) -> Option<&V> {
        self.0.get(&key.owner)?.get(&key.checkpoint)
    }

    /// The value of a checkpoint, to change it.
    pub fn get_mut(&mut self, key: &Key) -> Option<&mut V> {
        self.0.get_mut(&key.owner)?.get_mut(&key.checkpoint)
    }

    /// Sets the value of a checkpoint.
    pub fn insert(&mut self, key: Key, value: V) {
        let of_owner = self.0.entry(key.owner).or_default();
        of_owner.insert(key.checkpoint, value);
    }

    /// Removes the value of a checkpoint and returns it.
    pub fn remove(&mut self, key: &Key) -> Option<V> {
        let of_owner = self.0.get_mut(&key.owner)?;
        let removed = of_owner.remove(&key.checkpoint);
        if of_owner.is_empty() {
            self.0.remove(&key.owner);
        }
        removed
    }

    /// Removes all checkpoints for which `keeps` is false.
    pub fn retain(&mut self, keeps: impl Fn(&Key) -> bool) {
        self.0.retain(|owner, of_owner| {
            of_owner.retain(|checkpoint, _| {
                keeps(&Key {
                    owner: *owner,
                    checkpoint: *checkpoint,
                })
            });
            !of_owner.is_empty()
        });
    }

    /// All checkpoints with their values, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &V)> {
        self.after(None)
    }

    /// The checkpoints after a key, in ascending order.
    pub fn after(&self, after: Option<Key>) -> impl Iterator<Item = (Key, &V)> {
        let owners = after.map_or(Bound::Unbounded, |key| Bound::Included(key.owner));
        let owners = self.0.range((owners, Bound::Unbounded));
        owners.flat_map(move |(owner, of_owner)| {
            let first = match after.filter(|key| key.owner == *owner) {
                Some(key) => Bound::Excluded(key.checkpoint),
                None => Bound::Unbounded,
            };
            let all = of_owner.range((first, Bound::Unbounded));
            all.map(|(checkpoint, value)| {
                let key = Key {
                    owner: *owner,
                    checkpoint: *checkpoint,
                };
                (key, value)
            })
        })
    }

    /// The checkpoints of one owner after a checkpoint id, in ascending order.
    pub fn of_owner(
        &self,
        owner: OwnerId,
        after: Option<CheckpointId>,
    ) -> impl Iterator<Item = (Key, &V)> {
        let first = after.map_or(Bound::Unbounded, Bound::Excluded);
        let of_owner = self.0.get(&owner).into_iter();
        let all = of_owner.flat_map(move |all| all.range((first, Bound::Unbounded)));
        all.map(move |(checkpoint, value)| {
            let key = Key {
                owner,
                checkpoint: *checkpoint,
            };
            (key, value)
        })
    }
}

impl<V: Default> ByKey<V> {
    /// The value of a checkpoint, which is set to the default first if there is none.
    pub fn or_default(&mut self, key: Key) -> &mut V {
        let of_owner = self.0.entry(key.owner).or_default();
        of_owner.entry(key.checkpoint).or_default()
    }
}

impl<V> FromIterator<(Key, V)> for ByKey<V> {
    fn from_iter<I: IntoIterator<Item = (Key, V)>>(all: I) -> Self {
        let mut map = Self::new();
        for (key, value) in all {
            map.insert(key, value);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = Key> {
        (0..3_u8, 0..6_u8).prop_map(|(owner, checkpoint)| Key {
            owner: OwnerId([owner; 32]),
            checkpoint: CheckpointId([checkpoint; 16]),
        })
    }

    proptest! {
        #[test]
        fn it_is_a_map_in_the_order_of_keys(
            changes in prop::collection::vec((key(), any::<bool>()), 0..60), after in key(),
        ) {
            let mut map = ByKey::new();
            let mut model = BTreeMap::new();
            for (number, (key, adds)) in changes.into_iter().enumerate() {
                if adds {
                    map.insert(key, number);
                    model.insert(key, number);
                } else {
                    prop_assert_eq!(map.remove(&key), model.remove(&key));
                }
                prop_assert_eq!(map.get(&key), model.get(&key));
                prop_assert_eq!(map.contains_key(&key), model.contains_key(&key));
                prop_assert_eq!((map.is_empty(), map.len()), (model.is_empty(), model.len()));
            }
            prop_assert!(map.iter().eq(model.iter().map(|(key, value)| (*key, value))));
            let later = (Bound::Excluded(after), Bound::Unbounded);
            prop_assert!(map.after(Some(after)).eq(model.range(later).map(|(key, value)| (*key, value))));
            let of = model.range(later).filter(|(key, _)| key.owner == after.owner);
            let of = of.map(|(key, value)| (*key, value));
            prop_assert!(map.of_owner(after.owner, Some(after.checkpoint)).eq(of));
            *map.or_default(after) += 1;
            *model.entry(after).or_default() += 1;
            prop_assert_eq!(map.get(&after), model.get(&after));
            let keeps = |key: &Key| key.checkpoint < after.checkpoint;
            map.retain(keeps);
            model.retain(|key, _| keeps(key));
            prop_assert!(map.iter().eq(model.iter().map(|(key, value)| (*key, value))));
        }
    }
}
