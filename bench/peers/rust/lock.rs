//! What the works need of a lock.

/// A lock library, connected to its server.
pub(crate) trait Lock: Send + Sync + 'static {
    /// What a holder has.
    type Held: Send + Sync + 'static;

    /// Acquires the lock on `resource`, and waits for it in the way of the library. An error is tried again.
    fn acquire(&self, task: usize, resource: &str)
    -> impl Future<Output = Result<Self::Held, String>> + Send;

    /// Releases it.
    fn release(
        &self,
        task: usize,
        resource: &str,
        held: Self::Held,
    ) -> impl Future<Output = Result<(), String>> + Send;

    /// How many tasks wait in line for `resource`. Only libraries with a fair lock are asked.
    fn waiting(&self, resource: &str) -> impl Future<Output = Result<usize, String>> + Send {
        let why = format!("the waiters of {resource} cannot be counted");
        async { Err(why) }
    }

    /// Whether it is still held, as far as the library knows. Only libraries that renew leases are asked.
    fn is_alive(held: &Self::Held) -> bool;
}
