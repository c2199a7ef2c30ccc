//! Options of metrics.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::refusal::Refusal;
use anyhow::{Result, ensure};
use web::{Settings, Token};

/// Where metrics are served, and to whom.
#[derive(Debug, clap::Args)]
pub(super) struct MetricsArgs {
    /// Serve metrics for Prometheus at http://ADDR/metrics.
    ///
    /// ADDR is an address and port such as 127.0.0.1:7480, or only a port, which listens on 127.0.0.1. A
    /// registry also serves a page about its grid at http://ADDR/.
    #[arg(long, value_parser = web::parse_listen, value_name = "ADDR", env = "CKPT_METRICS")]
    metrics: Option<SocketAddr>,
    /// File with a token that readers of metrics have to present, such as `openssl rand -hex 32` makes.
    ///
    /// Required if other machines can reach ADDR.
    #[arg(long, value_name = "FILE", env = "CKPT_METRICS_TOKEN")]
    metrics_token: Option<PathBuf>,
}

impl MetricsArgs {
    /// What these options say; `None` for no metrics.
    ///
    /// # Errors
    /// When the token can't be used, or is missing.
    pub(super) fn settings(self) -> Result<Option<Settings>> {
        let token = self.metrics_token.as_deref().map(Token::read).transpose()?;
        let Some(listen) = self.metrics else {
            ensure!(
                token.is_none(),
                Refusal::new("--metrics-token needs --metrics", "--metrics ADDRESS:PORT")
            );
            return Ok(None);
        };
        let is_own = listen.ip().to_canonical().is_loopback();
        ensure!(
            is_own || token.is_some(),
            Refusal::new(
                format!(
                    "--metrics {listen}: other machines can reach this address, so a token is required"
                ),
                format!(
                    "--metrics-token FILE; or --metrics 127.0.0.1:{}",
                    listen.port()
                )
            )
        );
        Ok(Some(Settings { listen, token }))
    }
}
