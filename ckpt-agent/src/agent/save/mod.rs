//! A save in three steps: prepare it, run its session, and complete its report.

mod aftermath;
mod prepare;
mod run;

use std::sync::Arc;

use tokio::time::Instant;

use self::run::Shell;
use super::{Agent, SaveRequest};
use crate::cancel::Cancel;
use crate::report::{Failure, Observer, SaveReport};

impl Agent {
    /// Saves an image as the next version of a job.
    ///
    /// # Errors
    /// When no checkpoint was committed; the older versions stay as they were.
    pub async fn save(
        &self,
        request: SaveRequest,
        observer: Arc<dyn Observer>,
        cancel: Cancel,
    ) -> Result<SaveReport, Failure> {
        let started = Instant::now();
        self.is_large_enough(&request)?;
        let source = prepare::open_source(&request).await?;
        let bytes = source.planned_bytes();
        let mut prepared = self
            .prepare(&request, bytes, started, cancel.clone())
            .await?;
        let plan = prepared.plan(&request)?;
        let (candidates, input) = (prepared.candidates(), prepared.input(source));
        let session = Shell::start(self, &request, plan, candidates, input, observer, started);
        match session.run(cancel).await {
            Ok(report) => Ok(self.finish(report, prepared, &request).await),
            Err(failure) => Err(self.give_up(failure, &prepared).await),
        }
    }
}
