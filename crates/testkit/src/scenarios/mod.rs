//! Fault scenarios that every backend must survive, for its tests on a real server.
//!
//! A backend's test starts the server, calls the scenario, and then checks what only it can see: keys, rows,
//! nodes.

pub mod network;
pub mod process;

pub use network::NetworkScenario;
pub use process::ProcessScenario;
