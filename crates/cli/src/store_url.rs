//! The URL of the store, from where it was given to the form that every process can use:
//!
//! 1. `--store`, else `LEASEHOLD_STORE`, else `store` in `config.toml`.
//! 2. Refuse what would be another store in every process: an empty text, `sqlite:` without a path, `memory:`.
//! 3. Take `?namespace=NAME` out of it.
//! 4. Make its paths absolute: the command of `leasehold run` may change its directory.

use std::{
    env,
    ffi::OsString,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
};

use leasehold_support::url;

use crate::{
    args::Global,
    config,
    exit::{Exit, Failure},
};

/// A URL that was given, and the namespace in it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GivenUrl {
    /// Without the namespace, and with absolute paths. It may contain a password.
    pub(crate) url: String,
    pub(crate) namespace: Option<String>,
}

/// Where a URL was given.
#[derive(Clone, Copy, Debug)]
enum Source<'a> {
    Option,
    Variable,
    File(&'a Path),
}

impl Source<'_> {
    fn name(self) -> String {
        match self {
            Source::Option => "--store".to_owned(),
            Source::Variable => "the variable LEASEHOLD_STORE".to_owned(),
            Source::File(path) => format!("store in {}", path.display()),
        }
    }

    /// A URL that is no URL: an error in the command line, or in the file.
    fn failure(self, problem: &str) -> Failure {
        let (exit, kind) = match self {
            Source::File(_) => (Exit::Config, "config"),
            Source::Option | Source::Variable => (Exit::Usage, "usage"),
        };
        let without = match self {
            Source::Option => "leave --store out",
            Source::Variable => "unset it",
            Source::File(_) => "remove the line",
        };
        let hint = format!("{without} to use the default store, or name a store such as sqlite:PATH");
        Failure::new(exit, kind, format!("{} {problem}", self.name())).hint(hint)
    }
}

/// The URL that was given, if any.
pub(crate) fn given(global: &Global) -> Result<Option<GivenUrl>, Failure> {
    let config = &global.loaded;
    let (typed, source, base) = match (&global.store, &config.store, &config.path) {
        (Some(typed), ..) => {
            let source = if global.typed.store { Source::Option } else { Source::Variable };
            (typed, source, None)
        }
        (None, Some(typed), Some(path)) => (typed, Source::File(path), path.parent()),
        _ => return Ok(None),
    };
    read(typed, source, base).map(Some)
}

/// Steps 2 to 4 for a URL that was given as an argument of a command.
pub(crate) fn argument(typed: &str) -> Result<GivenUrl, Failure> {
    read(typed, Source::Option, None)
}

fn read(typed: &str, source: Source<'_>, base: Option<&Path>) -> Result<GivenUrl, Failure> {
    if typed.trim().is_empty() {
        return Err(source.failure("is empty"));
    }
    let scheme = typed.split(':').next().unwrap_or(typed);
    if scheme == "memory" {
        return Err(in_one_process("memory:"));
    }
    let (url, namespace) = url::take_option(typed, "namespace").map_err(Failure::from)?;
    let url = with_absolute_options(&url, base);
    let Some(rest) = url.strip_prefix("sqlite:").map(|rest| rest.strip_prefix("//").unwrap_or(rest)) else {
        return Ok(GivenUrl { url, namespace });
    };
    let (path, options) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
    match path {
        "" => Err(source.failure("has no path after sqlite:")),
        ":memory:" => Err(in_one_process("sqlite::memory:")),
        path => {
            // A path that cannot be decoded is reported when the store is opened.
            let decoded = url::decode_bytes(path).map(|bytes| absolute(&path_of(bytes), base));
            let url = decoded.map_or(url.clone(), |path| file_url(&path) + options);
            Ok(GivenUrl { url, namespace })
        }
    }
}

fn in_one_process(store: &str) -> Failure {
    let message = format!("{store} lives in one process, so every command would get the lease");
    Failure::config(message).hint("use a file, such as sqlite:PATH, or a server")
}

/// The URL with the paths in its options (`password_file`, `ca_file` and others) made absolute.
fn with_absolute_options(url: &str, base: Option<&Path>) -> String {
    let Some((start, options)) = url.split_once('?') else { return url.to_owned() };
    let options = options.split('&').map(|option| match option.split_once('=') {
        Some((name, value)) if name.ends_with("_file") && !value.is_empty() => {
            let path = url::decode_bytes(value).map(|bytes| absolute(&path_of(bytes), base));
            path.map_or(option.to_owned(), |path| format!("{name}={}", encode_path(&path)))
        }
        _ => option.to_owned(),
    });
    format!("{start}?{}", options.collect::<Vec<_>>().join("&"))
}

