//! [`LeaseSet`], which owns several leases, and [`LeaseSetView`], which only looks at them.

use std::{
    future::{Future, poll_fn},
    ops::Deref,
    pin::pin,
    sync::{Arc, OnceLock},
    task::Poll,
};

use leasehold_core::{EndReason, FencingToken, Pass, Resource, Result, ShareNumber};
use tokio_util::sync::CancellationToken;

use crate::{
    client::TokenKind,
    engine::held_lease::{HeldLease, LeaseHandle},
    lease::LeaseView,
};

/// Several leases that are held together. Dropping the set releases all of them.
///
/// It derefs to [`LeaseSetView`], which has all methods that do not need to own the leases.
#[must_use = "dropping a lease set releases it"]
#[derive(Debug)]
pub struct LeaseSet {
    handles: Vec<LeaseHandle>,
    view: LeaseSetView,
}

/// A view of several leases that can be cloned and given to other tasks. It never keeps a lease from being released.
///
/// Leases are found by kind and id, as they were asked for. If two leases of the set differ only in their namespace, find
/// them by their [`Resource`], with [`LeaseSetView::view_of`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// let leases = leasehold::connect("memory:").await?;
/// let set = leases
///     .all([leases.lease("account", "a")])
///     .and(leases.rwlock("rates", "eur").read())
///     .acquire()
///     .await?;
/// let account = set.view("account", "a").expect("an exclusive lease of the set");
/// assert_eq!(set.pass("account", "a"), Some(account.pass()));
/// let rates = set.shared_view("rates", "eur").expect("a shared lease of the set");
/// assert!(set.pass("rates", "eur").is_none(), "a fence cannot order shared leases");
/// let (all, one) = (set.cancellation(), rates.cancellation()); // cancelled when any lease is over, or when this one is
/// # assert!(!all.is_cancelled() && !one.is_cancelled());
/// set.check()
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LeaseSetView {
    inner: Arc<Held>,
}

#[derive(Debug)]
struct Held {
    /// In key order.
    leases: Vec<Arc<HeldLease>>,
    /// Cancelled when one of the leases is over. Made when it is first asked for.
    cancellation: OnceLock<CancellationToken>,
}

impl LeaseSet {
    /// Of leases in key order.
    pub(super) fn new(handles: Vec<LeaseHandle>) -> LeaseSet {
        let leases = handles.iter().map(|handle| Arc::clone(handle.lease())).collect();
        let view = LeaseSetView { inner: Arc::new(Held { leases, cancellation: OnceLock::new() }) };
        LeaseSet { handles, view }
    }

    /// A view that can be cloned and given to other tasks.
    ///
    /// For the view of one of the leases, see [`LeaseSetView::view`].
    pub fn set_view(&self) -> LeaseSetView {
        self.view.clone()
    }

    /// Runs the work while all leases hold, and releases them. As [`AllRequest::run`](crate::AllRequest::run), for leases
    /// that are held already.
    ///
    /// # Guarantees
    /// As [`LeaseSetView::hold`].
    ///
    /// # Cancel safety
    /// If it is dropped, the work is dropped and the leases are released in the background.
    ///
    /// # Errors
    /// `Lost` if a lease was lost before the work was done.
    pub async fn run<F, W>(self, work: F) -> Result<W::Output>
    where
        F: FnOnce(LeaseSetView) -> W,
        W: Future,
    {
        let output = self.hold(work(self.set_view())).await?;
        drop(self.release().await); // a failure is reported as an event, and the release is repeated
        Ok(output)
    }

    /// Releases all leases, in the opposite order.
    ///
    /// One round trip for each lease.
    ///
    /// # Cancel safety
    /// If it is dropped part-way, the rest is released in the background.
    ///
    /// # Errors
    /// The first error, as for [`Lease::release`](crate::Lease::release): it says nothing about the work. The other leases
    /// are released all the same.
    pub async fn release(mut self) -> Result<()> {
        let mut outcome = Ok(());
        while let Some(handle) = self.handles.pop() {
            let held = handle.lease();
            if held.handles() == 1 {
                outcome = outcome.and(held.engine.release(held, held.options().at_least).await.map(drop));
            }
        }
        outcome
    }
}

impl Deref for LeaseSet {
    type Target = LeaseSetView;
    fn deref(&self) -> &LeaseSetView {
        &self.view
    }
}

impl LeaseSetView {
    /// The number of leases.
    pub fn len(&self) -> usize {
        self.leases().len()
    }

    /// Whether the set has no leases.
    pub fn is_empty(&self) -> bool {
        self.leases().is_empty()
    }

    /// The resources, in key order.
    pub fn resources(&self) -> impl Iterator<Item = &Resource> {
        self.leases().iter().map(|held| &held.resource)
    }

