//! Redis: one server, plainly or by TLS.

use std::{
    fs,
    io::{self, BufReader, Write as _},
    path::{Path, PathBuf},
    sync::Mutex,
};

use super::daemon::{Daemon, dial, eventually, free_port, fresh_folder};

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
    /// What the test itself needs to be let in.
    password: Option<String>,
    environment: Vec<String>,
    daemon: Mutex<Option<Daemon>>,
}

impl RedisServer {
    /// One that keeps nothing on disk.
    ///
    /// # Panics
    /// If `redis-server` is not installed or does not serve.
    pub fn start() -> RedisServer {
        RedisServer::with(&[])
    }

    /// One with options more, as on its command line: `["--appendonly", "yes"]`.
    ///
    /// # Panics
    /// As [`start`](RedisServer::start).
    pub fn with(options: &[&str]) -> RedisServer {
        RedisServer::in_environment(options, Vec::new())
    }

    /// One with options more, and with these variables: `NAME=value`.
    ///
    /// # Panics
    /// As [`start`](RedisServer::start).
    pub fn in_environment(options: &[&str], environment: Vec<String>) -> RedisServer {
        RedisServer::new(options, environment, None)
    }

    /// One that speaks TLS as well, on a port of its own; and plainly to the test.
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
            // Else it takes the port 10,000 above its own, which may be anybody's.
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
        args.extend(["notice", "--logfile", "log", "--enable-debug-command", "yes"].map(str::to_owned));
        args.extend(self.options.iter().cloned());
        // What comes first is started by `env`, which takes variables before the program.
        let mut words: Vec<String> = self.environment.clone();
        words.push("redis-server".to_owned());
        words.append(&mut args);
        let (first, rest) = words.split_first().expect("there is the program at least");
        *self.lock() = Some(Daemon::start(first, rest, &self.folder.join("out"), Some(&self.folder)));
        eventually("redis-server does not serve: is the package redis-server installed?", || {
            let answer = ask(self.port, &["PING"])?;
            let ready = answer == "PONG" || answer.contains("NOAUTH");
            if ready { Ok(()) } else { Err(io::Error::other(answer)) }
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Daemon>> {
        self.daemon.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it listens for TLS.
    ///
    /// # Panics
    /// If it was not started [with it](RedisServer::with_tls).
    pub fn tls_port(&self) -> u16 {
        self.tls_port.expect("it speaks TLS")
    }

    /// Where other servers find it: by TLS, if it speaks that.
    pub(super) fn peer_port(&self) -> u16 {
        self.tls_port.unwrap_or(self.port)
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Asks it something; the answer as a line, the items of a list parted by spaces. With `--requirepass` among its
    /// options, as the user `default`.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn command(&self, words: &[&str]) -> String {
        self.ask(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    pub(super) fn ask(&self, words: &[&str]) -> io::Result<String> {
        ask_as(self.port, self.password.as_deref(), words)
    }

    /// Whether it says that it is a primary. Sentinels that promote it hang up on everyone; then it does not say so yet.
    pub fn is_primary(&self) -> bool {
        self.ask(&["ROLE"]).is_ok_and(|role| role.starts_with("master"))
    }

    /// Whether it runs and is not frozen.
    pub(super) fn is_up(&self) -> bool {
        self.lock().as_ref().is_some_and(Daemon::is_awake)
    }

    /// Kills it at once. It stays down until [`run_again`](RedisServer::run_again).
    pub fn kill(&self) {
        if let Some(daemon) = &*self.lock() {
            daemon.kill();
        }
    }

    /// Starts it again on the same port, with what is on its disk. Without `--appendonly yes` that is nothing.
    ///
    /// # Panics
    /// If it does not serve.
    pub fn run_again(&self) {
        let kept = fresh_folder("redis-kept");
        // The folder goes with the process that is down; its data moves to the next one.
        let _ = copy_folder(&self.folder, &kept);
        *self.lock() = None;
        let _ = copy_folder(&kept, &self.folder);
        let _ = fs::remove_dir_all(&kept);
        self.run();
    }

    /// Stops it: it is there and does not answer.
    ///
    /// # Panics
    /// If it is down.
    pub fn freeze(&self) {
        self.lock().as_ref().expect("it runs").freeze();
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        if let Some(daemon) = &*self.lock() {
            daemon.thaw();
        }
    }
}

/// What a server that speaks TLS shows, and whose signature it trusts: files in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Its certificate.
    pub certificate: PathBuf,
    /// The key of that.
    pub key: PathBuf,
    /// Whoever signed the certificates of its peers.
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

/// Asks a server something over a connection of its own.
pub(super) fn ask(port: u16, words: &[&str]) -> io::Result<String> {
    let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    ask_all(port, &[words]).map(|mut answers| answers.remove(0))
}

/// The same, as the user `default` with this password.
pub(super) fn ask_as(port: u16, password: Option<&str>, words: &[&str]) -> io::Result<String> {
    let Some(password) = password else { return ask(port, words) };
    let questions =
        [&["AUTH", password], words].map(|words| words.iter().map(|&word| word.to_owned()).collect());
    ask_all(port, &questions).map(|mut answers| answers.remove(1))
}

/// Asks a server several things in one go: an answer each.
pub(super) fn ask_all(port: u16, questions: &[Vec<String>]) -> io::Result<Vec<String>> {
    let mut stream = dial(port)?;
    let mut request = String::new();
    for words in questions {
        request.push_str(&format!("*{}\r\n", words.len()));
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
    }
    stream.write_all(request.as_bytes())?;
    let mut answers = BufReader::new(stream);
    questions.iter().map(|_| read_answer(&mut answers)).collect()
}

fn read_answer(from: &mut impl io::BufRead) -> io::Result<String> {
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
            let items = (0..length).map(|_| read_answer(from)).collect::<io::Result<Vec<_>>>()?;
            Ok(items.join(" "))
        }
        ('$' | '*', None) => Ok(String::new()),
        _ => Ok(rest.to_owned()),
    }
}
