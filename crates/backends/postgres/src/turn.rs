//! A connection for one request.
//!
//! A pool hands a server connection on to the next client as soon as an answer has come. If this client had sent a second
//! request meanwhile and is killed, its second answer goes to that next client. So on a connection that a pool may share:
//! 1. A request has the connection to itself ([`Turn::alone`]). There are as many turns as the URL allows connections;
//!    who comes first gets the next.
//! 2. Once its answer was read and carries its id, the connection is free for the next request.
//! 3. In any other case (the request was dropped, or timed out, or failed) the connection is not used again. It ends when
//!    the answer has come, or after three timeouts. There are at most as many of these as of turns: beyond that, they keep
//!    their turn.
//!
//! ADR 0034.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use leasehold_core::Result;
use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres::Row;

use crate::{
    link::Link,
    wire::{Failure, Fate, Wire},
};

/// The use of a connection by one request.
pub(crate) struct Turn {
    link: Arc<Link>,
    wire: Arc<Wire>,
    /// Held while no other request may use the connection.
    permit: Option<OwnedSemaphorePermit>,
    answered: bool,
}

impl Turn {
    /// On a connection that leads to the server itself.
    pub(crate) fn among_others(link: Arc<Link>, wire: Arc<Wire>) -> Turn {
        Turn { link, wire, permit: None, answered: false }
    }

    /// On a connection that was [taken](Wire::take).
    pub(crate) fn alone(link: Arc<Link>, wire: Arc<Wire>, permit: OwnedSemaphorePermit) -> Turn {
        Turn { link, wire, permit: Some(permit), answered: false }
    }

    pub(crate) fn wire(&self) -> &Wire {
        &self.wire
    }

    /// This is what came of it.
    pub(crate) fn end(mut self, answer: Result<Vec<Row>, Failure>) -> Result<Vec<Row>> {
        let fate = answer.as_ref().map_or_else(|failure| failure.wire, |_| Fate::Keep);
        self.answered = fate == Fate::Keep;
        match fate {
            Fate::Keep => {}
            Fate::Leave => self.link.wires().retain(|other| !Arc::ptr_eq(other, &self.wire)),
            Fate::Mixed => self.link.mixed(&self.wire),
        }
        answer.map_err(|failure| failure.error)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        if self.answered {
            // Before the permit goes back: who gets that looks for a connection at once.
            self.wire.give_back();
            return drop(permit);
        }
        self.link.wires().retain(|other| !Arc::ptr_eq(other, &self.wire));
        let leaving = Leaving::begin(&self.link.leaving);
        let permit = (leaving.count > self.link.config.connections).then_some(permit);
        let (remains, within) = (self.wire.remains(), self.link.silence_max());
        let ended = remains.end_within(within, self.link.config.clone());
        self.link.environment.spawn(Box::pin(async move {
            ended.await;
            drop((leaving, permit));
        }));
    }
}

/// Counts a connection that has an answer to come.
struct Leaving {
    all: Arc<AtomicUsize>,
    /// How many there are with this one.
    count: usize,
}

impl Leaving {
    fn begin(all: &Arc<AtomicUsize>) -> Leaving {
        let count = all.fetch_add(1, Ordering::Relaxed) + 1;
        Leaving { all: Arc::clone(all), count }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::Relaxed);
    }
}
