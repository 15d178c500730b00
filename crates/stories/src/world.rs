//! Where a story happens: a store, a server, perhaps a proxy in front of it, and the driver of the client.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold_testkit::{
    Proxy,
    servers::{RedisServer, ServerClock},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    driver::{Answer, Driver},
    rival::Rival,
    server::{Server, ServerOptions, new_token},
};

/// The client under test, and the programs that it needs.
#[derive(Debug)]
pub(crate) struct Subject {
    /// The command that starts the driver.
    pub(crate) driver: Vec<String>,
    /// The program `leasehold`.
    pub(crate) leasehold: PathBuf,
    /// Print the dialogue of every story.
    pub(crate) shows: bool,
    /// What the driver must say that it cannot do, if that is checked.
    pub(crate) cannot: Option<Vec<String>>,
}

/// What a story needs besides a server over SQLite.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needs {
    /// A proxy between client and server, which can cut them off.
    pub(crate) proxy: bool,
    /// A store that is a server of its own.
    pub(crate) redis: bool,
    /// Tokens.
    pub(crate) tokens: bool,
    /// A calendar clock of its own for the driver.
    pub(crate) clock: bool,
}

/// The tokens of a server that asks for them.
#[derive(Debug)]
pub(crate) struct Tokens {
    pub(crate) client: String,
    pub(crate) operator: String,
}

/// A store, a server, and the driver.
pub(crate) struct World {
    pub(crate) driver: Driver,
    /// The server, unless the story has taken it away.
    pub(crate) server: Option<Server>,
    pub(crate) options: ServerOptions,
    /// The port of the server, which a replacement uses, too.
    pub(crate) port: u16,
    proxy: Option<Proxy>,
    pub(crate) tokens: Option<Tokens>,
    clock: Option<ServerClock>,
    _redis: Option<RedisServer>,
    folder: TempDir,
}

impl World {
    pub(crate) async fn new(subject: &Arc<Subject>, needs: Needs) -> World {
        let folder = new_folder();
        let redis = needs.redis.then(RedisServer::start);
        let store = match &redis {
            Some(redis) => format!("redis://127.0.0.1:{}", redis.port()),
            None => format!("sqlite:{}", folder.path().join("leases.db").display()),
        };
        let mut options =
            ServerOptions { program: subject.leasehold.clone(), store, tokens: None, more: Vec::new() };
        let mut tokens = None;
        if needs.tokens {
            let file = folder.path().join("tokens.toml");
            let client = new_token(&options.program, &file, "app", &["client"]).await;
            let operator = new_token(&options.program, &file, "ops", &["operator"]).await;
            tokens = Some(Tokens { client, operator });
            options.tokens = Some(file);
        }
        let server = Server::start(&options).await;
        let port = server.port;
        let proxy = if needs.proxy { Some(Proxy::start(port, 1).await) } else { None };
        let clock = needs.clock.then(ServerClock::new);
        let environment = clock.as_ref().map(ServerClock::environment).unwrap_or_default();
        let mut driver = Driver::start(&subject.driver, &environment, subject.shows);
        driver.hello().await;
        let mut world = World {
            driver,
            server: Some(server),
            options,
            port,
            proxy,
            tokens,
            clock,
            _redis: redis,
            folder,
        };
        let token = world.tokens.as_ref().map(|tokens| tokens.client.clone());
        world.connect("c", token.as_deref()).await;
        world
    }

    /// Where the client finds the server.
    pub(crate) fn url(&self) -> String {
        let port = self.proxy.as_ref().map_or(self.port, Proxy::port);
        format!("http://127.0.0.1:{port}")
    }

    /// Makes a client in the driver.
    pub(crate) async fn connect(&mut self, client: &str, token: Option<&str>) {
        let mut command = json!({"do": "connect", "client": client, "url": self.url()});
        if let Some(token) = token {
            command["token"] = json!(token);
        }
        self.driver.ask(command).await.ok();
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("the story needs a proxy, and says so")
    }

    pub(crate) fn clock(&self) -> &ServerClock {
        self.clock.as_ref().expect("the story needs a clock, and says so")
    }

    pub(crate) fn tokens(&self) -> &Tokens {
        self.tokens.as_ref().expect("the story needs tokens, and says so")
    }

    /// Ends the proxy: its connections are reset, and new ones are refused. Returns its port.
    pub(crate) fn end_proxy(&mut self) -> u16 {
        self.proxy.take().expect("the story needs a proxy, and says so").port()
    }

    /// A path in the folder of the story.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Somebody else.
    pub(crate) fn rival(&self) -> Rival {
        Rival::new(self.port, self.tokens.as_ref().map(|tokens| tokens.client.clone()))
    }

    /// Kills the server, and starts another one on the same port and the same store.
    pub(crate) async fn replace_server(&mut self) {
        self.kill_server().await;
        self.start_server().await;
    }

    pub(crate) async fn kill_server(&mut self) {
        self.driver.remark("the server is killed");
        self.server.take().expect("it runs").kill().await;
    }

    pub(crate) async fn start_server(&mut self) {
        self.server = Some(Server::start_on(&self.options, self.port).await);
        self.driver.remark("another server runs");
    }

    /// Lets the client try to acquire a lease.
    pub(crate) async fn try_acquire(&mut self, lease: &str, resource: &str, ttl: Duration) -> Answer {
        self.driver.ask(acquire(lease, resource, ttl, Duration::ZERO)).await
    }

    /// Lets the client begin to wait for a lease.
    pub(crate) async fn begin(&mut self, lease: &str, resource: &str, ttl: Duration, wait: Duration) -> u64 {
        self.driver.send(acquire(lease, resource, ttl, wait)).await
    }

    pub(crate) async fn check(&mut self, lease: &str) -> Answer {
        self.driver.ask(json!({"do": "check", "lease": lease})).await
    }

    pub(crate) async fn release(&mut self, lease: &str) -> Answer {
        self.driver.ask(json!({"do": "release", "lease": lease})).await
    }
}

/// A folder in memory, where there is one: a busy disk delays the commits of SQLite by seconds, which ends short leases.
pub(crate) fn new_folder() -> TempDir {
    let in_memory = tempfile::tempdir_in("/dev/shm");
    in_memory.or_else(|_| tempfile::tempdir()).expect("a folder can be made")
}

/// The command to acquire a lease.
pub(crate) fn acquire(lease: &str, resource: &str, ttl: Duration, wait: Duration) -> Value {
    json!({
        "do": "acquire", "client": "c", "lease": lease, "resource": resource,
        "ttl_ms": millis(ttl), "wait_ms": millis(wait),
    })
}

/// The command with one more field.
pub(crate) fn with(mut command: Value, field: &str, value: impl Into<Value>) -> Value {
    command[field] = value.into();
    command
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Waits until so much time has passed since then.
pub(crate) async fn until(then: Instant, after: Duration) {
    tokio::time::sleep_until((then + after).into()).await;
}
