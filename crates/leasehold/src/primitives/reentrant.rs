//! Entering again what one holds already: by a scope that is handed down, never by thread or task.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use leasehold_core::{Error, ErrorKind, Resource, Result, Share};
use tokio::sync::OwnedMutexGuard;

use crate::engine::tenure::{Handle, Tenure};

/// Who re-enters. Requests [within](crate::LeaseRequest::within) one scope share what they hold.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Released, Scope};
///
/// let leases = leasehold::connect("memory:").await?;
/// let me = Scope::new();
/// let outer = leases.lease("order", "7").within(&me).acquire().await?;
/// let inner = leases.lease("order", "7").within(&me).acquire().await?; // no round trip
/// assert_eq!(outer.token(), inner.token());
/// assert_eq!(inner.release().await?, Released::StillHeld);
/// assert_eq!(outer.release().await?, Released::Now);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Scope(Arc<Mutex<HashMap<Resource, Room>>>);

/// What the scope holds of one resource. Locked while one of its requests acquires, so that another waits for the
/// outcome instead of queueing behind itself.
type Room = Arc<tokio::sync::Mutex<Weak<Tenure>>>;

/// What a request finds in a scope.
pub(crate) enum Reentry {
    /// It is held already.
    Again(Handle),
    /// It is not: acquire it, and remember it here.
    First(Seat),
}

/// The right to acquire for the scope.
pub(crate) struct Seat(OwnedMutexGuard<Weak<Tenure>>);

impl Seat {
    pub(crate) fn remember(&mut self, tenure: &Arc<Tenure>) {
        *self.0 = Arc::downgrade(tenure);
    }
}

impl Scope {
    /// An empty one.
    pub fn new() -> Scope {
        Scope::default()
    }

    pub(crate) async fn enter(&self, resource: &Resource, share: Share) -> Result<Reentry> {
        let seat = Arc::clone(&self.room(resource)).lock_owned().await;
        let Some(tenure) = seat.upgrade() else { return Ok(Reentry::First(Seat(seat))) };
        if tenure.check().is_err() {
            return Ok(Reentry::First(Seat(seat)));
        }
        // A writer may read what it writes; a reader may not write: two of them would wait for each other.
        if tenure.share.capacity() == share.capacity() && tenure.share.weight() < share.weight() {
            let message = format!(
                "this scope holds {:?} and asks for {share:?}: two that do so wait for each other; release first",
                tenure.share
            );
            return Err(Error::new(ErrorKind::Invalid, message).on(resource));
        }
        if tenure.share.capacity() != share.capacity() {
            return Err(Error::mismatch(tenure.share.capacity(), share.capacity()).on(resource));
        }
        Ok(tenure.enter_again().map_or(Reentry::First(Seat(seat)), Reentry::Again))
    }

    fn room(&self, resource: &Resource) -> Room {
        let mut rooms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Rooms that nobody is in are forgotten, so a long-lived scope does not grow.
        let in_use = |room: &mut Room| {
            Arc::strong_count(room) > 1 || room.try_lock().map_or(true, |tenure| tenure.strong_count() > 0)
        };
        if rooms.len() >= 64 && !rooms.contains_key(resource) {
            rooms.retain(|_, room| in_use(room));
        }
        Arc::clone(rooms.entry(resource.clone()).or_default())
    }
}
