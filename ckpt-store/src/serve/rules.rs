//! The rule of each request: its name, which server answers it, who may ask it, and what it costs.
//!
//! The `match` below has no wildcard, so a request without a rule does not compile. Donors and registries
//! both take their rules from here.

use protocol::identity::{Peer, Role};
use protocol::wire::Code;
use protocol::wire::message::{Refusal, Request};

/// The rule of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// The name of the request in log lines.
    pub(crate) name: &'static str,
    /// Which server answers the request.
    pub(crate) server: Server,
    /// Who may ask it.
    pub(crate) asker: Asker,
    /// What it costs the server.
    pub(crate) load: Load,
}

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// A host that lends disk space.
    Donor,
    /// A registry, which knows the hosts of the grid.
    Registry,
    /// A host as well as a registry.
    Any,
}

/// Who may send a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A machine that shows no certificate yet.
    Stranger,
    /// Every member of the grid.
    Member,
    /// Members that have one of these roles.
    Roles(&'static [Role]),
}

/// What a request costs the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Next to nothing. Such a request is answered even when the owner of the machine lends nothing.
    Question,
    /// The request reads or changes what is stored.
    Work,
    /// The client sends a shard after the request, or as many bytes as a shard has.
    BringsBytes,
}

impl Rule {
    /// The rule of `request`.
    pub(crate) const fn of(request: &Request) -> Self {
        match request {
            Request::Status => donor("status", Asker::Member, Load::Question),
            Request::Census => donor("census", COUNTED_FOR, Load::Question),
            Request::Claim(_) => donor("claim", SUBMITTERS, Load::Work),
            Request::PutShard(_) => donor("put", SUBMITTERS, Load::BringsBytes),
            Request::Commit { .. } => donor("commit", SUBMITTERS, Load::Work),
            Request::RowsHeld(_) => donor("rows held", SUBMITTERS, Load::Work),
            Request::EndEarly { .. } => donor("end early", SUBMITTERS, Load::Work),
            Request::Find { .. } => donor("find", SUBMITTERS, Load::Work),
            Request::Outline(_) => donor("outline", READERS, Load::Work),
            Request::Page { .. } => donor("page", READERS, Load::Work),
            Request::Rows { .. } => donor("rows", READERS, Load::Work),
            Request::RowRuns { .. } => donor("row runs", READERS, Load::Work),
            Request::Forget { .. } => donor("forget", SUBMITTERS, Load::Work),
            Request::Announcement => donor("announcement", READERS, Load::Question),
            Request::Probe { .. } => donor("probe", SUBMITTERS, Load::BringsBytes),
            Request::Audited(_) => donor("audited", SUBMITTERS, Load::Question),
            Request::PutRebuilt(_) => donor("put rebuilt", DONORS, Load::BringsBytes),
            Request::Notice { .. } => donor("notice", READERS, Load::Work),
            Request::Notices { .. } => donor("notices", READERS, Load::Work),
            Request::Within { .. } => donor("within", SUBMITTERS, Load::Question),
            Request::Void { .. } => donor("void", READERS, Load::Work),
            Request::Voids { .. } => donor("voids", READERS, Load::Question),
            Request::Announce(_) => registry("announce", DONORS, Load::Work),
            Request::PeerHolds { .. } => donor("peer holds", DONORS, Load::Work),
            Request::Prove { .. } => donor("prove", READERS, Load::Work),
            Request::Prepare { .. } => donor("prepare", SUBMITTERS, Load::Work),
            Request::Propose { .. } => donor("propose", SUBMITTERS, Load::Work),
            Request::KeepManifest { .. } => donor("keep manifest", SUBMITTERS, Load::Work),
            Request::Heartbeat { .. } => registry("heartbeat", DONORS, Load::Work),
            Request::Holds(_) => registry("holds", DONORS, Load::Work),
            Request::Members { .. } => registry("members", Asker::Member, Load::Question),
            Request::Holders { .. } => registry("holders", Asker::Member, Load::Question),
            // Donors keep the cards of each other for registries, and for clients that no registry answers.
            Request::CompareCards { .. } => any("compare cards", READERS),
            Request::Cards { .. } => any("cards", READERS),
            Request::PutCards { .. } => registry("put cards", DONORS, Load::Work),
            Request::Joiners { .. } => registry("joiners", ADMINS, Load::Question),
            Request::Reached => registry("reached", DONORS, Load::Question),
            Request::Join(_) => registry("join", Asker::Stranger, Load::Work),
            // The authority has signed the list. So any member may bring or fetch it, however busy the
            // host is.
            Request::List { .. } => any("list", Asker::Member),
            Request::PutList { .. } => any("put list", Asker::Member),
            Request::Retired12(never) | Request::Retired18(never) | Request::Retired33(never) => {
                match *never {}
            }
        }
    }

