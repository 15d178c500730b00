//! What `leasehold acquire` prints about its lease.

use std::{
    io::{self, Write as _},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::Acquire;
use crate::{claim::nested::HELD, exit::Failure, text};

/// A granted lease, as the keeper tells the process that prints it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Granted {
    pub(super) resource: String,
    pub(super) owner: String,
    /// Empty for a shared lease.
    pub(super) token: String,
    pub(super) pass: String,
    pub(super) ttl_ms: u64,
    pub(super) remaining_ms: u64,
    /// RFC 3339.
    pub(super) deadline: String,
    pub(super) file: Option<String>,
    pub(super) keeper: Option<u32>,
    /// The variables of `--export`.
    pub(super) variables: Vec<(String, String)>,
}

/// The variables of `--export`, in this order.
const EXPORTED: [&str; 9] = [
    "LEASEHOLD_RESOURCE",
    "LEASEHOLD_TOKEN",
    "LEASEHOLD_PASS",
    "LEASEHOLD_OWNER",
    "LEASEHOLD_RESOURCES",
    "LEASEHOLD_TOKENS",
    "LEASEHOLD_PASSES",
    "LEASEHOLD_STORE",
    HELD,
];

/// Whether `--export` prints this variable. A store in the variable of the shell may have a password, which ours has not.
pub(super) fn is_exported(name: &str, is_store_typed: bool) -> bool {
    let is_set = || std::env::var_os("LEASEHOLD_STORE").is_some();
    EXPORTED.contains(&name) && (name != "LEASEHOLD_STORE" || is_store_typed || !is_set())
}

impl Granted {
    /// Prints the lease on stdout, as the options of the command line say. A reader that has gone is an error: nobody else knows the
    /// owner token.
    pub(super) fn print(&self, acquire: &Acquire, json: bool) -> Result<(), Failure> {
        let text = if json {
            self.as_json()
        } else if acquire.export {
            let line =
                |(name, value): &(String, String)| format!("export {name}={}\n", text::single_quoted(value));
            self.variables.iter().map(line).collect()
        } else if acquire.output.is_some() {
            return Ok(());
        } else {
            format!("{}\n", self.owner)
        };
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| {
            let message = format!("{}: the lease cannot be written to stdout: {error}", self.resource);
            Failure::internal(message).hint("it is released again; use -o FILE to have it in a file")
        })
    }

    fn as_json(&self) -> String {
        let shared = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let object = serde_json::json!({
            "resource": self.resource,
            "owner": self.owner,
            "token": shared(&self.token),
            "pass": shared(&self.pass),
            "ttl_ms": self.ttl_ms,
            "remaining_ms": self.remaining_ms,
            "deadline": self.deadline,
            "file": self.file,
            "keeper": self.keeper,
        });
        format!("{object}\n")
    }

    /// That nobody renews this lease, until when it lasts, and what renews it.
    pub(super) fn warning(&self, program: &str) -> String {
        let renew = match &self.file {
            Some(file) => format!("{program} renew -f {}", text::quoted(file)),
            None => format!(
                "{program} renew {}, with the owner token in LEASEHOLD_OWNER",
                text::quoted(&self.resource)
            ),
        };
        let lasting = text::span(Duration::from_millis(self.remaining_ms));
        format!(
            "{}: held until {} ({lasting}), and nobody renews it for you. Renew it in time: {renew}",
            self.resource, self.deadline
        )
    }
}
