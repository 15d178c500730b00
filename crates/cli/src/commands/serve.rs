//! `leasehold serve`: the leases of a store over HTTP.

#[cfg(feature = "serve")]
mod demo;

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::Args;

use crate::{args::Global, config::ServeDefaults, exit::Failure, output::Output};

#[derive(Debug, Args)]
#[command(
    after_help = "Serves the leases of the store to programs of every language: acquire, renew, release, wait and list, as \
                  JSON. Leases and queues are in the store, so any number of servers may serve it, and a server that is \
                  killed loses no lease. SIGTERM drains: new claims are refused, waiting ones are told to ask elsewhere, \
                  renewals and releases are still served.\n\n\
                  Without --tokens, everyone on this machine who reaches the port may look, acquire and release, and nobody may \
                  give orders. An address that other machines reach needs --tokens, and --tls-cert with --tls-key; or a proxy \
                  that adds TLS, with --insecure-behind-proxy.\n\n\
                  With --demo it serves a store of its own, in a temporary folder, with workers that take and release leases, and \
                  with what can go wrong: see the dashboard at the address that it prints. Everyone on this machine may give \
                  orders there, unless --tokens says who may."
)]
pub(crate) struct Serve {
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7420")]
    listen: SocketAddr,

    /// A file with tokens, which `leasehold token new` writes. It is read again when it changes
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_TOKENS_FILE")]
    tokens: Option<PathBuf>,

    /// The certificate of the server, in PEM: serve HTTPS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Believe client certificates of this authority, in PEM, instead of tokens: see `certificate` in the tokens file
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tokens"])]
    client_ca: Option<PathBuf>,

    /// The URL under which clients reach the server. Requests for another host are refused, except loopback ones
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,

    /// Serve plain HTTP on an address that other machines reach: a proxy before it adds TLS, and nobody else reaches it
    #[arg(long, requires_all = ["public_url", "tokens"])]
    insecure_behind_proxy: bool,

    /// A name for the store, the same at every server of it [default: by its address]
    ///
    /// Clients refuse an answer from another store than their first one. Servers that name the same store by different
    /// addresses need this.
    #[arg(long, value_name = "NAME")]
    store_name: Option<String>,

    /// Serve a store whose leases live with a session, as on ZooKeeper: all leases end when this server ends
    ///
    /// Run one such server, alone. It ends each lease itself when its ttl is over.
    #[arg(long)]
    leases_end_with_this_server: bool,

    /// Leave a tombstone for ten minutes with every release, for a proxy that may send a POST request twice
    ///
    /// Without it, an acquire that the proxy repeats after the release holds the resource for one ttl.
    #[arg(long)]
    bury_always: bool,

    /// Serve /metrics, /healthz and /readyz, and nothing else, on this address as well, over plain HTTP and without a token
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<SocketAddr>,

    /// The time between two samples of all resources, for the dashboard, /v1/overview and /v1/events, while somebody asks for them
    ///
    /// Sampling takes a tenth of the time at most: if the resources cannot be listed that fast, samples are further apart.
    #[arg(long, value_name = "TIME", value_parser = crate::args::duration, default_value = "2s")]
    sample_every: std::time::Duration,

    /// The time between two samples while nobody asks, so that the dashboard has a history; 0 for none [default: 30s]
    ///
    /// Sampling takes a hundredth of the time at most: if listing the resources takes a second, samples are 100 seconds apart.
    #[arg(long, value_name = "TIME", value_parser = crate::args::duration)]
    sample_idle: Option<std::time::Duration>,

    /// Call a resource stuck, in /v1/overview and on the dashboard, when a claim has waited for it this long [default: 1m]
    #[arg(long, value_name = "TIME", value_parser = crate::args::duration)]
    stuck_after: Option<std::time::Duration>,

    /// Serve a demonstration instead of a store: leases that come and go, and what can go wrong with them
    #[arg(long)]
    demo: bool,
}

impl Serve {
    pub(crate) fn is_demo(&self) -> bool {
        self.demo
    }

