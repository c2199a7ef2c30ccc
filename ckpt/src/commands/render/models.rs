//! The models that make forecasts, as text.

use std::io::{self, Write};

use super::{Report, Table, json_of_self};
use ckpt_agent::models::ModelsReport;

impl Report for ModelsReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let named = [self.hosts_of_blend, self.hosts_of_hazard, self.hosts_of_smp];
        let unnamed = self.hosts_asked.saturating_sub(named.iter().sum());
        let briers = |of: fn(&ckpt_agent::models::JudgedReport) -> Option<f64>| {
            let scores = self.judged.iter().map(of);
            scores.map(|score| score.map_or_else(|| "-".to_owned(), |score| format!("{score:.4}")))
        };
        let columns = self.judged.iter();
        let columns: Vec<String> = columns
            .map(|one| format!("BRIER {} H", one.hours))
            .collect();
        let heads = ["MODEL", "HOSTS"].into_iter();
        let heads: Vec<&str> = heads.chain(columns.iter().map(String::as_str)).collect();
        let mut table = Table::new(&heads);
        let mut row = |name: &str, hosts: usize, scores: Vec<String>| {
            table.row([vec![name.to_owned(), hosts.to_string()], scores].concat());
        };
        let [blend, hazard, smp] = named;
        row("blend", blend, briers(|one| one.blend_brier).collect());
        row("hazard", hazard, briers(|one| one.hazard_brier).collect());
        row("smp", smp, briers(|one| one.smp_brier).collect());
        row("not named", unnamed, vec!["-".to_owned(); columns.len()]);
        table.write(out)?;
        let forecasts = self.judged.iter().map(|one| one.forecasts.to_string());
        writeln!(
            out,
            "Brier scores of the last 7 days, from {} forecasts",
            forecasts.collect::<Vec<_>>().join(", ")
        )
    }

    json_of_self!();
}
