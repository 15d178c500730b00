//! The configuration file `config.toml`: the store, and defaults of `leasehold run`.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Deserializer};

use crate::{args, args::Global, exit::Failure};

/// The contents of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// The URL of the store.
    pub(crate) store: Option<String>,
    /// A file with the password of the store.
    pub(crate) password_file: Option<PathBuf>,
    /// Defaults of `leasehold run`.
    #[serde(default)]
    pub(crate) run: RunDefaults,
}

/// Defaults of `leasehold run`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunDefaults {
    #[serde(default, deserialize_with = "duration")]
    pub(crate) ttl: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    pub(crate) grace: Option<Duration>,
}

fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    args::duration(&text).map(Some).map_err(serde::de::Error::custom)
}

impl Config {
    /// Reads the file of `--config`, else the file of the user, else the file of the system. Without any of
    /// these, the configuration is empty.
    pub(crate) fn load(global: &Global) -> Result<Config, Failure> {
        if let Some(named) = &global.config {
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
        toml::from_str(&text).map(Some).map_err(|error| {
            // The text of the line is not shown: it may contain a password.
            let line = error.span().map_or(0, |span| text[..span.start].matches('\n').count() + 1);
            let message = format!("{}, line {line}: {}", path.display(), error.message());
            Failure::config(message).hint("correct the file, or name another one with --config")
        })
    }
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
        ] {
            let failure = read(text).unwrap_err();
            assert_eq!(failure.code, 78);
            assert!(failure.message.contains("line 2"), "{}", failure.message);
            assert!(!failure.message.contains("sesame"), "{}", failure.message);
        }
    }
}
