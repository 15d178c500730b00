//! A value that is computed once for all callers, also across processes.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?; let path = directory.path().join("cache.db");
//! use leasehold_patterns::single_flight::{SingleFlight, SqliteCache};
//! use std::{sync::Arc, time::Duration};
//!
//! let leases = leasehold::connect("memory:").await?;
//! let cache = Arc::new(SqliteCache::open(&path).await?);
//! let home = SingleFlight::new(&leases, cache).fresh_for(Duration::from_secs(60));
//! let page = home.get("page/home", async || Ok::<_, String>(b"expensive".to_vec())).await?;
//! assert_eq!(&page[..], b"expensive");
//! # Ok(()) }
//! ```
//!
//! # How it works
//!
//! 1. Read the cache. A value that is there costs one read.
//! 2. Join the flight of this process for the key: one caller goes on, the others wait in memory for its
//!    result.
//! 3. Acquire the lease on `flight/KEY`: one process goes on, one caller of each other process waits for it.
//! 4. Read the cache again: the process that had the lease before has most likely stored the value.
//! 5. Compute the value under the lease. If the lease is lost meanwhile, start again with 3, at most three
//!    times.
//! 6. Store the value, or the error, together with the fencing token of the lease, and release the lease.
//!
//! # Guarantees
//!
//! - While there is no value, one caller computes it. The other callers of its process wait in memory. One
//!   caller of each other process waits for the lease, and is woken when it is released.
//! - Errors are shared too, as text, for a second. So a thousand callers do not compute something that fails
//!   a thousand times.
//! - If a process dies while it computes, another one takes its place. A process that was frozen cannot
//!   overwrite a newer value: the cache checks the fencing token in the step that stores the value.
//!
//! # When not to use it
//!
//! - The value must never be computed twice: a lease can be lost, and then a second process computes. That is
//!   wasted work, not a wrong value.
//! - Values of more than 1 MiB: store them elsewhere, and cache the place.
//! - One process: `tokio::sync::OnceCell` or a cache in memory is enough.

mod cache;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold::{Client, Error, ErrorKind, Lease, LeaseRequest, Pass};

pub use self::cache::{Cache, CacheEntry};
#[cfg(feature = "postgres")]
pub use self::postgres::PostgresCache;
#[cfg(feature = "redis")]
pub use self::redis::RedisCache;
#[cfg(feature = "sqlite")]
pub use self::sqlite::SqliteCache;

/// Why there is no value.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FlightError {
    /// The computation failed with this text, here or in another process.
    Computing(String),
    /// The lease or the cache failed.
    Leasehold(Error),
}

