//! The suite that judges a leasehold backend.
//!
//! | module | what it holds |
//! |---|---|
//! | [`target`] | the backend under test, and how time passes for it |
//! | [`conformance`] | a named test for each line of the contract and each meaning of a verb |
//! | [`differential`] | random verbs, played on the backend and on the model side by side |
//! | [`history`] | what was asked and answered, and whether that can have happened |
//! | [`faulty`] | a network that loses, delays, repeats and reorders |
//! | [`misdelivery`] | answers that reach the wrong request |
//! | [`proxy`] | a network that can fail, between a client and a real server |
//! | [`servers`] | real servers, started by the tests themselves |
//! | [`client_process`] | a process that holds a lease, to kill, stop and continue |
//! | [`verbs`] | a call of a verb as data |

pub mod client_process;
pub mod conformance;
mod default_signals;
pub mod differential;
pub mod faulty;
pub mod history;
pub mod misdelivery;
pub mod proxy;
pub mod servers;
pub mod target;
pub mod verbs;

pub use client_process::ClientProcess;
pub use default_signals::command_with_default_signals;
pub use faulty::Faulty;
pub use history::Recorded;
pub use proxy::Proxy;
pub use target::BackendUnderTest;
