//! QUIC endpoints and what is exchanged on their streams.

pub mod endpoint;
pub mod stream;

pub use endpoint::{ConnectError, EndpointConfig, client, connect, server};
pub use stream::{ExchangeError, read_exact, read_frame, write_frame};
