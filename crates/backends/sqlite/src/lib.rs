//! Leases in a file: the leasehold backend that needs no server.
//!
//! Any number of processes of one host open the same SQLite file. Every verb is one transaction; leases run on the
//! host's boot clock, so they end with the boot; fencing tokens grow by a counter *and* the calendar clock, so that
//! commits lost in a power cut do not take them back. Waiters in other processes are woken through a file watch.
//!
//! | module | what it holds |
//! |---|---|
//! | `config` | where the file is and how it is used |
//! | `backend` | the verbs of the contract |
//! | `desk` | one writer at a time, and group commit |
//! | `store`, `site`, `host` | the file, its surroundings, and the host it is on |
//! | `ledger` | the verbs on rows, each as the model has it |
//! | `wait`, `listener`, `bell` | who waits, and how processes wake each other |
//! | `inspector` | looking without being in the way |
//! | `error` | what SQLite says, in the words of the contract |

#[cfg(windows)]
compile_error!("leasehold does not support Windows yet");

mod backend;
mod bell;
mod config;
mod desk;
mod error;
mod host;
mod inspector;
mod ledger;
mod listener;
mod site;
mod sql;
mod store;
mod wait;

pub use backend::Sqlite;
pub use config::{Config, Durability};

/// The backend's name.
const NAME: &str = "sqlite";
/// Bytes in a note.
const NOTE_MAX: usize = 4096;
/// Entries in a page.
const PAGE_MAX: u32 = 1000;
