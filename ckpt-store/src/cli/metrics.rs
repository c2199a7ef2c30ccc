//! Options of metrics.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use web::{Settings, Token};

/// Where metrics are served, and to whom.
#[derive(Debug, clap::Args)]
pub(super) struct MetricsArgs {
    /// Serve metrics for Prometheus at http://ADDR/metrics; a registry, the state of its grid at
    /// http://ADDR/, too. ADDR is such as 127.0.0.1:7480, or a port of this machine alone.
    #[arg(long, value_parser = web::parse_listen, value_name = "ADDR", env = "CKPT_METRICS")]
    metrics: Option<SocketAddr>,
    /// File with a token, such as `openssl rand -hex 32` makes: who asks for metrics has to show it.
    /// Needed if other machines can reach ADDR.
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
            ensure!(token.is_none(), "--metrics-token without --metrics ADDR");
            return Ok(None);
        };
        let is_own = listen.ip().to_canonical().is_loopback();
        ensure!(
            is_own || token.is_some(),
            "--metrics {listen}: other machines can reach this address, so they have to show a token: --metrics-token FILE; or --metrics 127.0.0.1:{}",
            listen.port()
        );
        Ok(Some(Settings { listen, token }))
    }
}
