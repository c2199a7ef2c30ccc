//! Lets a client measure the speed of its connection to this host.

use protocol::net::stream::ExchangeError;
use protocol::wire::Code;
use protocol::wire::limits::{PROBE_BYTES_MAX, REQUEST_TIMEOUT};
use protocol::wire::message::{Refusal, Response};

use super::{Answer, Exchange, pause};

/// Most bytes that are taken from the stream in one step.
const CHUNK_BYTES: usize = 64 << 10;

impl Exchange<'_> {
    /// Answers a `Probe` request after its bytes have arrived. The bytes are thrown away.
    pub(super) async fn probe(&mut self, bytes: u32) -> Result<(), Answer> {
        if bytes > PROBE_BYTES_MAX {
            let detail = format!("a probe of {bytes} bytes: at most {PROBE_BYTES_MAX}");
            return Err(Answer::Refused(Refusal::new(Code::BadRequest, detail)));
        }
        pause(REQUEST_TIMEOUT, self.discard(bytes as usize)).await??;
        self.respond(&Response::Probed).await
    }

    async fn discard(&mut self, bytes: usize) -> Result<(), Answer> {
        let mut left = bytes;
        while left > 0 {
            let chunk = self.recv.read_chunk(left.min(CHUNK_BYTES), true).await;
            match chunk {
                Ok(Some(chunk)) => left -= chunk.bytes.len(),
                Ok(None) => {
                    let refusal = Refusal::new(Code::BadRequest, "the probe ended early");
                    return Err(Answer::Refused(refusal));
                }
                Err(cause) => return Err(Answer::Lost(ExchangeError::Lost(cause.to_string()))),
            }
        }
        Ok(())
    }
}
