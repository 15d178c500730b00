//! Leases in PostgreSQL, where a transaction log gives the guarantee.
//!
//! Every verb is one call of a function in the database, so one transaction and one round trip (ADR 0021). No transaction
//! stays open while a lease is held. All times are the server's. Waiters are woken by `NOTIFY`.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
//! use std::sync::Arc;
//! use leasehold_postgres::{Config, Postgres};
//!
//! let environment = Arc::new(leasehold::System::current());
//! let backend = Postgres::connect(Config::parse("postgres://app@127.0.0.1/app")?, environment).await?;
//! let leases = leasehold::Client::new(Arc::new(backend)); // in short: leasehold::connect("postgres://app@127.0.0.1/app")
//! leases.lease("report", "42").run(async |lease| println!("holding {:?}", lease.token())).await
//! # }
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | `backend` | the struct [`Postgres`] and the trait impl, which calls the verbs |
//! | `acquire`, `renew`, `release`, `wait`, `inspect`, `order` | the verbs, one file each |
//! | `acquire_many`, `release_many`, `batch` | many claims, or releases, in one statement (ADR 0040) |
//! | `nodes` | `inspect` of the servers themselves |
//! | `statements`, `reply` | the statements that the verbs send, and how their rows are read |
//! | `config` | the settings, and the URL that they are read from |
//! | `connections` | all connections: which one a request gets, when one is opened or closed |
//! | `exclusive_use` | one request at a time on a connection that leads to a pool |
//! | `connection`, `driver`, `tls` | one connection, and how the driver is set up |
//! | `schema` | creating and updating the tables and functions |
//! | `server_state` | what the server is (version, standby, settings), and the guarantee that follows |
//! | `listener` | the connection that receives wake-ups |
//! | `error` | errors of PostgreSQL and the driver as errors of the contract |
//!
//! The functions are in `sql/`, one file for each verb.

mod acquire;
mod acquire_many;
mod backend;
mod batch;
mod config;
mod connection;
mod connections;
mod driver;
mod error;
mod exclusive_use;
mod inspect;
mod listener;
mod nodes;
mod order;
mod release;
mod release_many;
mod renew;
mod reply;
mod schema;
mod server_state;
mod statements;
mod tls;
mod wait;

pub use backend::Postgres;
pub use config::{Config, schema_sql};
#[doc(hidden)]
pub use connection::connect;

/// The backend's name in errors and metrics.
const NAME: &str = "postgres";
