//! Leases in PostgreSQL: where the guarantee comes from a transaction log.
//!
//! Every verb is one call of a function in the database, so one transaction and one round trip; nothing is held open
//! while a lease is held. All times are the server's. Waiters are woken by `NOTIFY`.
//!
//! | module | what it holds |
//! |---|---|
//! | `config` | which server, as whom, and how patiently |
//! | `backend` | the verbs of the contract |
//! | `renew`, `inspect`, `reply` | the longer verbs, and how rows are read |
//! | `link`, `turn`, `wire`, `tls` | the few connections that statements travel on |
//! | `direct` | whether a connection leads to the server itself, or to a pool |
//! | `schema`, `standing` | the tables and functions; how far this server can be trusted |
//! | `wait` | who waits, and how they are woken |
//! | `error` | what PostgreSQL says, in the words of the contract |
//!
//! The functions are in `sql/`, one file for each verb.

mod backend;
mod config;
mod direct;
mod error;
mod inspect;
mod link;
mod renew;
mod reply;
mod schema;
mod standing;
mod tls;
mod turn;
mod wait;
mod wire;

pub use backend::Postgres;
pub use config::{Config, schema_sql};
#[doc(hidden)]
pub use wire::connect;

/// The backend's name in errors and metrics.
const NAME: &str = "postgres";