    /// Checks that `server` answers this request and that `peer` may ask it. `None` stands for a
    /// stranger, which has shown no certificate.
    ///
    /// # Errors
    /// The refusal to send, when it does not or may not.
    pub(crate) fn check(self, server: Server, peer: Option<&Peer>) -> Result<(), Refusal> {
        let forbidden = |why: String| Err(Refusal::new(Code::Forbidden, why));
        if self.server != Server::Any && self.server != server {
            return Err(server.does_not_answer());
        }
        match (self.asker, peer) {
            (Asker::Stranger, None) | (Asker::Member, Some(_)) => Ok(()),
            (Asker::Stranger, Some(_)) => {
                let why = "a client with a certificate is a member already";
                Err(Refusal::new(Code::BadRequest, why))
            }
            (Asker::Member | Asker::Roles(_), None) => forbidden(NO_CERTIFICATE.to_owned()),
            (Asker::Roles(roles), Some(peer)) => {
                if roles.iter().any(|role| peer.has(*role)) {
                    return Ok(());
                }
                let names: Vec<&str> = roles.iter().map(|role| role.name()).collect();
                forbidden(format!("needs the role {}", names.join(" or ")))
            }
        }
    }
}

/// Why a request of a stranger is refused.
pub(crate) const NO_CERTIFICATE: &str = "a certificate is required, unless the request is to join";

/// Members that save and restore.
const SUBMITTERS: Asker = Asker::Roles(&[Role::Submitter]);

/// Members that get counts, and can neither read nor change checkpoints: those that look after the grid,
/// and registries, which export the counts for monitoring. Registries get no owners.
const COUNTED_FOR: Asker = Asker::Roles(&[Role::Admin, Role::Registry]);

/// Who looks after the grid. Who joined is nobody else's business: persons are among them.
const ADMINS: Asker = Asker::Roles(&[Role::Admin]);

/// Members that lend space. For repair they read ciphertext, and store what an owner signed.
const DONORS: Asker = Asker::Roles(&[Role::Donor]);

/// Members that may read shards and pass on notices.
const READERS: Asker = Asker::Roles(&[Role::Submitter, Role::Donor]);

const fn donor(name: &'static str, asker: Asker, load: Load) -> Rule {
    Rule {
        name,
        server: Server::Donor,
        asker,
        load,
    }
}

const fn registry(name: &'static str, asker: Asker, load: Load) -> Rule {
    Rule {
        name,
        server: Server::Registry,
        asker,
        load,
    }
}

const fn any(name: &'static str, asker: Asker) -> Rule {
    Rule {
        name,
        server: Server::Any,
        asker,
        load: Load::Question,
    }
}

