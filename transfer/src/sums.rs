//! Asks hosts what their past says about the model.

use protocol::wire::learning::Learnt;
use protocol::wire::limits::REQUEST_TIMEOUT;
use protocol::wire::message::{Request, Response};

use crate::hosts::{Hosts, unexpected};
use crate::{Fault, HostIndex};

impl Hosts {
    /// Asks for the sums of a host's past. `None` if it has none.
    ///
    /// # Errors
    /// When the host does not answer, or no past of a host leads to what it sends.
    pub async fn sums(&self, host: HostIndex) -> Result<Option<Learnt>, Fault> {
        match self.request(host, &Request::Sums, REQUEST_TIMEOUT).await {
            Ok((Response::Sums(sums), _)) => sums
                .check()
                .map(Some)
                .map_err(|cause| Fault::Lied(format!("sums: {cause}"))),
            Ok(_) => Err(unexpected("sums")),
            Err(Fault::Refused { .. }) => Ok(None),
            Err(fault) => Err(fault),
        }
    }
}
