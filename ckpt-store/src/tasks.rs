//! The background tasks of a server.

use tokio::task::JoinHandle;

/// Background tasks. They are aborted when this is dropped, so no task outlives its server.
#[derive(Debug, Default)]
pub(crate) struct Tasks(Vec<JoinHandle<()>>);

impl Tasks {
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.push(tokio::spawn(task));
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn dropping_the_tasks_ends_them() {
        let (alive, ended) = oneshot::channel::<()>();
        let mut tasks = Tasks::default();
        tasks.spawn(async move {
            let _alive = alive;
            std::future::pending::<()>().await;
        });
        drop(tasks);
        // An error means that the task has dropped its end.
        assert!(ended.await.is_err());
    }
}
