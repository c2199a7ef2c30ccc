//! The models of the grid, as text.

use std::io::{self, Write};

use super::{Report, Table, json_of_self};
use ckpt_agent::learning::report::{ModelReport, ModelsReport};
use ckpt_agent::unix_time::unix_seconds;
use health::span;

impl Report for ModelsReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let now = unix_seconds();
        let mut table = Table::new(&[
            "FORECAST",
            "MODEL",
            "SINCE",
            "FROM HOSTS",
            "HOURS",
            "LAST TRIAL",
            "REFIT, WEEK",
            "SHIPPED, WEEK",
            "WON",
        ]);
        table.row(row("host stays", &self.presence, now));
        table.row(row("guest stays", &self.guest, now));
        table.write(out)?;
        writeln!(
            out,
            "{} hosts answered; {} of them announce forecasts of SMP, or of a model that they do not name",
            self.hosts_asked, self.hosts_of_other_models
        )?;
        for judged in &self.judged {
            if let (Some(hazard), Some(smp)) = (judged.hazard_brier, judged.smp_brier) {
                writeln!(
                    out,
                    "{} h ahead, last 7 days: Brier score {hazard:.4} hazard, {smp:.4} SMP ({} forecasts)",
                    judged.hours, judged.forecasts
                )?;
            }
        }
        match self.collected {
            None => writeln!(
                out,
                "nothing is collected yet: commands that reach hosts collect once a day"
            ),
            Some(at) => {
                let next = if self.presence.to_be_tried || self.guest.to_be_tried {
                    "; a refit waits for its trial, a day after it was made"
                } else {
                    "; no refit yet: hosts count only for the days since this machine first saw them"
                };
                let ago = span(now.saturating_sub(at));
                writeln!(out, "collected {ago} ago{next}")
            }
        }
    }

    json_of_self!();
}

fn row(name: &str, model: &ModelReport, now: u64) -> Vec<String> {
    let none = || "-".to_owned();
    let ago = |at: u64| format!("{} ago", span(now.saturating_sub(at)));
    let last = model.trials.last();
    let week = model.together;
    let loss = |value: f64| format!("{value:.4}");
    let won = model.trials.iter().filter(|trial| trial.won).count();
    vec![
        name.to_owned(),
        if model.refitted { "refit" } else { "shipped" }.to_owned(),
        model.since.map_or_else(none, ago),
        model.hosts.map_or_else(none, |hosts| hosts.to_string()),
        model.landmarks.map_or_else(none, |hours| hours.to_string()),
        last.map_or_else(none, |trial| ago(trial.at)),
        week.map_or_else(none, |trials| loss(trials.refitted_log_loss)),
        week.map_or_else(none, |trials| loss(trials.shipped_log_loss)),
        format!("{won} of {}", model.trials.len()),
    ]
}
