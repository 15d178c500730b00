//! The locks, and how each is built and started.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{build_folder, root};

/// The program that drives a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    /// `bench/peers/rust`.
    Rust,
    /// `bench/peers/go`.
    Go,
    /// `bench/peers/java`.
    Java,
    /// `bench/peers/node`.
    Node,
    /// `bench/peers/python`.
    Python,
    /// The program `leasehold`, which the runner starts itself: as a command in a shell, or as a server.
    Shell,
}

/// A lock that takes part.
#[derive(Debug)]
pub struct Peer {
    /// Its name in the results and for `--peer`.
    pub name: &'static str,
    /// Its name in the protocol.
    pub lock: &'static str,
    /// The program that drives it.
    pub program: Program,
    /// The version that its manifest pins; empty for what comes with the repository or the system.
    pub version: &'static str,
    /// Whether a grant comes with a fencing token.
    pub fence: bool,
}

const fn peer(
    name: &'static str,
    lock: &'static str,
    program: Program,
    version: &'static str,
    fence: bool,
) -> Peer {
    Peer { name, lock, program, version, fence }
}

/// The name of leasehold's rows.
pub const LEASEHOLD: &str = "leasehold";
/// The name of the rows of the documents' two scripts.
pub const BARE: &str = "bare scripts";

static BARE_SCRIPTS: Peer = peer(BARE, "bare", Program::Rust, "", true);
static OURS: Peer = peer(LEASEHOLD, "leasehold", Program::Rust, "", true);
static OURS_FAIR: Peer = peer(LEASEHOLD, "leasehold-fair", Program::Rust, "", true);
static RSLOCK: Peer = peer("rslock", "rslock", Program::Rust, "0.10.0", false);
static REDSYNC: Peer = peer("redsync", "redsync", Program::Go, "4.18.1", false);
static REDISLOCK: Peer = peer("redislock", "redislock", Program::Go, "0.9.4", false);
static RLOCK: Peer = peer("Redisson RLock", "rlock", Program::Java, "4.7.0", false);
static RFENCED: Peer = peer("Redisson RFencedLock", "rfenced", Program::Java, "4.7.0", true);
static RFAIR: Peer = peer("Redisson RFairLock", "rfair", Program::Java, "4.7.0", false);
static REDIS_PY: Peer = peer("redis-py", "redis-py", Program::Python, "8.1.0", false);
static NODE_REDLOCK: Peer = peer("node-redlock", "node-redlock", Program::Node, "5.0.0-beta.2", false);
// The clients of other languages, through a server: `cargo xtask bench clients`.
static PYTHON_CLIENT: Peer = peer("leasehold for Python", "leasehold", Program::Python, "", true);
static NODE_CLIENT: Peer = peer("leasehold for Node", "leasehold", Program::Node, "", true);
static GO_CLIENT: Peer = peer("leasehold for Go", "leasehold", Program::Go, "", true);
static JAVA_CLIENT: Peer = peer("leasehold for Java", "leasehold", Program::Java, "", true);
static ADVISORY: Peer = peer("advisory locks", "advisory", Program::Rust, "", false);
static SHEDLOCK: Peer = peer("ShedLock-like statement", "shedlock", Program::Rust, "", false);
static ETCD_MUTEX: Peer = peer("Go concurrency.Mutex", "etcd-mutex", Program::Go, "3.7.3", true);
static CURATOR: Peer = peer("Curator InterProcessMutex", "curator", Program::Java, "5.9.0", false);
static LEASEHOLD_RUN: Peer = peer("leasehold run", "leasehold-run", Program::Shell, "", true);
static FLOCK: Peer = peer("flock", "flock", Program::Shell, "", false);
static ETCDCTL: Peer = peer("etcdctl lock", "etcdctl", Program::Shell, "", true);

/// Uncontended, on Redis.
pub const REDIS: &[&Peer] =
    &[&BARE_SCRIPTS, &OURS, &RSLOCK, &REDSYNC, &REDISLOCK, &RLOCK, &RFENCED, &REDIS_PY, &NODE_REDLOCK];
/// With waiters, on Redis. The bare scripts have no way to wait.
pub const REDIS_WAITING: &[&Peer] =
    &[&OURS, &RSLOCK, &REDSYNC, &REDISLOCK, &RLOCK, &RFENCED, &REDIS_PY, &NODE_REDLOCK];
