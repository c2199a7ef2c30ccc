//! Asks registries who joined with tokens that they redeemed.

use std::time::Duration;

use codec::OwnerId;
use protocol::grid::{Grid, GridRegistry};
use protocol::identity::{Identity, Role, TokenRole, is_name};
use protocol::net::Sockets;
use protocol::net::close::DONE;
use protocol::net::endpoint::{EndpointConfig, MTU_SMALL};
use protocol::net::stream::request;
use protocol::wire::limits::{JOINERS_MAX, REQUEST_TIMEOUT};
use protocol::wire::message::{JoinerRecord, Request, Response};
use tokio::task::JoinSet;

use crate::registry_answer::NoAnswer;

/// Most members that are taken from one registry. No registry signs more.
const JOINERS_OF_A_REGISTRY_MAX: usize = 1 << 16;

/// Time limit for one registry.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A member that joined with a token, as a registry reports it. Its name can be printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joiner {
    /// What the registry recorded.
    pub record: JoinerRecord,
    /// Name of that registry.
    pub registry: String,
}

/// What one registry answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinersOf {
    /// Whether it redeems tokens for donors.
    pub donors: bool,
    /// Whether it redeems tokens for submitters.
    pub submitters: bool,
    /// Who joined.
    pub joiners: Vec<Joiner>,
}

impl JoinersOf {
    /// Whether the registry redeems tokens for members of this role.
    pub const fn redeems(&self, role: TokenRole) -> bool {
        match role {
            TokenRole::Donor => self.donors,
            TokenRole::Submitter => self.submitters,
        }
    }
}

/// Asks all registries of `grid`, as an admin. Returns what each answered, or why it did not, in the order
/// of the grid.
pub async fn ask_joiners(
    grid: &Grid,
    identity: &Identity,
) -> Vec<(String, Result<JoinersOf, String>)> {
    let settings = EndpointConfig {
        mtu_max: MTU_SMALL,
        ..EndpointConfig::new(identity.clone(), grid.authority.clone())
    };
    let sockets = Sockets::new(settings);
    let mut asking = JoinSet::new();
    for (place, registry) in grid.registries.iter().cloned().enumerate() {
        let sockets = sockets.clone();
        asking.spawn(async move {
            let asked = tokio::time::timeout(ANSWER_TIMEOUT, ask(&sockets, &registry)).await;
            let answer = asked.unwrap_or(Err(NoAnswer::Late(ANSWER_TIMEOUT)));
            (place, registry.name, answer.map_err(|why| why.to_string()))
        });
    }
    let mut all = asking.join_all().await;
    all.sort_by_key(|(place, ..)| *place);
    let all = all.into_iter();
    all.map(|(_, registry, answer)| (registry, answer))
        .collect()
}

async fn ask(sockets: &Sockets, registry: &GridRegistry) -> Result<JoinersOf, NoAnswer> {
    let connection = sockets
        .connect(&registry.addr, registry.id, Role::Registry)
        .await?;
    let mut all = JoinersOf::default();
    let mut after: Option<OwnerId> = None;
    loop {
        let asked = request(&connection, &Request::Joiners { after }, REQUEST_TIMEOUT).await?;
        let (
            Response::Joiners {
                donors,
                submitters,
                joiners,
                more,
            },
            _,
        ) = asked
        else {
            return Err(NoAnswer::Answer);
        };
        let is_too_long = joiners.len() > JOINERS_MAX
            || all.joiners.len() + joiners.len() > JOINERS_OF_A_REGISTRY_MAX;
        if is_too_long || (more && joiners.is_empty()) {
            return Err(NoAnswer::Answer);
        }
        all.donors = donors;
        all.submitters = submitters;
        for record in joiners {
            // The order must be ascending, so that a registry can't keep the client asking for ever.
            if after.is_some_and(|after| record.id <= after) {
                return Err(NoAnswer::Answer);
            }
            after = Some(record.id);
            if is_name(&record.name) {
                all.joiners.push(Joiner {
                    record,
                    registry: registry.name.clone(),
                });
            }
        }
        if !more {
            connection.close(DONE, b"");
            return Ok(all);
        }
    }
}
