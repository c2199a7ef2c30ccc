//! The models that make forecasts, as text.

use std::io::{self, Write};

use super::{Report, Table, json_of_self};
use ckpt_agent::models::ModelsReport;

impl Report for ModelsReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
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
        let blend = briers(|one| one.blend_brier);
        row("blend", self.hosts_of_blend, blend.collect());
        let hazard = briers(|one| one.hazard_brier);
        row("hazard", self.hosts_of_hazard, hazard.collect());
        let smp = briers(|one| one.smp_brier);
        row("smp", self.hosts_of_smp, smp.collect());
        let none = vec!["-".to_owned(); columns.len()];
        row("not named", self.hosts_unnamed, none);
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

#[cfg(test)]
mod tests {
    use ckpt_agent::models::JudgedReport;

    use super::*;

    #[test]
    fn each_number_that_people_see_is_in_the_json() {
        let judged = |hours, forecasts, [blend, hazard, smp]: [f64; 3]| JudgedReport {
            hours,
            forecasts,
            blend_brier: Some(blend),
            hazard_brier: Some(hazard),
            smp_brier: Some(smp),
        };
        let report = ModelsReport {
            hosts_asked: 75,
            hosts_of_blend: 13,
            hosts_of_hazard: 17,
            hosts_of_smp: 19,
            hosts_unnamed: 26,
            judged: vec![
                judged(5, 701, [0.1234, 0.1345, 0.1456]),
                judged(11, 809, [0.2234, 0.2345, 0.2456]),
            ],
        };
        let mut text = Vec::new();
        report.human(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let json = serde_json::to_string(&report).unwrap();
        let shown: Vec<&str> = text
            .split(|letter: char| !letter.is_ascii_digit() && letter != '.')
            .filter(|number| number.parse::<f64>().is_ok() && *number != "7")
            .collect();
        assert_eq!(shown.len(), 14, "{text}");
        for number in shown {
            assert!(json.contains(&format!(":{number}")), "{number}: {json}");
        }
    }
}
