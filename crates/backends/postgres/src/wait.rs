//! The verb `wait`: resolves when it is worth asking again.
//!
//! 1. Register the waiter, so that no wake-up after this point is missed.
//! 2. Start the listener, and wait until it is known whether notifications arrive.
//! 3. Call the SQL function `watch`. It tells whether something changed since the cursor; if not, it stores the channel on
//!    which to notify this client.
//! 4. Sleep until the wake-up. Without notifications, sleep for [`POLL_EVERY`] at most.

use std::time::Duration;

use leasehold_core::{ClaimRef, Cursor, Result};
use leasehold_support::race::first;
use tokio_postgres::types::Type;

use crate::{
    backend::Postgres,
    connection::Parameter,
    reply::{Columns as _, first_row, micros},
    schema::Functions,
};

/// While no notifications arrive, waiters ask again this often.
const POLL_EVERY: Duration = Duration::from_millis(500);
/// `watch` returns this if the claim should ask again at once.
const ASK_AGAIN: i64 = 1;
/// `watch` returns this if the claim has a place in the queue and cannot be granted yet.
const HAS_PLACE: i64 = 0;

impl Postgres {
    pub(crate) async fn wait_for_wakeup(
        &self,
        claim: &ClaimRef,
        since: Cursor,
        at_most: Duration,
    ) -> Result<()> {
        let waiter = self.listener.register(claim);
        self.listener.start(&self.connections, &self.environment);
        let is_connected = self.listener.is_connected().await;
        let (key, owner) = (claim.resource.key(), claim.owner.to_bytes().to_vec());
        // At least one microsecond, so that the row of a watcher does not expire at once.
        let (cursor, at_most) = (since.0.cast_signed(), micros(at_most).max(1));
        let (channel, listener) = (self.listener.channel(), self.listener.lock());
        let mut parameters: Vec<Parameter<'_>> = vec![
            (&key, Type::TEXT),
            (&owner, Type::BYTEA),
            (&cursor, Type::INT8),
            (&at_most, Type::INT8),
            (&channel, Type::TEXT),
        ];
        if self.statements.functions == Functions::Current {
            parameters.push((&listener, Type::INT4));
        }
        let rows = self.connections.query(&self.statements.watch, &parameters).await?;
        match first_row(&rows)?.read::<i64>(0)? {
            ASK_AGAIN => return Ok(()),
            HAS_PLACE => waiter.has_place(),
            _ => {}
        }
        // The listener may have lost its connection between the two reads: then the channel is empty, and no notification comes.
        if is_connected && !channel.is_empty() {
            waiter.woken().await;
        } else {
            first(waiter.woken(), self.environment.sleep(POLL_EVERY)).await;
        }
        Ok(())
    }
}
