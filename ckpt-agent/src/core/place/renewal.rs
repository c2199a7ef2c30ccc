//! Which rows of older checkpoints a version stores again because their hosts may not be there when a restore needs
//! them.

use placement::objective::{Candidate, Stake};
use placement::renewal::{OlderRows, worth_storing_again};

use super::{
    HostView, Placed, Question, Wanted, candidate, compute, correlated, pool, stake, unknown_rate,
};
use crate::core::HostIndex;

/// Which of these origins a version stores again for which these hosts were chosen among `views`.
pub fn stored_again(
    views: &[HostView],
    question: &Question,
    placed: &Placed,
    origins: &[OlderRows<HostIndex>],
) -> Vec<bool> {
    let chosen = placed.chosen();
    let is_involved = |view: &HostView| {
        let mut holders = origins.iter().flat_map(|origin| &origin.hosts);
        chosen.contains(&view.host) || holders.any(|holder| *holder == view.host)
    };
    let involved: Vec<usize> = (0..views.len())
        .filter(|i| is_involved(&views[*i]))
        .collect();
    let places = |hosts: &[HostIndex]| -> Vec<usize> {
        let is_one = |at: &usize| hosts.contains(&views[involved[*at]].host);
        (0..involved.len()).filter(is_one).collect()
    };
    let rows = origins.iter().map(|origin| origin.renamed(places));
    let rows: Vec<OlderRows> = rows.collect();
    let unknown = unknown_rate(views);
    let wanted = Wanted::Width(placed.width);
    let of = |i: &usize| candidate(&views[*i], question, wanted, unknown);
    let candidates: Vec<Candidate> = involved.iter().map(of).collect();
    let compute = compute(views, question);
    let stake = Stake {
        width: placed.width,
        ..stake(question, compute.survives.complement())
    };
    let joint = correlated(
        views,
        &involved,
        &candidates,
        compute,
        pool(views, question),
    );
    worth_storing_again(&rows, &candidates, &places(chosen), &stake, &joint)
}