    /// Takes what was not given from the file.
    pub(crate) fn take_defaults(&mut self, defaults: &ServeDefaults) {
        self.sample_idle = self.sample_idle.or(defaults.sample_idle);
    }

    #[cfg(not(feature = "serve"))]
    pub(crate) async fn run(&self, _: &Global, _: Output) -> Result<ExitCode, Failure> {
        let _ = self;
        let message = "this build of leasehold has no server";
        Err(Failure::config(message)
            .hint("build one that has: cargo build --release -p leasehold-cli --features serve"))
    }

    #[cfg(feature = "serve")]
    pub(crate) async fn run(&self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        serving::run(self, global, output).await
    }
}

#[cfg(feature = "serve")]
mod serving {
    use std::{fs, io, net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

    use leasehold_api::fields::StoreId;
    use leasehold_server::{Access, Config, ConnectionLimits, Roles, Sampling, Server, TokenFile};
    use rustix::process::{Resource, getrlimit, setrlimit};
    use serde_json::json;
    use tokio::net::TcpListener;

    use super::{Serve, demo, demo::Demo};
    use crate::{
        args::Global,
        commands::Context,
        exit::Failure,
        output::{self, Output},
        signals::Signals,
        store::Store,
    };

    /// Files that are no connections of callers: connections to the store, tokens, certificates, what the process has anyway.
    const FILES_OF_OUR_OWN: usize = 100;
    const CONNECTIONS_MIN: usize = 16;
    /// One connection of so many is not for waiting.
    const RENEWALS_HAVE_ONE_OF: usize = 8;
    /// Samples that follow each other faster would keep the store busy.
    const SAMPLE_EVERY_MIN: Duration = Duration::from_millis(100);

    pub(super) async fn run(serve: &Serve, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        serve.check_exposure()?;
        let mut demo = serve.prepare_demo(global)?;
        let store = match &demo {
            Some(demo) => Store::choose_or(Some(&demo.store_url()), global)?,
            None => Store::choose(global)?,
        };
        let context = Context::on(store, global, output)?;
        let backend = context.store.open().await?;
        let mut config = Config::new(store_id(serve, &context.store));
        env!("CARGO_PKG_VERSION").clone_into(&mut config.version);
        config.hosts = serve.hosts()?;
        config.leases_end_with_server = serve.leases_end_with_this_server;
        config.bury_always = serve.bury_always;
        if demo.is_some() {
            config.access = Access::Open(Roles::ALL);
            config.sampling.stuck_after = demo::STUCK_AFTER;
        }
        serve.set_pace(&mut config.sampling);
        config.sampling.stuck_after = serve.stuck_after.unwrap_or(config.sampling.stuck_after);
        limit_connections(&mut config.limits, raise_file_limit());
        let environment = Arc::new(leasehold::System::current());
        if let Some(path) = &serve.tokens {
            config.access = Access::Tokens(TokenFile::open(path, environment.clone()).map_err(in_config)?);
        }
        let scheme = serve.add_tls(&mut config)?;
        let served = backend.info().clone();
        let server = Server::new(Arc::clone(&backend), environment, config).map_err(in_config)?;
        let (listener, address) = listen(serve.listen, "--listen").await?;
        let (server, metrics) = match serve.metrics_listen {
            Some(address) => {
                let (listener, address) = listen(address, "--metrics-listen").await?;
                (server.with_metrics(listener), Some(format!("http://{address}")))
            }
            None => (server, None),
        };
        let mut signals = Signals::ending().map_err(Failure::host)?;
        if let Some(demo) = &mut demo {
            demo.start(backend);
        }
        let url = format!("{scheme}://{address}");
        if output.json {
            let mut line =
                json!({"listening": url, "store": context.store.shown(), "level": served.guarantee.as_str()});
            if let Some(metrics) = metrics {
                line["metrics"] = json!(metrics);
            }
            if demo.is_some() {
                line["demo"] = json!(true);
            }
            output::print(format!("{line}\n").as_bytes())?;
        } else if let Some(demo) = &demo {
            demo.introduce(output, &url, serve.tokens.is_some());
        } else {
            let (store, name, level) = (context.store.shown(), served.name, served.guarantee);
            output.note(&format!("serving {store} ({name}, {level}) on {url}"));
        }
        let until = async {
            signals.next().await;
            output.note(match serve.demo {
                true => "ending the demonstration",
                false => "draining: new claims are refused, renewals and releases are served",
            });
        };
        server.run(listener, until).await;
        if let Some(demo) = demo {
            demo.end().await;
        }
        context.write_metrics();
        crate::traces::end();
        Ok(ExitCode::SUCCESS)
    }

    /// Lets this process open as many files as it may, and returns how many.
    fn raise_file_limit() -> usize {
        let mut limits = getrlimit(Resource::Nofile);
        let soft = limits.current;
        limits.current = limits.maximum;
        let now = match setrlimit(Resource::Nofile, limits) {
            Ok(()) => limits.current,
            Err(_) => soft,
        };
        now.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
    }

    /// Each connection is a file. Some files are left for the store, and some connections for renewals: otherwise nothing could be
    /// accepted any more while all places are taken by waiting claims.
    fn limit_connections(limits: &mut ConnectionLimits, files: usize) {
        limits.connections =
            limits.connections.min(files.saturating_sub(FILES_OF_OUR_OWN).max(CONNECTIONS_MIN));
        limits.waiters = limits.waiters.min(limits.connections - limits.connections / RENEWALS_HAVE_ONE_OF);
    }

    /// Listens on an address that this option gave.
    async fn listen(address: SocketAddr, option: &str) -> Result<(TcpListener, SocketAddr), Failure> {
        let failure = |error: io::Error| {
            Failure::config(format!("cannot listen on {address}: {error}"))
                .hint(format!("choose another address with {option}"))
        };
        let listener = TcpListener::bind(address).await.map_err(failure)?;
        let address = listener.local_addr().map_err(failure)?;
        Ok((listener, address))
    }

    #[expect(clippy::needless_pass_by_value, reason = "for map_err")]
    fn in_config(error: leasehold::Error) -> Failure {
        Failure::config(error.to_string())
    }

    impl Serve {
        /// The demonstration, if this is one.
        fn prepare_demo(&self, global: &Global) -> Result<Option<Demo>, Failure> {
            if !self.demo {
                return Ok(None);
            }
            if global.typed.store {
                let message = "--demo has a store of its own, so it cannot be combined with --store";
                return Err(Failure::usage(message).hint("leave one of the two out"));
            }
            if !cfg!(feature = "sqlite") {
                let hint = "build one that has: cargo build --release -p leasehold-cli --features sqlite";
                let message = "the demonstration needs a SQLite store, and this build of leasehold has none";
                return Err(Failure::config(message).hint(hint));
            }
            Demo::prepare().map(Some)
        }

        /// How often samples are taken. The demonstration has as many while nobody looks.
        fn set_pace(&self, sampling: &mut Sampling) {
            sampling.every = self.sample_every.max(SAMPLE_EVERY_MIN);
            if self.demo {
                sampling.idle_every = Some(sampling.every);
            }
            if let Some(idle) = self.sample_idle {
                sampling.idle_every = (!idle.is_zero()).then_some(idle);
            }
        }

        /// An address that other machines reach needs tokens, and TLS from here or from a proxy.
        fn check_exposure(&self) -> Result<(), Failure> {
            if self.listen.ip().is_loopback() {
                return Ok(());
            }
            let message = |lacks: &str| {
                format!("{} can be reached from other machines, and this server has no {lacks}", self.listen)
            };
            if self.tokens.is_none() {
                let hint =
                    "listen on a loopback address, such as 127.0.0.1:7420, or name a file with --tokens";
                return Err(Failure::config(message("tokens")).hint(hint));
            }
            if self.tls_cert.is_none() && !self.insecure_behind_proxy {
                let hint =
                    "give --tls-cert and --tls-key, or --insecure-behind-proxy if a proxy before it adds TLS";
                return Err(Failure::config(message("TLS")).hint(hint));
            }
            if self.listen.ip().is_unspecified() && self.public_url.is_none() {
                let message = format!(
                    "{} stands for all addresses, so the server does not know its own name",
                    self.listen
                );
                return Err(
                    Failure::config(message).hint("give --public-url, as in https://leases.example.org:7420")
                );
            }
            Ok(())
        }

        /// The hosts that requests may name, besides loopback ones.
        fn hosts(&self) -> Result<Vec<String>, Failure> {
            let mut hosts = Vec::new();
            if !self.listen.ip().is_unspecified() {
                hosts.push(match self.listen.ip() {
                    std::net::IpAddr::V4(address) => address.to_string(),
                    std::net::IpAddr::V6(address) => format!("[{address}]"),
                });
            }
            if let Some(url) = &self.public_url {
                let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
                let authority =
                    rest.map(|rest| rest.split('/').next().unwrap_or(rest)).filter(|host| !host.is_empty());
                let authority = authority.filter(|host| !host.contains('@')).ok_or_else(|| {
                    Failure::config(format!("{url:?} is not a URL of this server"))
                        .hint("write it as in https://leases.example.org:7420")
                })?;
                let host = match authority.rsplit_once(':') {
                    Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
                    _ => authority,
                };
                hosts.push(host.to_owned());
            }
            Ok(hosts)
        }

        #[cfg(feature = "serve-tls")]
        fn add_tls(&self, config: &mut Config) -> Result<&'static str, Failure> {
            let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok("http") };
            let tls = leasehold_server::Tls::read(certificate, key, self.client_ca.as_deref());
            config.tls = Some(tls.map_err(in_config)?);
            Ok("https")
        }

