//! The guardian: a process between `leasehold run` and its command. It stops the command before the lease
//! ends, even if `leasehold` cannot (ADR 0013).
//!
//! ```text
//! leasehold run  --- socket: deadlines, signals, stop --->  guardian  --- parent of --->  command
//! (keeps the lease)  <--- started, stopped, exited ---   (knows the deadline)
//! ```
//!
//! 1. `leasehold` starts the guardian while it claims the resource, so that both take their time together (ADR
//!    0042). When it holds the lease, it sends the guardian its deadline, and the guardian starts the command.
//!    The deadline is sent again after every renewal.
//! 2. The guardian stops the command before the deadline: TERM, then KILL. It needs nothing from `leasehold`
//!    for that. If `leasehold` hangs, is stopped or is killed, no new deadline arrives, or the socket closes.
//! 3. The guardian is a subreaper: every process that the command starts stays a descendant of the guardian,
//!    in whatever process group or session. When `wait` reports that no child is left, all of them have
//!    ended.
//! 4. `leasehold` is a subreaper as well. If the guardian is killed, its descendants come to `leasehold`,
//!    which kills them.
//!
//! | module | what it holds |
//! |---|---|
//! | `protocol` | the messages between `leasehold` and the guardian |
//! | `handle` | `leasehold`'s side: starts the guardian and talks to it |
//! | `process` | the guardian's side: what runs in the guardian process |
//! | `process_tree` | finding and killing all descendants of a process |

mod handle;
mod process;
mod process_tree;
mod protocol;

pub(crate) use handle::{EndingGuardian, Guardian, WaitingGuardian};
pub(crate) use process::main;
pub(crate) use process_tree::kill_all_descendants;
pub(crate) use protocol::{GuardianEvent, GuardianRequest, StartMessage, StopMode};

/// The hidden command that makes the program a guardian.
pub(crate) const COMMAND: &str = "__guard";
