//! The HTTP server of leasehold: the contract of [`Backend`](leasehold_core::Backend) as JSON over HTTP/1.1 and HTTP/2.
//!
//! The server keeps no lease and no place: they are in the store. Any server on a store answers any request of any claim, and a
//! server that is killed loses only its open long polls.
//!
//! | module | what it holds |
//! |---|---|
//! | `config` | addresses, limits and timeouts |
//! | `listener`, `connection`, `timed_stream` | accepting connections, their caps and timeouts, draining |
//! | `hangup` | that a peer has gone while its request waits |
//! | `router`, `guard` | from a request to its route; checks on the host, the browser and the caller |
//! | `body`, `answer` | reading a request, writing an answer |
//! | `dashboard` | the page at `/`, and its files |
//! | `routes` | one file per route |
//! | `bounds` | bounds on numbers from outside |
//! | `session_deadlines` | a ttl for each claim where the store has only sessions: ZooKeeper |
//! | `store` | calls of the store: never cut half-way, split by failure domain |
//! | `waiting`, `places` | the long poll of `acquire`, and how its place in the queue is kept |
//! | `file_state` | whether a file has changed: tokens, certificates |
//! | `sampler` | takes samples of all resources, for the overview and for events |
//! | `next_steps` | what can be done about a resource that needs attention |
//! | `store_health`, `findings` | the health of the store and its servers, and what is wrong with it |
//! | `jobs`, `audit_trail` | the records of jobs on a schedule; operators' commands about one resource |
//! | `metrics` | what the server counts |
//! | `access` | who the caller is and what it may do: tokens, roles, namespaces, rates |
//! | `spans`, `traces` | spans of requests and of calls of the store; for OpenTelemetry, with the feature `otel` |
//! | `tls` | HTTPS and client certificates, with the feature `tls` |

mod access;
mod answer;
mod audit_trail;
mod body;
mod bounds;
mod config;
mod connection;
mod dashboard;
mod file_state;
mod findings;
mod guard;
mod hangup;
mod jobs;
mod listener;
mod metrics;
mod next_steps;
mod places;
mod router;
mod routes;
mod sampler;
mod server;
mod session_deadlines;
mod spans;
mod store;
mod store_health;
mod timed_stream;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "otel")]
mod traces;
mod waiting;

pub use access::{Access, NewToken, Role, Roles, TokenEntry, TokenFile, TokenTable};
pub use config::{Config, ConnectionLimits, Sampling, Timeouts};
pub use router::RouteInfo;
pub use server::Server;
#[cfg(feature = "tls")]
pub use tls::Tls;
#[cfg(feature = "otel")]
pub use traces::Traces;
