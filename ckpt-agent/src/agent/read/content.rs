//! A restore into a directory, whatever is there.

use std::path::PathBuf;
use std::sync::Arc;

use crate::agent::read::restore::sink_failure;
use crate::agent::{Agent, RestoreRequest, RestoreTarget};
use crate::cancel::Cancel;
use crate::image::{Content, Existing};
use crate::report::{ExitStatus, Failure, Observer, RestoreReport};

impl Agent {
    /// Restores an image into the directory `to`, which then has the roots of the image, each under its own name; a
    /// stream gets the name of the job. Does not look at the target and at `dry_run` of the request.
    ///
    /// # Errors
    /// When nothing was restored; the directory is as it was before, unless the file system failed while roots got
    /// their names one by one.
    pub async fn restore_into(
        &self,
        request: RestoreRequest,
        (to, existing): (PathBuf, Existing),
        observer: Arc<dyn Observer>,
        cancel: Cancel,
    ) -> Result<RestoreReport, Failure> {
        let job = request.job.clone();
        let content = blocking(move || Content::begin(&to, existing)).await?;
        let content = content.map_err(|cause| sink_failure(&job, &cause))?;
        let target = RestoreTarget::Content {
            made: content.made(),
            directory: content.to().to_owned(),
            existing,
        };
        let request = RestoreRequest {
            target,
            dry_run: false,
            ..request
        };
        let mut report = self.restore(request, observer, cancel).await?;
        report.target = content.to().display().to_string();
        let put = blocking(move || content.finish()).await?;
        put.map_err(|cause| sink_failure(&job, &cause))?;
        Ok(report)
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|cause| Failure::new(ExitStatus::Failed, cause.to_string()))
}
