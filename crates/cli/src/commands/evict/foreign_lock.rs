//! `leasehold evict RESOURCE --foreign --value-hash HASH --two-may-run --reason TEXT`: removes the lock of
//! another program.
//!
//! The hash of its value names the lock, as a token names a grant: the store removes it only if it still has
//! this value. Whether the other program has ended cannot be seen, so two may run (ADR 0065).

use std::process::ExitCode;

use leasehold::{ForeignLock, OperatorAction};

use super::Evict;
use crate::{
    exit::{Exit, Failure},
    foreign,
    order::{ActionText, PendingOrder},
    session::OperatorSession,
};

impl Evict {
    pub(super) async fn evict_foreign(&self, session: &OperatorSession) -> Result<ExitCode, Failure> {
        let snapshot = session.snapshot(&self.order.resource).await?;
        foreign::check_orders_supported(session, &snapshot, &self.order.reason)?;
        let mut order =
            PendingOrder { session, args: &self.order, snapshot, foreign: None, value: self.value_hash };
        let Some(value) = self.value_hash else {
            return Err(match order.snapshot.foreign.first() {
                Some(lock) => self.needs(&order, lock, "add --value-hash to confirm that you mean"),
                None => order.holder_changed(),
            });
        };
        order.foreign = order.snapshot.foreign.iter().find(|lock| lock.value_hash == value).cloned();
        let Some(lock) = order.foreign.clone() else {
            // The store compares too, and records that the order came too late.
            let text = ActionText::new(String::new(), "the lock of another program was removed");
            if self.order.dry_run || !self.two_may_run {
                return Err(order.holder_changed());
            }
            return self.order.execute(&order, OperatorAction::EvictForeign { value }, text).await;
        };
        if !self.two_may_run && !self.order.dry_run {
            return Err(self.needs(
                &order,
                &lock,
                "two may run: add --two-may-run to confirm the removal of",
            ));
        }
        let name = foreign::name(&lock);
        let action_text = ActionText::new(
            format!("remove {name}; its program is not told, and two may run"),
            format!("removed {name}; its program is not told: watch for work that is done twice"),
        );
        self.order.execute(&order, OperatorAction::EvictForeign { value }, action_text).await
    }

    /// Fails if only the lock of another program holds the resource: that has no token.
    pub(super) fn check_not_foreign(&self, order: &PendingOrder<'_>) -> Result<(), Failure> {
        let lock = order.snapshot.foreign.first().filter(|_| order.snapshot.holders.is_empty());
        let Some(lock) = lock.filter(|_| self.order.token.is_none()) else { return Ok(()) };
        let message = format!(
            "{}: nothing was done: it is held by {}, which has no token and is not told of an eviction",
            order.name(),
            foreign::name(lock)
        );
        let command = foreign::evict_command(order.session, &self.order.resource, lock, &self.order.reason);
        let hint = format!("once you know that the other program has ended: {command}");
        Err(Failure::new(Exit::Refused, "foreign", message).hint(hint))
    }

    fn needs(&self, order: &PendingOrder<'_>, lock: &ForeignLock, what: &str) -> Failure {
        let message = format!("{}: {what} {}", order.name(), foreign::name(lock));
        let command = foreign::evict_command(order.session, &self.order.resource, lock, &self.order.reason);
        Failure::usage(message).hint(command)
    }
}
