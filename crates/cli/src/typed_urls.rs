//! Hides passwords of the command line from `ps`.
//!
//! Every user of a host can read the arguments of every process. A process cannot change its own without
//! unsafe code, so a command line with a password in a URL is executed once more, in the same process:
//!
//! 1. [`hide`] replaces the URLs by their forms without secrets, and puts the whole URLs into a variable of
//!    the environment, which only the same user can read.
//! 2. [`restore`] puts them back before the command line is parsed.
//!
//! The variable is not passed on to the command of `leasehold run` (ADR 0069).

use std::{
    env,
    ffi::OsString,
    os::unix::{fs::MetadataExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use crate::{output::Output, redact::UrlParts};

/// The variable with the whole URLs, one per line.
pub(crate) const VARIABLE: &str = "LEASEHOLD_TYPED_URLS";

/// The arguments of this process, with the secrets that [`hide`] took out.
pub(crate) fn restore(mut words: Vec<OsString>) -> Vec<OsString> {
    let Ok(urls) = env::var(VARIABLE) else { return words };
    for url in urls.lines() {
        let Some(stripped) = UrlParts::of(url).map(|parts| parts.stripped()) else { continue };
        replace(&mut words, &stripped, url);
    }
    words
}

/// Executes this process again without the secrets in these URLs, if there are any. Returns if there are
/// none, or if that fails.
pub(crate) fn hide<'a>(typed: impl IntoIterator<Item = &'a str>, words: &[OsString], output: Output) {
    if env::var_os(VARIABLE).is_some() {
        return; // done
    }
    let mut words = words.to_vec();
    let mut urls = Vec::new();
    for url in typed {
        let Some(parts) = UrlParts::of(url).filter(|parts| parts.secrets().next().is_some()) else {
            continue;
        };
        if replace(&mut words, url, &parts.stripped()) {
            urls.push(url);
        }
    }
    if urls.is_empty() {
        return;
    }
    output.note(
        "a password in the command line can be seen by every user of this host: use --password-file or \
         LEASEHOLD_PASSWORD_FILE",
    );
    let mut words = words.into_iter();
    let mut command = Command::new(own_program());
    command.arg0(words.next().unwrap_or_default()).args(words).env(VARIABLE, urls.join("\n"));
    let _ = command.exec(); // if it fails, the command still works, and the user was warned
}

/// The path of this program. The kernel names the process after the file that it executes, so `/proc/self/exe` would show as `exe`
/// in `ps` and `pgrep`. It is used only if the file has been replaced or removed since.
fn own_program() -> PathBuf {
    let link = PathBuf::from("/proc/self/exe");
    let id = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let path = std::fs::read_link(&link).ok().filter(|path| id(path).is_some() && id(path) == id(&link));
    path.unwrap_or(link)
}

/// Replaces the first word that is this URL, or an option with it: `--store=URL`.
fn replace(words: &mut [OsString], url: &str, by: &str) -> bool {
    for word in words {
        let Some(text) = word.to_str() else { continue };
        let Some(option) = text.strip_suffix(url) else { continue };
        if option.is_empty() || (option.starts_with("--") && option.ends_with('=')) {
            *word = format!("{option}{by}").into();
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_with_the_url_is_replaced() {
        let (url, by) = ("redis://u:sesame@h/", "redis://u@h/");
        let table = [
            ("leasehold --store redis://u:sesame@h/ ls", "leasehold --store redis://u@h/ ls"),
            ("leasehold ls --store=redis://u:sesame@h/", "leasehold ls --store=redis://u@h/"),
            (
                "leasehold --store redis://u:sesame@h/ run x -- c redis://u:sesame@h/",
                "leasehold --store redis://u@h/ run x -- c redis://u:sesame@h/",
            ),
        ];
        for (line, expected) in table {
            let mut words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            assert!(replace(&mut words, url, by));
            assert_eq!(words.join(&OsString::from(" ")), expected, "{line}");
            assert!(replace(&mut words, by, url));
            assert_eq!(words.join(&OsString::from(" ")), line);
        }
        assert!(!replace(&mut ["x".into()], url, by));
    }
}