impl Server {
    /// The refusal of a request that another kind of server answers.
    pub(crate) fn does_not_answer(self) -> Refusal {
        let why = match self {
            Self::Donor => "this is a donor, not a registry",
            Self::Registry | Self::Any => "this is a registry, not a donor",
        };
        Refusal::new(Code::BadRequest, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::proof::Spot;
    use codec::proposal::Ballot;
    use codec::{CheckpointId, JobTag, OwnerId, Redundancy, Version};
    use protocol::wire::message::{
        Audit, Claim, HoldsPage, JoinRequest, PutRebuilt, PutShard, ShardName,
    };

    fn peer(roles: &[Role]) -> Peer {
        Peer {
            id: OwnerId([1; 32]),
            name: "m".into(),
            roles: roles.to_vec(),
            not_before: 0,
            not_after: u64::MAX,
            grant: None,
        }
    }

    fn requests_to_donors() -> Vec<Request> {
        let checkpoint = CheckpointId([2; 16]);
        let claim = Claim {
            job_tag: JobTag([3; 32]),
            version: Version::FIRST,
            checkpoint,
        };
        let put = PutShard {
            claim,
            redundancy: Redundancy::default(),
            shard: 0,
            expected_bytes: 0,
        };
        let shard = ShardName {
            checkpoint,
            shard: 0,
        };
        let rebuilt = PutRebuilt {
            put,
            manifest: Vec::new(),
        };
        vec![
            Request::Claim(claim),
            Request::PutShard(put),
            Request::Commit {
                manifest: Vec::new(),
            },
            Request::Find {
                job_tag: None,
                after: None,
            },
            Request::Outline(shard),
            Request::Page { shard, page: 0 },
            Request::Rows {
                shard,
                first: 0,
                count: 1,
            },
            Request::RowRuns {
                shard,
                runs: Vec::new(),
            },
            Request::Forget { checkpoint },
            Request::Announcement,
            Request::Probe { bytes: 1 },
            Request::Audited(Audit {
                checkpoint,
                shard: 0,
                blocks: 1,
                fault: None,
            }),
            Request::PutRebuilt(Box::new(rebuilt)),
            Request::Notice { notice: Vec::new() },
            Request::Notices { jobs: Vec::new() },
            Request::PeerHolds {
                salt: [0; 32],
                tags: Vec::new(),
            },
            Request::Prove {
                owner: OwnerId([1; 32]),
                shard,
                spot: Spot { row: 0, draw: 0 },
            },
            Request::Within { path: Vec::new() },
            Request::Void { list: Vec::new() },
            Request::Voids { owners: Vec::new() },
            Request::Prepare {
                job_tag: JobTag([3; 32]),
                after: checkpoint,
                ballot: Ballot::NONE,
            },
            Request::Propose {
                proposal: Vec::new(),
            },
            Request::KeepManifest {
                manifest: Vec::new(),
            },
            Request::RowsHeld(claim),
            Request::EndEarly {
                put,
                rows: 1,
                root: codec::ShardRoot([0; 32]),
            },
            Request::Status,
            Request::Census,
        ]
        .into_iter()
        .chain(requests_to_both())
        .collect()
    }

    fn requests_to_both() -> [Request; 2] {
        let number = 1;
        let bytes = 1;
        [Request::List { number }, Request::PutList { number, bytes }]
    }

    fn allowed(server: Server, peer: Option<&Peer>, requests: &[Request]) -> Vec<&'static str> {
        let rules = requests.iter().map(Rule::of);
        let allowed = rules.filter(|rule| rule.check(server, peer).is_ok());
        allowed.map(|rule| rule.name).collect()
    }

    #[test]
    fn each_role_may_ask_a_donor_this_and_no_more() {
        let asked = requests_to_donors();
        let by = |roles: &[Role]| allowed(Server::Donor, Some(&peer(roles)), &asked);
        let submitter = [
            "claim",
            "put",
            "commit",
            "find",
            "outline",
            "page",
            "rows",
            "row runs",
            "forget",
            "announcement",
            "probe",
            "audited",
            "notice",
            "notices",
            "prove",
            "within",
            "void",
            "voids",
            "prepare",
            "propose",
            "keep manifest",
            "rows held",
            "end early",
            "status",
            "list",
            "put list",
        ];
        assert_eq!(by(&[Role::Submitter]), submitter);
        let donor = [
            "outline",
            "page",
            "rows",
            "row runs",
            "announcement",
            "put rebuilt",
            "notice",
            "notices",
            "peer holds",
            "prove",
            "void",
            "voids",
            "status",
            "list",
            "put list",
        ];
        assert_eq!(by(&[Role::Donor]), donor);
        let of_all = ["status", "list", "put list"];
        assert_eq!(by(&[Role::Admin]), ["status", "census", "list", "put list"]);
        assert_eq!(by(&[Role::Registry]), by(&[Role::Admin]));
        assert_eq!(by(&[]), of_all);
        assert!(allowed(Server::Donor, None, &asked).is_empty());
    }

    #[test]
    fn a_registry_answers_no_request_for_donors_and_lets_strangers_only_join() {
        let everyone = peer(&Role::ALL);
        let of_both = allowed(Server::Registry, Some(&everyone), &requests_to_donors());
        assert_eq!(of_both, ["list", "put list"]);
        let asked = [
            Request::Heartbeat {
                epoch: 1,
                holdings: 1,
            },
            Request::Holds(HoldsPage {
                epoch: 1,
                first: true,
                last: true,
                shards: Vec::new(),
            }),
            Request::Members { after: None },
            Request::CompareCards {
                digest: [0; 32],
                after: None,
            },
            Request::Cards { ids: Vec::new() },
            Request::PutCards { cards: Vec::new() },
            Request::Holders {
                checkpoint: CheckpointId([2; 16]),
            },
            Request::Join(JoinRequest {
                token: String::new(),
                name: "n".into(),
                key: OwnerId([1; 32]),
                signature: Vec::new(),
                numbered: false,
            }),
            Request::Joiners { after: None },
            Request::Reached,
        ];
        let by = |peer: Option<&Peer>| allowed(Server::Registry, peer, &asked);
        assert_eq!(by(None), ["join"]);
        let cards = ["compare cards", "cards"];
        assert_eq!(
            by(Some(&peer(&[Role::Submitter]))),
            ["members", cards[0], cards[1], "holders"]
        );
        assert_eq!(
            by(Some(&peer(&[Role::Admin]))),
            ["members", "holders", "joiners"]
        );
        let donor = [
            "heartbeat",
            "holds",
            "members",
            "compare cards",
            "cards",
            "put cards",
            "holders",
            "reached",
        ];
        assert_eq!(by(Some(&peer(&[Role::Donor]))), donor);
        assert_eq!(allowed(Server::Donor, Some(&everyone), &asked), cards);
    }

    #[test]
    fn a_refusal_names_all_roles_that_would_do() {
        let refused = Rule::of(&Request::Announcement).check(Server::Donor, Some(&peer(&[])));
        let refusal = refused.unwrap_err();
        assert_eq!(refusal.code, Code::Forbidden);
        assert_eq!(refusal.detail, "needs the role submitter or donor");
    }
}
