//! The path of the file and the options of the backend.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold_core::{Limits, Result};
use leasehold_support::url::{self, invalid};

/// The busy timeout if no other is given.
const BUSY_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
/// The longest busy timeout.
const BUSY_TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// The path of the file and the options of the backend.
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
    must_exist: bool,
    boot: Option<String>,
    queue_max: u32,
}

/// Which commits a power cut may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Durability {
    /// A commit does not wait for the disk, so a power cut may take the last commits. The reboot ends every
    /// lease anyway, and tokens still grow, because they are at least the wall clock.
    #[default]
    Normal,
    /// Every commit waits for the disk, so a power cut takes nothing that a caller got a reply for. For hosts
    /// whose wall clock may go back over a power cut.
    Full,
}

impl Config {
    /// The file at this path, with the defaults: normal durability, a busy timeout of five seconds.
    pub fn new(path: impl Into<PathBuf>) -> Config {
        Config {
            path: path.into(),
            durability: Durability::default(),
            busy_timeout: BUSY_TIMEOUT_DEFAULT,
            any_file_system: false,
            must_exist: false,
            boot: None,
            queue_max: Limits::default().queue,
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
    /// | `create` | `yes`, `no` | `yes` |
    ///
    /// # Errors
    /// `Invalid` if there is no path, if it is one that only a shell or SQLite itself understands (`~/leases.db`, `:memory:`,
    /// `file:leases.db`), or if an option or its value is unknown.
    pub fn parse(rest: &str) -> Result<Config> {
        let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
        let path = decode(path.strip_prefix("//").unwrap_or(path))?;
        check_path(&path)?;
        let config = Config::new(path);
        options.split('&').filter(|option| !option.is_empty()).try_fold(config, Config::set)
    }

    fn set(self, option: &str) -> Result<Config> {
        match option.split_once('=').unwrap_or((option, "")) {
            ("durability", "normal") => Ok(self.durability(Durability::Normal)),
            ("durability", "full") => Ok(self.durability(Durability::Full)),
            ("file_system", "local") => Ok(Config { any_file_system: false, ..self }),
            ("file_system", "any") => Ok(self.any_file_system()),
            ("create", "yes") => Ok(Config { must_exist: false, ..self }),
            ("create", "no") => Ok(self.must_exist()),
            ("busy_timeout", value) => Ok(self.busy_timeout(url::duration("busy_timeout", value)?)),
            (name @ ("durability" | "file_system" | "create"), value) => {
                let known = match name {
                    "durability" => "normal or full",
                    "create" => "yes or no",
                    _ => "local or any",
                };
                Err(invalid(format!("{name}={value:.40} is unknown: write {known}")))
            }
            (name, _) => Err(invalid(format!(
                "unknown option {name:.40}: the options are durability, busy_timeout, file_system and create"
            ))),
        }
    }

    /// Which commits a power cut may take. The default is [`Durability::Normal`].
    pub fn durability(self, durability: Durability) -> Config {
        Config { durability, ..self }
    }

    /// How long a request tries to get the write lock while other processes have it. The default is five
    /// seconds; more than a minute counts as a minute.
    pub fn busy_timeout(self, busy_timeout: Duration) -> Config {
        Config { busy_timeout: busy_timeout.min(BUSY_TIMEOUT_MAX), ..self }
    }

    /// Allows network and user-space file systems, which are refused by default. Use it only if one host
    /// alone uses the file and its processes can share memory through it.
    pub fn any_file_system(self) -> Config {
        Config { any_file_system: true, ..self }
    }

    /// Opens only a store that exists. [`Sqlite::open`](crate::Sqlite::open) then creates nothing, and fails with `Invalid` if
    /// there is no store at the path. For programs that only read. The default is to create the file.
    pub fn must_exist(self) -> Config {
        Config { must_exist: true, ..self }
    }

    /// Replaces the host's boot id, so that a test can play a reboot.
    #[doc(hidden)]
    pub fn pretend_boot(self, boot: &str) -> Config {
        Config { boot: Some(boot.to_owned()), ..self }
    }

    /// Replaces the limit of the queue by one that a test can reach.
    #[doc(hidden)]
    pub fn pretend_queue_max(self, queue_max: u32) -> Config {
        Config { queue_max, ..self }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn is_full(&self) -> bool {
        self.durability == Durability::Full
    }

    pub(crate) fn lock_timeout(&self) -> Duration {
        self.busy_timeout
    }

    pub(crate) fn allows_any_file_system(&self) -> bool {
        self.any_file_system
    }

    pub(crate) fn may_create(&self) -> bool {
        !self.must_exist
    }

    pub(crate) fn queue_max(&self) -> u32 {
        self.queue_max
    }

    pub(crate) fn pretended_boot(&self) -> Option<&str> {
        self.boot.as_deref()
    }
}

/// Refuses what people write for SQLite or in a shell and what would be the name of an odd file here.
fn check_path(path: &Path) -> Result<()> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() {
        return Err(invalid("write the path of a file after sqlite:, as in sqlite:/var/lib/app/leases.db"));
    }
    if bytes.ends_with(b":memory:") {
        let message = "use memory: in a program; an in-memory SQLite database is not shared";
        return Err(invalid(format!("sqlite:{} is refused: {message}", path.display())));
    }
    if bytes.starts_with(b"file:") {
        let path = path.display();
        return Err(invalid(format!("sqlite:{path} is refused: write the path of a file, without file:")));
    }
    if bytes == b"~" || bytes.starts_with(b"~/") {
        let message = "only a shell replaces ~ by the home directory: write the whole path";
        return Err(invalid(format!("sqlite:{} is refused: {message}", path.display())));
    }
    Ok(())
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
    fn wrong_input_is_refused_and_the_error_names_the_remedy() {
        let table = [
            ("", "path"),
            ("//", "path"),
            ("?durability=full", "path"),
            (":memory:", "use memory: in a program; an in-memory SQLite database is not shared"),
            ("//:memory:", "use memory: in a program"),
            ("/some/folder/:memory:?create=no", "use memory: in a program"),
            ("file::memory:", "use memory: in a program"),
            ("file::memory:?cache=shared", "use memory: in a program"),
            ("file:leases.db", "without file:"),
            ("~/leases.db", "write the whole path"),
            ("//~/leases.db", "write the whole path"),
            ("~", "write the whole path"),
            ("x.db?create=maybe", "yes or no"),
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
        for (text, remedy) in table {
            let error = Config::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
            assert!(error.to_string().contains(remedy), "{text}: {error}");
        }
    }

    #[test]
    fn the_url_says_whether_the_file_is_created() {
        assert!(Config::parse("x.db?create=yes").unwrap().may_create());
        assert_eq!(Config::parse("x.db?create=no").unwrap(), Config::new("x.db").must_exist());
        let odd_names = ["~name/x.db", "a/~/x.db", "memory:", ":memory:.db"];
        odd_names
            .iter()
            .for_each(|path| assert_eq!(Config::parse(path).unwrap(), Config::new(path), "{path}"));
    }

    #[test]
    fn the_busy_timeout_is_at_most_a_minute() {
        assert_eq!(Config::parse("x?busy_timeout=9999s").unwrap().lock_timeout(), Duration::from_secs(60));
    }
}
