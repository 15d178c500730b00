//! Where the file is and how it is used.

use std::{
    ffi::OsString,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold_core::{Limits, Result};
use leasehold_support::url::{self, invalid};

/// Where the file is and how it is used.
///
/// ```
/// use leasehold_sqlite::{Config, Durability};
/// use std::time::Duration;
///
/// let config = Config::parse("/var/lib/app/leases.db?durability=full&busy_timeout=2s")?;
/// assert_eq!(config.path().to_str(), Some("/var/lib/app/leases.db"));
/// let same = Config::new("/var/lib/app/leases.db").durability(Durability::Full).busy_timeout(Duration::from_secs(2));
/// assert_eq!(config, same);
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Config {
    path: PathBuf,
    durability: Durability,
    busy_timeout: Duration,
    any_file_system: bool,
    boot: Option<String>,
    line_max: u32,
}

/// What a power cut may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Durability {
    /// The last moments before a power cut may be forgotten. Every lease is over then anyway, and tokens go on by the
    /// calendar clock. A commit does not wait for the disk.
    #[default]
    Normal,
    /// Nothing that was answered is forgotten: every commit waits for the disk. For hosts whose calendar clock may
    /// go back over a power cut.
    Full,
}

impl Config {
    /// A file, with the defaults: normal durability, five seconds of patience.
    pub fn new(path: impl Into<PathBuf>) -> Config {
        Config {
            path: path.into(),
            durability: Durability::default(),
            busy_timeout: Duration::from_secs(5),
            any_file_system: false,
            boot: None,
            line_max: Limits::default().queue,
        }
    }

    /// Reads what follows `sqlite:` in a URL: `PATH[?option=value&…]`.
    ///
    /// The path may be relative, may begin with `//` as in `sqlite:///var/lib/leases.db`, and may hold
    /// percent-encoded bytes (`%3F` for a question mark).
    ///
    /// | option | values | default |
    /// |---|---|---|
    /// | `durability` | `normal`, `full` | `normal` |
    /// | `busy_timeout` | `500ms`, `5s` | `5s` |
    /// | `file_system` | `local`, `any` | `local` |
    ///
    /// # Errors
    /// `Invalid` if there is no path, or an option or its value is not known.
    pub fn parse(rest: &str) -> Result<Config> {
        let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
        let path = decode(path.strip_prefix("//").unwrap_or(path))?;
        if path.as_os_str().is_empty() {
            return Err(invalid(
                "write the path of a file after sqlite:, as in sqlite:/var/lib/app/leases.db",
            ));
        }
        if path == Path::new(":memory:") {
            return Err(invalid(
                "sqlite:, a file for many processes, has no :memory: mode: write memory: instead",
            ));
        }
        let config = Config::new(path);
        options.split('&').filter(|option| !option.is_empty()).try_fold(config, Config::set)
    }

    fn set(self, option: &str) -> Result<Config> {
        match option.split_once('=').unwrap_or((option, "")) {
            ("durability", "normal") => Ok(self.durability(Durability::Normal)),
            ("durability", "full") => Ok(self.durability(Durability::Full)),
            ("file_system", "local") => Ok(Config { any_file_system: false, ..self }),
            ("file_system", "any") => Ok(self.any_file_system()),
            ("busy_timeout", value) => Ok(self.busy_timeout(url::duration("busy_timeout", value)?)),
            (name @ ("durability" | "file_system"), value) => {
                let known = if name == "durability" { "normal or full" } else { "local or any" };
                Err(invalid(format!("{name}={value:.40} is not known: write {known}")))
            }
            (name, _) => Err(invalid(format!(
                "the option {name:.40} is not known: durability, busy_timeout and file_system are"
            ))),
        }
    }

    /// What a power cut may take. [`Durability::Normal`] unless told.
    pub fn durability(self, durability: Durability) -> Config {
        Config { durability, ..self }
    }

    /// How long a verb tries to get the write lock while other processes have it. Five seconds unless told; at most
    /// a minute.
    pub fn busy_timeout(self, busy_timeout: Duration) -> Config {
        Config { busy_timeout: busy_timeout.min(Duration::from_secs(60)), ..self }
    }

    /// Takes network and user-space file systems too, which are refused unless told. You vouch that only one host
    /// uses the file and that processes there can share memory through it.
    pub fn any_file_system(self) -> Config {
        Config { any_file_system: true, ..self }
    }

    /// Pretends that this is the host's boot id: a reboot, for tests.
    #[doc(hidden)]
    pub fn pretend_boot(self, boot: &str) -> Config {
        Config { boot: Some(boot.to_owned()), ..self }
    }

    /// Pretends that a line is at most this long: a bound that a test can reach.
    #[doc(hidden)]
    pub fn pretend_line_max(self, line_max: u32) -> Config {
        Config { line_max, ..self }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn is_full(&self) -> bool {
        self.durability == Durability::Full
    }

    pub(crate) fn patience(&self) -> Duration {
        self.busy_timeout
    }

    pub(crate) fn takes_any_file_system(&self) -> bool {
        self.any_file_system
    }

    pub(crate) fn line_max(&self) -> u32 {
        self.line_max
    }

    pub(crate) fn pretended_boot(&self) -> Option<&str> {
        self.boot.as_deref()
    }
}

fn decode(path: &str) -> Result<PathBuf> {
    Ok(PathBuf::from(OsString::from_vec(url::decode_bytes(path)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::ErrorKind;

    #[test]
    fn paths_are_read_in_every_common_spelling() {
        let table = [
            ("leases.db", "leases.db"),
            ("/var/lib/leases.db", "/var/lib/leases.db"),
            ("///var/lib/leases.db", "/var/lib/leases.db"),
            ("//leases.db?", "leases.db"),
            ("what%3F%20100%25.db?durability=normal", "what? 100%.db"),
        ];
        for (text, path) in table {
            assert_eq!(Config::parse(text).unwrap(), Config::new(path), "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_words_that_do() {
        let table = [
            ("", "path"),
            ("//", "path"),
            ("?durability=full", "path"),
            (":memory:", "memory:"),
            ("x.db?durability=maybe", "normal or full"),
            ("x.db?busy_timeout=5", "5s"),
            ("x.db?busy_timeout=", "5s"),
            ("x.db?busy_timeout=99999999999s", "5s"),
            ("x.db?colour=red", "colour"),
            ("x.db?file_system", "local or any"),
            ("x%2.db", "%25"),
            ("x%00.db", "zero"),
            ("x\0.db", "zero"),
        ];
        for (text, word) in table {
            let error = Config::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
            assert!(error.to_string().contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn patience_has_a_bound() {
        assert_eq!(Config::parse("x?busy_timeout=9999s").unwrap().patience(), Duration::from_secs(60));
    }
}
