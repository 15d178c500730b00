//! Runs [schemathesis](https://schemathesis.io) against the real server: thousands of requests made from the OpenAPI document, valid
//! and invalid. There must be no server error, no undocumented status, content type, header or body, and no invalid request that is
//! accepted.
//!
//! Twice: without tokens, and with a token for everything, where requests without it must be refused.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use crate::{
    cargo,
    process_group::{self, Guard},
    python::{environment, succeed},
    root,
    steps::Steps,
    target_dir,
    test::FEATURES,
};

/// The tool bounds its own time; this is for one that hangs.
const LIMIT: Duration = Duration::from_secs(300);

pub(crate) fn run(steps: &mut Steps) -> bool {
    let mut build = cargo(["build", "--quiet", "--workspace", "--features", FEATURES, "--bin", "leasehold"]);
    steps.check("schemathesis: install", install)
        && steps.command("schemathesis: build", &mut build)
        && attack(steps, "schemathesis: open", false)
        && attack(steps, "schemathesis: tokens", true)
}

fn folder() -> PathBuf {
    target_dir().join("schemathesis")
}

/// Makes a Python environment with schemathesis and all that it needs.
fn install() -> Result<(), String> {
    environment("schemathesis", &root().join("xtask/schemathesis/requirements.txt")).map(drop)
}

/// The server, killed when the step is over.
struct Server {
    process: Child,
    url: String,
    /// Ends the server also if this program is stopped.
    _guard: Guard,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Server {
    fn start(data: &Path, tokens: Option<&Path>) -> Result<Server, String> {
        let mut command = leasehold();
        command.arg("--store").arg(format!("sqlite:{}", data.join("leases.db").display()));
        command
            .args(["--json", "serve", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if let Some(file) = tokens {
            command.arg("--tokens").arg(file);
        }
        let (mut process, guard) =
            process_group::spawn(&mut command).map_err(|error| format!("cannot run {command:?}: {error}"))?;
        let mut line = String::new();
        let read = process.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut line));
        let mut server = Server { process, url: String::new(), _guard: guard };
        // {"level":"database","listening":"http://127.0.0.1:34567","store":"sqlite:…"}
        let url = line.split("\"listening\":\"").nth(1).and_then(|rest| rest.split('"').next());
        server.url = url.ok_or_else(|| format!("the server did not start: {read:?} {line}"))?.to_owned();
        Ok(server)
    }
}

fn leasehold() -> Command {
    Command::new(target_dir().join("debug/leasehold"))
}

fn attack(steps: &mut Steps, name: &str, with_token: bool) -> bool {
    let prepared = prepare(with_token);
    let (server, token) = match prepared {
        Ok(prepared) => prepared,
        Err(why) => return steps.check(name, || Err(why)),
    };
    let settings = root().join("xtask/schemathesis");
    let mut command = Command::new(folder().join("venv/bin/schemathesis"));
    command.arg("--config-file").arg(settings.join("schemathesis.toml"));
    command.args(["run", &format!("{}/openapi.json", server.url), "--url", &server.url]);
    // A stream that does not end: the server's own tests read it.
    command.args(["--exclude-path", "/v1/events"]);
    command.env("PYTHONPATH", &settings).env("SCHEMATHESIS_HOOKS", "hooks").current_dir(folder());
    match token {
        Some(token) => command.args(["--header", &format!("Authorization: Bearer {token}")]),
        // Without tokens there is nothing to ignore.
        None => command.args(["--exclude-checks", "ignored_auth"]),
    };
    steps.command_within(LIMIT, name, &mut command)
}

/// A server on a new store, and a token for it.
fn prepare(with_token: bool) -> Result<(Server, Option<String>), String> {
    let data = folder().join(if with_token { "tokens" } else { "open" });
    drop(fs::remove_dir_all(&data));
    fs::create_dir_all(&data).map_err(|error| format!("{}: {error}", data.display()))?;
    if !with_token {
        return Ok((Server::start(&data, None)?, None));
    }
    let file = data.join("tokens.toml");
    let mut new = leasehold();
    new.arg("token").arg("--tokens").arg(&file).args([
        "new",
        "schemathesis",
        "--role",
        "client",
        "--role",
        "operator",
    ]);
    let token = succeed(&mut new)?.trim().to_owned();
    Ok((Server::start(&data, Some(&file))?, Some(token)))
}
