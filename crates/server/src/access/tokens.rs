//! The tokens file: its form, and finding the entry of a token.
//!
//! A token is `lh_<id>_<secret>`: 8 and 64 hex digits. The file has the SHA-256 of the secret, never the secret: 256 random bits need no
//! slow hash.
//!
//! ```toml
//! [[token]]
//! id = "1f2e3d4c"
//! sha256 = "…"                      # 64 hex digits
//! subject = "billing"               # shown in the audit trail
//! roles = ["client"]
//! namespaces = ["acme", "-"]        # "-": resources without one. Without this line: all
//! kinds = ["report"]                # without this line: all
//! expires = "2027-01-01T00:00:00Z"  # without this line: never
//! certificate = "billing.acme.org"  # a client certificate for this name counts as the token
//! ttl_ms_max = 3600000
//! waiters_max = 100
//! requests_per_second = 50          # renewals and releases have the same number of their own
//! ```

use std::{collections::HashMap, sync::Arc, time::Duration};

use leasehold_core::{Environment, Error, ErrorKind, Resource, Result, WallTime};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::{
    roles::{Role, Roles},
    scope::NO_NAMESPACE,
};

const PREFIX: &str = "lh_";
const ID_LENGTH: usize = 8;
const SECRET_LENGTH: usize = 64;

/// What the file says of one token.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenEntry {
    /// Names the token. No secret.
    pub id: String,
    sha256: [u8; 32],
    /// Who has it.
    pub subject: String,
    /// What it may do.
    pub roles: Roles,
    /// In which namespaces; `-` is for none. `None` for all.
    pub namespaces: Option<Vec<String>>,
    /// With which kinds. `None` for all.
    pub kinds: Option<Vec<String>>,
    /// Until when.
    pub expires: Option<WallTime>,
    /// A client certificate for this name counts as the token.
    pub certificate: Option<String>,
    ttl_ms_max: Option<u64>,
    /// The most claims that wait.
    pub waiters_max: Option<usize>,
    /// The most requests per second.
    pub requests_per_second: Option<u32>,
}

impl TokenEntry {
    pub(crate) fn ttl_max(&self) -> Option<Duration> {
        self.ttl_ms_max.map(Duration::from_millis)
    }

    pub(crate) fn is_expired(&self, now: WallTime) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

/// The form of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileForm {
    #[serde(default)]
    token: Vec<EntryForm>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryForm {
    id: String,
    sha256: String,
    subject: String,
    roles: Vec<String>,
    namespaces: Option<Vec<String>>,
    kinds: Option<Vec<String>>,
    expires: Option<String>,
    certificate: Option<String>,
    ttl_ms_max: Option<u64>,
    waiters_max: Option<usize>,
    requests_per_second: Option<u32>,
}

/// All tokens of a file.
#[derive(Clone, Debug, Default)]
pub struct TokenTable {
    by_id: HashMap<String, Arc<TokenEntry>>,
    /// By the DNS name of the certificate, in lower case.
    by_certificate: HashMap<String, Arc<TokenEntry>>,
}

impl TokenTable {
    /// Reads the text of a file: whole, or not at all.
    ///
    /// # Errors
    /// `Invalid`, with the entry, if something in it is not as it should be.
    pub fn parse(text: &str) -> Result<TokenTable> {
        let form: FileForm = toml::from_str(text).map_err(|error| invalid(error.message().to_owned()))?;
        let mut table = TokenTable::default();
        for entry in form.token {
            let id = entry.id.clone();
            let wrong = |what: &str| invalid(format!("token {id:?}: {what}"));
            let entry = Arc::new(entry.check().map_err(|what| wrong(&what))?);
            let certificate = entry.certificate.as_ref().map(|name| name.to_ascii_lowercase());
            if let Some(name) = certificate
                && table.by_certificate.insert(name, Arc::clone(&entry)).is_some()
            {
                return Err(wrong(
                    "another token has the same certificate: it would not be clear which roles it has",
                ));
            }
            if table.by_id.insert(id.clone(), entry).is_some() {
                return Err(wrong("the id is there twice"));
            }
        }
        Ok(table)
    }

