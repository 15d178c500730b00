//! The suite that judges a leasehold backend.
//!
//! | module | what it holds |
//! |---|---|
//! | [`stage`] | the backend under test, and how time passes for it |
//! | [`conformance`] | a named test for each line of the contract and each meaning of a verb |
//! | [`differential`] | random verbs, played on the backend and on the model side by side |

pub mod conformance;
pub mod differential;
pub mod stage;

pub use stage::Stage;
