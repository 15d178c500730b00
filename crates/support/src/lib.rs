//! What the backends, the engine, the fence and the patterns of leasehold share.
//!
//! This crate is for the crates of leasehold, not for its users: it may change with every release. Nothing here opens a
//! connection; that stays with each backend.
//!
//! | module | what it holds |
//! |---|---|
//! | [`connect_once`] | one caller connects, the others wait for the result |
//! | [`waiters`] | the registry of the waiters in one process, and how a wake-up finds them |
//! | [`gather`] | sends requests that come at once in one call |
//! | [`gathered_verbs`] | what of a backend's verbs may be sent together |
//! | [`ask_nodes`] | asks the servers of a store how they are, all at once |
//! | [`race`] | polls two futures and takes the first result |
//! | [`stop`] | a request to stop, for loops that run for ever |
//! | [`url`] | the parts that the URLs of all backends have in common |
//! | [`password`] | a password from a URL or from a file |
//! | [`tls`] | the files that TLS needs: certificates to trust, a client's certificate and key |
//! | [`text`] | text for people, and words for a shell, that have names which others chose |
//! | `processes` | with the feature `processes`: whether the process of a holder has ended |
//! | `certificates` | with the feature `rustls`: reading certificates, and those that the host trusts |
//! | `postgres` | with the feature `postgres`: telling a PostgreSQL server from a pool, and checking request ids |
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod ask_nodes;
#[cfg(feature = "rustls")]
pub mod certificates;
pub mod connect_once;
pub mod gather;
pub mod gathered_verbs;
pub mod password;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "processes")]
pub mod processes;
pub mod race;
pub mod stop;
pub mod text;
pub mod tls;
pub mod url;
pub mod waiters;

pub use connect_once::ConnectOnce;
pub use gather::Gatherer;
pub use password::Password;
pub use stop::StopRequest;
pub use tls::TlsFiles;
pub use waiters::{WaiterHandle, WaiterRegistry};