    /// The entries, by id.
    pub fn entries(&self) -> Vec<Arc<TokenEntry>> {
        let mut entries: Vec<_> = self.by_id.values().cloned().collect();
        entries.sort_by(|a, b| a.id.cmp(&b.id));
        entries
    }

    pub(crate) fn entry(&self, id: &str) -> Option<&Arc<TokenEntry>> {
        self.by_id.get(id)
    }

    /// The entry of this token. Takes as long for an unknown id as for a wrong secret.
    pub(crate) fn find(&self, token: &str, now: WallTime) -> Option<Arc<TokenEntry>> {
        let (id, secret) = split(token)?;
        let entry = self.by_id.get(id);
        let presented: [u8; 32] = Sha256::digest(secret.as_bytes()).into();
        let expected = entry.map_or([0; 32], |entry| entry.sha256);
        let is_right = bool::from(presented.ct_eq(&expected));
        entry.filter(|entry| is_right && !entry.is_expired(now)).cloned()
    }

    pub(crate) fn find_certificate(&self, names: &[String], now: WallTime) -> Option<Arc<TokenEntry>> {
        let entries = names.iter().filter_map(|name| self.by_certificate.get(&name.to_ascii_lowercase()));
        entries.into_iter().find(|entry| !entry.is_expired(now)).cloned()
    }
}

fn split(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.strip_prefix(PREFIX)?.split_once('_')?;
    (id.len() == ID_LENGTH && secret.len() == SECRET_LENGTH).then_some((id, secret))
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

impl EntryForm {
    fn check(self) -> Result<TokenEntry, String> {
        let is_hex = |text: &str, length| {
            text.len() == length && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        if !is_hex(&self.id, ID_LENGTH) {
            return Err("the id has 8 lower-case hex digits".to_owned());
        }
        // The value is not repeated: it may be the secret itself, by mistake.
        let sha256 = is_hex(&self.sha256, 64).then(|| read_hex(&self.sha256)).flatten();
        let sha256 = sha256.ok_or("sha256 has 64 lower-case hex digits")?;
        if self.subject.trim().is_empty() || self.subject.chars().any(char::is_control) {
            return Err("the subject is empty or has control characters".to_owned());
        }
        let mut roles = Roles::VIEWER;
        for name in &self.roles {
            roles = roles.with(
                Role::named(name).ok_or_else(|| format!("{name:?} is no role: viewer, client, operator"))?,
            );
        }
        if self.roles.is_empty() {
            return Err("it has no role: viewer, client, operator".to_owned());
        }
        for namespace in self.namespaces.iter().flatten().filter(|namespace| *namespace != NO_NAMESPACE) {
            check_name(&format!("{namespace}:x/1"), "namespace", namespace)?;
        }
        for kind in self.kinds.iter().flatten() {
            check_name(&format!("{kind}/1"), "kind", kind)?;
        }
        let expires = self.expires.as_deref().map(read_time).transpose()?;
        Ok(TokenEntry {
            id: self.id,
            sha256,
            subject: self.subject,
            roles,
            namespaces: self.namespaces,
            kinds: self.kinds,
            expires,
            certificate: self.certificate,
            ttl_ms_max: self.ttl_ms_max,
            waiters_max: self.waiters_max,
            requests_per_second: self.requests_per_second,
        })
    }
}

/// Checks a name by a resource that has it. A name that no resource has would be a token that can do nothing.
fn check_name(resource: &str, what: &str, name: &str) -> Result<(), String> {
    match resource.parse::<Resource>() {
        Ok(parsed) if parsed.namespace() == Some(name) || parsed.kind() == name => Ok(()),
        _ => Err(format!("{name:?} is no {what}: it has 1 to 64 of a-z, 0-9, dot, dash and underscore")),
    }
}

fn read_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

fn read_time(text: &str) -> Result<WallTime, String> {
    let time = humantime::parse_rfc3339(text)
        .map_err(|error| format!("expires is not a time like 2027-01-01T00:00:00Z: {error}"))?;
    let since = time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Ok(WallTime::from_micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX)))
}

/// A new token: the secret to give away, and what belongs into the file.
pub struct NewToken {
    /// `lh_<id>_<secret>`: shown once, and stored nowhere.
    pub token: String,
    /// Its id.
    pub id: String,
    /// The SHA-256 of its secret, in hex.
    pub sha256: String,
}

impl NewToken {
    /// A token from the environment's secure random source.
    pub fn fresh(environment: &dyn Environment) -> NewToken {
        let (mut id, mut secret) = ([0; ID_LENGTH / 2], [0; SECRET_LENGTH / 2]);
        environment.fill(&mut id);
        environment.fill(&mut secret);
        let (id, secret) = (hex(&id), hex(&secret));
        NewToken {
            sha256: hex(&Sha256::digest(secret.as_bytes())),
            token: format!("{PREFIX}{id}_{secret}"),
            id,
        }
    }
}

impl std::fmt::Debug for NewToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewToken").field("id", &self.id).finish_non_exhaustive()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "5ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2";

