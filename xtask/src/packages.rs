//! Installs the packages that a build of everything and the tests need.

use std::{
    io::IsTerminal,
    path::PathBuf,
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
    ("procps", "kill and pgrep, with which the tests stop and find processes"),
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

/// Debian packages with the toolchains of other languages, the program that each one brings, and why. They may come from elsewhere:
/// see [`OLDEST`].
const LANGUAGES: &[(&str, &str, &str)] = &[
    ("default-jdk-headless", "javac", "builds and tests the Java client"),
    ("golang-go", "go", "builds and tests the Go client"),
    ("maven", "mvn", "builds the Java client, and downloads what its tests need"),
    ("nodejs", "node", "runs the tests of the dashboard, the TypeScript client, and pyright"),
    ("npm", "npm", "downloads the libraries of those tests"),
];

/// The oldest version of each program that the tests are known to pass with: the one of Debian 12. With it, the argument that prints the
/// version.
const OLDEST: &[(&str, &str, [u32; 2])] = &[
    ("go", "version", [1, 19]),
    ("java", "--version", [17, 0]),
    ("javac", "--version", [17, 0]),
    ("mvn", "--version", [3, 8]),
    ("node", "--version", [18, 0]),
    ("npm", "--version", [9, 0]),
    ("python3", "--version", [3, 11]),
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
    install_missing(&[TO_BUILD, TO_TEST, &without_program(LANGUAGES)].concat())?;
    let too_old: Vec<String> =
        OLDEST.iter().filter_map(|(name, arg, oldest)| too_old(name, arg, *oldest)).collect();
    if too_old.is_empty() { Ok(()) } else { Err(too_old.join("\n")) }
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
    find(program).is_some()
}

/// The program that PATH leads to.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Why this program cannot be used, if it is there and is too old.
fn too_old(program: &str, argument: &str, oldest: [u32; 2]) -> Option<String> {
    let path = find(program)?;
    let output = Command::new(&path).arg(argument).stdin(Stdio::null()).output();
    let printed = output.map_err(|error| error.to_string()).map(|output| {
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    });
    let found = match printed.as_deref().map(version) {
        Ok(Some(found)) if found >= oldest => return None,
        Ok(Some([major, minor])) => format!("is version {major}.{minor}"),
        Ok(None) => format!("does not say its version: {}", printed.unwrap_or_default().trim()),
        Err(why) => format!("does not run: {why}"),
    };
    let [major, minor] = oldest;
    Some(format!(
        "{} {found}. The tests need {program} {major}.{minor} or newer, as Debian 12 has it: install it, or put it first in PATH",
        path.display()
    ))
}

/// The first version in what a program prints, as in `v18.20.4`, `go1.19.8` or `javac 17`.
fn version(text: &str) -> Option<[u32; 2]> {
    let leading_number = |part: &str| {
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part[..end].parse().ok()
    };
    text.split_whitespace().find_map(|word| {
        let mut parts = word.trim_start_matches(|c: char| c.is_ascii_alphabetic()).split('.');
        let major = leading_number(parts.next()?)?;
        // The first version of a JDK has no second number.
        Some([major, parts.next().and_then(leading_number).unwrap_or(0)])
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found_in_what_a_program_prints() {
        for (text, expected) in [
            ("v18.20.8\n", [18, 20]),
            ("go version go1.19.8 linux/amd64", [1, 19]),
            ("go version go1.27rc1 linux/amd64", [1, 27]),
            ("openjdk 17.0.15 2025-04-15\nOpenJDK Runtime Environment", [17, 0]),
            ("javac 21", [21, 0]),
            ("\x1b[1mApache Maven 3.8.7\x1b[m\nMaven home: /usr", [3, 8]),
            ("9.2.0", [9, 2]),
            ("Python 3.11.2", [3, 11]),
        ] {
            assert_eq!(version(text), Some(expected), "{text}");
        }
        assert_eq!(version("Unrecognized option: --version"), None);
    }

    #[test]
    fn a_program_that_is_too_old_is_refused() {
        let [major, minor] = version("Python 3.11.2").expect("a version");
        assert_eq!(too_old("python3", "--version", [3, 0]), None);
        let why = too_old("python3", "--version", [major + 1, minor]).expect("there is no such Python");
        assert!(why.contains("/python3 is version 3."), "{why}");
        assert!(why.contains("need python3 4.11 or newer"), "{why}");
        assert_eq!(too_old("no-such-program", "--version", [1, 0]), None, "it is installed before");
    }
}
