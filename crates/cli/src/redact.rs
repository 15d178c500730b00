//! Keeps secrets out of everything that the program prints.
//!
//! Passwords are removed from URLs before they are shown ([`UrlParts::stripped`]). In addition every secret
//! is registered, and every line that goes to stderr or into the log is searched for it: drivers put URLs
//! into their error texts.

use std::{
    borrow::Cow,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

/// Secrets that must not be printed.
static SECRETS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Shorter secrets are not searched for: that would replace parts of ordinary words.
const LENGTH_MIN: usize = 3;

/// From now on [`redact`] removes this secret, also in its percent-encoded form.
pub(crate) fn register(secret: &str) {
    let mut secrets = SECRETS.lock().unwrap_or_else(PoisonError::into_inner);
    for form in [secret.to_owned(), encode(secret), decode(secret)] {
        if form.len() >= LENGTH_MIN && !secrets.contains(&form) {
            secrets.push(form);
        }
    }
    secrets.sort_by_key(|form| std::cmp::Reverse(form.len())); // longest first: a secret may contain another
}

/// The text with every registered secret replaced by `***`.
pub(crate) fn redact(text: &str) -> Cow<'_, str> {
    let secrets = SECRETS.lock().unwrap_or_else(PoisonError::into_inner);
    secrets.iter().fold(Cow::Borrowed(text), |text, secret| {
        if text.contains(secret.as_str()) { Cow::Owned(text.replace(secret.as_str(), "***")) } else { text }
    })
}

/// The parts of a URL, split so that secrets can be removed or added.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UrlParts<'a> {
    /// Everything up to and including `://`.
    scheme: &'a str,
    user: Option<&'a str>,
    pub(crate) password: Option<&'a str>,
    /// The hosts and the path.
    rest: &'a str,
    query: Option<&'a str>,
}

impl<'a> UrlParts<'a> {
    /// `None` for a URL without `://`: it cannot contain a password.
    pub(crate) fn of(url: &'a str) -> Option<UrlParts<'a>> {
        let hosts_at = url.find("://")? + 3;
        let (scheme, rest) = url.split_at(hosts_at);
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (userinfo, rest) = match userinfo_end(rest) {
            Some(at) => (Some(&rest[..at]), &rest[at + 1..]),
            None => (None, rest),
        };
        let (user, password) = match userinfo.map(|userinfo| userinfo.split_once(':').ok_or(userinfo)) {
            None => (None, None),
            Some(Ok((user, password))) => (Some(user), Some(password)),
            Some(Err(user)) => (Some(user), None),
        };
        Some(UrlParts { scheme, user, password, rest, query })
    }

    /// All secrets in the URL: the password, and the values of options such as `auth_token`.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &'a str> {
        let options = self.query.unwrap_or("").split('&').filter(|option| is_secret(option));
        let values = options.filter_map(|option| option.split_once('=').map(|(_, value)| value));
        self.password.into_iter().chain(values)
    }

    /// The options that name files, such as `password_file`.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&'a str, PathBuf)> {
        let options = self.query.unwrap_or("").split('&').filter_map(|option| option.split_once('='));
        options.filter(|(name, _)| name.ends_with("_file")).map(|(name, path)| (name, decode(path).into()))
    }

    /// The URL without secrets, to show it and to pass it to a child process.
    pub(crate) fn stripped(&self) -> String {
        self.assemble(None)
    }

    /// The URL with this password.
    pub(crate) fn with_password(&self, password: &str) -> String {
        let mut url = self.assemble(Some(&encode(password)));
        if let Some(query) = self.query {
            url.truncate(url.find('?').unwrap_or(url.len()));
            url.push('?');
            url.push_str(query);
        }
        url
    }

    fn assemble(&self, password: Option<&str>) -> String {
        let mut url = self.scheme.to_owned();
        url.push_str(self.user.unwrap_or(""));
        if let Some(password) = password {
            url.push(':');
            url.push_str(password);
        }
        if self.user.is_some_and(|user| !user.is_empty()) || password.is_some() {
            url.push('@');
        }
        url.push_str(self.rest);
        let options = self.query.unwrap_or("").split('&');
        let kept: Vec<_> = options.filter(|option| !option.is_empty() && !is_secret(option)).collect();
        if !kept.is_empty() {
            url.push('?');
            url.push_str(&kept.join("&"));
        }
        url
    }
}

