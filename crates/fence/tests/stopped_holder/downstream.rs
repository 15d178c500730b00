//! The downstreams: where the processes write. The test prepares and reads them.

use std::io::{Read as _, Write as _};

use leasehold_core::{Error, ErrorKind, Pass};
use leasehold_fence::{http, postgres, redis::Fence, sqlite};
use rusqlite::Connection;
use tokio_postgres::NoTls;

use crate::{mariadb, servers::Servers};

/// A system that is written to.
pub(crate) struct Downstream {
    pub(crate) name: &'static str,
    /// Creates a target to write to. Returns its address, which ends with `#` and the id.
    pub(crate) prepare: fn(&Servers) -> String,
    pub(crate) read: fn(&Servers, &str) -> String,
    /// Whether it checks the token.
    pub(crate) fenced: bool,
}

pub(crate) const DOWNSTREAMS: &[Downstream] = &[
    Downstream { name: "postgres function", prepare: postgres_function, read: read_postgres, fenced: true },
    Downstream { name: "postgres trigger", prepare: postgres_trigger, read: read_postgres, fenced: true },
    Downstream { name: "sqlite", prepare: sqlite_plain, read: read_sqlite, fenced: true },
    Downstream { name: "sqlite trigger", prepare: sqlite_trigger, read: read_sqlite, fenced: true },
    Downstream { name: mariadb::PROCEDURE, prepare: mariadb::plain_table, read: mariadb::read, fenced: true },
    Downstream { name: mariadb::TRIGGER, prepare: mariadb::fenced_table, read: mariadb::read, fenced: true },
    Downstream { name: "redis", prepare: redis, read: read_redis, fenced: true },
    Downstream { name: "http", prepare: http_service, read: read_http, fenced: true },
    Downstream { name: "redis without a fence", prepare: redis, read: read_redis, fenced: false },
];

fn id_of(target: &str) -> &str {
    target.rsplit_once('#').unwrap().1
}

fn table(id: u32) -> String {
    format!("CREATE TABLE report_{id} (id int PRIMARY KEY, body text)")
}

fn postgres_function(servers: &Servers) -> String {
    let id = servers.fresh();
    servers.postgres.sql(&table(id));
    servers.postgres.sql(postgres::SCHEMA);
    format!("{}#{id}", servers.postgres.url())
}

fn postgres_trigger(servers: &Servers) -> String {
    let target = postgres_function(servers);
    let name = format!("report_{}", id_of(&target));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = connect(&servers.postgres.url()).await.unwrap();
        postgres::install(&client, &name, &"report/{id}".parse().unwrap()).await.unwrap();
    });
    target
}

fn read_postgres(servers: &Servers, target: &str) -> String {
    servers.postgres.sql(&format!("SELECT body FROM report_{}", id_of(target)))
}

fn sqlite_plain(servers: &Servers) -> String {
    let (id, url) = (servers.fresh(), servers.fresh_file("reports"));
    let database = Connection::open(file(&url)).unwrap();
    database.execute_batch(&table(id)).unwrap();
    sqlite::setup(&database).unwrap();
    format!("{url}#{id}")
}

fn sqlite_trigger(servers: &Servers) -> String {
    let target = sqlite_plain(servers);
    let database = Connection::open(file(&target)).unwrap();
    sqlite::install(&database, &format!("report_{}", id_of(&target)), &"report/{id}".parse().unwrap())
        .unwrap();
    target
}

fn file(url: &str) -> &str {
    url.strip_prefix("sqlite:").unwrap().split('#').next().unwrap()
}

fn read_sqlite(_: &Servers, target: &str) -> String {
    let database = Connection::open(file(target)).unwrap();
    let select = format!("SELECT body FROM report_{}", id_of(target));
    database.query_row(&select, [], |row| row.get(0)).unwrap()
}

fn redis(servers: &Servers) -> String {
    format!("{}#{}", servers.redis.url(), servers.fresh())
}

fn read_redis(servers: &Servers, target: &str) -> String {
    servers.redis.command(&["GET", &format!("report:{}", id_of(target))])
}

