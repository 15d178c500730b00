//! Where the effect happens: a counter that checks fencing tokens.
//!
//! A holder raises the mark before it reads, and writes later. Even if two believe to hold, no update is lost as long
//! as tokens grow: that is what a fence is for.

use std::collections::BTreeMap;

use leasehold::{OwnerToken, Resource};

#[derive(Debug, Default)]
pub(crate) struct Register {
    mark: u64,
    owner: Option<OwnerToken>,
    value: u64,
    writes: u64,
}

/// What the register says to a token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FenceReply {
    Read(u64),
    Stale,
    /// Two owners show the same token.
    Shared,
}

impl Register {
    /// Raises the mark, and reads.
    pub(crate) fn enter(&mut self, token: u64, owner: Option<OwnerToken>) -> FenceReply {
        if token < self.mark {
            return FenceReply::Stale;
        }
        if token == self.mark && self.owner != owner {
            return FenceReply::Shared;
        }
        (self.mark, self.owner) = (token, owner);
        FenceReply::Read(self.value)
    }

    /// Writes what was computed from a read under this token; false if a write got lost by it.
    pub(crate) fn write(&mut self, token: u64, value: u64) -> bool {
        if token == self.mark {
            self.value = value;
            self.writes += 1;
        }
        self.value == self.writes
    }
}

pub(crate) type Registers = BTreeMap<Resource, Register>;
