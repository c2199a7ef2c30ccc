//! The witness of a host that can lie: what it promises about the successors of checkpoints.

use std::collections::BTreeMap;

use anyhow::Result;
use ckpt_store::core::fence::{Acceptor, Bidder, Outbid};
use codec::CheckpointId;
use codec::proposal::{Proposal, Successor};
use protocol::wire::message::{Request, Response};

/// For each checkpoint: what this witness promised about its successor, and all proposals that it got.
#[derive(Debug, Default)]
pub(crate) struct Witness(BTreeMap<CheckpointId, (Acceptor<Successor>, Vec<Proposal>)>);

impl Witness {
    /// Answers as an honest witness does. With `lies`, promises and accepts whatever is asked, and shows
    /// the first proposal that it ever got for even ballot rounds, and none for odd ones.
    pub(crate) fn answer(&mut self, asked: Request, lies: bool) -> Result<Option<Response>> {
        Ok(match asked {
            Request::Prepare { after, ballot, .. } => {
                let (acceptor, seen) = self.0.entry(after).or_default();
                if lies {
                    let first = seen.first().filter(|_| ballot.round % 2 == 0);
                    return Ok(Some(promised(first)));
                }
                Some(match acceptor.promise(Bidder::Owner, ballot) {
                    Ok(after) => {
                        *acceptor = after;
                        let accepted = acceptor.accepted().map(|(at, _)| at);
                        let is_it = |one: &&Proposal| Some(one.proposed().ballot) == accepted;
                        promised(seen.iter().find(is_it))
                    }
                    Err(Outbid(ballot)) => Response::Outbid { ballot },
                })
            }
            Request::Propose { proposal } => {
                let proposal = Proposal::parse(proposal)?;
                let said = *proposal.proposed();
                let (acceptor, seen) = self.0.entry(said.after).or_default();
                let accepted = acceptor.accept(Bidder::Owner, said.ballot, said.successor);
                seen.push(proposal);
                Some(match accepted {
                    Ok(after) => {
                        *acceptor = after;
                        Response::Agreed
                    }
                    Err(_) if lies => Response::Agreed,
                    Err(Outbid(ballot)) => Response::Outbid { ballot },
                })
            }
            _ => None,
        })
    }
}

fn promised(accepted: Option<&Proposal>) -> Response {
    let accepted = accepted.map(|one| one.bytes().to_vec().into());
    Response::Promised { accepted }
}