/// With waiters in order of arrival, on Redis.
pub const REDIS_FAIR: &[&Peer] = &[&OURS_FAIR, &RFAIR];
/// Those that renew what they hold, on Redis.
pub const REDIS_RENEWING: &[&Peer] = &[&OURS, &RLOCK, &NODE_REDLOCK];
/// For each language: the client, and after it the library that it is measured beside.
pub const CLIENTS: &[&Peer] =
    &[&PYTHON_CLIENT, &REDIS_PY, &NODE_CLIENT, &NODE_REDLOCK, &GO_CLIENT, &REDSYNC, &JAVA_CLIENT, &RLOCK];
/// Over five Redis servers.
pub const REDLOCK: &[&Peer] = &[&OURS, &RSLOCK, &REDSYNC, &NODE_REDLOCK];
/// Uncontended, on PostgreSQL.
pub const POSTGRES: &[&Peer] = &[&OURS, &ADVISORY, &SHEDLOCK];
/// With waiters, on PostgreSQL. `ShedLock` does not wait.
pub const POSTGRES_WAITING: &[&Peer] = &[&OURS, &ADVISORY];
/// On etcd.
pub const ETCD: &[&Peer] = &[&OURS, &ETCD_MUTEX];
/// On ZooKeeper.
pub const ZOOKEEPER: &[&Peer] = &[&OURS, &CURATOR];
/// In a shell, on one host.
pub const SHELL_FILE: &[&Peer] = &[&LEASEHOLD_RUN, &FLOCK];
/// In a shell, on etcd.
pub const SHELL_ETCD: &[&Peer] = &[&LEASEHOLD_RUN, &ETCDCTL];

/// Builds the programs, each once.
#[derive(Debug)]
pub struct Programs {
    rust: PathBuf,
    built: HashMap<Program, Result<Vec<String>, String>>,
}

impl Programs {
    /// With the program of the Rust peers at this path. The others are built on demand.
    pub fn new(rust: PathBuf) -> Programs {
        Programs { rust, built: HashMap::new() }
    }

    /// Uses a program that is there already, instead of building one.
    pub fn use_built(&mut self, program: Program, path: &Path) {
        self.built.insert(program, Ok(vec![path_text(path)]));
    }

    /// The words that start a program, or why it cannot be started.
    ///
    /// # Errors
    /// If its toolchain is missing, or the build fails.
    pub fn command(&mut self, program: Program) -> Result<Vec<String>, String> {
        if let Some(built) = self.built.get(&program) {
            return built.clone();
        }
        let built = match program {
            Program::Rust => Ok(vec![path_text(&self.rust)]),
            Program::Go => build_go(),
            Program::Java => build_java(),
            Program::Node => build_node(),
            Program::Python => build_python(),
            Program::Shell => crate::shell::build(),
        };
        if let Err(why) = &built {
            println!("  {program:?}: {why}");
        }
        self.built.insert(program, built.clone());
        built
    }
}

fn build_go() -> Result<Vec<String>, String> {
    let folder = build_folder().join("go");
    let program = folder.join("peer");
    let mut build = Command::new("go");
    build.args(["build", "-modcacherw", "-o"]).arg(&program).arg(".");
    build.current_dir(root().join("bench/peers/go"));
    build.env("GOPATH", folder.join("path")).env("GOCACHE", folder.join("cache")).env("GOFLAGS", "");
    step("the Go peers", &mut build)?;
    Ok(vec![path_text(&program)])
}

fn build_java() -> Result<Vec<String>, String> {
    let folder = build_folder().join("java");
    let libraries = folder.join("build/lib");
    let mut build = Command::new("mvn");
    build.args(["-q", "-B", "-f"]).arg(root().join("bench/peers/java/pom.xml"));
    build.arg(format!("-Dmaven.repo.local={}", path_text(&folder.join("repository"))));
    build.arg(format!("-Dpeer.target={}", path_text(&folder.join("build"))));
    build.args(["compile", "dependency:copy-dependencies"]);
    build.arg(format!("-DoutputDirectory={}", path_text(&libraries)));
    step("the Java peers", &mut build)?;
    let classes = path_text(&folder.join("build/classes"));
    let classpath = format!("{classes}:{}/*", path_text(&libraries));
    Ok(["java", "-Xmx2g", "-cp", &classpath, "peers.Main"].map(str::to_owned).to_vec())
}

