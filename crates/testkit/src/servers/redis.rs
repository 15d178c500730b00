//! One Redis server, with or without TLS.

use std::{
    fs,
    io::{self, BufReader, Write as _},
    path::{Path, PathBuf},
    sync::Mutex,
};

use super::daemon::{Daemon, connect_to, free_port, fresh_folder};

/// A Redis server.
///
/// ```no_run
/// use leasehold_testkit::servers::RedisServer;
///
/// let server = RedisServer::start();
/// assert_eq!(server.command(&["SET", "a", "1"]), "OK");
/// ```
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    tls_port: Option<u16>,
    folder: PathBuf,
    options: Vec<String>,
    /// The password of the user `default`, for the commands of the test itself.
    password: Option<String>,
    environment: Vec<String>,
    daemon: Mutex<Option<Daemon>>,
}

impl RedisServer {
    /// Starts a server that keeps nothing on disk.
    ///
    /// # Panics
    /// If `redis-server` is not installed or does not answer.
    pub fn start() -> RedisServer {
        RedisServer::with(&[])
    }

    /// Starts a server with additional options, as on its command line: `["--appendonly", "yes"]`.
    ///
    /// # Panics
    /// As [`start`](RedisServer::start).
    pub fn with(options: &[&str]) -> RedisServer {
        RedisServer::in_environment(options, Vec::new())
    }

    /// Starts a server with additional options and environment variables: `NAME=value`.
    ///
    /// # Panics
    /// As [`start`](RedisServer::start).
    pub fn in_environment(options: &[&str], environment: Vec<String>) -> RedisServer {
        RedisServer::new(options, environment, None)
    }

    /// Starts a server that accepts TLS on a second port. The commands of the test itself use the port
    /// without TLS.
    ///
    /// # Panics
    /// As [`start`](RedisServer::start).
    pub fn with_tls(files: &TlsFiles, options: &[&str]) -> RedisServer {
        RedisServer::new(options, Vec::new(), Some(files))
    }

    fn new(options: &[&str], environment: Vec<String>, tls: Option<&TlsFiles>) -> RedisServer {
        let mut options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let tls_port = tls.map(|files| {
            let port = free_port();
            options.extend(files.options(port));
            port
        });
        let has = |name: &str| options.iter().any(|option| option == name);
        if has("--cluster-enabled") && !has("--cluster-port") {
            // By default the port is 10,000 above the server's own, which another process may have taken.
            options.extend(["--cluster-port".to_owned(), free_port().to_string()]);
        }
        let password =
            options.windows(2).find(|words| words[0] == "--requirepass").map(|words| words[1].clone());
        let server = RedisServer {
            port: free_port(),
            tls_port,
            folder: fresh_folder("redis"),
            options,
            password,
            environment,
            daemon: Mutex::new(None),
        };
        server.run();
        server
    }