fn http_service(servers: &Servers) -> String {
    format!("http://{}#{}", servers.address, servers.fresh())
}

fn read_http(servers: &Servers, target: &str) -> String {
    servers.reports.lock().unwrap()[id_of(target)].clone()
}

/// Writes under a pass. It does not check the lease first: the test is about writers that do not know of their loss.
pub(crate) async fn write(downstream: &str, target: &str, pass: &Pass, body: &str) -> Result<(), Error> {
    let (address, id) = target.rsplit_once('#').unwrap();
    match downstream {
        "postgres function" | "postgres trigger" => write_postgres(downstream, address, id, pass, body).await,
        "sqlite" | "sqlite trigger" => write_sqlite(downstream, file(target), id, pass, body),
        mariadb::PROCEDURE | mariadb::TRIGGER => mariadb::write(downstream, target, pass, body),
        "redis" => {
            let mut connection = connect_redis(address).await;
            Fence::new().set(pass, format!("report:{id}"), body)?.run(&mut connection).await.map(drop)
        }
        "redis without a fence" => {
            let mut connection = connect_redis(address).await;
            let set: redis::RedisResult<()> =
                redis::cmd("SET").arg(format!("report:{id}")).arg(body).query_async(&mut connection).await;
            set.map_err(|error| Error::new(ErrorKind::Unavailable, error.to_string()))
        }
        "http" => write_http(address, id, pass, body),
        other => panic!("there is no downstream {other}"),
    }
}

async fn connect_redis(url: &str) -> redis::aio::MultiplexedConnection {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

async fn connect(url: &str) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn write_postgres(downstream: &str, url: &str, id: &str, pass: &Pass, body: &str) -> Result<(), Error> {
    let mut client = connect(url).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    if downstream == "postgres function" {
        postgres::admit(&transaction, pass).await?;
    } else {
        // With set_config, as a client without this crate does it. The trigger refuses.
        let show = "SELECT set_config('leasehold.pass', $1, true)";
        transaction.execute(show, &[&pass.to_string()]).await.unwrap();
    }
    let upsert =
        format!("INSERT INTO report_{id} VALUES ({id}, $1) ON CONFLICT (id) DO UPDATE SET body = $1");
    let written = transaction.execute(&upsert, &[&body]).await;
    written.map_err(|error| postgres::explain(error, pass))?;
    transaction.commit().await.map_err(|error| postgres::explain(error, pass))
}

fn write_sqlite(downstream: &str, file: &str, id: &str, pass: &Pass, body: &str) -> Result<(), Error> {
    let mut database = Connection::open(file).unwrap();
    database.busy_timeout(std::time::Duration::from_secs(20)).unwrap();
    let transaction = database.transaction().unwrap();
    let upsert = format!("INSERT OR REPLACE INTO report_{id} VALUES ({id}, ?1)");
    if downstream == "sqlite" {
        sqlite::admit(&transaction, pass)?;
        transaction.execute(&upsert, [body]).unwrap();
    } else {
        sqlite::under(&transaction, pass, |it| it.execute(&upsert, [body]))?.unwrap();
    }
    transaction.commit().unwrap();
    Ok(())
}

/// An HTTP client without a library. Only the headers come from this crate.
pub(crate) fn write_http(address: &str, id: &str, pass: &Pass, body: &str) -> Result<(), Error> {
    let mut headers = ::http::HeaderMap::new();
    http::show(&mut headers, pass);
    let mut request = format!(
        "PUT /reports/{id} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in &headers {
        request.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap()));
    }
    request.push_str(&format!("\r\n{body}"));
    let mut stream = std::net::TcpStream::connect(address.strip_prefix("http://").unwrap()).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    if head.starts_with("HTTP/1.1 200") {
        return Ok(());
    }
    assert!(head.starts_with("HTTP/1.1 412"), "{response}");
    let problem: serde_json::Value = serde_json::from_str(body).unwrap();
    let number = |name: &str| problem[name].as_str().unwrap().parse().unwrap();
    Err(Error::stale(number("presented"), number("highest")))
}