        #[cfg(not(feature = "serve-tls"))]
        fn add_tls(&self, _: &mut Config) -> Result<&'static str, Failure> {
            if self.tls_cert.is_none() && self.tls_key.is_none() && self.client_ca.is_none() {
                return Ok("http");
            }
            let hint = "build one that does: cargo build --release -p leasehold-cli --features serve-tls";
            Err(Failure::config("this build of leasehold does not serve HTTPS").hint(hint))
        }
    }

    /// The same at every server of the store, and another one for every other store.
    fn store_id(serve: &Serve, store: &Store) -> StoreId {
        if let Some(name) = &serve.store_name {
            return StoreId::of(&format!("named {name}"));
        }
        let address = store.shown();
        if is_of_this_host(address) {
            return StoreId::of(&format!("{} {address} {}", host(), file(address)));
        }
        StoreId::of(address)
    }

    /// Whether the same address means another store on another host.
    fn is_of_this_host(address: &str) -> bool {
        let hosts = address.split_once("://").map(|(_, rest)| rest);
        let loopback = ["localhost", "127.", "[::1]", "@localhost", "@127.", "@[::1]"];
        hosts.is_none_or(|hosts| loopback.iter().any(|name| hosts.contains(name)) || hosts.starts_with('/'))
    }

    fn host() -> String {
        let id = fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        format!("{} {name}", id.trim())
    }

    /// Tells a file from one that was there before under the same name. The memory of a process is its own.
    fn file(address: &str) -> String {
        use std::os::unix::fs::MetadataExt as _;
        if address.starts_with("memory") {
            return format!("{} {:?}", std::process::id(), std::time::SystemTime::now());
        }
        let Some(path) = address.strip_prefix("sqlite:") else { return String::new() };
        let path = path.split('?').next().unwrap_or(path);
        fs::metadata(path).map_or_else(|_| String::new(), |file| format!("{}:{}", file.dev(), file.ino()))
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::config::ServeDefaults;

        fn serve(arguments: &[&str]) -> Serve {
            let words = ["leasehold", "serve"].iter().chain(arguments);
            match crate::args::Cli::read(words).expect("a valid command line").command {
                crate::args::Command::Serve(serve) => serve,
                other => panic!("{other:?}"),
            }
        }

        #[test]
        fn an_address_that_others_reach_needs_tokens_tls_and_a_name() {
            let tls = ["--tls-cert", "c", "--tls-key", "k"];
            let outside = ["--listen", "10.0.0.1:7420"];
            let lacks = |arguments: &[&[&str]]| {
                serve(&arguments.concat()).check_exposure().err().map(|failure| failure.message)
            };
            assert_eq!(lacks(&[]), None);
            assert!(lacks(&[&outside]).unwrap().contains("no tokens"));
            assert!(lacks(&[&outside, &tls]).unwrap().contains("no tokens"));
            assert!(lacks(&[&outside, &["--tokens", "t"]]).unwrap().contains("no TLS"));
            assert_eq!(lacks(&[&outside, &["--tokens", "t"], &tls]), None);
            let proxy =
                ["--tokens", "t", "--insecure-behind-proxy", "--public-url", "https://leases.example.org"];
            assert_eq!(lacks(&[&outside, &proxy]), None);
            assert!(
                lacks(&[&["--listen", "0.0.0.0:1", "--tokens", "t"], &tls])
                    .unwrap()
                    .contains("all addresses")
            );
        }

        #[test]
        fn samples_are_taken_while_nobody_asks_unless_the_option_says_zero() {
            let pace = |arguments: &[&str], in_file: Option<u64>| {
                let mut serve = serve(arguments);
                serve.take_defaults(&ServeDefaults { sample_idle: in_file.map(Duration::from_secs) });
                let mut sampling = Sampling::default();
                serve.set_pace(&mut sampling);
                (sampling.every.as_millis(), sampling.idle_every.map(|every| every.as_secs()))
            };
            assert_eq!(pace(&[], None), (2000, Some(30)));
            assert_eq!(pace(&["--sample-idle", "5m", "--sample-every", "1ms"], Some(7)), (100, Some(300)));
            assert_eq!(pace(&["--sample-idle", "0"], Some(7)), (2000, None));
            assert_eq!(pace(&[], Some(7)), (2000, Some(7)));
            assert_eq!(pace(&[], Some(0)), (2000, None));
            assert_eq!(pace(&["--demo", "--sample-every", "3s"], None), (3000, Some(3)));
        }

        #[test]
        fn the_public_url_names_the_host() {
            let hosts = |url: &str| serve(&["--public-url", url]).hosts().map_err(|failure| failure.message);
            assert_eq!(
                hosts("https://leases.example.org:7420/x").unwrap(),
                ["127.0.0.1", "leases.example.org"]
            );
            assert_eq!(hosts("http://[2001:db8::1]:80").unwrap(), ["127.0.0.1", "[2001:db8::1]"]);
            for url in ["leases.example.org", "https://", "https://user@host", "ftp://x"] {
                assert!(hosts(url).unwrap_err().contains("not a URL"), "{url}");
            }
        }

        #[test]
        fn few_files_leave_connections_for_renewals_and_files_for_the_store() {
            let limits = |files| {
                let mut limits = ConnectionLimits::default();
                limit_connections(&mut limits, files);
                (limits.connections, limits.waiters)
            };
            assert_eq!(limits(usize::MAX), (24_000, 20_000));
            assert_eq!(limits(1024), (924, 809));
            assert_eq!(limits(10), (16, 14));
        }

        #[test]
        fn addresses_of_this_host_are_told_from_those_of_others() {
            for address in
                ["sqlite:/a", "memory:", "redis://localhost", "redis://u@127.0.0.1:1/", "postgres:///x"]
            {
                assert!(is_of_this_host(address), "{address}");
            }
            for address in ["redis://cache.example", "etcd://10.0.0.1,10.0.0.2", "postgres://u@db/x"] {
                assert!(!is_of_this_host(address), "{address}");
            }
        }
    }
}
