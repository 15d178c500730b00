//! What has to be installed on the machine before the whole can be built, or the tests can run.

use std::{
    io::IsTerminal,
    process::{Command, Stdio},
};

/// Packages of Debian that a build of everything needs, and why.
const TO_BUILD: &[(&str, &str)] = &[
    ("gcc", "compiles SQLite, and links everything"),
    ("libc6-dev", "the headers that SQLite is compiled with"),
    ("libprotobuf-dev", "the types that protoc knows; Debian only recommends it"),
    ("protobuf-compiler", "protoc, which the client of etcd is built with"),
];

/// Packages of Debian that the tests need besides, and why. A backend whose tests start a server adds a line.
const TO_TEST: &[(&str, &str)] = &[
    ("e2fsprogs", "makes the file system whose plug the tests of SQLite pull"),
    ("mount", "mounts it, as root"),
    ("etcd-client", "etcdctl, which stands in line with us in the tests of etcd"),
    ("etcd-server", "the server of the etcd tests, which they start themselves"),
    ("pgbouncer", "the pool in front of PostgreSQL, which the tests start themselves"),
    ("pgpool2", "another pool in front of PostgreSQL, which the tests start themselves"),
    ("postgresql", "the server of the PostgreSQL tests, which they start themselves"),
    ("sqlite3", "the plain shell, which the tests of the fence write with"),
    ("ca-certificates", "whom TLS trusts unless it is told otherwise"),
    ("openssl", "makes the certificates of the tests of TLS"),
    ("default-jre-headless", "runs ZooKeeper, and Curator beside it"),
    ("libbsh-java", "runs the script by which the tests talk to Curator"),
    ("libcurator-recipes-java", "Curator itself, which must stand in one line with us"),
    ("zookeeper", "the servers of the ZooKeeper tests, which they start themselves"),
    ("redis-server", "the server of the Redis tests, which they start themselves"),
];

/// Components of the Rust toolchain, and the cargo command that each brings.
const COMPONENTS: &[(&str, &str)] = &[("rustfmt", "fmt"), ("clippy", "clippy")];

/// Installs what the tests need.
pub(crate) fn install() -> Result<(), String> {
    components()?;
    install_missing(&[TO_BUILD, TO_TEST].concat())
}

/// Installs what a build of everything needs.
pub(crate) fn install_to_build() -> Result<(), String> {
    install_missing(TO_BUILD)
}

/// Installs what is missing, if it may; says what to run, if it may not.
fn install_missing(packages: &[(&str, &str)]) -> Result<(), String> {
    let missing: Vec<_> = packages.iter().filter(|(name, _)| !is_installed(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !runs("dpkg-query", &["--version"]) {
        let list: Vec<_> = missing.iter().map(|(name, why)| format!("  {name}: {why}")).collect();
        println!("this is not Debian: see that you have\n{}", list.join("\n"));
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

/// What to put before a command that needs root, if we may have that.
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
