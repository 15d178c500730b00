//! The store: which one ([`store_url`]), its password, and how it is opened.
//!
//! A command that leases creates the store. A command that only reads creates nothing: the default store
//! counts as empty until something was leased there, and a file that was named must exist (ADR 0070).

use std::{
    env, fmt, fs,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use leasehold::{Backend, ErrorKind, Founded};

use crate::{
    args::Global,
    exit::{Exit, Failure},
    missing_store::MissingStore,
    output::Output,
    redact::{self, UrlParts},
    secret_file, store_url,
};

/// The URL of the store, with its password. `Debug` shows no secret.
#[derive(Clone)]
pub(crate) struct Store {
    /// The URL with its password.
    url: String,
    /// The URL without secrets.
    shown: String,
    password_file: Option<PathBuf>,
    /// Whether the secrets in `url` were given in a URL, and not by a file or a variable.
    has_given_secrets: bool,
    /// The file of a SQLite store.
    file: Option<StoreFile>,
}

/// The file of a SQLite store.
#[derive(Clone, Debug)]
struct StoreFile {
    path: PathBuf,
    /// Nobody named it: it is the default store of this user.
    is_default: bool,
}

impl Store {
    /// The store for this call: the one that was given, else the default file of this user.
    pub(crate) fn choose(global: &Global) -> Result<Store, Failure> {
        match store_url::given(global)? {
            Some(given) => Store::with_password(given.url, global),
            None => {
                let mut store =
                    Store::with_password(store_url::file_url(&store_url::default_file()?), global)?;
                store.file.iter_mut().for_each(|file| file.is_default = true);
                Ok(store)
            }
        }
    }

    /// The store with this URL; without one, the store for this call.
    pub(crate) fn choose_or(url: Option<&str>, global: &Global) -> Result<Store, Failure> {
        let Some(url) = url else { return Store::choose(global) };
        Store::with_password(store_url::argument(url)?.url, global)
    }

    /// Founds the set of Redlock servers that the URL names.
    pub(crate) async fn found(&self) -> Result<Founded, Failure> {
        leasehold::found_redlock(&self.url).await.map_err(|error| self.failure(error))
    }

    fn with_password(url: String, global: &Global) -> Result<Store, Failure> {
        let file = store_url::file_of(&url).map(|path| StoreFile { path, is_default: false });
        let password_file = global.password_file.clone();
        let Some(parts) = UrlParts::of(&url) else {
            let shown = url.clone();
            return Ok(Store { url, shown, password_file, has_given_secrets: false, file });
        };
        let output = Output::new(global);
        parts.secrets().for_each(redact::register);
        for path in parts.files().filter(|path| path.0.ends_with("password_file")) {
            secret_file::check_permissions(&path.1, "password file", output)?;
        }
        let (shown, has_given_secrets) = (parts.stripped(), parts.secrets().next().is_some());
        let url = match password(password_file.as_deref(), output)? {
            Some(password) if parts.password.is_none() => parts.with_password(&password),
            _ => url,
        };
        Ok(Store { url, shown, password_file, has_given_secrets, file })
    }

    /// Connects to the store. Creates the file of the default store, with its directory; of another one, only
    /// the file.
    pub(crate) async fn open(&self) -> Result<Arc<dyn Backend>, Failure> {
        self.prepare_directory()?;
        open_url(&self.url).await.map_err(|error| self.failure(error))
    }

    /// Connects to the store to read from it. Creates nothing: see the module documentation.
    pub(crate) async fn open_to_read(&self, output: Output) -> Result<Arc<dyn Backend>, Failure> {
        match self.missing_file() {
            None => {
                let url = store_url::without_creating(&self.url);
                open_url(&url).await.map_err(|error| self.failure(error))
            }
            Some(file) if file.is_default => {
                output.note(&nothing_yet(&file.path));
                Ok(Arc::new(MissingStore::new(file.path.clone(), store_url::without_creating(&self.url))))
            }
            Some(file) => Err(Failure::config(nothing_yet(&file.path))
                .hint("check the path, or lease something with leasehold run")),
        }
    }

    /// Connects to the store if it exists. On a thread of its own, so that the caller can stop waiting.
    pub(crate) async fn open_existing(&self) -> Option<Arc<dyn Backend>> {
        if self.missing_file().is_some() {
            return None;
        }
        leasehold::open(&store_url::without_creating(&self.url)).await.ok()
    }

    fn missing_file(&self) -> Option<&StoreFile> {
        self.file.as_ref().filter(|file| matches!(file.path.try_exists(), Ok(false)))
    }

    /// Creates the directory of the default store. Any other directory must exist: its name may be a mistake.
    fn prepare_directory(&self) -> Result<(), Failure> {
        let Some(file) = &self.file else { return Ok(()) };
        let Some(directory) = file.path.parent().filter(|directory| !directory.exists()) else {
            return Ok(());
        };
        if !file.is_default {
            let message = format!("there is no directory {} for the store", directory.display());
            return Err(Failure::config(message).hint("create it, or name another file"));
        }
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| {
            Failure::config(format!("the directory {} cannot be created: {error}", directory.display()))
                .hint("set LEASEHOLD_DIR, or name a store with --store")
        })
    }

    /// A wrong URL is a wrong configuration (78), also if it was typed: it is not an error in the options
    /// (64). A refused login inside a run may lack the password that the outer run did not pass on.
    fn failure(&self, error: leasehold::Error) -> Failure {
        let kind = error.kind();
        let failure = Failure::from(error);
        let has_password = UrlParts::of(&self.url).is_none_or(|parts| parts.password.is_some());
        match kind {
            ErrorKind::Invalid => failure.with_code(Exit::Config.code()),
            ErrorKind::Denied if !has_password && env::var_os("LEASEHOLD_HELD").is_some() => failure.hint(
                "an outer leasehold run does not pass its password on: give it --pass-secrets, or use \
                 LEASEHOLD_PASSWORD_FILE",
            ),
            _ => failure,
        }
    }

    /// The URL without secrets, to show it and to pass it to a child process.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// The URL with its secrets, if they were given in a URL: for `--pass-secrets`.
    pub(crate) fn with_secrets(&self) -> Option<&str> {
        Some(self.url.as_str()).filter(|_| self.has_given_secrets)
    }

    /// The path of the password file. The path is no secret.
    pub(crate) fn password_file(&self) -> Option<&Path> {
        self.password_file.as_deref()
    }
}

