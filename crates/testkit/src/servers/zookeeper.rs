//! One ZooKeeper server, or an ensemble of three.

use std::{
    fmt::Write as _,
    fs, io,
    io::{Read as _, Write as _},
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::daemon::{Daemon, connect_to, eventually, free_port, fresh_folder};

/// The servers' `tickTime`, in milliseconds. A session timeout is 2 to 20 ticks.
const TICK_MS: u32 = 200;
/// The class path of Debian's package. The manifest of the jar names the jars that it depends on.
const CLASSPATH: &str = "/usr/share/java/zookeeper.jar";

/// A ZooKeeper server: alone, or one of an ensemble.
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
    /// Starts a standalone server.
    ///
    /// # Panics
    /// If the package `zookeeper` is not installed, or the server does not answer.
    pub fn start() -> ZooKeeperServer {
        let server = ZooKeeperServer::prepare(free_port(), 1, "");
        server.run();
        server.await_answer();
        server
    }

    fn prepare(port: u16, number: usize, ensemble: &str) -> ZooKeeperServer {
        let folder = fresh_folder("zookeeper");
        let data = folder.join("data");
        fs::create_dir_all(&data).expect("a folder can be made");
        fs::write(data.join("myid"), number.to_string()).expect("a file can be written");
        // Without the admin server, whose port 8080 may be taken; with every four-letter command; without a
        // limit of connections from one address, because all clients of a test have the same.
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
        // A small heap and a simple compiler, for a quick start.
        let fixed = [
            "-Xmx128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xshare:auto",
            "-Djava.net.preferIPv4Stack=true",
            // Writes do not wait for the disk. They survive a kill of the server, because the kernel has
            // them.
            "-Dzookeeper.forceSync=no",
            "-cp",
            CLASSPATH,
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        ];
        let args: Vec<String> = fixed.into_iter().map(str::to_owned).chain([config]).collect();
        *self.lock() = Some(Daemon::start("java", &args, &self.folder.join("log"), Some(&self.folder)));
    }

    fn await_answer(&self) {
        let daemon = self.lock();
        let daemon = daemon.as_ref().expect("it was started");
        daemon.await_answer("ZooKeeper (packages zookeeper and default-jre-headless)", || {
            let reply = ask(self.port, "srvr")?;
            if reply.contains("Mode:") { Ok(()) } else { Err(io::Error::other(reply)) }
        });
    }

    fn lock(&self) -> MutexGuard<'_, Option<Daemon>> {
        self.daemon.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the server, with a session timeout of two seconds.
    pub fn url(&self) -> String {
        format!("zookeeper://127.0.0.1:{}/?session_timeout=2s&tick={TICK_MS}ms", self.port)
    }

    /// Sends a four-letter command (`ruok`, `srvr`, `mntr`, `wchs`) and returns the reply.
    ///
    /// # Panics
    /// If the server does not reply.
    pub fn ask(&self, word: &str) -> String {
        ask(self.port, word).unwrap_or_else(|error| panic!("{word}: {error}"))
    }

    /// The value of a metric of the server, such as `zk_packets_received`.
    ///
    /// # Panics
    /// If the server does not reply, or has no such metric.
    pub fn number(&self, name: &str) -> i64 {
        let reply = self.ask("mntr");
        let line = reply.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        #[expect(clippy::cast_possible_truncation, reason = "the metrics that tests read are whole numbers")]
        line.map_or_else(|| panic!("no {name} in {reply}"), |number| number as i64)
    }

    /// Kills the server at once. It stays down until [`run_again`](ZooKeeperServer::run_again).
    pub fn kill(&self) {
        if let Some(daemon) = &*self.lock() {
            daemon.kill();
        }
    }

    /// Starts the server again on the same port, with the data on its disk.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn run_again(&self) {
        // Dropping the old process removes its folder, so the folder is moved away and back.
        let kept = fresh_folder("zookeeper-kept").join("folder");
        fs::rename(&self.folder, &kept).expect("a folder can be moved");
        *self.lock() = None;
        fs::rename(&kept, &self.folder).expect("a folder can be moved back");
        let _ = kept.parent().map(fs::remove_dir);
        self.run();
        self.await_answer();
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

impl Drop for ZooKeeperServer {
    fn drop(&mut self) {
        *self.lock() = None;
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// An ensemble of three servers.
#[derive(Debug)]
pub struct Ensemble {
    servers: Vec<ZooKeeperServer>,
}

impl Ensemble {
    /// Starts the three servers.
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
        servers.iter().for_each(ZooKeeperServer::await_answer);
        Ensemble { servers }
    }

    /// The servers.
    pub fn servers(&self) -> &[ZooKeeperServer] {
        &self.servers
    }

    /// The URL of the ensemble, with a session timeout of three seconds.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        format!("zookeeper://{}/?session_timeout=3s&tick={TICK_MS}ms", hosts.join(","))
    }

    /// The leader.
    ///
    /// # Panics
    /// If no server leads in time.
    pub fn leader(&self) -> &ZooKeeperServer {
        eventually("no server leads the ensemble", || {
            let leads = |server: &&ZooKeeperServer| {
                ask(server.port, "srvr").is_ok_and(|reply| reply.contains("Mode: leader"))
            };
            self.servers.iter().find(leads).ok_or_else(|| io::Error::other("no server is the leader"))
        })
    }

    /// One of the followers.
    ///
    /// # Panics
    /// If no server follows in time.
    pub fn follower(&self) -> &ZooKeeperServer {
        eventually("no server follows in the ensemble", || {
            let follows = |server: &&ZooKeeperServer| {
                ask(server.port, "srvr").is_ok_and(|reply| reply.contains("Mode: follower"))
            };
            self.servers.iter().find(follows).ok_or_else(|| io::Error::other("no server is a follower"))
        })
    }
}

fn ask(port: u16, word: &str) -> io::Result<String> {
    let mut stream = connect_to(port)?;
    stream.write_all(word.as_bytes())?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply)
}
