//! The etcd backend of leasehold.
//!
//! It uses the key layout of etcd's own `concurrency` package, so `etcdctl lock` and Go programs wait in the
//! same queue. The guarantee is [consensus](leasehold_core::Guarantee::Consensus): a grant survives the loss
//! of a minority of the members.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
//! use std::sync::Arc;
//! use leasehold_etcd::{Config, Etcd};
//!
//! let environment = Arc::new(leasehold::System::current());
//! let backend = Etcd::connect(Config::parse("etcd://127.0.0.1")?, environment).await?;
//! let leases = leasehold::Client::new(Arc::new(backend)); // in short: leasehold::connect("etcd://127.0.0.1")
//! leases.lease("report", "42").run(async |lease| println!("holding {:?}", lease.token())).await
//! # }
//! ```
//!
//! # How it works
//!
//! 1. **A claim is one key**, a *contender*: `leasehold/v1/lock/<resource>/<slot>`, where the slot is one of 64
//!    names that a hash of the owner token selects. Its value says whether it holds or waits, its weight and
//!    its capacity (`keys.rs`, `claim_record.rs`, ADR 0031, ADR 0041).
//! 2. **Every claim has an etcd lease of its own**, so the key of a dead client ends by itself, and no claim
//!    keeps another one alive. Leases are granted in advance and used again, so an acquire does not pay for
//!    them (`lease_pool.rs`, ADR 0023).
//! 3. **The creation revision is the order of the queue, and the fencing token.** A contender keeps it when
//!    it is renewed, granted, or moved to another lease. etcd gives no revision twice, unless it is restored
//!    from an older snapshot.
//! 4. **A grant is decided by the client and checked by etcd.** The client reads the contenders at one
//!    revision, applies the admission rule, and writes in one transaction whose preconditions are what it has
//!    read. If they fail, it reads again (`acquire.rs`). A free resource takes one transaction without a
//!    read.
//! 5. **A waiter is woken by a watch** on the contenders that block it: with mutexes only the one directly
//!    ahead. The watch begins at the revision that was read, so no event is missed. A wake-up is a hint; the
//!    waiter asks again (`wait.rs`, `wakeup_listener.rs`).
//!    While it waits, it looks about once a second for waiters ahead that do not answer, and removes them
//!    (`silence.rs`, ADR 0064).
//! 6. **A renewal keeps the lease alive first and reads the contender second** (`renew.rs`).
//! 7. **A request that is executed late does no harm.** A tombstone under `own/` makes its preconditions
//!    fail, or its lease is revoked. Every write to a contender compares when the contender was last written,
//!    so it never overwrites what another client has written since.
//! 8. **A reply counts only if it names its request** (`verify_reply.rs`, ADR 0033).
//! 9. **One member is used at a time**, and the next one when it fails (`connection.rs`, `call_member.rs`).
//! 10. **Many claims share a transaction**, at most one of each resource, each nested in it with preconditions
//!     of its own (`acquire/together.rs`).
//!
//! The decisions are in `docs/adr`: 0023 (leases), 0024 (why this crate needs `protoc`), 0031 (one key for a
//! claim), 0033 (replies name their requests), 0041 (names are used again, claims share a transaction), 0064
//! (silent waiters are removed).
//!
//! # Modules
//!
//! | module | what it does |
//! |---|---|
//! | `backend` | [`Etcd`]: connects, and implements the `Backend` trait |
//! | `config` | [`Config`]: the URL and its options |
//! | `acquire`, `renew`, `release`, `wait`, `inspect`, `order` | the verbs, one file each |
//! | `acquire::first_transaction`, `::decide`, `::finish` | the fast path; the pure decision; what follows from it |
//! | `acquire::together` | many claims in one transaction |
//! | `connection`, `call_member` | connections to the members; sending a request, timeouts, failover |
//! | `nodes` | `inspect` of the members themselves |
//! | `transaction`, `verify_reply` | transactions as data; whether a reply belongs to its request |
//! | `read_resource`, `resource_view` | reads a resource; its contenders, holders, waiters and blockers |
//! | `keys`, `claim_record` | the stored keys and values |
//! | `lease_pool`, `lifetime` | etcd leases; how long a contender lasts, and extending it |
//! | `local_claims`, `contention` | what this process remembers of its claims, and of contended resources |
//! | `describe` | holders and waiters, as other clients see them |
//! | `wakeup_listener` | the watch stream that wakes waiters |
//! | `silence` | removes waiters that do not answer |
//! | `error` | `StoreError`: what went wrong, and whether it had an effect |

mod acquire;
mod backend;
mod call_member;
mod claim_record;
mod config;
mod connection;
mod contention;
mod describe;
mod error;
mod inspect;
mod keys;
mod lease_pool;
mod lifetime;
mod local_claims;
mod nodes;
mod order;
mod read_resource;
mod release;
mod renew;
mod resource_view;
mod silence;
mod transaction;
mod verify_reply;
mod wait;
mod wakeup_listener;

pub use backend::Etcd;
pub use config::Config;

/// The name of the backend in errors and metrics.
const NAME: &str = "etcd";
