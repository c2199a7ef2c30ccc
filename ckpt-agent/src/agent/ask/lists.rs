//! Lists of the grid. A client learns of a newer list from any host that it sends a request to, and passes
//! its own on to hosts that have an older one.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::agent::Agent;
use crate::agent::list_files::keep;

/// Most hosts that the client passes its list on to; they pass it on in turn.
const PASSED_ON_MAX: usize = 8;

/// Longest time that passing lists on may take at the end of a command.
const PASS_ON_TIMEOUT: Duration = Duration::from_secs(2);

impl Agent {
    /// If a host announced a newer list, fetches it for the next command. Otherwise passes this client's list
    /// on to some hosts that announced an older one.
    pub(crate) async fn pass_lists_on(&self) {
        let Some(lists) = &self.lists else {
            return;
        };
        let ours = lists.known.number();
        let theirs = self.hosts.lists();
        let newest = theirs.iter().max_by_key(|(_, number)| **number);
        let newest = newest.filter(|(_, number)| **number > ours);
        let older = theirs.iter().filter(|(_, number)| **number < ours);
        let asked: Vec<_> = match newest {
            Some((host, _)) => vec![*host],
            None => older.map(|(host, _)| *host).take(PASSED_ON_MAX).collect(),
        };
        let mut comparing = JoinSet::new();
        for host in asked {
            let hosts = self.hosts.clone();
            let known = Arc::clone(&lists.known);
            comparing.spawn(async move { hosts.compare_lists(host, &known).await });
        }
        let all = tokio::time::timeout(PASS_ON_TIMEOUT, comparing.join_all()).await;
        for compared in all.into_iter().flatten() {
            match compared {
                Ok(None) => {}
                Ok(Some((list, _))) => keep(&lists.files, &lists.known, &list),
                Err(fault) => tracing::info!(%fault, "lists of the grid not compared"),
            }
        }
    }
}
