//! `leasehold fence script`: prints a Lua script, and needs no server.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use leasehold_fence::redis::text;

use crate::{exit::Failure, output};

#[derive(Debug, Args)]
pub(super) struct ScriptArgs {
    /// What the script does once the pass is admitted
    write: FencedWrite,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FencedWrite {
    /// Set a string
    Set,
    /// Set fields of a hash: all of them or none
    HashSet,
    /// Delete a key
    Delete,
    /// Nothing: it only raises the mark, before the first read of a read-modify-write
    Enter,
}

impl ScriptArgs {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        let script = match self.write {
            FencedWrite::Set => text::SET,
            FencedWrite::HashSet => text::HASH_SET,
            FencedWrite::Delete => text::DELETE,
            FencedWrite::Enter => text::ENTER,
        };
        output::print(script.as_bytes()).map(|()| ExitCode::SUCCESS)
    }
}