impl fmt::Display for FlightError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlightError::Computing(why) => f.write_str(why),
            FlightError::Leasehold(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for FlightError {}

impl From<Error> for FlightError {
    fn from(error: Error) -> FlightError {
        FlightError::Leasehold(error)
    }
}

/// A value, or why there is none.
pub type FlightResult = Result<Arc<[u8]>, FlightError>;

/// Values that are computed once for all callers.
pub struct SingleFlight {
    client: Client,
    cache: Arc<dyn Cache>,
    fresh_for: Duration,
    ttl: Duration,
    wait: Duration,
    flights: Mutex<HashMap<String, Arc<Flight>>>,
}

/// The result of one computation, for the callers of this process. The caller that has the lock computes it.
type Flight = tokio::sync::Mutex<Option<FlightResult>>;

/// How long an error is shared.
const ERROR_FRESH_FOR: Duration = Duration::from_secs(1);
/// The most bytes of a value.
const VALUE_MAX: usize = 1 << 20;
/// The most characters of an error: it is stored, and read by all callers.
const ERROR_TEXT_MAX: usize = 4096;
/// How often a computation is started: once, and again if its lease was lost.
const TRIES: usize = 3;

impl SingleFlight {
    /// Values in this cache, computed under leases of this client.
    pub fn new(client: &Client, cache: Arc<dyn Cache>) -> SingleFlight {
        let (client, ttl, wait) = (client.clone(), <LeaseRequest>::TTL, Duration::from_secs(60));
        SingleFlight { client, cache, fresh_for: wait, ttl, wait, flights: Mutex::default() }
    }

    /// How long a value is valid. Default: a minute.
    #[must_use]
    pub fn fresh_for(self, fresh_for: Duration) -> SingleFlight {
        SingleFlight { fresh_for, ..self }
    }

    /// The ttl of the lease of a computation. It is renewed while the computation runs. Default: 30 s.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> SingleFlight {
        SingleFlight { ttl, ..self }
    }

    /// How long to wait while another process computes the value. Default: a minute.
    #[must_use]
    pub fn wait(self, wait: Duration) -> SingleFlight {
        SingleFlight { wait, ..self }
    }

    /// Returns the value: from the cache, or computed by this or another caller.
    ///
    /// A value that is in the cache costs one read of it.
    ///
    /// # Cancel safety
    /// If it is dropped while it computes, the computation is dropped, and the next caller computes.
    ///
    /// # Errors
    /// [`FlightError::Computing`] with the text of the computation's error, or if the value is larger than 1
    /// MiB. [`FlightError::Leasehold`] if the lease or the cache fails, or if nobody has computed the value
    /// within [`wait`](SingleFlight::wait).
    pub async fn get<F, W, E>(&self, key: &str, compute: F) -> FlightResult
    where
        F: Fn() -> W,
        W: Future<Output = Result<Vec<u8>, E>>,
        E: fmt::Display,
    {
        let request = self.client.lease("flight", key).ttl(self.ttl).wait(self.wait);
        if let Some(entry) = self.cache.get(request.resource()?).await? {
            return entry.into();
        }
        let flight = FlightGuard::join(self, key);
        let mut shared_result = flight.flight.lock().await;
        if let Some(result) = &*shared_result {
            return result.clone();
        }
        let result = self.compute_under_lease(&request, compute).await;
        *shared_result = Some(result.clone());
        flight.close();
        result
    }

    /// Steps 3 to 6.
    async fn compute_under_lease<F, W, E>(&self, request: &LeaseRequest, compute: F) -> FlightResult
    where
        F: Fn() -> W,
        W: Future<Output = Result<Vec<u8>, E>>,
        E: fmt::Display,
    {
        let mut lost = None;
        for _ in 0..TRIES {
            let lease = request.clone().acquire().await?;
            let result = match self.cache.get(lease.resource()).await? {
                Some(entry) => entry.into(),
                None => match lease.hold(compute()).await {
                    Ok(computed) => self.store(&lease, computed.map_err(|error| error.to_string())).await,
                    Err(error) => {
                        lost = Some(error);
                        continue;
                    }
                },
            };
            drop(lease.release().await); // repeated in the background until there is a reply
            return result;
        }
        let lost =
            lost.unwrap_or_else(|| Error::new(ErrorKind::Lost, "the lease of the computation was lost"));
        Err(lost.into())
    }

    async fn store(&self, lease: &Lease, computed: Result<Vec<u8>, String>) -> FlightResult {
        let checked = computed.and_then(|value| match value.len() {
            0..=VALUE_MAX => Ok(value),
            size => Err(format!("a value has at most {VALUE_MAX} bytes, this one has {size}")),
        });
        let (entry, keep) = match checked {
            Ok(value) => (CacheEntry::Value(value.into()), self.fresh_for),
            Err(why) => (CacheEntry::Failed(why.chars().take(ERROR_TEXT_MAX).collect()), ERROR_FRESH_FOR),
        };
        let pass = Pass::new(lease.resource().clone(), lease.token()).owned_by(lease.owner_token());
        match self.cache.put(&entry, keep, &pass).await {
            // A process with a newer token has stored a value: return that one, if it is still there.
            Err(error) if error.kind() == ErrorKind::StaleToken => {
                let newer = self.cache.get(lease.resource()).await?;
                newer.map_or_else(|| Err(error.into()), Into::into)
            }
            Err(error) => Err(error.into()),
            Ok(()) => entry.into(),
        }
    }

    fn flights(&self) -> MutexGuard<'_, HashMap<String, Arc<Flight>>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SingleFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleFlight").field("cache", &self.cache).finish_non_exhaustive()
    }
}

/// A caller that has joined a flight. When the last one is dropped, the flight is removed.
struct FlightGuard<'a> {
    all: &'a SingleFlight,
    key: &'a str,
    flight: Arc<Flight>,
}

impl<'a> FlightGuard<'a> {
    fn join(all: &'a SingleFlight, key: &'a str) -> FlightGuard<'a> {
        let flight = Arc::clone(all.flights().entry(key.to_owned()).or_default());
        FlightGuard { all, key, flight }
    }

    /// Removes the flight, so that later callers read the cache or begin a new flight.
    fn close(&self) {
        let mut flights = self.all.flights();
        if flights.get(self.key).is_some_and(|flight| Arc::ptr_eq(flight, &self.flight)) {
            flights.remove(self.key);
        }
    }
}

impl Drop for FlightGuard<'_> {
    fn drop(&mut self) {
        let mut flights = self.all.flights();
        let is_current = flights.get(self.key).is_some_and(|flight| Arc::ptr_eq(flight, &self.flight));
        // Two references: that of the map and our own. Nobody can join while the map is locked.
        if is_current && Arc::strong_count(&self.flight) == 2 {
            flights.remove(self.key);
        }
    }
}
