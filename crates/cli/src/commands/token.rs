//! `leasehold token new | ls | revoke`: the tokens file of `leasehold serve`.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, SystemTime},
};

use clap::{Args, Subcommand, ValueEnum};
use leasehold_server::{NewToken, TokenEntry, TokenTable};
use serde_json::json;

use crate::{
    args,
    exit::Failure,
    output::{self, Output},
};

#[derive(Debug, Args)]
pub(crate) struct Token {
    /// The tokens file; `new` creates it
    #[arg(
        long,
        value_name = "FILE",
        env = "LEASEHOLD_TOKENS_FILE",
        global = true,
        default_value = "tokens.toml"
    )]
    tokens: PathBuf,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a token, and print it: it is stored nowhere, and cannot be shown again
    New(Box<New>),
    /// List the tokens of the file
    Ls,
    /// Remove a token from the file. Its open requests end within seconds
    Revoke {
        /// The id: the eight digits after lh_
        id: String,
    },
}

#[derive(Debug, Args)]
struct New {
    /// Who has the token: shown in the audit trail
    subject: String,
    /// What it may do: look; acquire and release; give orders. Client and operator include viewer
    #[arg(long, value_enum, required = true)]
    role: Vec<RoleName>,
    /// Only in this namespace; - is for resources without one [default: everywhere]
    #[arg(long, value_name = "NAME")]
    namespace: Vec<String>,
    /// Only resources of this kind [default: all]
    #[arg(long, value_name = "NAME")]
    kind: Vec<String>,
    /// How long it is valid, such as 90d [default: until it is revoked]
    #[arg(long, value_name = "DURATION", value_parser = expires_in)]
    expires_in: Option<Duration>,
    /// The longest ttl of its leases
    #[arg(long, value_name = "DURATION", value_parser = args::duration)]
    max_ttl: Option<Duration>,
    /// The most claims of it that may wait in open requests
    #[arg(long, value_name = "N")]
    max_waiters: Option<usize>,
    /// The most requests per second; renewals and releases have the same number of their own
    #[arg(long, value_name = "N")]
    max_rate: Option<u32>,
    /// A client certificate for this DNS name counts as the token
    #[arg(long, value_name = "NAME")]
    certificate: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RoleName {
    Viewer,
    Client,
    Operator,
}

impl Token {
    pub(crate) fn run(&self, output: Output) -> Result<ExitCode, Failure> {
        let _lock = match &self.action {
            Action::Ls => None,
            Action::New(_) | Action::Revoke { .. } => Some(lock(&self.tokens)?),
        };
        match &self.action {
            Action::New(new) => self.add(new, output)?,
            Action::Ls => self.list(output)?,
            Action::Revoke { id } => self.revoke(id, output)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn read(&self) -> Result<(String, TokenTable), Failure> {
        let failed =
            |what: String| Failure::config(format!("the tokens file {}: {what}", self.tokens.display()));
        let text = match fs::read_to_string(&self.tokens) {
            Ok(text) => text,
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && matches!(self.action, Action::New(_)) =>
            {
                String::new()
            }
            Err(error) => return Err(failed(error.to_string()).hint("name another file with --tokens")),
        };
        let table = TokenTable::parse(&text).map_err(|error| failed(error.to_string()))?;
        Ok((text, table))
    }

    fn add(&self, new: &New, output: Output) -> Result<(), Failure> {
        let (mut text, _) = self.read()?;
        let token = NewToken::fresh(&leasehold::System::current());
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&new.entry(&token));
        // A value that the server would refuse must not get into the file.
        TokenTable::parse(&text).map_err(|error| Failure::usage(error.to_string()))?;
        replace(&self.tokens, &text)?;
        if output.json {
            return output::print(format!("{}\n", json!({"token": token.token, "id": token.id})).as_bytes());
        }
        output.note(&format!(
            "token {} is in {}; it is shown only this once",
            token.id,
            self.tokens.display()
        ));
        output::print(format!("{}\n", token.token).as_bytes())
    }

    fn list(&self, output: Output) -> Result<(), Failure> {
        let (_, table) = self.read()?;
        let mut text = String::new();
        for entry in table.entries() {
            text.push_str(&if output.json { format!("{}\n", as_json(&entry)) } else { as_line(&entry) });
        }
        output::print(text.as_bytes())
    }

    fn revoke(&self, id: &str, output: Output) -> Result<(), Failure> {
        let (text, table) = self.read()?;
        if !table.entries().iter().any(|entry| entry.id == id) {
            let message = format!("there is no token {id:?} in {}", self.tokens.display());
            return Err(Failure::usage(message).hint("list them with `leasehold token ls`"));
        }
        let rest = without(&text, id);
        let left = TokenTable::parse(&rest).map_err(|error| Failure::internal(error.to_string()))?;
        if left.entries().len() + 1 != table.entries().len() {
            let message = format!("{} has a form that this command cannot change", self.tokens.display());
            return Err(Failure::config(message).hint(format!("remove the entry of {id} by hand")));
        }
        replace(&self.tokens, &rest)?;
        output.note(&format!("token {id} is revoked: servers end its open requests within seconds"));
        Ok(())
    }
}

impl New {
    fn entry(&self, token: &NewToken) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string(); // as in TOML
        let list = |names: &[String]| {
            format!("[{}]", names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", "))
        };
        let roles: Vec<String> = self
            .role
            .iter()
            .filter_map(|role| Some(role.to_possible_value()?.get_name().to_owned()))
            .collect();
        let mut lines = vec![
            "\n[[token]]".to_owned(),
            format!("id = {}", quoted(&token.id)),
            format!("sha256 = {}", quoted(&token.sha256)),
            format!("subject = {}", quoted(&self.subject)),
            format!("roles = {}", list(&roles)),
        ];
        let mut add =
            |name: &str, value: Option<String>| lines.extend(value.map(|value| format!("{name} = {value}")));
        add("namespaces", (!self.namespace.is_empty()).then(|| list(&self.namespace)));
        add("kinds", (!self.kind.is_empty()).then(|| list(&self.kind)));
        let expires = self
            .expires_in
            .map(|left| humantime::format_rfc3339_seconds(SystemTime::now() + left).to_string());
        add("expires", expires.map(|time| quoted(&time)));
        add("certificate", self.certificate.as_deref().map(quoted));
        add("ttl_ms_max", self.max_ttl.map(|ttl| ttl.as_millis().to_string()));
        add("waiters_max", self.max_waiters.map(|most| most.to_string()));
        add("requests_per_second", self.max_rate.map(|most| most.to_string()));
        lines.join("\n") + "\n"
    }
}