    fn run(&self) {
        let mut args: Vec<String> = vec!["--port".into(), self.port.to_string()];
        let folder = self.folder.to_string_lossy().into_owned();
        // `--save ""`: no snapshots. `--repl-diskless-sync-delay 0`: a replica syncs at once instead of after
        // 5 s.
        let fixed = [
            "--bind",
            "127.0.0.1",
            "--dir",
            &folder,
            "--save",
            "",
            "--repl-diskless-sync-delay",
            "0",
            "--loglevel",
        ];
        args.extend(fixed.map(str::to_owned));
        args.extend(["notice", "--enable-debug-command", "yes"].map(str::to_owned));
        args.extend(self.options.iter().cloned());
        // `Daemon` starts its program through `env`, which takes variables before the program.
        let mut words: Vec<String> = self.environment.clone();
        words.push("redis-server".to_owned());
        words.append(&mut args);
        let (first, rest) = words.split_first().expect("there is the program at least");
        let daemon = Daemon::start(first, rest, &self.folder.join("log"), Some(&self.folder));
        daemon.await_answer("redis-server (package redis-server)", || {
            let reply = send_command(self.port, &["PING"])?;
            let ready = reply == "PONG" || reply.contains("NOAUTH");
            if ready { Ok(()) } else { Err(io::Error::other(reply)) }
        });
        *self.lock() = Some(daemon);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Daemon>> {
        self.daemon.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The port without TLS.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port for TLS.
    ///
    /// # Panics
    /// If it was not started by [`with_tls`](RedisServer::with_tls).
    pub fn tls_port(&self) -> u16 {
        self.tls_port.expect("it was started with TLS")
    }

    /// The port for other servers: the one for TLS, if there is one.
    pub(super) fn peer_port(&self) -> u16 {
        self.tls_port.unwrap_or(self.port)
    }

    /// The URL of the port without TLS.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The folder of its data.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Executes a command. Returns the reply as one line, the items of a list separated by spaces. With
    /// `--requirepass` among the options, the command is executed as the user `default`.
    ///
    /// # Panics
    /// If the server does not reply.
    pub fn command(&self, words: &[&str]) -> String {
        self.try_command(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    pub(super) fn try_command(&self, words: &[&str]) -> io::Result<String> {
        send_command_as(self.port, self.password.as_deref(), words)
    }

    /// Whether the server reports the role of a primary. False if it does not reply: a Sentinel that promotes
    /// a server closes all its connections.
    pub fn is_primary(&self) -> bool {
        self.try_command(&["ROLE"]).is_ok_and(|role| role.starts_with("master"))
    }

    /// Whether it runs and is not frozen.
    pub(super) fn is_up(&self) -> bool {
        self.lock().as_ref().is_some_and(Daemon::is_awake)
    }

    /// Kills the server at once. It stays down until [`run_again`](RedisServer::run_again).
    pub fn kill(&self) {
        if let Some(daemon) = &*self.lock() {
            daemon.kill();
        }
    }

    /// Starts the server again on the same port, with the data on its disk. Without `--appendonly yes` there
    /// is none.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn run_again(&self) {
        let kept = fresh_folder("redis-kept");
        // Dropping the old process removes its folder, so the data is copied away and back.
        let _ = copy_folder(&self.folder, &kept);
        *self.lock() = None;
        let _ = copy_folder(&kept, &self.folder);
        let _ = fs::remove_dir_all(&kept);
        self.run();
    }

    /// Stops the server (SIGSTOP): it is alive and does not answer.
    ///
    /// # Panics
    /// If it does not run.
    pub fn freeze(&self) {
        self.lock().as_ref().expect("it runs").freeze();
    }

    /// Continues a frozen server.
    pub fn thaw(&self) {
        if let Some(daemon) = &*self.lock() {
            daemon.thaw();
        }
    }
}

/// The PEM files of a server with TLS.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate of the server.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The certificate of the authority that signed the certificates of its peers.
    pub authority: PathBuf,
}

impl TlsFiles {
    fn options(&self, port: u16) -> Vec<String> {
        self.settings(port).into_iter().flat_map(|(name, value)| [format!("--{name}"), value]).collect()
    }

    pub(super) fn settings(&self, port: u16) -> [(&'static str, String); 5] {
        let text = |path: &Path| path.display().to_string();
        [
            ("tls-port", port.to_string()),
            ("tls-cert-file", text(&self.certificate)),
            ("tls-key-file", text(&self.key)),
            ("tls-ca-cert-file", text(&self.authority)),
            ("tls-auth-clients", "no".to_owned()),
        ]
    }
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Executes a command over a new connection.
pub(super) fn send_command(port: u16, words: &[&str]) -> io::Result<String> {
    let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    send_commands(port, &[words]).map(|mut replies| replies.remove(0))
}

/// Executes a command over a new connection, as the user `default` with this password.
pub(super) fn send_command_as(port: u16, password: Option<&str>, words: &[&str]) -> io::Result<String> {
    let Some(password) = password else { return send_command(port, words) };
    let commands =
        [&["AUTH", password], words].map(|words| words.iter().map(|&word| word.to_owned()).collect());
    send_commands(port, &commands).map(|mut replies| replies.remove(1))
}

/// Executes several commands in one pipeline. Returns a reply for each.
pub(super) fn send_commands(port: u16, commands: &[Vec<String>]) -> io::Result<Vec<String>> {
    let mut stream = connect_to(port)?;
    let mut request = String::new();
    for words in commands {
        request.push_str(&format!("*{}\r\n", words.len()));
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
    }
    stream.write_all(request.as_bytes())?;
    let mut replies = BufReader::new(stream);
    commands.iter().map(|_| read_reply(&mut replies)).collect()
}

/// Reads one reply of the Redis protocol (RESP 2).
fn read_reply(from: &mut impl io::BufRead) -> io::Result<String> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let line = line.trim_end();
    let Some(kind) = line.chars().next() else { return Err(io::ErrorKind::UnexpectedEof.into()) };
    let rest = &line[1..];
    let length = || rest.parse::<usize>().ok();
    match (kind, length()) {
        ('$', Some(length)) => {
            let mut bytes = vec![0; length + 2];
            from.read_exact(&mut bytes)?;
            bytes.truncate(length);
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
        ('*', Some(length)) => {
            let items = (0..length).map(|_| read_reply(from)).collect::<io::Result<Vec<_>>>()?;
            Ok(items.join(" "))
        }
        ('$' | '*', None) => Ok(String::new()),
        _ => Ok(rest.to_owned()),
    }
}
