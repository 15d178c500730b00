//! The limit: two scripts as the documents of Redis show them, with a fencing counter, through redis-rs.
//!
//! Acquire is `SET NX PX` and `INCR` in one script. Release is compare-and-delete. No queue, no renewal.

use redis::{Script, aio::MultiplexedConnection};

use crate::lock::Lock;

const ACQUIRE: &str = "\
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return redis.call('INCR', KEYS[2])
end
return 0";
const RELEASE: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0";
const TTL_MS: u64 = 30_000;

/// A connection that all tasks share, and the two scripts.
pub(crate) struct Bare {
    connection: MultiplexedConnection,
    acquire: Script,
    release: Script,
}

impl Bare {
    pub(crate) async fn connect(address: &str) -> Result<Bare, String> {
        let failed = |error: redis::RedisError| format!("cannot connect to {address}: {error}");
        let client = redis::Client::open(format!("redis://{address}/")).map_err(failed)?;
        let connection = client.get_multiplexed_async_connection().await.map_err(failed)?;
        Ok(Bare { connection, acquire: Script::new(ACQUIRE), release: Script::new(RELEASE) })
    }
}

impl Lock for Bare {
    type Held = String;

    async fn acquire(&self, task: usize, resource: &str) -> Result<String, String> {
        let owner = format!("{task:032x}");
        let mut connection = self.connection.clone();
        let mut call = self.acquire.key(format!("{{{resource}}}:owner"));
        call.key(format!("{{{resource}}}:fence")).arg(&owner).arg(TTL_MS);
        let token: u64 = call.invoke_async(&mut connection).await.map_err(|error| error.to_string())?;
        if token == 0 { Err(format!("{resource} is held")) } else { Ok(owner) }
    }

    async fn release(&self, _: usize, resource: &str, owner: String) -> Result<(), String> {
        let mut connection = self.connection.clone();
        let mut call = self.release.key(format!("{{{resource}}}:owner"));
        let deleted: u64 =
            call.arg(owner).invoke_async(&mut connection).await.map_err(|error| error.to_string())?;
        if deleted == 1 { Ok(()) } else { Err(format!("{resource} was not held")) }
    }

    fn is_alive(_: &String) -> bool {
        false
    }
}
