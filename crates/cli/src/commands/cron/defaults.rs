//! Options of `leasehold cron` that were not typed.

use super::{Cron, missed};
use crate::{config::CronDefaults, exit::Failure};

impl Cron {
    /// Fills options from `config.toml`.
    pub(crate) fn take_defaults(&mut self, defaults: &CronDefaults) -> Result<(), Failure> {
        if let (None, Some(text)) = (self.missed, &defaults.missed) {
            let read = missed(text);
            self.missed =
                Some(read.map_err(|error| Failure::config(format!("missed in config.toml: {error}")))?);
        }
        self.zone = self.zone.take().or_else(|| defaults.zone.clone());
        self.wait = self.wait.or(defaults.wait);
        self.at_least = self.at_least.or(defaults.at_least);
        self.ttl = self.ttl.or(defaults.ttl);
        self.max_hold = self.max_hold.or(defaults.max_hold);
        self.on_failure = self.on_failure.take().or_else(|| defaults.on_failure.clone().map(Into::into));
        Ok(())
    }

    /// The time zone of the schedule.
    pub(super) fn zone(&self) -> &str {
        self.zone.as_deref().unwrap_or("UTC")
    }
}
