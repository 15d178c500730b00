//! Installs the packages that a build of everything and the tests need.

use std::{
    io::IsTerminal,
    process::{Command, Stdio},
};

/// Debian packages that a build of everything needs, and why.
const TO_BUILD: &[(&str, &str)] = &[
    ("gcc", "compiles SQLite, and links everything"),
    ("libc6-dev", "the C headers that SQLite is compiled with"),
    ("libprotobuf-dev", "the standard types of protoc; Debian only recommends it"),
    ("protobuf-compiler", "protoc, which generates the etcd client"),
];

/// Debian packages that only the tests need, and why. A backend whose tests start a server adds a line.
const TO_TEST: &[(&str, &str)] = &[
    ("chromium", "the browser of the tests of the dashboard"),
    ("fonts-dejavu-core", "the letters in the pictures of the dashboard"),
    ("e2fsprogs", "makes the file system on which the SQLite tests simulate a power cut"),
    ("mount", "mounts that file system, as root"),
    ("etcd-client", "etcdctl, which contends for the same locks in the etcd tests"),
    ("etcd-server", "the servers of the etcd tests"),
    ("mariadb-server", "the servers of the tests of the fence in MariaDB"),
    ("pgbouncer", "a connection pool in front of PostgreSQL, for the tests"),
    ("pgpool2", "another connection pool in front of PostgreSQL, for the tests"),
    ("postgresql", "the servers of the PostgreSQL tests"),
    ("libpq5", "the library with which the Python client's tests connect to PostgreSQL"),
    ("python3-venv", "the Python environments of schemathesis and of the Python client's tests"),
    ("sqlite3", "the SQLite shell, with which the fence tests write past the fence"),
    ("ca-certificates", "the certificates that TLS trusts by default"),
    ("openssl", "makes the certificates of the TLS tests"),
    ("curl", "runs the shell scripts of the documentation against the server"),
    ("default-jre-headless", "runs ZooKeeper and Curator"),
    ("libbsh-java", "runs the script with which the tests drive Curator"),
    ("libcurator-recipes-java", "Curator, which must queue together with leasehold"),
    ("zookeeper", "the servers of the ZooKeeper tests"),
    ("redis-server", "the servers of the Redis tests"),
];

/// Debian packages with the toolchains of other languages, the program that each one brings, and why. They may come from elsewhere.
const LANGUAGES: &[(&str, &str, &str)] = &[
    ("default-jdk-headless", "javac", "builds and tests the Java client"),
    ("golang-go", "go", "builds and tests the Go client"),
    ("maven", "mvn", "builds the Java client, and downloads what its tests need"),
    ("nodejs", "node", "runs the tests of the dashboard, the TypeScript client, and pyright"),
    ("npm", "npm", "downloads the libraries of those tests"),
];

/// Debian packages that only `cargo xtask bench peers` and `bench clients` need, the program that each one brings, and why.
const TO_COMPARE: &[(&str, &str, &str)] = &[
    ("default-jdk-headless", "javac", "builds the peers that are written in Java"),
    ("golang-go", "go", "builds the peers that are written in Go"),
    ("maven", "mvn", "downloads the libraries of the Java peers"),
    ("nodejs", "node", "runs the peers that are written in JavaScript"),
    ("npm", "npm", "downloads the libraries of the JavaScript peers"),
    ("python3-venv", "python3", "runs the peers that are written in Python"),
];

/// Components of the Rust toolchain, and the cargo command that each one adds.
const COMPONENTS: &[(&str, &str)] = &[("rustfmt", "fmt"), ("clippy", "clippy")];

/// Installs everything that the tests need.
pub(crate) fn install() -> Result<(), String> {
    components()?;
    install_missing(&[TO_BUILD, TO_TEST, &without_program(LANGUAGES)].concat())
}

/// Installs everything that a build of all backends needs.
pub(crate) fn install_to_build() -> Result<(), String> {
    install_missing(TO_BUILD)
}

/// Installs what the benchmark of the peers needs. A program that is already there, from wherever, is not installed again.
///
/// Never fails: a peer whose toolchain is missing is reported as not run.
pub(crate) fn install_for_peers() {
    if let Err(why) = install_missing(&[TO_BUILD, TO_TEST].concat()) {
        println!("{why}\n");
    }
    if let Err(why) = install_missing(&without_program(TO_COMPARE)) {
        println!("{why}\n");
    }
}

/// Installs what the benchmark of the clients needs.
///
/// Never fails: a language whose toolchain is missing is reported as not run.
pub(crate) fn install_for_clients() {
    let redis = ("redis-server", "the server that all of them use");
    for packages in [[TO_BUILD, &[redis]].concat(), without_program(TO_COMPARE)] {
        if let Err(why) = install_missing(&packages) {
            println!("{why}\n");
        }
    }
}

/// The packages whose program is not there yet, from wherever.
fn without_program<'a>(packages: &[(&'a str, &str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let missing = packages.iter().filter(|(_, program, _)| !is_on_path(program));
    missing.map(|(package, _, why)| (*package, *why)).collect()
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Installs missing packages. Without the right to do so, says which command does it.
fn install_missing(packages: &[(&str, &str)]) -> Result<(), String> {
    let missing: Vec<_> = packages.iter().filter(|(name, _)| !is_installed(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !runs("dpkg-query", &["--version"]) {
        let list: Vec<_> = missing.iter().map(|(name, why)| format!("  {name}: {why}")).collect();
        println!("This system is not Debian. Install these yourself:\n{}", list.join("\n"));
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
    let Some(mut privileged) = privileged() else {
        let list: Vec<_> = missing.iter().map(|(name, why)| format!("  {name}: {why}")).collect();
        let names = names.join(" ");
        return Err(format!(
            "these packages are missing:\n{}\n\nrun this, then try again:\n\n    sudo apt-get install -y {names}",
            list.join("\n")
        ));
    };
    println!("installing {}", names.join(", "));
    let install =
        format!("apt-get update -qq && apt-get install -y -qq --no-install-recommends {}", names.join(" "));
    let status = privileged.args(["sh", "-c", &install]).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{install}: {status}")),
        Err(error) => Err(format!("{install}: {error}")),
    }
}

fn components() -> Result<(), String> {
    for (component, subcommand) in COMPONENTS {
        let there = crate::cargo([*subcommand, "--version"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if !there && !runs("rustup", &["component", "add", component]) {
            return Err(format!("{component} is missing: rustup component add {component}"));
        }
    }
    Ok(())
}

fn is_installed(package: &str) -> bool {
    let output = Command::new("dpkg-query").args(["-W", "-f=${db:Status-Status}", package]).output();
    output.is_ok_and(|output| output.status.success() && output.stdout == b"installed")
}

/// The prefix of a command that runs as root; `None` if there is no way to be root.
fn privileged() -> Option<Command> {
    let is_root =
        Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0");
    let mut command = if is_root {
        Command::new("env")
    } else if runs("sudo", &["-n", "true"]) || (std::io::stdin().is_terminal() && runs("sudo", &["-V"])) {
        let mut sudo = Command::new("sudo");
        sudo.arg("env");
        sudo
    } else {
        return None;
    };
    command.arg("DEBIAN_FRONTEND=noninteractive");
    Some(command)
}

fn runs(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
