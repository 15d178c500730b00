//! Tests and test tools for leasehold backends.
//!
//! | module | what it holds |
//! |---|---|
//! | [`target`] | the backend under test, and its clock |
//! | [`conformance`] | a named test for each line of the contract and for the meaning of each verb |
//! | [`differential`] | random calls, made on the backend and on the model, whose replies must agree |
//! | [`history`] | a record of all calls, and a check whether a correct backend can have produced it |
//! | [`faulty`] | a backend wrapper that loses, delays, repeats and reorders calls |
//! | [`misdelivery`] | replies that reach the wrong request |
//! | [`primitives`] | checks of primitives that are made of several claims |
//! | [`nodes`] | what tests of the servers of a store ask and check |
//! | [`balancer`] | a load balancer between HTTP clients and servers |
//! | [`proxy`] | a TCP proxy with faults, between a client and a real server |
//! | [`scenarios`] | fault scenarios that every backend must survive, on real servers |
//! | [`calls`] | short calls of a backend for tests, which panic if the reply is not the expected one |
//! | [`servers`] | real servers, which the tests start themselves |
//! | [`client_process`] | a process that holds a lease, which a test can kill, stop and continue |
//! | [`verbs`] | a request to a backend and its reply, as data |

pub mod balancer;
pub mod calls;
pub mod client_process;
pub mod conformance;
mod default_signals;
pub mod differential;
pub mod faulty;
pub mod history;
pub mod misdelivery;
pub mod nodes;
pub mod passes;
pub mod primitives;
pub mod proxy;
mod random;
pub mod scenarios;
pub mod servers;
pub mod target;
pub mod verbs;

pub use balancer::Balancer;
pub use client_process::ClientProcess;
pub use default_signals::command_with_default_signals;
pub use faulty::Faulty;
pub use history::Recorded;
pub use proxy::Proxy;
pub use target::BackendUnderTest;
