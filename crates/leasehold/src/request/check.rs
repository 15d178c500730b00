//! What a request is checked for before anything is sent.

use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Resource, Result, Share};

use super::LeaseRequest;
use crate::{advice, client::TokenKind};

impl<T: TokenKind> LeaseRequest<T> {
    /// Checks the settings, and that the backend supports them.
    pub(super) fn check(&self, resource: &Resource) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
        let unsupported = |what: &str| {
            let message = format!("{} does not support {what}", self.client.info().name);
            Err(Error::new(ErrorKind::Unsupported, message))
        };
        if self.ttl < Self::TTL_MIN || self.ttl > Self::TTL_MAX {
            return invalid(format!("ttl must be between 300 ms and 24 h, not {:?}", self.ttl));
        }
        if self.ttl > advice::LONG {
            tracing::warn!(
                target: "leasehold",
                kind = resource.kind(),
                ttl_ms = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX),
                "a lease with such a long ttl blocks every other claim if its holder dies: consider a durable job instead"
            );
        }
        let zero = |duration: Option<Duration>| duration.is_some_and(|duration| duration.is_zero());
        if zero(self.options.max_hold) || zero(self.options.progress_within) {
            return invalid("max_hold and progress_within must be greater than 0".to_owned());
        }
        let can = &self.client.info().capabilities;
        if self.share != Share::WHOLE && !can.shares {
            return unsupported("semaphores and read-write locks");
        }
        if self.fair && !can.queue {
            return unsupported("fair(): it has no queue");
        }
        if self.options.at_least.is_some() && !can.keep_for {
            return unsupported("at_least(): a resource cannot stay closed after a release");
        }
        let (most, note) = (self.client.info().limits.note, self.note.as_ref().map_or(0, |note| note.len()));
        if note > most {
            let message = format!("the note has {note} bytes, but {} allows {most}", self.client.info().name);
            return Err(Error::new(ErrorKind::Limit, message));
        }
        self.check_purpose()
    }

    fn check_purpose(&self) -> Result<()> {
        let info = self.client.info();
        let least = self.purpose.least();
        if info.guarantee >= least || self.fenced {
            return Ok(());
        }
        let message = format!(
            "{} guarantees only {} ({}), which is too weak for Purpose::Correctness: use {}, or check the fencing token \
             where the effect happens and call .fenced()",
            info.name,
            info.guarantee,
            info.because,
            advice::backends(least)
        );
        Err(Error::new(ErrorKind::GuaranteeTooWeak, message))
    }
}
