//! Options of `leasehold run` that were not typed, and the names in its command line.

use super::Run;
use crate::{config::RunDefaults, exit::Failure, names::TypedName};

impl Run {
    /// Fills options from `config.toml`. The ttl and the grace are filled in `timing`, which must know
    /// whether they were typed. A child of `cron` or `elect` takes no other: these have defaults of their own.
    pub(crate) fn take_defaults(&mut self, defaults: &RunDefaults) -> Result<(), Failure> {
        self.targets = self.read_targets()?;
        if self.with_parent.is_some() {
            return Ok(());
        }
        self.claim.take_defaults(defaults);
        self.max_hold = self.max_hold.or(defaults.max_hold);
        // The two exclude each other.
        self.at_least = self.at_least.or(defaults.at_least.filter(|_| self.once_per.is_none()));
        self.no_renew = self.no_renew || defaults.no_renew.unwrap_or(false);
        self.on_ask = self.on_ask.or(defaults.on_ask);
        Ok(())
    }

    /// The names of resources in the command line. The name that `cron` or `elect` gives is complete.
    pub(crate) fn typed_names(&mut self) -> Vec<TypedName<'_>> {
        if self.with_parent.is_some() {
            return Vec::new();
        }
        self.targets.resources.iter_mut().map(TypedName::One).collect()
    }
}