/// The text without the entry of this token.
fn without(text: &str, id: &str) -> String {
    let is_entry = |part: &str| part.lines().any(|line| line.replace(' ', "") == format!("id=\"{id}\""));
    let mut parts = text.split("[[token]]");
    let mut rest = parts.next().unwrap_or("").to_owned();
    for part in parts.filter(|part| !is_entry(part)) {
        rest.push_str("[[token]]");
        rest.push_str(part);
    }
    rest
}

/// The longest time until a token expires: a hundred years.
const EXPIRES_IN_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

fn expires_in(text: &str) -> Result<Duration, String> {
    let left = args::duration(text)?;
    if left < Duration::from_secs(1) || left > EXPIRES_IN_MAX {
        return Err("a token lasts between a second and a hundred years".to_owned());
    }
    Ok(left)
}

/// Waits for other commands that change the file. The directory is locked, because the file itself is replaced.
fn lock(path: &Path) -> Result<fs::File, Failure> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let locked = fs::File::open(directory).and_then(|file| file.lock().map(|()| file));
    locked.map_err(|error| {
        let message =
            format!("the directory of the tokens file, {}, cannot be locked: {error}", directory.display());
        Failure::config(message).hint("name a file in another directory with --tokens")
    })
}

/// Replaces the file by renaming: a server reads the old or the new one, never a part. A new file is for this user alone; one that was
/// there keeps its owner and its permissions, or the server could not read it any more.
fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let mut next = path.as_os_str().to_owned();
    next.push(format!(".{}", std::process::id()));
    let next = PathBuf::from(next);
    write_beside(&next, path, text).map_err(|error| {
        drop(fs::remove_file(&next));
        Failure::config(format!("the tokens file {} cannot be written: {error}", path.display()))
    })
}

fn write_beside(next: &Path, path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write as _;
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(next)?;
    match fs::metadata(path) {
        Ok(earlier) => {
            fchown(&file, Some(earlier.uid()), Some(earlier.gid()))?;
            file.set_permissions(earlier.permissions())?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(next, path)
}

fn expires(entry: &TokenEntry) -> Option<String> {
    entry.expires.map(|at| humantime::format_rfc3339_seconds(at.to_system_time()).to_string())
}

fn as_json(entry: &TokenEntry) -> serde_json::Value {
    json!({
        "id": entry.id, "subject": entry.subject, "roles": entry.roles.names(), "namespaces": entry.namespaces,
        "kinds": entry.kinds, "expires": expires(entry), "certificate": entry.certificate,
    })
}

fn as_line(entry: &TokenEntry) -> String {
    let all = |names: &Option<Vec<String>>| {
        names.as_ref().map_or_else(|| "all".to_owned(), |names| names.join(","))
    };
    let until = expires(entry).unwrap_or_else(|| "never".to_owned());
    format!(
        "{}  {}  roles {}  namespaces {}  kinds {}  expires {until}\n",
        entry.id,
        entry.subject,
        entry.roles.names().join(","),
        all(&entry.namespaces),
        all(&entry.kinds)
    )
}
