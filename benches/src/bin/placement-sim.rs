//! Compares ways of choosing storage hosts by simulation over availability traces.
use anyhow::{Context, Result};
use benches::placement_sim::score::ratio;
use benches::placement_sim::trial::policies;
use benches::placement_sim::{Case, evaluate};
use benches::traces::{Trace, format};
use std::path::PathBuf;

fn main() -> Result<()> {
    let dir = PathBuf::from(std::env::args().nth(1).unwrap());
    let n: usize = std::env::args().nth(2).unwrap().parse()?;
    let only = std::env::args().nth(3);
    let mut cases = vec![];
    if only.as_deref().is_none_or(|o| "grid5000".contains(o)) {
        cases.push(Case::of_grid5000());
    }
    for f in format::traces_in(&dir)? {
        if !only
            .as_deref()
            .is_none_or(|o| f.display().to_string().contains(o))
        {
            continue;
        }
        let t = Trace::new(format::read(&f).context("x")?);
        cases.extend(Case::of_trace(&t));
    }
    for case in &cases {
        let t0 = std::time::Instant::now();
        let grids = case.grids(n);
        let trial = evaluate(case, &case.settings, &grids, &policies(), 2);
        println!(
            "\n== {} work {:.0}h grids {} hosts {} ({:.1}s)",
            case.name,
            case.settings.work_seconds / 3600.,
            grids.len(),
            grids.first().map_or(0, |g| g.hosts.len()),
            t0.elapsed().as_secs_f64()
        );
        println!(
            "{:24} {:>6} {:>7} {:>7} {:>7} {:>8} {:>7} {:>7} {:>6} {:>6} {:>6} {:>7} {:>5}",
            "scheme",
            "restor",
            "failed%",
            "lostN%",
            "unrd%",
            "s/ckpt",
            "ovhd%",
            "lost%",
            "wait%",
            "rest%",
            "span/w",
            "ckpts",
            "unfin"
        );
        for (p, s) in policies().iter().zip(&trial.sums) {
            println!(
                "{:24} {:6} {:7.3} {:7.3} {:7.3} {:8.2} {:7.3} {:7.3} {:6.3} {:6.3} {:6.4} {:7} {:5}",
                p.name(),
                s.iter().map(|s| s.restores).sum::<f64>(),
                100. * ratio(s, |s| s.failed, |s| s.restores),
                100. * ratio(s, |s| s.lost_newest, |s| s.restores),
                100. * ratio(s, |s| s.looks_failed, |s| s.looks),
                ratio(s, |s| s.stored_seconds, |s| s.stored),
                100. * ratio(s, |s| s.storing, |s| s.work),
                100. * ratio(s, |s| s.lost, |s| s.work),
                100. * ratio(s, |s| s.waiting, |s| s.work),
                100. * ratio(s, |s| s.restoring, |s| s.work),
                ratio(s, |s| s.makespan, |s| s.work),
                s.iter().map(|s| s.stored).sum::<f64>(),
                s.iter().map(|s| s.jobs - s.finished).sum::<f64>()
            );
        }
    }
    Ok(())
}