/// The position of the `@` after user and password.
///
/// People write passwords with an unencoded slash. Then the part before the slash looks like `host:port`, but
/// the port is not a number. In that case the last `@` of the whole rest counts.
fn userinfo_end(rest: &str) -> Option<usize> {
    let authority = &rest[..rest.find('/').unwrap_or(rest.len())];
    if let Some(at) = authority.rfind('@') {
        return Some(at);
    }
    let after_colon =
        authority.split(',').next().and_then(|first| first.rsplit_once(':')).map(|(_, port)| port);
    let is_port = after_colon.is_none_or(|port| port.bytes().all(|b| b.is_ascii_digit() || b == b']'));
    if is_port { None } else { rest.rfind('@') }
}

fn is_secret(option: &str) -> bool {
    let name = option.split_once('=').map_or(option, |(name, _)| name).to_ascii_lowercase();
    // `password_file` names the place of a password, which is no secret.
    !name.ends_with("_file")
        && ["pass", "secret", "token", "auth", "credential", "apikey", "api_key"]
            .iter()
            .any(|word| name.contains(word))
}

fn encode(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~');
    text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        if plain(byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        out
    })
}

fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 3).and_then(|two| std::str::from_utf8(two).ok());
        match digits.and_then(|two| u8::from_str_radix(two, 16).ok()).filter(|_| byte == b'%') {
            Some(decoded) => {
                out.push(decoded);
                at += 3;
            }
            None => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_found_and_removed() {
        let table = [
            ("redis://host/", None, "redis://host/"),
            ("redis://user@host/0", None, "redis://user@host/0"),
            ("redis://user:sesame@host/0", Some("sesame"), "redis://user@host/0"),
            ("redis://:sesame@host", Some("sesame"), "redis://host"),
            (
                "postgres://u:a@b:c@h1:5432,h2/db?sslmode=require",
                Some("a@b:c"),
                "postgres://u@h1:5432,h2/db?sslmode=require",
            ),
            ("postgres://u:a/b@host/db", Some("a/b"), "postgres://u@host/db"),
            ("etcd://h1:2379,h2:2379/a@b", None, "etcd://h1:2379,h2:2379/a@b"),
            ("redis://[::1]:6379/a@b", None, "redis://[::1]:6379/a@b"),
            ("http://h/?x=1&auth_token=sesame&y=2", None, "http://h/?x=1&y=2"),
            (
                "postgres://u@h/db?password_file=/run/secret&password=sesame",
                None,
                "postgres://u@h/db?password_file=/run/secret",
            ),
            ("sqlite:///tmp/a.db?durability=full", None, "sqlite:///tmp/a.db?durability=full"),
        ];
        for (url, password, stripped) in table {
            let parts = UrlParts::of(url).unwrap();
            assert_eq!((parts.password, parts.stripped().as_str()), (password, stripped), "{url}");
        }
        assert_eq!(UrlParts::of("sqlite:/a@b:c"), None);
        assert_eq!(
            UrlParts::of("http://h/?auth_token=sesame").unwrap().secrets().collect::<Vec<_>>(),
            ["sesame"]
        );
    }

    #[test]
    fn a_password_is_added_percent_encoded() {
        let with = |url| UrlParts::of(url).unwrap().with_password("a/b @");
        assert_eq!(with("redis://host/0"), "redis://:a%2Fb%20%40@host/0");
        assert_eq!(
            with("postgres://u@host/db?password=x&y=1"),
            "postgres://u:a%2Fb%20%40@host/db?password=x&y=1"
        );
    }

    #[test]
    fn a_secret_is_redacted_plain_and_encoded() {
        register("open sesame/1");
        assert_eq!(redact("with open sesame/1 or open%20sesame%2F1."), "with *** or ***.");
        assert_eq!(redact("nothing"), "nothing");
    }
}
