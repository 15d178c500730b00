//! Leases in ZooKeeper. A lease of a mutex shares its queue with Curator's `InterProcessMutex`.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
//! use std::sync::Arc;
//! use leasehold_zookeeper::{Config, ZooKeeper};
//!
//! let environment = Arc::new(leasehold::System::current());
//! let backend = ZooKeeper::connect(Config::parse("zookeeper://127.0.0.1")?, environment).await?;
//! let leases = leasehold::Client::new(Arc::new(backend)); // in short: leasehold::connect("zookeeper://127.0.0.1")
//! leases.lease("report", "42").run(async |lease| println!("holding {:?}", lease.token())).await
//! # }
//! ```
//!
//! # The algorithm
//!
//! 1. **Folder.** Every resource has a folder, `/leasehold/v1/locks/<kind>/<id>`: a container node, which the
//!    servers delete when it is empty.
//! 2. **Contender.** A claim is an ephemeral sequential node in that folder, named as Curator names its
//!    contenders. The fencing token of the claim is the czxid of this node.
//! 3. **Grant.** The contenders with the lowest sequence numbers hold the resource, as many as fit its
//!    capacity. No node says "granted": each client lists the folder and applies the same rule (ADR 0025).
//! 4. **Marker.** The transaction that creates a contender also creates a node that is named by the owner
//!    token. It exists as long as the claim has a contender. A request that is sent again after a lost reply
//!    fails on the marker, so that an owner never has two contenders.
//! 5. **Tombstone.** A claim that ends while a request of it is unanswered leaves a tombstone. The
//!    transaction that creates a contender fails if the claim has one, so that a late request has no effect
//!    (ADR 0026).
//! 6. **Wake-up.** A waiting client watches as few contenders ahead of it as possible: for a mutex its direct
//!    predecessor, as in Curator. When one of them is deleted, the client lists the folder again.
//! 7. **Renewal.** A lease lives as long as its session, so no claim has a ttl of its own. A renewal is a
//!    transaction that checks that all nodes of the client exist. It is a write, because only a write proves
//!    that the majority knows the session (ADR 0026). The holder stops, by its own clock, before the session
//!    can end.
//! 8. **Replies.** Every reply is checked to belong to its request, because a proxy may mix up connections
//!    (ADR 0033).
//! 9. **Operators.** A pause or another capacity is stored in the control node, a child of the folder. A
//!    request that a holder finish is written into the holder's node.
//!
//! # Modules
//!
//! | module | what it does |
//! |---|---|
//! | `backend` | the [`ZooKeeper`] type; its verbs call the modules below |
//! | `config` | [`Config`] and its URL |
//! | `connection` | the current session; begins a new one when the last one is over |
//! | `session` | one session: how long its leases are safe, the servers' clock |
//! | `acquire` | verb: creates the contender |
//! | `evaluate` | part of acquire: decides whether a contender is granted, and sets watches |
//! | `recover` | part of acquire: goes on with a contender after a lost reply |
//! | `takeover` | part of acquire: takes over from another claim of this client |
//! | `renew`, `release`, `wait`, `inspect`, `order` | the other verbs |
//! | `paths` | the paths of all nodes |
//! | `contender` | names of contenders, and the rule that decides which of them hold the resource; no I/O |
//! | `claim_record` | the data of a contender's node |
//! | `control_node` | the control node of a resource |
//! | `marker` | markers; proof that an owner has at most one contender, and none once it has ended |
//! | `tombstone` | tombstones |
//! | `audit` | the audit trail of operators |
//! | `resource_view` | reads contenders and their nodes |
//! | `nodes` | `inspect` of the servers themselves |
//! | `local_claims` | what this process remembers of its claims, and how waiters are woken |
//! | `transaction` | transactions whose replies are checked |
//! | `together` | many requests at once |
//! | `error` | translates errors of the driver |

mod acquire;
mod audit;
mod backend;
mod claim_record;
mod config;
mod connection;
mod contender;
mod control_node;
mod error;
mod evaluate;
mod inspect;
mod local_claims;
mod marker;
mod nodes;
mod order;
mod paths;
mod recover;
mod release;
mod renew;
mod resource_view;
mod session;
mod takeover;
mod together;
mod tombstone;
mod transaction;
mod wait;

pub use backend::ZooKeeper;
pub use config::Config;

/// The backend's name in errors and metrics.
const NAME: &str = "zookeeper";

/// How often a step is repeated because other clients changed the same nodes meanwhile. Then the verb fails
/// as `Unavailable`.
const ROUNDS_MAX: u32 = 32;

/// The outcome of one round of an algorithm that starts again when another client has changed the nodes it
/// works on.
enum RoundOutcome<T> {
    /// The algorithm has a result.
    Done(T),
    /// The nodes have changed, so the algorithm starts again with fresh reads.
    Retry,
}
