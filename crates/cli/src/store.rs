//! The store: `--store`, else `LEASEHOLD_STORE`, else `config.toml`, else a SQLite file of this user.

use std::{
    env, fmt, fs,
    os::unix::{ffi::OsStrExt as _, fs::DirBuilderExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use leasehold::{Backend, ErrorKind, Founded};
use leasehold_support::password;

use crate::{
    args::Global,
    config::{self, Config},
    exit::{Exit, Failure},
    redact::{self, UrlParts},
};

/// The URL of the store, with its password. `Debug` shows no secret.
#[derive(Clone)]
pub(crate) struct Store {
    /// The URL with its password.
    url: String,
    /// The URL without secrets.
    shown: String,
    password_file: Option<PathBuf>,
}

impl Store {
    /// The store for this call, in the order of the module documentation.
    pub(crate) fn choose(global: &Global, config: &Config) -> Result<Store, Failure> {
        let configured = global.store.as_deref().filter(|url| !url.is_empty()).or(config.store.as_deref());
        let password_file = global.password_file.clone().or_else(|| config.password_file.clone());
        let url = match configured {
            None | Some("sqlite:") => user_file()?,
            Some(url) => absolute(url),
        };
        Store::with_password(url, password_file)
    }

    /// The store with this URL; without one, the store for this call.
    pub(crate) fn choose_or(url: Option<&str>, global: &Global, config: &Config) -> Result<Store, Failure> {
        let Some(url) = url else { return Store::choose(global, config) };
        let password_file = global.password_file.clone().or_else(|| config.password_file.clone());
        Store::with_password(url.to_owned(), password_file)
    }

    /// Founds the set of Redlock servers that the URL names.
    pub(crate) async fn found(&self) -> Result<Founded, Failure> {
        leasehold::found_redlock(&self.url).await.map_err(invalid_is_config)
    }

    fn with_password(url: String, password_file: Option<PathBuf>) -> Result<Store, Failure> {
        let Some(parts) = UrlParts::of(&url) else {
            let shown = url.clone();
            return Ok(Store { url, shown, password_file });
        };
        parts.secrets().for_each(redact::register);
        let shown = parts.stripped();
        let url = match password(password_file.as_deref())? {
            Some(password) if parts.password.is_none() => {
                redact::register(&password);
                parts.with_password(&password)
            }
            _ => url,
        };
        Ok(Store { url, shown, password_file })
    }

    /// Connects to the store.
    pub(crate) async fn open(&self) -> Result<Arc<dyn Backend>, Failure> {
        open_url(&self.url).await.map_err(invalid_is_config)
    }

    /// The URL without secrets, to show it and to pass it to a child process.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// The path of the password file. The path is no secret.
    pub(crate) fn password_file(&self) -> Option<&Path> {
        self.password_file.as_deref()
    }
}

/// A wrong URL is a wrong configuration (78), also if it was typed: it is not an error in the options (64).
fn invalid_is_config(error: leasehold::Error) -> Failure {
    let kind = error.kind();
    let failure = Failure::from(error);
    if kind == ErrorKind::Invalid { failure.with_code(Exit::Config.code()) } else { failure }
}

async fn open_url(url: &str) -> leasehold::Result<Arc<dyn Backend>> {
    // On this thread: nothing else runs yet, and a thread of its own takes longer than to open the file (ADR
    // 0042).
    #[cfg(feature = "sqlite")]
    if let Some(path) = url.strip_prefix("sqlite:") {
        let config = leasehold_sqlite::Config::parse(path)?;
        let environment = Arc::new(leasehold::System::current());
        return Ok(Arc::new(leasehold_sqlite::Sqlite::open(config, environment)?));
    }
    leasehold::open(url).await
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.shown).finish()
    }
}

/// The password from the file, else from `LEASEHOLD_PASSWORD`.
fn password(file: Option<&Path>) -> Result<Option<String>, Failure> {
    let Some(file) = file else { return Ok(env::var("LEASEHOLD_PASSWORD").ok().filter(|p| !p.is_empty())) };
    let password = password::read_file(file)
        .map_err(|error| Failure::config(error.to_string()).hint("name another file with --password-file"))?;
    Ok(Some(password))
}

/// The URL of the SQLite file in `LEASEHOLD_DIR`, else in the state directory of the user. Creates the
/// directory.
fn user_file() -> Result<String, Failure> {
    let configured =
        env::var_os("LEASEHOLD_DIR").filter(|directory| !directory.is_empty()).map(PathBuf::from);
    let directory = configured.or_else(state_directory).ok_or_else(|| {
        Failure::config("there is no place for the default store: neither LEASEHOLD_DIR nor HOME is set")
            .hint("set LEASEHOLD_DIR, or name a store with --store")
    })?;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    made.map_err(|error| {
        Failure::config(format!("the directory {} cannot be created: {error}", directory.display()))
            .hint("set LEASEHOLD_DIR, or name a store with --store")
    })?;
    Ok(file_url(&directory.join("leases.db")))
}

fn state_directory() -> Option<PathBuf> {
    let home = || config::directory("HOME").map(|home| home.join(".local/state"));
    config::directory("XDG_STATE_HOME").or_else(home).map(|state| state.join("leasehold"))
}

/// The URL with an absolute path. A child process may have another working directory, where a relative path
/// names another file.
fn absolute(url: &str) -> String {
    let Some(rest) = url.strip_prefix("sqlite:").map(|rest| rest.strip_prefix("//").unwrap_or(rest)) else {
        return url.to_owned();
    };
    let (path, options) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
    if path.is_empty() || path.starts_with('/') {
        return url.to_owned();
    }
    match env::current_dir() {
        Ok(here) => format!("{}/{path}{options}", file_url(&here).trim_end_matches('/')),
        Err(_) => url.to_owned(),
    }
}

fn file_url(path: &Path) -> String {
    let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'%' | b'?' | b'#');
    path.as_os_str().as_bytes().iter().fold("sqlite:".to_owned(), |mut url, &byte| {
        if plain(byte) {
            url.push(char::from(byte));
        } else {
            url.push_str(&format!("%{byte:02X}"));
        }
        url
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_path_is_made_absolute() {
        let here = env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        assert_eq!(absolute("sqlite:a.db?durability=full"), format!("sqlite:{here}/a.db?durability=full"));
        assert_eq!(absolute("sqlite://a.db"), format!("sqlite:{here}/a.db"));
        for url in ["sqlite:/a.db", "sqlite:///a.db", "sqlite:", "redis://h/"] {
            assert_eq!(absolute(url), url);
        }
        assert_eq!(file_url(Path::new("/a b?/%.db")), "sqlite:/a%20b%3F/%25.db");
    }

    #[test]
    fn a_password_is_used_and_never_shown() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("password");
        fs::write(&file, "sesame\n").unwrap();
        let store = Store::with_password("redis://u@h/".into(), Some(file)).unwrap();
        assert_eq!((store.url.as_str(), store.shown()), ("redis://u:sesame@h/", "redis://u@h/"));
        assert!(!format!("{store:?}").contains("sesame"));
        let store = Store::with_password("redis://u:other@h/".into(), None).unwrap();
        assert_eq!((store.url.as_str(), store.shown()), ("redis://u:other@h/", "redis://u@h/"));
    }
}
