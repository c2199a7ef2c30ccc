//! QUIC endpoints and what is exchanged on their streams.

pub mod endpoint;
pub mod stream;
mod trust;

#[cfg(test)]
mod tests;

pub use endpoint::{ConnectError, EndpointConfig, client, connect, server};
pub use stream::{ExchangeError, read_exact, read_frame, write_frame};
pub use trust::CertificateFault;
