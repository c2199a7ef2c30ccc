//! When hosts rebuild a shard that is missing, by the rules of `ckpt-store/src/core/repair`: without proofs, and the
//! first of the holders is always there to do it.

use placement::AvailabilityBitmap;
use placement::absence::{RepairWaits, hurry};

use crate::keeper::Keeper;
use crate::knowledge::Knowledge;
use crate::layers::Rows;

/// Time between two rounds of repair, seconds.
const PERIOD: f64 = 300.0;

/// Bytes per second that a rebuild reads from other hosts.
const RATE: f64 = (4 << 20) as f64;

/// Gives shards of `rows` that are missing for long enough to other hosts, as it would have happened until `now`. The
/// rows have so many `bytes`; `has` returns whether a host has its shard at some time.
pub(crate) fn rebuild(
    rows: &mut Rows,
    bytes: f64,
    now: f64,
    knowledge: &Knowledge<'_>,
    has: impl Fn(Keeper, &Rows, f64) -> Option<bool>,
) {
    while rows.repaired_until + PERIOD <= now {
        rows.repaired_until += PERIOD;
        let at = rows.repaired_until;
        let is_missing = |keeper: &&Keeper| has(**keeper, rows, at) == Some(false);
        let missing = rows.keepers.iter().filter(is_missing).count();
        let found = rows.keepers.len() - missing;
        let Some(spare) = found.checked_sub(rows.width.data()) else {
            continue;
        };
        if missing == 0 {
            continue;
        }
        for place in 0..rows.keepers.len() {
            let Keeper::Host(holder) = rows.keepers[place] else {
                continue;
            };
            let wait = wait(knowledge.past(holder), spare, bytes);
            let unix = knowledge.grid.start + at as u64;
            if !knowledge.host(holder).is_away_since(unix, wait) {
                continue;
            }
            let targets = (0..knowledge.grid.hosts.len()).filter(|host| {
                let host = Keeper::Host(*host);
                !rows.keepers.contains(&host) && has(host, rows, at) == Some(true)
            });
            if let Some(target) = knowledge.steadiest(targets) {
                rows.keepers[place] = Keeper::Host(target);
            }
        }
    }
}

/// For how long, seconds, a holder with this `past` is away when its shard has been rebuilt, for rows of which so many
/// shards more than needed are `spare`. The rebuild `reads` so many bytes.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a positive number of seconds"
)]
fn wait(past: &AvailabilityBitmap, spare: usize, reads: f64) -> u64 {
    let wait = RepairWaits::default().with(Some(past)) / hurry(spare);
    wait.as_secs() + (reads / RATE) as u64
}

#[cfg(test)]
mod tests {
    use placement::bitmap::Slot;

    use super::*;

    #[test]
    fn a_shard_is_waited_for_less_where_none_is_spare() {
        let past = AvailabilityBitmap::unknown(Slot(0));
        assert_eq!(wait(&past, 1, 400.0 * RATE), 3600 + 400);
        assert_eq!(wait(&past, 0, 400.0 * RATE), 450 + 400);
    }
}