    fn leases(&self) -> &[Arc<HeldLease>] {
        &self.inner.leases
    }

    fn find(&self, kind: &str, id: &str) -> Option<&Arc<HeldLease>> {
        self.leases().iter().find(|held| held.resource.kind() == kind && held.resource.id() == id)
    }

    /// The fencing token of one lease; `None` if it is not in the set, or is shared.
    pub fn token(&self, kind: &str, id: &str) -> Option<FencingToken> {
        self.view(kind, id).map(|view| view.token())
    }

    /// What a fence checks for one lease; `None` if it is not in the set, or is shared. See [`LeaseView::pass`].
    ///
    /// It names the owner, so that the same holder can present it more than once.
    pub fn pass(&self, kind: &str, id: &str) -> Option<Pass> {
        self.view(kind, id).map(|view| view.pass())
    }

    /// The passes of all exclusive leases, in key order.
    pub fn passes(&self) -> impl Iterator<Item = Pass> {
        self.leases().iter().filter_map(exclusive).map(|view| view.pass())
    }

    /// A view of one lease; `None` if it is not in the set, or is shared.
    pub fn view(&self, kind: &str, id: &str) -> Option<LeaseView> {
        self.find(kind, id).and_then(exclusive)
    }

    /// A view of one shared lease; `None` if it is not in the set, or is exclusive.
    pub fn shared_view(&self, kind: &str, id: &str) -> Option<LeaseView<ShareNumber>> {
        self.find(kind, id).filter(|held| !held.share.is_exclusive()).map(view_of)
    }

    /// A view of the lease of this resource; `None` if it is not in the set, or is shared.
    pub fn view_of(&self, resource: &Resource) -> Option<LeaseView> {
        self.leases().iter().find(|held| held.resource == *resource).and_then(exclusive)
    }

    /// Checks that all leases hold, by the clocks at this moment.
    ///
    /// # Errors
    /// `Lost` once any of them is over.
    pub fn check(&self) -> Result<()> {
        self.leases().iter().try_for_each(|held| held.check())
    }

    /// Resolves when one of the leases is over, by loss or release: which one, and why. Never for an empty set.
    ///
    /// The future borrows nothing, so the set can be released while it is polled.
    ///
    /// # Cancel safety
    /// Nothing is missed: a later call resolves at once.
    pub fn ended(&self) -> impl Future<Output = (Resource, EndReason)> + Send + use<> {
        let view = self.clone();
        async move {
            let mut ended: Vec<_> = view.until_each_ended();
            poll_fn(|cx| {
                for (held, ended) in view.leases().iter().zip(&mut ended) {
                    if let Poll::Ready(reason) = ended.as_mut().poll(cx) {
                        return Poll::Ready((held.resource.clone(), reason));
                    }
                }
                Poll::Pending
            })
            .await
        }
    }

    fn until_each_ended(&self) -> Vec<std::pin::Pin<Box<impl Future<Output = EndReason> + Send + use<>>>> {
        self.leases().iter().map(|held| Box::pin(Arc::clone(held).until_ended())).collect()
    }

    /// A token that is cancelled when one of the leases is over, for any reason. Cancelling it does not change a lease.
    pub fn cancellation(&self) -> CancellationToken {
        let token = self.inner.cancellation.get_or_init(|| {
            let token = CancellationToken::new();
            self.leases().iter().for_each(|held| held.cancel_when_ended(token.clone()));
            token
        });
        // A loss that no task has noticed yet is noticed here.
        let _ = self.check();
        token.child_token()
    }

    /// Runs the work while all leases hold. When one is lost, the work is dropped at its next await point.
    ///
    /// # Guarantees
    /// As [`LeaseView::hold`], for every lease of the set.
    ///
    /// # Cancel safety
    /// If it is dropped, the work is dropped with it. The leases stay.
    ///
    /// # Errors
    /// `Lost` if a lease was over before the work was done.
    pub async fn hold<W: Future>(&self, work: W) -> Result<W::Output> {
        let mut work = pin!(work);
        let mut ended = self.until_each_ended();
        poll_fn(move |cx| {
            for (held, ended) in self.leases().iter().zip(&mut ended) {
                if let Poll::Ready(reason) = ended.as_mut().poll(cx) {
                    return Poll::Ready(Err(held.lost(reason)));
                }
            }
            self.check()?;
            work.as_mut().poll(cx).map(Ok)
        })
        .await
    }
}

fn exclusive(held: &Arc<HeldLease>) -> Option<LeaseView> {
    held.share.is_exclusive().then(|| view_of(held))
}

fn view_of<T: TokenKind>(held: &Arc<HeldLease>) -> LeaseView<T> {
    LeaseView::of(held)
}