fn build_node() -> Result<Vec<String>, String> {
    let folder = build_folder().join("node");
    copy(&root().join("bench/peers/node"), &folder, &["package.json", "package-lock.json", "peer.js"])?;
    let mut install = Command::new("npm");
    install.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts", "--cache"]).arg(folder.join("cache"));
    step("the Node peers", install.current_dir(&folder))?;
    build_typescript_client(&folder.join("leasehold"))?;
    Ok(vec!["node".to_owned(), path_text(&folder.join("peer.js"))])
}

/// Builds the client of this repository in a folder beside the program: nothing is built inside of the repository's folders.
fn build_typescript_client(folder: &Path) -> Result<(), String> {
    let client = root().join("clients/typescript");
    // A file that the client has no more would still be compiled.
    let _ = fs::remove_dir_all(folder.join("src"));
    copy(&client, folder, &["package.json", "package-lock.json", "tsconfig.json"])?;
    let sources =
        fs::read_dir(client.join("src")).map_err(|error| format!("{}: {error}", client.display()))?;
    let names: Vec<String> =
        sources.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    copy(&client.join("src"), &folder.join("src"), &names)?;
    let mut install = Command::new("npm");
    install
        .args(["ci", "--no-audit", "--no-fund", "--ignore-scripts", "--cache"])
        .arg(folder.join("../cache"));
    step("what builds the TypeScript client", install.current_dir(folder))?;
    let mut build = Command::new("npm");
    step("the TypeScript client", build.args(["run", "--silent", "build"]).current_dir(folder))
}

fn build_python() -> Result<Vec<String>, String> {
    let folder = build_folder().join("python");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let python = folder.join("venv/bin/python");
    if !python.exists() {
        step(
            "a virtual environment of Python",
            Command::new("python3").args(["-m", "venv"]).arg(folder.join("venv")),
        )?;
    }
    let sources = root().join("bench/peers/python");
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check", "-r"]);
    step("the Python peers", install.arg(sources.join("requirements.txt")))?;
    Ok(vec![path_text(&python), path_text(&sources.join("peer.py"))])
}

/// Runs one command of a build. The error is short: it is shown in a table.
pub(crate) fn step(what: &str, command: &mut Command) -> Result<(), String> {
    println!("  building {what}");
    let program = command.get_program().to_string_lossy().into_owned();
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(format!("{program} is not installed"));
        }
        Err(error) => return Err(format!("{program}: {error}")),
    };
    if output.status.success() {
        return Ok(());
    }
    let log = build_folder().join("build.log");
    let text = [output.stdout, output.stderr].concat();
    let _ = fs::write(&log, &text);
    eprintln!("{}", String::from_utf8_lossy(&text));
    Err(format!("{program} could not build {what}"))
}

fn copy(from: &Path, to: &Path, files: &[impl AsRef<Path>]) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", to.display());
    fs::create_dir_all(to).map_err(failed)?;
    for file in files {
        fs::copy(from.join(file), to.join(file)).map_err(failed)?;
    }
    Ok(())
}

pub(crate) fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::works::WORKS;

    fn manifest(program: Program) -> String {
        let file = match program {
            Program::Rust => "bench/Cargo.toml",
            Program::Go => "bench/peers/go/go.mod",
            Program::Java => "bench/peers/java/pom.xml",
            Program::Node => "bench/peers/node/package.json",
            Program::Python => "bench/peers/python/requirements.txt",
            Program::Shell => return String::new(),
        };
        fs::read_to_string(root().join(file)).unwrap()
    }

    #[test]
    fn every_version_is_the_one_that_the_manifest_pins() {
        for peer in WORKS.iter().flat_map(|work| work.peers).filter(|peer| !peer.version.is_empty()) {
            let manifest = manifest(peer.program);
            assert!(manifest.contains(peer.version), "{}: {} in\n{manifest}", peer.name, peer.version);
        }
    }

    #[test]
    fn every_work_has_a_row_of_leasehold() {
        for work in WORKS {
            assert!(work.peers.iter().any(|peer| peer.name.starts_with(LEASEHOLD)), "{}", work.name);
        }
    }
}
