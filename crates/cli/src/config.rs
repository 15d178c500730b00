//! The configuration file `config.toml`: global options, and defaults of `run`, `cron`, `elect` and `serve`.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::Signal;
use serde::{Deserialize, Deserializer};

use crate::{
    args::{self, Color, LogFormat},
    exit::Failure,
    signals,
};

/// The contents of the file. `leasehold config show` lists the same keys.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// The URL of the store.
    pub(crate) store: Option<String>,
    /// A file with the password of the store.
    pub(crate) password_file: Option<PathBuf>,
    /// The namespace of names that have none.
    pub(crate) namespace: Option<String>,
    /// Whether the ids of single resources are hashed.
    pub(crate) sensitive: Option<bool>,
    /// A file with the key of `--sensitive`.
    pub(crate) hash_key_file: Option<PathBuf>,
    pub(crate) log_format: Option<LogFormat>,
    pub(crate) metrics_file: Option<PathBuf>,
    pub(crate) color: Option<Color>,
    /// Whether the password of the store is passed on to commands.
    pub(crate) pass_secrets: Option<bool>,
    /// The name of the operator in the audit trail.
    pub(crate) operator: Option<String>,
    #[serde(default)]
    pub(crate) run: RunDefaults,
    #[serde(default)]
    pub(crate) cron: CronDefaults,
    #[serde(default)]
    pub(crate) elect: ElectDefaults,
    #[serde(default)]
    pub(crate) serve: ServeDefaults,
    /// The path of the file. `None` if there is no file.
    #[serde(skip)]
    pub(crate) path: Option<PathBuf>,
}

/// Defaults of `leasehold run`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunDefaults {
    #[serde(default, deserialize_with = "duration")]
    pub(crate) ttl: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    pub(crate) grace: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    pub(crate) wait: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    pub(crate) max_hold: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    pub(crate) at_least: Option<Duration>,
    pub(crate) conflict_exit_code: Option<u8>,
    pub(crate) fair: Option<bool>,
    pub(crate) correctness: Option<bool>,
    pub(crate) no_renew: Option<bool>,
    #[serde(default, deserialize_with = "signal")]
    pub(crate) on_ask: Option<Signal>,
}

/// Defaults of `leasehold cron`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CronDefaults {
    pub(crate) zone: Option<String>,
    pub(crate) missed: Option<String>,
    #[serde(default, deserialize_with = "duration")]
    pub(crate) wait: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    pub(crate) at_least: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    pub(crate) ttl: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    pub(crate) max_hold: Option<Duration>,
    pub(crate) on_failure: Option<String>,
}

/// Defaults of `leasehold elect`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ElectDefaults {
    #[serde(default, deserialize_with = "duration")]
    pub(crate) ttl: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    pub(crate) grace: Option<Duration>,
}

/// Defaults of `leasehold serve`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServeDefaults {
    #[serde(default, deserialize_with = "duration")]
    pub(crate) sample_idle: Option<Duration>,
}

fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    args::duration(&text).map(Some).map_err(serde::de::Error::custom)
}

fn signal<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Signal>, D::Error> {
    let text = String::deserialize(from)?;
    signals::parse(&text).map(Some).map_err(serde::de::Error::custom)
}

impl Config {
    /// Reads the file of `--config`, else the file of the user, else the file of the system. Without any of
    /// these, the configuration is empty.
    pub(crate) fn load(named: Option<&Path>) -> Result<Config, Failure> {
        if let Some(named) = named {
            let missing =
                || Failure::config(format!("there is no readable configuration file {}", named.display()));
            return Config::read(named)?.ok_or_else(|| missing().hint("name another file with --config"));
        }
        for path in config_paths() {
            if let Some(config) = Config::read(&path)? {
                return Ok(config);
            }
        }
        Ok(Config::default())
    }

    fn read(path: &Path) -> Result<Option<Config>, Failure> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => {
                return Err(Failure::config(format!(
                    "the configuration file {} cannot be read: {error}",
                    path.display()
                )));
            }
        };
        let read: Result<Config, toml::de::Error> = toml::from_str(&text);
        read.map(|config| Some(Config { path: Some(path.to_owned()), ..config })).map_err(|error| {
            // The text of the line is not shown: it may contain a password.
            let line = error.span().map_or(0, |span| line_of(&text, span.start));
            let message = format!("{}, line {line}: {}", path.display(), error.message());
            Failure::config(message).hint("correct the file, or name another one with --config")
        })
    }
}

/// The number of the line with the byte at this position.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// A file that another user may not read counts as absent: `/etc/leasehold` may be for root only.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::PermissionDenied
    )
}

fn config_paths() -> impl Iterator<Item = PathBuf> {
    let home = directory("XDG_CONFIG_HOME").or_else(|| directory("HOME").map(|home| home.join(".config")));
    let system = Some(PathBuf::from("/etc"));
    [home, system].into_iter().flatten().map(|directory| directory.join("leasehold/config.toml"))
}

/// The absolute path in this variable of the environment, if there is one.
pub(crate) fn directory(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<Config>, Failure> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.toml");
        fs::write(&path, text).unwrap();
        Config::read(&path)
    }

    #[test]
    fn a_file_may_set_the_store_and_defaults_of_run() {
        let config = read("store = \"redis://h/\"\npassword_file = \"/run/p\"\n[run]\nttl = \"1m\"\n")
            .unwrap()
            .unwrap();
        assert_eq!(config.store.as_deref(), Some("redis://h/"));
        assert_eq!(config.run.ttl, Some(Duration::from_secs(60)));
        assert_eq!(config.run.grace, None);
    }

    #[test]
    fn a_wrong_file_is_refused_with_its_line_number_and_without_its_text() {
        for text in [
            "store = 'a'\nstroe = 'redis://u:sesame@h'",
            "store = 'a'\nrun = 'sesame",
            "[run]\nttl = 'sesame'",
            "[cron]\nttll = '1m'",
        ] {
            let failure = read(text).unwrap_err();
            assert_eq!(failure.code, 78);
            assert!(failure.message.contains("line 2"), "{}", failure.message);
            assert!(!failure.message.contains("sesame"), "{}", failure.message);
        }
    }
}
