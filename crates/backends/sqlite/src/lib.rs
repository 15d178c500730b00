//! SQLite backend for leasehold: leases in a file, without a server.
//!
//! Any number of processes on one host open the same SQLite file. Each verb is one transaction. Leases are
//! timed by the host's boot clock, so they end with the boot. Fencing tokens grow by a counter *and* by the
//! wall clock, so commits lost in a power cut do not take them back (ADR 0010). Waiters in other processes
//! are woken through a file watch (ADR 0012).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
//! use std::sync::Arc;
//! use leasehold_sqlite::{Config, Sqlite};
//!
//! # let folder = std::env::temp_dir().join(format!("leasehold-sqlite-page-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder).expect("the temporary folder can be written to");
//! # std::env::set_current_dir(&folder).expect("just made");
//! let environment = Arc::new(leasehold::System::current());
//! let backend = Sqlite::connect(Config::parse("leases.db")?, environment).await?;
//! let leases = leasehold::Client::new(Arc::new(backend)); // in short: leasehold::connect("sqlite:leases.db")
//! leases.lease("report", "42").run(async |lease| println!("holding {:?}", lease.token())).await
//! # }
//! ```
//!
//! How a request travels:
//!
//! ```text
//!  acquire / renew / release / order / wait            inspect
//!           |                                             |
//!           v                                             v
//!  Writer: is the write connection free?         a read connection of its own,
//!    | yes              | no, or it may block    never in the way of writers
//!    v                  v
//!  in the caller's    queue -> another caller or the WriterThread
//!  own future                  commits all queued writes together (ADR 0011)
//!    |                  |
//!    +--------+---------+
//!             v
//!  one transaction (WriteConnection, Tables):
//!    read the resource's row, remove what expired, do the verb, write the row back
//!             |
//!             v commit
//!  wake-ups: - waiters of this process, through the WaiterRegistry
//!            - other processes: a row in the table `ring`, and a ChangeSignal through the file
//!              `<database>-bell`; the WakeupListener of each process reads `ring` and wakes its own waiters
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | `backend` | the type [`Sqlite`] and its implementation of `Backend` |
//! | `config` | the path of the file and the options |
//! | `acquire`, `renew`, `release`, `wait`, `inspect`, `order` | one verb each |
//! | `tables`, `resource_row`, `queue` | what the verbs share: one transaction, the row of a resource, the queue |
//! | `silence` | queued claims that do not answer are passed over |
//! | `sweep` | removes the rows of idle resources |
//! | `writer` | one writer at a time, group commit, the writer thread |
//! | `connection`, `open` | the connections to the file: transactions, checkpoints, and how a file is opened |
//! | `database` | what all parts of one backend share: path, clock, waiters |
//! | `boot_clock`, `file_system` | the boot id and clock of the host; which file systems are refused |
//! | `waiters` | the waiters of this process |
//! | `listener` | the thread that receives the wake-ups of other processes |
//! | `change_file` | the file `<database>-bell`, whose lock says which processes have the database open |
//! | `client_lock` | the lock on a byte of that file that says that a client lives |
//! | `change_signal` | tells other processes, through that file, that the database changed |
//! | `sql` | the statements of `sql/*.sql`, by name |
//! | `error` | SQLite's errors, and what they mean for a caller |

#[cfg(windows)]
compile_error!("leasehold does not support Windows yet");

mod acquire;
mod backend;
mod boot_clock;
mod change_file;
mod change_signal;
mod client_lock;
mod config;
mod connection;
mod database;
mod error;
mod file_system;
mod inspect;
mod listener;
mod open;
mod order;
mod queue;
mod release;
mod renew;
mod resource_row;
mod silence;
mod sql;
mod sweep;
mod tables;
mod wait;
mod waiters;
mod writer;

pub use backend::Sqlite;
pub use config::{Config, Durability};

/// The backend's name.
const NAME: &str = "sqlite";
/// The most bytes in a note.
const NOTE_MAX: usize = 4096;
/// The most entries in a page of `inspect`.
const PAGE_MAX: u32 = 1000;
