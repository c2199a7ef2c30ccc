//! The description of a pool as text.

use std::io::{self, Write};

use study::Spread;
use study::description::{
    CauseLine, FitLine, FitTable, FittedQuantity, GroupLine, PatternLine, PoolDescription,
};

use crate::commands::render::{Table, count, one_line, shown, time};

/// How many sites are listed in the text. The JSON has all.
const SITES_SHOWN: usize = 20;

/// Writes the whole description.
pub(super) fn write(pool: &PoolDescription, out: &mut dyn Write) -> io::Result<()> {
    head(pool, out)?;
    levels(pool, out)?;
    lengths(pool, out)?;
    causes(&pool.causes, out)?;
    patterns(pool, out)?;
    groups(pool, out)?;
    sites(pool, out)?;
    for fit in pool.fits.iter().filter(|fit| fit.site.is_none()) {
        fitted(fit, out)?;
    }
    site_fits(pool, out)
}

fn head(pool: &PoolDescription, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}: {}", one_line(&pool.name), one_line(&pool.about))?;
    let what = match pool.counts {
        "gone" => "only a machine that is gone (S5)",
        _ => "every state that stops a guest (S3, S4, S5)",
    };
    let sites = match pool.sites {
        0 => "no named sites".to_owned(),
        sites => count(sites as usize, "site"),
    };
    writeln!(
        out,
        "{}, {sites}, {} to {}; {} of the time unknown; times exact to {}",
        count(pool.hosts as usize, "host"),
        time(pool.from),
        time(pool.to),
        percent(pool.unknown),
        span(pool.resolution_seconds as f64),
    )?;
    writeln!(
        out,
        "failures: {}; counted as unavailable: {what}",
        pool.failures
    )
}

fn levels(pool: &PoolDescription, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nAvailability and time between failures")?;
    let mut table = Table::new(&[
        "LEVEL",
        "COUNT",
        "AVAILABLE",
        "LEAST",
        "MOST",
        "FAILURES EACH",
        "MTBF",
        "SD",
    ]);
    for level in &pool.levels {
        let Some(available) = level.availability else {
            continue;
        };
        let failures = level.failures.map_or(0.0, |spread| spread.mean);
        let between = level.between_failures;
        table.row(vec![
            level.level.to_owned(),
            available.count.to_string(),
            percent(available.mean),
            percent(available.min),
            percent(available.max),
            format!("{failures:.1}"),
            between.map_or("-".to_owned(), |spread| span(spread.mean)),
            between.map_or("-".to_owned(), |spread| span(spread.sd)),
        ]);
    }
    table.write(out)?;
    if let Some(share) = &pool.up_share {
        writeln!(
            out,
            "share of the pool that is up, in steps of {}: {} (sd {}), least {}, most {}",
            span(pool.up_share_step as f64),
            percent(share.mean),
            percent(share.sd),
            percent(share.min),
            percent(share.max),
        )?;
    }
    Ok(())
}

fn lengths(pool: &PoolDescription, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "\nPeriods in which a host was up or down, and were seen whole"
    )?;
    let mut table = Table::new(&[
        "",
        "COUNT",
        "CUT",
        "MEAN",
        "SD",
        "LEAST",
        "QUARTER",
        "MEDIAN",
        "3 QUARTERS",
        "MOST",
    ]);
    for (name, spread, cut) in [
        ("up", &pool.up, pool.up_cut),
        ("down", &pool.down, pool.down_cut),
    ] {
        let of = |value: fn(&Spread) -> f64| match spread {
            Some(spread) => span(value(spread)),
            None => "-".to_owned(),
        };
        table.row(vec![
            name.to_owned(),
            spread.map_or(0, |spread| spread.count).to_string(),
            cut.to_string(),
            of(|spread| spread.mean),
            of(|spread| spread.sd),
            of(|spread| spread.min),
            of(|spread| spread.quarter),
            of(|spread| spread.median),
            of(|spread| spread.three_quarters),
            of(|spread| spread.max),
        ]);
    }
    table.write(out)?;
    writeln!(
        out,
        "CUT: number of periods not seen whole, because they begin or end outside the trace or in unknown time. Long periods are cut more often."
    )
}