/// The path of the file in a SQLite URL.
pub(crate) fn file_of(url: &str) -> Option<PathBuf> {
    let rest = url.strip_prefix("sqlite:")?;
    let path = rest.strip_prefix("//").unwrap_or(rest);
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    url::decode_bytes(path).ok().map(path_of)
}

/// The same URL, but a SQLite file is not created if it is missing.
pub(crate) fn without_creating(url: &str) -> String {
    let separator = if url.contains('?') { '&' } else { '?' };
    if url.starts_with("sqlite:") { format!("{url}{separator}create=no") } else { url.to_owned() }
}

fn path_of(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes))
}

/// The path with `~/` replaced by the home directory, and from the root: relative to `base`, else to the
/// working directory.
pub(crate) fn absolute(path: &Path, base: Option<&Path>) -> PathBuf {
    let in_home =
        path.strip_prefix("~").ok().zip(config::directory("HOME")).map(|(rest, home)| home.join(rest));
    let path = in_home.unwrap_or_else(|| base.map_or(path.to_owned(), |base| base.join(path)));
    std::path::absolute(&path).unwrap_or(path)
}

/// The URL of a SQLite file.
pub(crate) fn file_url(path: &Path) -> String {
    format!("sqlite:{}", encode_path(path))
}

fn encode_path(path: &Path) -> String {
    let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'%' | b'?' | b'#' | b'&');
    path.as_os_str().as_bytes().iter().fold(String::new(), |mut url, &byte| {
        if plain(byte) {
            url.push(char::from(byte));
        } else {
            url.push_str(&format!("%{byte:02X}"));
        }
        url
    })
}

/// The path of the default store: in `LEASEHOLD_DIR`, else in the state directory of the user.
pub(crate) fn default_file() -> Result<PathBuf, Failure> {
    let directory = match env::var_os("LEASEHOLD_DIR") {
        Some(empty) if empty.is_empty() => {
            return Err(Failure::usage("the variable LEASEHOLD_DIR is empty")
                .hint("unset it to use the default directory, or give it the path of a directory"));
        }
        Some(directory) => Some(absolute(Path::new(&directory), None)),
        None => state_directory(),
    };
    let directory = directory.ok_or_else(|| {
        Failure::config("there is no place for the default store: neither LEASEHOLD_DIR nor HOME is set")
            .hint("set LEASEHOLD_DIR, or name a store with --store")
    })?;
    Ok(directory.join("leases.db"))
}

fn state_directory() -> Option<PathBuf> {
    let home = || config::directory("HOME").map(|home| home.join(".local/state"));
    config::directory("XDG_STATE_HOME").or_else(home).map(|state| state.join("leasehold"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(typed: &str) -> String {
        argument(typed).unwrap().url
    }

    #[test]
    fn paths_are_made_absolute() {
        let here = env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        let home = env::var("HOME").unwrap();
        let table = [
            ("sqlite:a.db?durability=full", format!("sqlite:{here}/a.db?durability=full")),
            ("sqlite://a.db", format!("sqlite:{here}/a.db")),
            ("sqlite:/a%20b.db", "sqlite:/a%20b.db".to_owned()),
            ("sqlite:///a.db", "sqlite:/a.db".to_owned()),
            ("sqlite:~/a.db", format!("sqlite:{home}/a.db")),
            ("redis://h/", "redis://h/".to_owned()),
            ("rediss://h/?ca_file=c.pem&tls=true", format!("rediss://h/?ca_file={here}/c.pem&tls=true")),
        ];
        for (typed, expected) in table {
            assert_eq!(url(typed), expected, "{typed}");
        }
        let in_file =
            read("sqlite:a.db", Source::File(Path::new("/etc/x")), Some(Path::new("/etc"))).unwrap();
        assert_eq!(in_file.url, "sqlite:/etc/a.db");
        assert_eq!(file_url(Path::new("/a b?/%.db")), "sqlite:/a%20b%3F/%25.db");
    }

    #[test]
    fn a_namespace_is_taken_out() {
        let given = argument("redis://h/?namespace=acme&timeout=1s").unwrap();
        assert_eq!((given.url.as_str(), given.namespace.as_deref()), ("redis://h/?timeout=1s", Some("acme")));
    }

    #[test]
    fn what_is_no_shared_store_is_refused() {
        for (typed, code) in [("", 64), (" ", 64), ("sqlite:", 64), ("sqlite://", 64), ("sqlite:?x=y", 64)] {
            assert_eq!(argument(typed).unwrap_err().code, code, "{typed}");
        }
        for typed in ["memory:", "memory", "sqlite::memory:", "memory:?namespace=a"] {
            assert_eq!(argument(typed).unwrap_err().code, 78, "{typed}");
        }
        let in_file = read("", Source::File(Path::new("/etc/x")), None).unwrap_err();
        assert_eq!(in_file.code, 78);
    }
}