fn nothing_yet(path: &Path) -> String {
    format!("there is no store at {}: nothing has been leased there yet", path.display())
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
fn password(file: Option<&Path>, output: Output) -> Result<Option<String>, Failure> {
    if let Some(file) = file {
        return secret_file::read(file, "password file", "--password-file", output).map(Some);
    }
    let password = env::var("LEASEHOLD_PASSWORD").ok().filter(|password| !password.is_empty());
    password.iter().for_each(|password| redact::register(password));
    Ok(password)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt as _;

    use super::*;

    #[test]
    fn a_password_is_used_and_never_shown() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("password");
        let mut options = fs::OpenOptions::new();
        let mut opened = options.write(true).create(true).mode(0o600).open(&file).unwrap();
        std::io::Write::write_all(&mut opened, b"sesame\n").unwrap();
        let with = Global { password_file: Some(file), ..Global::default() };
        let store = Store::with_password("redis://u@h/".into(), &with).unwrap();
        assert_eq!((store.url.as_str(), store.shown()), ("redis://u:sesame@h/", "redis://u@h/"));
        assert!(!format!("{store:?}").contains("sesame"));
        assert_eq!(store.with_secrets(), None);
        let store = Store::with_password("redis://u:other@h/".into(), &Global::default()).unwrap();
        assert_eq!((store.url.as_str(), store.shown()), ("redis://u:other@h/", "redis://u@h/"));
        assert_eq!(store.with_secrets(), Some("redis://u:other@h/"));
    }
}