fn causes(causes: &[CauseLine], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nFailures by cause")?;
    let mut table = Table::new(&[
        "CAUSE",
        "FAILURES",
        "SHARE",
        "PER HOST",
        "SHARE PER HOST",
        "OF THE TIME",
    ]);
    for cause in causes {
        let name = match cause.state {
            "S3" => "S3 processor taken",
            "S4" => "S4 no memory",
            _ => "S5 gone",
        };
        let [least, most] = cause.per_host;
        let share = cause
            .share_per_host
            .map(|[least, most]| format!("{}-{}", percent(least), percent(most)));
        table.row(vec![
            name.to_owned(),
            cause.failures.to_string(),
            percent(cause.share),
            format!("{least}-{most}"),
            share.unwrap_or_else(|| "-".to_owned()),
            percent(cause.time_share),
        ]);
    }
    table.write(out)
}

fn patterns(pool: &PoolDescription, out: &mut dyn Write) -> io::Result<()> {
    const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    if pool.failures == 0 {
        return Ok(());
    }
    let zone = match pool.utc_offset {
        0 => "UTC".to_owned(),
        hours => format!("UTC{hours:+}"),
    };
    writeln!(
        out,
        "\nPattern ({zone}): failures per hour up, divided by the mean"
    )?;
    let rate = |line: &PatternLine| {
        line.rate
            .map_or("-".to_owned(), |rate| format!("{rate:.2}"))
    };
    for (row, lines) in pool.by_hour.chunks(8).enumerate() {
        let cells = lines.iter().enumerate();
        let cells = cells.map(|(i, line)| format!("{:>2}h {:>5}", 8 * row + i, rate(line)));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("   "))?;
    }
    let cells = pool.by_weekday.iter().zip(DAYS);
    let cells = cells.map(|(line, day)| format!("{day} {:>5}", rate(line)));
    writeln!(out, "{}", cells.collect::<Vec<_>>().join("  "))
}

fn groups(pool: &PoolDescription, out: &mut dyn Write) -> io::Result<()> {
    if pool.failures < 2 {
        return Ok(());
    }
    writeln!(
        out,
        "\nGroups of two or more failures that follow each other closely"
    )?;
    let mut table = Table::new(&[
        "WITHIN",
        "GROUPS",
        "OF ALL FAILURES",
        "SIZE",
        "SD",
        "MOST",
        "SITES",
        "MOST",
    ]);
    for line in &pool.groups {
        let GroupLine {
            within,
            correlated,
            share,
            size,
            ..
        } = line;
        let of = |value: fn(&Spread) -> f64| {
            size.map_or("-".to_owned(), |s| format!("{:.1}", value(&s)))
        };
        table.row(vec![
            span(*within as f64),
            correlated.to_string(),
            percent(*share),
            of(|size| size.mean),
            of(|size| size.sd),
            size.map_or("-".to_owned(), |size| size.max.to_string()),
            line.sites_mean
                .filter(|_| pool.sites > 0)
                .map_or("-".to_owned(), |mean| format!("{mean:.2}")),
            match pool.sites {
                0 => "-".to_owned(),
                _ => line.sites_max.to_string(),
            },
        ]);
    }
    table.write(out)?;
    if pool.resolution_seconds > 1 {
        writeln!(
            out,
            "times are exact to {}: events closer together look simultaneous",
            span(pool.resolution_seconds as f64)
        )?;
    }
    Ok(())
}

fn sites(pool: &PoolDescription, out: &mut dyn Write) -> io::Result<()> {
    if pool.site_failures.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nFailures by site")?;
    let mut table = Table::new(&["SITE", "HOSTS", "FAILURES", "SHARE"]);
    for site in pool.site_failures.iter().take(SITES_SHOWN) {
        table.row(vec![
            shown(&site.site, 30),
            site.hosts.to_string(),
            site.failures.to_string(),
            format!("{:.3}", site.share),
        ]);
    }
    table.write(out)?;
    left_out(pool.site_failures.len(), out)
}

fn left_out(sites: usize, out: &mut dyn Write) -> io::Result<()> {
    match sites.saturating_sub(SITES_SHOWN) {
        0 => Ok(()),
        more => writeln!(out, "and {} (--json)", count(more, "more site")),
    }
}

/// The heading of a quantity.
fn title(quantity: &str) -> &'static str {
    match quantity {
        "failure_gap" => "Time from a failure in the pool to the next one",
        "group_gap" => "Time from a group of failures to the next one",
        "up" => "Periods up",
        "down" => "Periods down",
        _ => "Size of a group, hosts",
    }
}

