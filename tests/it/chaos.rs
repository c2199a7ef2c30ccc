//! A minute of chaos; `cargo run -p tests --bin chaos -- --hours 1` runs it for longer.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::chaos::{Chaos, run};

#[test]
fn nothing_acknowledged_is_lost_in_a_minute_of_faults() -> Result<()> {
    let chaos = Chaos {
        seed: std::process::id().into(),
        time: Duration::from_secs(60),
        hosts: 9,
        jobs: 2,
        registries: 2,
        is_listed: true,
    };
    let tally = run(&chaos).with_context(|| format!("{chaos:?}"))?;
    eprintln!("{chaos:?}: {tally}");
    ensure!(
        tally.saved > 3 && tally.restored > 3 && !tally.faults.is_empty(),
        "{tally}"
    );
    Ok(())
}
