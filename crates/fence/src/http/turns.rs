//! One request of a resource at a time.
//!
//! The check comes before the handler, and the effect happens in it. Let two in, and the one with the lower token, admitted
//! first, may take effect last. So the next one waits until the handler before it has answered.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use leasehold_core::Resource;
use tokio::sync::{Mutex as Door, OwnedMutexGuard};

#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<Resource, Arc<Door<()>>>>);

/// Someone's turn, or their wait for it.
pub(super) struct Turn {
    turns: Arc<Turns>,
    resource: Resource,
    door: Option<Arc<Door<()>>>,
    inside: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits for the turn. It ends when it is dropped; dropped while waiting, it was never there.
    pub(super) async fn take(self: &Arc<Turns>, resource: &Resource) -> Turn {
        let door = Arc::clone(self.lock().entry(resource.clone()).or_default());
        let (turns, resource) = (Arc::clone(self), resource.clone());
        let mut turn = Turn { turns, resource, door: Some(Arc::clone(&door)), inside: None };
        turn.inside = Some(door.lock_owned().await);
        turn
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Resource, Arc<Door<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().len()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut turns = self.turns.lock();
        self.inside = None;
        self.door = None;
        // Nobody can come to have the door but by the map, which is locked.
        if turns.get(&self.resource).is_some_and(|door| Arc::strong_count(door) == 1) {
            turns.remove(&self.resource);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    #[test]
    fn turns_are_taken_one_by_one_and_leave_nothing_behind() {
        let turns = Arc::new(Turns::default());
        let [one, two] = ["order/1", "order/2"].map(|name| name.parse::<Resource>().unwrap());
        let mut context = Context::from_waker(Waker::noop());
        let mut poll = |future: std::pin::Pin<&mut dyn Future<Output = Turn>>| match future.poll(&mut context)
        {
            std::task::Poll::Ready(turn) => Some(turn),
            std::task::Poll::Pending => None,
        };
        let first = poll(pin!(turns.take(&one))).expect("nobody is there");
        let other = poll(pin!(turns.take(&two))).expect("another resource");
        let mut second = Box::pin(turns.take(&one));
        let mut third = Box::pin(turns.take(&one));
        assert!(poll(second.as_mut()).is_none() && poll(third.as_mut()).is_none());
        drop(second); // it went away while waiting
        drop(first);
        let third = poll(third.as_mut()).expect("its turn");
        assert_eq!(turns.len(), 2);
        drop((third, other));
        assert_eq!(turns.len(), 0);
    }
}