fn fitted(fit: &FittedQuantity, out: &mut dyn Write) -> io::Result<()> {
    let is_size = fit.quantity == "group_size";
    let title = title(fit.quantity);
    if fit.raw.fits.is_empty() && fit.log2.fits.is_empty() {
        let why = match fit.raw.count {
            few @ 0..=1 => format!("too few values ({few})"),
            count => format!("all {count} values are the same"),
        };
        return writeln!(out, "\n{title}: no distribution is fitted, {why}");
    }
    writeln!(out, "\n{title}: fitted distributions, the closest first")?;
    let mut table = Table::new(&[
        "OF",
        "VALUES",
        "DISTRIBUTION",
        "PARAMETERS (STANDARD ERROR)",
        "D",
    ]);
    let unit = if is_size { "hosts" } else { "seconds" };
    for (name, fits) in [
        (unit.to_owned(), &fit.raw),
        (format!("log2 {unit}"), &fit.log2),
    ] {
        let FitTable {
            count, fits: lines, ..
        } = fits;
        for line in lines {
            table.row(vec![
                name.clone(),
                count.to_string(),
                line.family.name().to_owned(),
                parameters(line),
                line.distance.map_or("-".to_owned(), |d| format!("{d:.4}")),
            ]);
        }
    }
    if let Some(line) = &fit.rounded {
        table.row(vec![
            "rounded log2".to_owned(),
            (fit.raw.count).to_string(),
            line.family.name().to_owned(),
            parameters(line),
            "-".to_owned(),
        ]);
    }
    table.write(out)?;
    writeln!(
        out,
        "D: distance of the distribution from the values (Kolmogorov-Smirnov). Fewer than 5% of samples of the distribution itself have a D above {:.4} (log2: {:.4}).",
        fit.raw.critical, fit.log2.critical
    )?;
    if let Some(peak) = fit.hazard_peak_seconds {
        let warning = "the rows of log2 are fits of logarithms: there, a Weibull shape above 1 does not mean that the hazard rises";
        if peak < 1.0 {
            return writeln!(out, "{warning}. Here it falls from the beginning.");
        }
        writeln!(
            out,
            "{warning}. Here it rises for {} and falls from then on.",
            span(peak)
        )?;
    }
    Ok(())
}

fn parameters(line: &FitLine) -> String {
    let names = line.family.parameters().iter();
    let values = line.parameters.iter().zip(&line.errors);
    let parts = names
        .zip(values)
        .map(|(name, (value, error))| format!("{name} {} ({})", digits(*value), digits(*error)));
    parts.collect::<Vec<_>>().join(", ")
}

/// Fits for each site, in the form of tables 3 and 4 of the study: one distribution for each quantity.
fn site_fits(pool: &PoolDescription, out: &mut dyn Write) -> io::Result<()> {
    let names = pool.site_failures.iter().map(|site| site.site.as_str());
    let of = |site: &str, quantity: &str| {
        let mut fits = pool.fits.iter();
        fits.find(|fit| fit.quantity == quantity && fit.site.as_deref() == Some(site))
    };
    let fitted: Vec<&str> = names
        .filter(|site| {
            ["group_gap", "down"]
                .iter()
                .any(|what| of(site, what).is_some())
        })
        .collect();
    if fitted.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nFits of logarithms to base 2, by site (D)")?;
    let mut table = Table::new(&[
        "SITE",
        "GROUP GAP: WEIBULL",
        "D",
        "DOWN: LOGNORMAL",
        "D",
        "SIZE: WEIBULL, ROUNDED",
    ]);
    for site in fitted.iter().take(SITES_SHOWN) {
        let mut row = vec![shown(site, 30)];
        for (quantity, family) in [("group_gap", "Weibull"), ("down", "lognormal")] {
            let fit = of(site, quantity).and_then(|fit| {
                let mut fits = fit.log2.fits.iter();
                fits.find(|line| line.family.name() == family)
            });
            row.push(fit.map_or("-".to_owned(), values));
            let distance = fit.and_then(|fit| fit.distance);
            row.push(distance.map_or("-".to_owned(), |d| format!("{d:.3}")));
        }
        let sizes = of(site, "group_size").and_then(|fit| fit.rounded.as_ref());
        row.push(sizes.map_or("-".to_owned(), values));
        table.row(row);
    }
    table.write(out)?;
    left_out(fitted.len(), out)
}

fn values(line: &FitLine) -> String {
    let values = line.parameters.iter().map(|value| digits(*value));
    values.collect::<Vec<_>>().join(" ")
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

/// A number with about five digits.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 10_000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 10.0 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

fn span(seconds: f64) -> String {
    match seconds {
        _ if seconds < 10.0 => format!("{seconds:.1} s").replace(".0 s", " s"),
        _ if seconds < 600.0 => format!("{seconds:.0} s"),
        _ if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        _ if seconds < 360_000.0 => format!("{:.1} h", seconds / 3600.0),
        _ => format!("{:.1} d", seconds / 86_400.0),
    }
}
