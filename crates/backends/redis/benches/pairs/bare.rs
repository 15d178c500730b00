//! What the documents of a Redis lock show, called through the same driver without the backend and the engine: one
//! script with `SET NX PX` and `INCR` for the token, and one that compares and deletes. No backend with a fence can do
//! with less.

use redis::{
    Cmd, RedisResult, Value,
    aio::{ConnectionLike as _, MultiplexedConnection},
    cluster_async::ClusterConnection,
};

const ACQUIRE: &str = "\
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end
return 0";
pub(crate) const RELEASE: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

/// A connection to servers that have the scripts loaded.
#[derive(Clone)]
pub(crate) struct Bare<C = MultiplexedConnection> {
    connection: C,
    acquire: String,
    release: String,
}

/// A connection of the driver: to one server, or to a cluster.
pub(crate) trait DriverConnection: Clone + Send + 'static {
    fn send(&mut self, call: &Cmd) -> impl Future<Output = RedisResult<Value>> + Send;
}

impl DriverConnection for MultiplexedConnection {
    async fn send(&mut self, call: &Cmd) -> RedisResult<Value> {
        self.send_packed_command(call).await
    }
}

impl DriverConnection for ClusterConnection {
    async fn send(&mut self, call: &Cmd) -> RedisResult<Value> {
        self.req_packed_command(call).await
    }
}

impl Bare {
    pub(crate) async fn connect(port: u16) -> Bare {
        let address = redis::ConnectionAddr::Tcp("127.0.0.1".to_owned(), port);
        let info = redis::IntoConnectionInfo::into_connection_info(address).unwrap();
        let info = info.set_tcp_settings(redis::io::tcp::TcpSettings::default().set_nodelay(true));
        let client = redis::Client::open(info).unwrap();
        // On a loaded machine a reply may take longer than the driver waits by default.
        let settings = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let mut connection = client.get_multiplexed_async_connection_with_config(&settings).await.unwrap();
        let mut load = async |text: &str| -> String {
            redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async(&mut connection).await.unwrap()
        };
        let (acquire, release) = (load(ACQUIRE).await, load(RELEASE).await);
        Bare { connection, acquire, release }
    }

    /// The same scripts through the driver's own cluster client. The nodes have the scripts loaded.
    pub(crate) async fn on_cluster(&self, ports: &[u16]) -> Bare<ClusterConnection> {
        let nodes = ports.iter().map(|port| format!("redis://127.0.0.1:{port}/"));
        let client = redis::cluster::ClusterClient::new(nodes).unwrap();
        let connection = client.get_async_connection().await.unwrap();
        Bare { connection, acquire: self.acquire.clone(), release: self.release.clone() }
    }
}

impl<C: DriverConnection> Bare<C> {
    /// Acquires and releases once.
    pub(crate) async fn pair(&mut self, resource: &str, owner: &str) {
        let (lock, fence) = (format!("bare:{{{resource}}}:lock"), format!("bare:{{{resource}}}:fence"));
        let mut acquire = redis::cmd("EVALSHA");
        acquire.arg(&self.acquire).arg(2).arg(&lock).arg(&fence).arg(owner).arg(30_000);
        let granted = self.connection.send(&acquire).await.unwrap();
        assert!(matches!(granted, Value::Int(token) if token > 0), "{granted:?}");
        let mut release = redis::cmd("EVALSHA");
        release.arg(&self.release).arg(1).arg(&lock).arg(owner);
        let released = self.connection.send(&release).await.unwrap();
        assert_eq!(released, Value::Int(1));
    }
}
