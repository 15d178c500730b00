//! Leases over HTTP: the backend for a leasehold server, whichever store it serves.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
//! use std::sync::Arc;
//! use leasehold_http::{Config, Http};
//!
//! let environment = Arc::new(leasehold::System::current());
//! let backend = Http::connect(Config::parse("http://127.0.0.1:7420")?, environment).await?;
//! let leases = leasehold::Client::new(Arc::new(backend)); // in short: leasehold::connect("http://127.0.0.1:7420")
//! leases.lease("report", "42").run(async |lease| println!("holding {:?}", lease.token())).await
//! # }
//! ```
//!
//! # How it works
//!
//! 1. **The API is the contract.** Each verb is one route of [`leasehold_api`], which has both directions of every conversion. The
//!    level, the capabilities and the limits are those of the store behind the server.
//! 2. **Lists.** Claims, renewals and releases travel as lists, also when there is one. Each entry has its own outcome.
//! 3. **An answer proves where it belongs.** It repeats the id of its request, names the store of the first answer, and every entry
//!    names its claim. Otherwise the effect is unknown, and the connection is not used again (ADR 0078).
//! 4. **Effects.** An error before anything was written has no effect, and so has a refusal of the server that says so. After
//!    everything else the effect is unknown: a proxy's 502, a redirect, a cut body, an unknown verdict.
//! 5. **Connections.** Renewals and releases have connections of their own, so no number of claims and waiters delays them.
//!    Redirects are not followed, and nothing is sent twice.
//! 6. **Waiters share requests** (ADR 0079): ten thousand of them cost about ten open requests.
//!
//! # Modules
//!
//! | module | what it does |
//! |---|---|
//! | `backend` | the [`Http`] type; its verbs call the modules below |
//! | `config` | [`Config`] and its URL |
//! | `acquire`, `renew`, `release`, `wait`, `inspect`, `order` | the verbs |
//! | `list` | a list of requests in one call, and the outcome of each |
//! | `nodes` | `inspect` of the servers of the store |
//! | `wait_requests` | how waiters share requests |
//! | `connection` | sends a request and checks that the answer belongs to it |
//! | `connector`, `tls` | opens a connection |
//! | `credentials` | the token, from the URL or a file |
//! | `error` | errors of the connection, with their effects |
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod backend;
mod config;
mod connection;
mod connector;
mod credentials;
mod error;
mod inspect;
mod list;
mod nodes;
mod order;
mod release;
mod renew;
mod tls;
mod wait;
mod wait_requests;

pub use backend::Http;
pub use config::Config;

/// The backend's name in errors.
const NAME: &str = "http";
