//! Random settings for a supervisor.

use placement::state::Thresholds;
use rand::Rng;
use rand::rngs::SmallRng;
use supervision::patience::{Needs, Past};
use supervision::{
    Asking, Costs, LeaveAfter, Millis, OnHang, OwnerRule, Parity, Settings, WhileRead,
};

pub(super) fn draw(rng: &mut SmallRng) -> Settings {
    let owner = if rng.random_bool(0.15) {
        OwnerRule::BatchSystem
    } else {
        OwnerRule::Watched {
            thresholds: Thresholds::LINUX,
            run_if_user_active: rng.random_bool(0.5),
        }
    };
    let leave_after = match rng.random_range(0..4) {
        0 => LeaveAfter::Never,
        1 => LeaveAfter::Milliseconds(rng.random_range(0..90_000)),
        2 => LeaveAfter::MINUTE,
        _ => LeaveAfter::Auto(Past::new(
            &needs(&[10.0, 30.0, 70.0]),
            &needs(&[5.0, 300.0]),
        )),
    };
    let asking = match rng.random_range(0..3) {
        0 => Asking::Never,
        1 => Asking::Possible,
        _ => Asking::Dump,
    };
    let while_read = if asking != Asking::Dump && rng.random_bool(0.5) {
        WhileRead::Stopped
    } else {
        WhileRead::Runs
    };
    Settings {
        spend: if rng.random_bool(0.5) { 0.4 } else { 0.0 },
        owner,
        leave_after,
        grace_ms: rng.random_range(0..90_000),
        kill_ms: rng.random_range(1000..10_000),
        asking,
        while_read,
        final_parity: if rng.random_bool(0.5) {
            Parity::Full
        } else {
            Parity::AtLeast(1)
        },
        on_hang: if rng.random_bool(0.5) {
            OnHang::Leave
        } else {
            OnHang::Report
        },
        time_limit: rng
            .random_bool(0.2)
            .then(|| Millis(rng.random_range(10_000..2_000_000))),
        costs: Costs {
            standstill_seconds: rng.random_range(0.1..5.0),
            ..Costs::default()
        },
        moving_ms: rng.random_range(0..600_000),
        restored: rng.random_bool(0.5).then_some(3),
        restored_bytes: rng
            .random_bool(0.5)
            .then(|| rng.random_range(0..2_000_000_000)),
        longest_quiet_ms: 0,
        predicted_ms: rng.random_bool(0.2).then_some(100_000),
    }
}

fn needs(lengths: &[f64]) -> Needs {
    let mut needs = Needs {
        lengths: lengths.to_vec(),
        ..Needs::default()
    };
    for seconds in lengths {
        needs.uses.add(20.0 * seconds, true);
    }
    needs
}
