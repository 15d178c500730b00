//! Where leases are kept: flag, else `LEASEHOLD_STORE`, else `config.toml`, else a SQLite file of this user.

use std::{
    env, fmt, fs,
    os::unix::{ffi::OsStrExt as _, fs::DirBuilderExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use leasehold::{Backend, ErrorKind};

use crate::{
    args::Global,
    config::{self, Config},
    exit::{Exit, Failure},
    secret::{self, Parts},
};

/// Where leases are kept. Its `Debug` shows no secret.
#[derive(Clone)]
pub(crate) struct Store {
    url: String,
    shown: String,
    password_file: Option<PathBuf>,
}

impl Store {
    /// The first that is said: flag, environment, configuration; else the user's own file.
    pub(crate) fn choose(global: &Global, config: &Config) -> Result<Store, Failure> {
        let said = global.store.as_deref().filter(|url| !url.is_empty()).or(config.store.as_deref());
        let password_file = global.password_file.clone().or_else(|| config.password_file.clone());
        let url = match said {
            None | Some("sqlite:") => own_file()?,
            Some(url) => absolute(url),
        };
        Store::with_password(url, password_file)
    }

    fn with_password(url: String, password_file: Option<PathBuf>) -> Result<Store, Failure> {
        let Some(parts) = Parts::of(&url) else {
            let shown = url.clone();
            return Ok(Store { url, shown, password_file });
        };
        parts.secrets().for_each(secret::keep);
        let shown = parts.stripped();
        let url = match password(password_file.as_deref())? {
            Some(password) if parts.password.is_none() => {
                secret::keep(&password);
                parts.with_password(&password)
            }
            _ => url,
        };
        Ok(Store { url, shown, password_file })
    }

    /// Opens it.
    pub(crate) async fn open(&self) -> Result<Arc<dyn Backend>, Failure> {
        leasehold::open(&self.url).await.map_err(|error| {
            let kind = error.kind();
            let failure = Failure::from(error);
            // A URL that makes no sense is the configuration's fault, whoever wrote it there.
            if kind == ErrorKind::Invalid { failure.with_code(Exit::Config.code()) } else { failure }
        })
    }

    /// As it may be shown, and given to a child: without secrets.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// Where the password is, which is not the password.
    pub(crate) fn password_file(&self) -> Option<&Path> {
        self.password_file.as_deref()
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.shown).finish()
    }
}

fn password(file: Option<&Path>) -> Result<Option<String>, Failure> {
    let Some(file) = file else { return Ok(env::var("LEASEHOLD_PASSWORD").ok().filter(|p| !p.is_empty())) };
    let text = fs::read_to_string(file).map_err(|error| {
        let message = format!("{}: the password cannot be read: {error}", file.display());
        Failure::config(message).hint("name another file with --password-file")
    })?;
    Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
}

/// `LEASEHOLD_DIR`, else the user's state directory.
fn own_file() -> Result<String, Failure> {
    let given = env::var_os("LEASEHOLD_DIR").filter(|directory| !directory.is_empty()).map(PathBuf::from);
    let directory = given.or_else(state_directory).ok_or_else(|| {
        Failure::config("neither LEASEHOLD_DIR nor HOME says where to keep leases")
            .hint("set LEASEHOLD_DIR, or name a store with --store")
    })?;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    made.map_err(|error| {
        Failure::config(format!("{}: cannot be made: {error}", directory.display()))
            .hint("set LEASEHOLD_DIR, or name a store with --store")
    })?;
    Ok(file_url(&directory.join("leases.db")))
}

fn state_directory() -> Option<PathBuf> {
    let home = || config::directory("HOME").map(|home| home.join(".local/state"));
    config::directory("XDG_STATE_HOME").or_else(home).map(|state| state.join("leasehold"))
}

/// A relative path means another file elsewhere, and a child may go elsewhere.
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
    fn a_password_is_used_and_not_shown() {
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
