//! Many ask for a value, one computes it, all get it: across processes, not only within one.
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
//! # What it promises
//!
//! - Of all who ask while there is no value, one computes: the others of its process wait in memory, one of each other
//!   process waits for its lease and is woken when it is given back.
//! - Errors are shared too, as text, for a second: a thousand askers of something broken do not try it a thousand times.
//! - One that dies while it computes is replaced. One that was frozen and comes back cannot overwrite a newer value: the
//!   cache checks the fencing token of each value in the step that stores it.
//!
//! # When not to use it
//!
//! - The value must never be computed twice: a lease can be lost, and then a second one computes. It is wasted, not wrong.
//! - Values of more than 1 MiB: put them elsewhere, and cache where they are.
//! - One process: `tokio::sync::OnceCell`, or a cache of your process, is enough.

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

pub use self::cache::{Cache, Entry};
#[cfg(feature = "postgres")]
pub use self::postgres::PostgresCache;
#[cfg(feature = "redis")]
pub use self::redis::RedisCache;
#[cfg(feature = "sqlite")]
pub use self::sqlite::SqliteCache;

/// Why there is no value.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// Whoever computed it says so: here, or in another process.
    Computing(String),
    /// The leases or the cache say so.
    Leasehold(Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Computing(why) => f.write_str(why),
            Failure::Leasehold(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Leasehold(error)
    }
}

/// A value, or why there is none.
pub type Answer = Result<Arc<[u8]>, Failure>;

/// Values that are computed once for all who ask.
pub struct SingleFlight {
    client: Client,
    cache: Arc<dyn Cache>,
    fresh_for: Duration,
    ttl: Duration,
    wait: Duration,
    flights: Mutex<HashMap<String, Arc<Flight>>>,
}

/// One value on its way, for those of this process who ask for it. Whoever has the lock computes.
type Flight = tokio::sync::Mutex<Option<Answer>>;

/// How long an error is everyone's.
const ERROR_FOR: Duration = Duration::from_secs(1);
/// Bytes of a value.
const VALUE_MAX: usize = 1 << 20;
/// Letters of an error's text: it is kept, and read by all who ask.
const WHY_MAX: usize = 4096;
/// How often a computation is begun again after its lease was lost.
const TRIES: usize = 3;

impl SingleFlight {
    /// Values in this cache, computed under leases of this client.
    pub fn new(client: &Client, cache: Arc<dyn Cache>) -> SingleFlight {
        let (client, ttl, wait) = (client.clone(), <LeaseRequest>::TTL, Duration::from_secs(60));
        SingleFlight { client, cache, fresh_for: wait, ttl, wait, flights: Mutex::default() }
    }

    /// How long a value is good. Default: a minute.
    #[must_use]
    pub fn fresh_for(self, fresh_for: Duration) -> SingleFlight {
        SingleFlight { fresh_for, ..self }
    }

    /// How long the lease of a computation lasts unless renewed, which happens by itself. Default: 30 s.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> SingleFlight {
        SingleFlight { ttl, ..self }
    }

    /// How long to wait for another process to compute it. Default: a minute.
    #[must_use]
    pub fn wait(self, wait: Duration) -> SingleFlight {
        SingleFlight { wait, ..self }
    }

    /// The value, from the cache or computed: by this call, or by whoever else asks for it.
    ///
    /// A value that is there costs one read of the cache.
    ///
    /// # Cancel safety
    /// Dropped while it computes, the computation is dropped, and the next one who asks computes.
    ///
    /// # Errors
    /// [`Failure::Computing`] with the text of the computation's error, or if the value is larger than 1 MiB;
    /// [`Failure::Leasehold`] if leases or cache fail, or if nobody has computed it within [`wait`](SingleFlight::wait).
    pub async fn get<F, W, E>(&self, key: &str, compute: F) -> Answer
    where
        F: Fn() -> W,
        W: Future<Output = Result<Vec<u8>, E>>,
        E: fmt::Display,
    {
        let request = self.client.lease("flight", key).ttl(self.ttl).wait(self.wait);
        if let Some(entry) = self.cache.get(request.resource()?).await? {
            return entry.into();
        }
        let joined = Joined::new(self, key);
        let mut outcome = joined.flight.lock().await;
        if let Some(outcome) = &*outcome {
            return outcome.clone();
        }
        let answer = self.fly(&request, compute).await;
        *outcome = Some(answer.clone());
        joined.land();
        answer
    }

    async fn fly<F, W, E>(&self, request: &LeaseRequest, compute: F) -> Answer
    where
        F: Fn() -> W,
        W: Future<Output = Result<Vec<u8>, E>>,
        E: fmt::Display,
    {
        let mut lost = None;
        for _ in 0..TRIES {
            let lease = request.clone().acquire().await?;
            // Whoever held it before us has computed it, most likely.
            let answer = match self.cache.get(lease.resource()).await? {
                Some(entry) => entry.into(),
                None => match lease.hold(compute()).await {
                    Ok(computed) => self.store(&lease, computed.map_err(|error| error.to_string())).await,
                    Err(error) => {
                        lost = Some(error);
                        continue;
                    }
                },
            };
            drop(lease.release().await); // repeated in the background until answered
            return answer;
        }
        Err(lost.unwrap_or_else(|| Error::new(ErrorKind::Lost, "the lease was lost")).into())
    }

    async fn store(&self, lease: &Lease, computed: Result<Vec<u8>, String>) -> Answer {
        let checked = computed.and_then(|value| match value.len() {
            0..=VALUE_MAX => Ok(value),
            size => Err(format!("a value has at most {VALUE_MAX} bytes, this one has {size}")),
        });
        let (entry, keep) = match checked {
            Ok(value) => (Entry::Value(value.into()), self.fresh_for),
            Err(why) => (Entry::Failed(why.chars().take(WHY_MAX).collect()), ERROR_FOR),
        };
        let pass = Pass::new(lease.resource().clone(), lease.token()).owned_by(lease.owner_token());
        match self.cache.put(&entry, keep, &pass).await {
            // Somebody newer was here: theirs counts, if it is still there.
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

/// One who asks. The last one to leave closes the door.
struct Joined<'a> {
    all: &'a SingleFlight,
    key: &'a str,
    flight: Arc<Flight>,
}

impl<'a> Joined<'a> {
    fn new(all: &'a SingleFlight, key: &'a str) -> Joined<'a> {
        let flight = Arc::clone(all.flights().entry(key.to_owned()).or_default());
        Joined { all, key, flight }
    }

    /// Those who ask from now on find it in the cache, or begin anew.
    fn land(&self) {
        let mut flights = self.all.flights();
        if flights.get(self.key).is_some_and(|flight| Arc::ptr_eq(flight, &self.flight)) {
            flights.remove(self.key);
        }
    }
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        let mut flights = self.all.flights();
        let ours = flights.get(self.key).is_some_and(|flight| Arc::ptr_eq(flight, &self.flight));
        // The map's and our own: nobody else is there, and nobody can come while the map is locked.
        if ours && Arc::strong_count(&self.flight) == 2 {
            flights.remove(self.key);
        }
    }
}
