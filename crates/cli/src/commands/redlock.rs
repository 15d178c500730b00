//! `leasehold redlock found`

use std::process::ExitCode;

use clap::{Args, Subcommand};
use leasehold::Founded;
use serde_json::json;

use crate::{args::Global, exit::Failure, output::Output, screen::Screen, store::Store};

/// Set up a set of Redlock servers
#[derive(Debug, Args)]
pub(crate) struct Redlock {
    #[command(subcommand)]
    command: RedlockCommand,
}

#[derive(Debug, Subcommand)]
enum RedlockCommand {
    /// Let new servers vote at once, and not after the uptime gate
    ///
    /// Only for servers on which nothing was ever granted, or whose clients have all been stopped for longer
    /// than the longest ttl: servers that have lost all of their data look like new ones. All servers must
    /// answer. Servers with leases or tokens are refused, and so is a server that has lost its data while
    /// others vote.
    #[command(after_help = "Example:\n  leasehold redlock found redlock://r1,r2,r3,r4,r5")]
    Found {
        /// The URL of the servers: `redlock://HOST,HOST,HOST` [default: the store]
        url: Option<String>,
    },
}

impl Redlock {
    /// The URL that was typed.
    pub(crate) fn url(&self) -> Option<&str> {
        let RedlockCommand::Found { url } = &self.command;
        url.as_deref()
    }

    pub(crate) async fn run(&self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        let RedlockCommand::Found { url } = &self.command;
        let store = Store::choose_or(url.as_deref(), global)?;
        if !store.shown().starts_with("redlock://") {
            let message = format!("{} is not a set of Redlock servers", store.shown());
            return Err(
                Failure::config(message).hint("write leasehold redlock found redlock://HOST,HOST,HOST")
            );
        }
        report(output, store.found().await?)
    }
}

fn report(output: Output, founded: Founded) -> Result<ExitCode, Failure> {
    let Founded { nodes, gate, already, .. } = founded;
    if output.json {
        let gate_ms = crate::view::millis(gate);
        Screen::now().print_json(&json!({ "nodes": nodes, "gate_ms": gate_ms, "already": already }))?;
    } else if !output.quiet {
        let now = if already { "voted already" } else { "vote now" };
        let gate = humantime::format_duration(gate);
        Screen::now().print(&format!(
            "all {nodes} nodes {now}; a node that loses its data stays out for {gate}, and no ttl is longer\n"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
