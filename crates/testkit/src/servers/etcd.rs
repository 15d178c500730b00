//! An etcd cluster of one or several members.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::daemon::{Daemon, connect_to, eventually, free_port, fresh_folder};

/// An etcd cluster.
///
/// ```no_run
/// use leasehold_testkit::servers::EtcdCluster;
///
/// let cluster = EtcdCluster::start(3);
/// cluster.etcdctl(&["put", "a", "1"]);
/// cluster.kill(cluster.leader());
/// ```
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Member>,
    scheme: &'static str,
    /// The options of `etcdctl` for TLS and for the user.
    login: Mutex<Vec<String>>,
}

#[derive(Debug)]
struct Member {
    name: String,
    client_port: u16,
    peer_port: u16,
    folder: PathBuf,
    args: Vec<String>,
    daemon: Mutex<Option<Daemon>>,
}

impl EtcdCluster {
    /// Starts this many members and waits until they have a leader.
    ///
    /// # Panics
    /// If `etcd` and `etcdctl` are not installed, or the cluster does not answer.
    pub fn start(members: usize) -> EtcdCluster {
        EtcdCluster::with(members, &[])
    }

    /// Starts members with additional options, as on the command line: `["--max-txn-ops", "10"]`.
    ///
    /// # Panics
    /// As [`start`](EtcdCluster::start).
    pub fn with(members: usize, options: &[&str]) -> EtcdCluster {
        EtcdCluster::launch(members, options, "http", Vec::new())
    }

    /// Starts one member with TLS, which requires a certificate from clients. The folder must have `ca.pem`,
    /// `server.pem`, `server.key`, `client.pem` and `client.key`.
    ///
    /// # Panics
    /// As [`start`](EtcdCluster::start).
    pub fn with_tls(certificates: &Path) -> EtcdCluster {
        let file = |name: &str| certificates.join(name).to_string_lossy().into_owned();
        let (ca, cert, key) = (file("ca.pem"), file("server.pem"), file("server.key"));
        let options =
            ["--cert-file", &cert, "--key-file", &key, "--client-cert-auth", "--trusted-ca-file", &ca];
        let login = vec![
            format!("--cacert={ca}"),
            format!("--cert={}", file("client.pem")),
            format!("--key={}", file("client.key")),
        ];
        EtcdCluster::launch(1, &options, "https", login)
    }

    fn launch(members: usize, options: &[&str], scheme: &'static str, login: Vec<String>) -> EtcdCluster {
        // All ports are known before the first member starts, because each member needs the list of all
        // peers.
        let mut all: Vec<Member> = (1..=members)
            .map(|number| Member {
                name: format!("e{number}"),
                client_port: free_port(),
                peer_port: free_port(),
                folder: fresh_folder("etcd"),
                args: Vec::new(),
                daemon: Mutex::new(None),
            })
            .collect();
        let peer = |member: &Member| format!("http://127.0.0.1:{}", member.peer_port);
        let cluster: Vec<_> = all.iter().map(|member| format!("{}={}", member.name, peer(member))).collect();
        let cluster = cluster.join(",");
        for member in &mut all {
            let client = format!("{scheme}://127.0.0.1:{}", member.client_port);
            let data = member.folder.join("data").to_string_lossy().into_owned();
            let pairs = [
                ("--name", member.name.clone()),
                ("--data-dir", data),
                ("--listen-client-urls", client.clone()),
                ("--advertise-client-urls", client),
                ("--listen-peer-urls", peer(member)),
                ("--initial-advertise-peer-urls", peer(member)),
                ("--initial-cluster", cluster.clone()),
                ("--initial-cluster-state", "new".to_owned()),
            ];
            member.args = pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
            member.args.extend(options.iter().map(|option| (*option).to_owned()));
        }
        all.iter().for_each(Member::run);
        let cluster = EtcdCluster { members: all, scheme, login: Mutex::new(login) };
        cluster.await_health();
        cluster
    }

    /// Waits until the cluster answers a request.
    ///
    /// # Panics
    /// If it does not answer in time.
    pub fn await_health(&self) {
        eventually("the etcd cluster does not answer etcdctl (package etcd-client)", || {
            let output = self.run_etcdctl(&["get", "health"])?;
            if output.status.success() { Ok(()) } else { Err(io::Error::other(text(&output.stderr))) }
        });
    }

    /// The client port of each member.
    pub fn ports(&self) -> Vec<u16> {
        self.members.iter().map(|member| member.client_port).collect()
    }

