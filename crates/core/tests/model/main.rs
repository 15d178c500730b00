//! The model: each rule by name, random stories, every short story; always beside a naive twin.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod both;
mod exhaustive;
mod handover;
mod naive;
mod operator_commands;
mod random;
mod rules;
mod silence;
