//! Claiming resources: what `leasehold run` and `leasehold acquire` share.
//!
//! | module | what it holds |
//! |---|---|
//! | `options` | the options of a claim in the command line, and the share that they mean |
//! | `acquisition` | acquires the leases, and explains why one was not granted |
//! | `wait_notes`, `busy_text` | what is printed during the wait, and the sentences about holders |
//! | `nested` | claims inside of a run that holds the same resource |
//! | `variables` | the variables that describe held leases to a command or a shell |

mod acquisition;
mod busy_text;
pub(crate) mod nested;
mod options;
mod variables;
mod wait_notes;

pub(crate) use acquisition::{
    ClaimContext, ClaimOutcome, ClaimRequest, INTERRUPTED_MAX, WITHDRAW_MAX, withdraw,
};
pub(crate) use busy_text::human;
pub(crate) use options::{ClaimOptions, Permits, ShareMode, TTL_MIN, check_note, check_ttl};
pub(crate) use variables::{pass, token, variables};
