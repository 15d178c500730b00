//! The guardian: a process between `leasehold` and the command, which sees to it that the command does not outlive
//! the lease.
//!
//! `leasehold` keeps the lease; the guardian is the parent of the command and knows the lease's deadline. So it stops
//! the command in time even if `leasehold` hangs, is stopped, or is killed: then the link between them breaks, and
//! nobody moves the deadline any more. It is a subreaper: whatever the command starts, in whatever process group or
//! session, stays below the guardian, and when `wait` says that there are no children left, all of it is dead.
//! `leasehold` is a subreaper, too, and does the same if it is the guardian that dies.
//!
//! | module | what it holds |
//! |---|---|
//! | `wire` | what the two say to each other |
//! | `link` | `leasehold`'s end |
//! | `watch` | the guardian's end: the process itself |
//! | `descendants` | who is below a process, and ending them |

mod descendants;
mod link;
mod watch;
mod wire;

pub(crate) use descendants::slay;
pub(crate) use link::Guardian;
pub(crate) use watch::main;
pub(crate) use wire::{Begin, Manner, News, Wish};

/// The hidden command that makes the program a guardian.
pub(crate) const COMMAND: &str = "__guard";
