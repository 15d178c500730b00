//! ZooKeeper: one server, or an ensemble of three.

use std::{
    fmt::Write as _,
    fs, io,
    io::{Read as _, Write as _},
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::daemon::{Daemon, dial, eventually, free_port, fresh_folder};

/// The servers' `tickTime`, in milliseconds: sessions are 2 to 20 of them.
const TICK_MS: u32 = 200;
/// Where Debian keeps what the servers run on: the package names its needs in its manifest.
const CLASSPATH: &str = "/usr/share/java/zookeeper.jar";

/// A ZooKeeper server, or one of an ensemble.
///
/// ```no_run
/// use leasehold_testkit::servers::ZooKeeperServer;
///
/// let server = ZooKeeperServer::start();
/// assert_eq!(server.ask("ruok"), "imok");
/// ```
#[derive(Debug)]
pub struct ZooKeeperServer {
    port: u16,
    folder: PathBuf,
    daemon: Mutex<Option<Daemon>>,
}

impl ZooKeeperServer {
    /// One that stands alone.
    ///
    /// # Panics
    /// If the package `zookeeper` is not installed, or it does not serve.
    pub fn start() -> ZooKeeperServer {
        let server = ZooKeeperServer::prepare(free_port(), 1, "");
        server.run();
        server.serves();
        server
    }

    fn prepare(port: u16, number: usize, ensemble: &str) -> ZooKeeperServer {
        let folder = fresh_folder("zookeeper");
        let data = folder.join("data");
        fs::create_dir_all(&data).expect("a folder can be made");
        fs::write(data.join("myid"), number.to_string()).expect("a file can be written");
        let config = format!(
            "tickTime={TICK_MS}\ninitLimit=100\nsyncLimit=25\ndataDir={}\nclientPort={port}\n\
             clientPortAddress=127.0.0.1\nadmin.enableServer=false\n4lw.commands.whitelist=*\nmaxClientCnxns=0\n\
             {ensemble}",
            data.display()
        );
        fs::write(folder.join("zoo.cfg"), config).expect("a file can be written");
        ZooKeeperServer { port, folder, daemon: Mutex::new(None) }
    }

    fn run(&self) {
        let config = self.folder.join("zoo.cfg").to_string_lossy().into_owned();
        // Small, and quick to start: what a test needs of it is little.
        let fixed = [
            "-Xmx128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xshare:auto",
            "-Djava.net.preferIPv4Stack=true",
            // An acknowledged write is in the hands of the system: a killed server has it, and no disk is waited for.
            "-Dzookeeper.forceSync=no",
            "-cp",
            CLASSPATH,
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        ];
        let args: Vec<String> = fixed.into_iter().map(str::to_owned).chain([config]).collect();
        *self.lock() = Some(Daemon::start("java", &args, &self.folder.join("out"), Some(&self.folder)));
    }

    fn serves(&self) {
        let what = "ZooKeeper does not serve: are the packages zookeeper and default-jre-headless installed?";
        eventually(what, || {
            let answer = ask(self.port, "srvr")?;
            if answer.contains("Mode:") { Ok(()) } else { Err(io::Error::other(answer)) }
        });
    }

    fn lock(&self) -> MutexGuard<'_, Option<Daemon>> {
        self.daemon.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its URL, with a session of two seconds.
    pub fn url(&self) -> String {
        format!("zookeeper://127.0.0.1:{}/?session_timeout=2s&tick={TICK_MS}ms", self.port)
    }

    /// Says a word of four letters to it: `ruok`, `srvr`, `mntr`, `wchs`.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn ask(&self, word: &str) -> String {
        ask(self.port, word).unwrap_or_else(|error| panic!("{word}: {error}"))
    }

    /// One of the numbers that it counts, by its name: `zk_packets_received`.
    ///
    /// # Panics
    /// If it does not answer, or has no such number.
    pub fn number(&self, name: &str) -> i64 {
        let answer = self.ask("mntr");
        let line = answer.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        #[expect(clippy::cast_possible_truncation, reason = "what is counted is a whole number")]
        line.map_or_else(|| panic!("no {name} in {answer}"), |number| number as i64)
    }

    /// Kills it at once. It stays down until [`run_again`](ZooKeeperServer::run_again).
    pub fn kill(&self) {
        if let Some(daemon) = &*self.lock() {
            daemon.kill();
        }
    }

    /// Starts it again on the same port, with what is on its disk.
    ///
    /// # Panics
    /// If it does not serve.
    pub fn run_again(&self) {
        // The folder goes with the process that is down: its data steps aside meanwhile.
        let kept = fresh_folder("zookeeper-kept").join("folder");
        fs::rename(&self.folder, &kept).expect("a folder can be moved");
        *self.lock() = None;
        fs::rename(&kept, &self.folder).expect("a folder can be moved back");
        let _ = kept.parent().map(fs::remove_dir);
        self.run();
        self.serves();
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

impl Drop for ZooKeeperServer {
    fn drop(&mut self) {
        *self.lock() = None;
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Three servers that agree.
#[derive(Debug)]
pub struct Ensemble {
    servers: Vec<ZooKeeperServer>,
}

impl Ensemble {
    /// Starts three.
    ///
    /// # Panics
    /// As [`ZooKeeperServer::start`].
    pub fn start() -> Ensemble {
        let ports: Vec<_> = (0..3).map(|_| (free_port(), free_port(), free_port())).collect();
        let mut line = String::new();
        for (number, (_, peers, election)) in ports.iter().enumerate() {
            let _ = writeln!(line, "server.{}=127.0.0.1:{peers}:{election}", number + 1);
        }
        let prepare = |(number, (port, ..)): (usize, &(u16, u16, u16))| {
            ZooKeeperServer::prepare(*port, number + 1, &line)
        };
        let servers: Vec<_> = ports.iter().enumerate().map(prepare).collect();
        servers.iter().for_each(ZooKeeperServer::run);
        servers.iter().for_each(ZooKeeperServer::serves);
        Ensemble { servers }
    }

    /// The servers.
    pub fn servers(&self) -> &[ZooKeeperServer] {
        &self.servers
    }

    /// Its URL, with a session of three seconds.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        format!("zookeeper://{}/?session_timeout=3s&tick={TICK_MS}ms", hosts.join(","))
    }

    /// The server that leads.
    ///
    /// # Panics
    /// If none does.
    pub fn leader(&self) -> &ZooKeeperServer {
        eventually("nobody leads the ensemble", || {
            let leads = |server: &&ZooKeeperServer| {
                ask(server.port, "srvr").is_ok_and(|answer| answer.contains("Mode: leader"))
            };
            self.servers.iter().find(leads).ok_or_else(|| io::Error::other("all follow"))
        })
    }

    /// One of those that follow.
    ///
    /// # Panics
    /// If none does.
    pub fn follower(&self) -> &ZooKeeperServer {
        eventually("nobody follows in the ensemble", || {
            let follows = |server: &&ZooKeeperServer| {
                ask(server.port, "srvr").is_ok_and(|answer| answer.contains("Mode: follower"))
            };
            self.servers.iter().find(follows).ok_or_else(|| io::Error::other("none follows"))
        })
    }
}

fn ask(port: u16, word: &str) -> io::Result<String> {
    let mut stream = dial(port)?;
    stream.write_all(word.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
