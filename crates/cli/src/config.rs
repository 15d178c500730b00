//! `config.toml`: what one would otherwise have to say each time.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Deserializer};

use crate::{args, args::Global, exit::Failure};

/// What the file may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// The URL of the store.
    pub(crate) store: Option<String>,
    /// A file that holds its password.
    pub(crate) password_file: Option<PathBuf>,
    /// Defaults of `run`.
    #[serde(default)]
    pub(crate) run: Run,
}

/// Defaults of `run`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
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
    /// Reads the file that was named, else the user's, else the system's; none of these is no error.
    pub(crate) fn load(global: &Global) -> Result<Config, Failure> {
        if let Some(named) = &global.config {
            let missing = || Failure::config(format!("{}: there is no such file", named.display()));
            return Config::read(named)?
                .ok_or_else(|| missing().hint("name one that is there with --config"));
        }
        for place in places() {
            if let Some(config) = Config::read(&place)? {
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
                return Err(Failure::config(format!("{}: cannot be read: {error}", path.display())));
            }
        };
        toml::from_str(&text).map(Some).map_err(|error| {
            // The offending line may hold a password: it is not shown.
            let line = error.span().map_or(0, |span| text[..span.start].matches('\n').count() + 1);
            let message = format!("{}, line {line}: {}", path.display(), error.message());
            Failure::config(message).hint("correct it, or name another file with --config")
        })
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::PermissionDenied
    )
}

fn places() -> impl Iterator<Item = PathBuf> {
    let home = directory("XDG_CONFIG_HOME").or_else(|| directory("HOME").map(|home| home.join(".config")));
    let system = Some(PathBuf::from("/etc"));
    [home, system].into_iter().flatten().map(|place| place.join("leasehold/config.toml"))
}

/// The directory that a variable names, if it names one.
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
    fn a_file_may_say_the_store_and_what_run_takes() {
        let config = read("store = \"redis://h/\"\npassword_file = \"/run/p\"\n[run]\nttl = \"1m\"\n")
            .unwrap()
            .unwrap();
        assert_eq!(config.store.as_deref(), Some("redis://h/"));
        assert_eq!(config.run.ttl, Some(Duration::from_secs(60)));
        assert_eq!(config.run.grace, None);
    }

    #[test]
    fn a_bad_file_is_refused_by_line_and_its_text_is_not_shown() {
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
