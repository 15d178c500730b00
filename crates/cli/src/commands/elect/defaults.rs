//! Options of `leasehold elect` that were not typed.

use super::Elect;
use crate::config::ElectDefaults;

impl Elect {
    /// Fills options from `config.toml`.
    pub(crate) fn take_defaults(&mut self, defaults: &ElectDefaults) {
        self.ttl = self.ttl.or(defaults.ttl);
        self.grace = self.grace.or(defaults.grace);
    }
}