    fn file(lines: &str) -> String {
        let sha256 = hex(&Sha256::digest(SECRET.as_bytes()));
        format!(
            "[[token]]\nid = \"0a1b2c3d\"\nsha256 = \"{sha256}\"\nsubject = \"billing\"\nroles = [\"client\"]\n{lines}"
        )
    }

    #[test]
    fn a_token_is_found_by_its_id_and_its_whole_secret() {
        let table = TokenTable::parse(&file("expires = \"2027-01-01T00:00:00Z\"")).unwrap();
        let before = read_time("2026-12-31T23:59:59Z").unwrap();
        let find = |token: &str, now| table.find(token, now).is_some();
        assert!(find(&format!("lh_0a1b2c3d_{SECRET}"), before));
        assert!(
            !find(&format!("lh_0a1b2c3d_{SECRET}"), read_time("2027-01-01T00:00:00Z").unwrap()),
            "expired"
        );
        for token in [
            String::new(),
            "lh_".to_owned(),
            format!("lh_0a1b2c3d_{}", &SECRET[1..]),
            format!("lh_0a1b2c3d_{}0", &SECRET[..63]),
            format!("lh_0a1b2c3e_{SECRET}"),
            format!("0a1b2c3d_{SECRET}"),
            format!("lh_0a1b2c3d_{SECRET}_"),
            format!("lh_{SECRET}_0a1b2c3d"),
            "x".repeat(1 << 20),
        ] {
            assert!(!find(&token, before));
        }
    }

    #[test]
    fn a_bad_file_is_refused_whole_and_its_secrets_are_not_repeated() {
        for (lines, part) in [
            ("unknown = 1", "unknown"),
            ("expires = \"tomorrow\"", "expires"),
            ("[[token]]\nid = \"0a1b2c3d\"\nsha256 = \"x\"\nsubject = \"x\"\nroles = [\"client\"]", "sha256"),
            ("[[token]]\nid = \"zz\"\nsha256 = \"x\"\nsubject = \"x\"\nroles = [\"client\"]", "id"),
            ("this is not toml", ""),
        ] {
            let error = TokenTable::parse(&file(lines)).expect_err(lines).to_string();
            assert!(error.contains(part), "{error}");
        }
        let twice = format!("{}{}", file(""), file(""));
        assert!(TokenTable::parse(&twice).unwrap_err().to_string().contains("twice"));
        let no_role = file("").replace("\"client\"", "");
        assert!(TokenTable::parse(&no_role).unwrap_err().to_string().contains("role"));
        let wrong_role = file("").replace("\"client\"", "\"root\"");
        assert!(TokenTable::parse(&wrong_role).unwrap_err().to_string().contains("root"));
        assert!(!format!("{:?}", TokenTable::parse(&file("")).unwrap()).contains(SECRET));
    }
}
