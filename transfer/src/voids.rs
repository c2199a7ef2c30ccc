//! Lists of void job keys, as one host gets them from another.

use codec::OwnerId;
use codec::grant::VoidList;
use protocol::wire::limits::{REQUEST_TIMEOUT, VOIDS_ASKED_MAX};
use protocol::wire::message::{Request, Response};

use crate::hosts::{Hosts, unexpected};
use crate::{Fault, HostIndex};

impl Hosts {
    /// Asks, as a donor, which job keys of these owners are void. Returns the host's signed lists.
    ///
    /// # Errors
    /// When the host does not answer as it should.
    pub async fn voids(&self, host: HostIndex, owners: &[OwnerId]) -> Result<Vec<VoidList>, Fault> {
        let mut heard = Vec::new();
        for some in owners.chunks(VOIDS_ASKED_MAX) {
            let owners = some.to_vec();
            let asked = Request::Voids { owners };
            let (Response::Voids { lists }, _) =
                self.request(host, &asked, REQUEST_TIMEOUT).await?
            else {
                return Err(unexpected("voids"));
            };
            if lists.len() > some.len() {
                return Err(unexpected("voids"));
            }
            for list in lists {
                let list =
                    VoidList::parse(&list).map_err(|cause| Fault::Lied(cause.to_string()))?;
                if !some.contains(&list.owner()) {
                    return Err(unexpected("voids"));
                }
                heard.push(list);
            }
        }
        Ok(heard)
    }
}
