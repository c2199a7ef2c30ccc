//! The models that make forecasts, as text.

use std::io::{self, Write};

use super::{Report, json_of_self};
use ckpt_agent::models::ModelsReport;

impl Report for ModelsReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let unnamed = self.hosts_asked - self.hosts_of_hazard - self.hosts_of_smp;
        writeln!(
            out,
            "{} hosts answered; forecasts of the hazard regression {}, of SMP {}, of a model without a name {unnamed}",
            self.hosts_asked, self.hosts_of_hazard, self.hosts_of_smp
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
        Ok(())
    }

    json_of_self!();
}
