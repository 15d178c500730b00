//! The suite that judges a leasehold backend.
