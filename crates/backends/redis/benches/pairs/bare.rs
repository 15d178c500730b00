//! The backend's scripts, called through its driver without the backend and the engine.

use redis::{
    Cmd, RedisResult, Value,
    aio::{ConnectionLike as _, MultiplexedConnection},
    cluster_async::ClusterConnection,
};

const ACQUIRE: &str = concat!(
    "#!lua\n",
    include_str!("../../scripts/acquire_plain.lua"),
    include_str!("../../scripts/resource.lua"),
    include_str!("../../scripts/acquire.lua")
);
const RELEASE: &str = concat!(
    "#!lua flags=allow-oom\n",
    include_str!("../../scripts/release_plain.lua"),
    include_str!("../../scripts/resource.lua"),
    include_str!("../../scripts/release.lua")
);

/// A request id of the usual length.
const ID: &str = "0123456789abcdef";

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
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
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
    fn call(digest: &str, keys: usize, resource: &str, owner: &str) -> Cmd {
        let mut call = redis::cmd("EVALSHA");
        call.arg(digest).arg(keys);
        for part in ["owner", "fence", "shares", "claims", "line", "places", "state", "watch"] {
            call.arg(format!("lock:v1:{{{resource}}}:{part}"));
        }
        for _ in 8..keys {
            call.arg(format!("lock:v1:{{{resource}}}:grave:{owner}"));
        }
        call.arg(resource).arg("lock:v1:wake:").arg("0123456789abcdef").arg(owner);
        call
    }

    /// Acquires and releases once.
    pub(crate) async fn pair(&mut self, resource: &str, owner: &str) {
        let mut acquire = Self::call(&self.acquire, 10, resource, owner);
        acquire
            .arg(1)
            .arg(1)
            .arg(30_000)
            .arg(6_000)
            .arg(0)
            .arg("1@host")
            .arg("")
            .arg(0)
            .arg(0)
            .arg("")
            .arg(-1);
        acquire.arg(1_000_000).arg(ID);
        let granted = self.connection.send(&acquire).await.unwrap();
        let Value::Array(fields) = granted else { panic!("{granted:?}") };
        assert_eq!(fields[0], Value::BulkString(b"granted".to_vec()));
        let mut release = Self::call(&self.release, 9, resource, owner);
        release.arg(-1).arg(0).arg(ID);
        let released = self.connection.send(&release).await.unwrap();
        assert_eq!(released, Value::Array(vec![Value::Int(1), Value::BulkString(ID.as_bytes().to_vec())]));
    }
}