    /// The URL of all members.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.ports().iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let scheme = if self.scheme == "https" { "etcds" } else { "etcd" };
        format!("{scheme}://{}", hosts.join(","))
    }

    /// The folder of the first member.
    pub fn folder(&self) -> &Path {
        &self.members[0].folder
    }

    /// Makes `etcdctl` log in as `user:password` from now on.
    pub fn log_in(&self, user: &str) {
        self.login.lock().unwrap_or_else(PoisonError::into_inner).push(format!("--user={user}"));
    }

    /// An `etcdctl` command for all members, not started yet.
    pub fn command(&self, words: &[&str]) -> Command {
        self.command_to(&self.ports(), words)
    }

    fn command_to(&self, ports: &[u16], words: &[&str]) -> Command {
        let endpoints: Vec<_> =
            ports.iter().map(|port| format!("{}://127.0.0.1:{port}", self.scheme)).collect();
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", endpoints.join(",")));
        command.arg("--dial-timeout=3s").arg("--command-timeout=5s");
        command.args(&*self.login.lock().unwrap_or_else(PoisonError::into_inner)).args(words);
        command
    }

    fn run_etcdctl(&self, words: &[&str]) -> io::Result<Output> {
        self.command(words).stdin(Stdio::null()).output()
    }

    /// Runs `etcdctl` and returns its output.
    ///
    /// # Panics
    /// If it fails.
    pub fn etcdctl(&self, words: &[&str]) -> String {
        let output = self.run_etcdctl(words).expect("etcdctl is installed (package etcd-client)");
        assert!(output.status.success(), "etcdctl {words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// The keys that begin with `prefix`, in order.
    ///
    /// # Panics
    /// If etcd does not answer.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let printed = self.etcdctl(&["get", "--prefix", "--keys-only", prefix]);
        printed.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// The index of the leader.
    ///
    /// # Panics
    /// If there is no leader in time.
    pub fn leader(&self) -> usize {
        eventually("the etcd cluster has no leader", || {
            let leads = |index: &usize| self.status(*index).is_some_and(|(own, leader)| own == leader);
            (0..self.members.len())
                .find(leads)
                .ok_or_else(|| io::Error::other("no member reports itself as the leader"))
        })
    }

    /// The id of a member and the id of the leader, as the member reports them.
    fn status(&self, index: usize) -> Option<(String, String)> {
        let mut command =
            self.command_to(&[self.members[index].client_port], &["endpoint", "status", "-w", "fields"]);
        command.stdin(Stdio::null());
        let printed = text(&command.output().ok()?.stdout);
        let field = |name: &str| {
            let line = printed.lines().find(|line| line.starts_with(&format!("\"{name}\"")))?;
            line.split(" : ").nth(1).map(|value| value.trim().to_owned())
        };
        Some((field("MemberID")?, field("Leader")?))
    }

    /// Kills a member at once. It stays down until [`run_again`](EtcdCluster::run_again).
    pub fn kill(&self, index: usize) {
        if let Some(daemon) = &*self.members[index].lock() {
            daemon.kill();
        }
    }

    /// Starts a member again with the data on its disk, and waits until the cluster answers.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn run_again(&self, index: usize) {
        let member = &self.members[index];
        *member.lock() = None;
        member.run();
        self.await_health();
    }

    /// Stops a member (SIGSTOP): it is alive and does not answer.
    ///
    /// # Panics
    /// If it does not run.
    pub fn freeze(&self, index: usize) {
        self.members[index].lock().as_ref().expect("it runs").freeze();
    }

    /// Continues a frozen member.
    pub fn thaw(&self, index: usize) {
        if let Some(daemon) = &*self.members[index].lock() {
            daemon.thaw();
        }
    }
}

/// etcd's own proxy, `etcd grpc-proxy`, in front of a cluster. It ends when this handle is dropped.
#[derive(Debug)]
pub struct GrpcProxy {
    port: u16,
    _daemon: Daemon,
}

impl GrpcProxy {
    /// The port on which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl EtcdCluster {
    /// Starts `etcd grpc-proxy` in front of all members.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn grpc_proxy(&self) -> GrpcProxy {
        let (port, folder) = (free_port(), fresh_folder("grpc-proxy"));
        let endpoints: Vec<_> = self.ports().iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let args = [
            "grpc-proxy".to_owned(),
            "start".to_owned(),
            format!("--endpoints={}", endpoints.join(",")),
            format!("--listen-addr=127.0.0.1:{port}"),
            format!("--data-dir={}", folder.join("data").display()),
        ];
        let daemon = Daemon::start("etcd", &args, &folder.join("log"), Some(&folder));
        daemon.await_answer("etcd grpc-proxy (package etcd-server)", || {
            let output = self.command_to(&[port], &["get", "health"]).stdin(Stdio::null()).output()?;
            if output.status.success() { Ok(()) } else { Err(io::Error::other(text(&output.stderr))) }
        });
        GrpcProxy { port, _daemon: daemon }
    }
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        for member in &self.members {
            *member.lock() = None;
            let _ = fs::remove_dir_all(&member.folder);
        }
    }
}

impl Member {
    fn lock(&self) -> MutexGuard<'_, Option<Daemon>> {
        self.daemon.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        // No folder to remove: the member is started again with the data in it.
        let daemon = Daemon::start("etcd", &self.args, &self.folder.join("log"), None);
        daemon.await_answer("etcd (package etcd-server)", || connect_to(self.client_port));
        *self.lock() = Some(daemon);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
