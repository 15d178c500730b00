//! Who the caller is and what it may do.
//!
//! | module | what it holds |
//! |---|---|
//! | `roles` | viewer, client, operator |
//! | `tokens` | the tokens file: its form, and finding the entry of a token |
//! | `token_file` | reading it again when it changes |
//! | `scope` | namespaces and kinds |
//! | `cookie` | the token of a person, kept by their browser |
//! | `rate` | requests per second of one token |

mod cookie;
mod rate;
mod roles;
mod scope;
mod token_file;
mod tokens;

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hyper::{HeaderMap, header::AUTHORIZATION};
use leasehold_api::{Problem, ProblemKind, info::CallerBody};
use leasehold_core::Resource;

pub(crate) use cookie::SessionCookie;
pub use roles::{Role, Roles};
pub(crate) use scope::Scope;
pub use token_file::TokenFile;
pub(crate) use token_file::Waiters;
pub use tokens::{NewToken, TokenEntry, TokenTable};

/// Who may use the server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Access {
    /// Everyone who reaches it, with these roles.
    Open(Roles),
    /// Those with a token of this file, or a client certificate that it names.
    Tokens(Arc<TokenFile>),
}

impl Default for Access {
    /// Viewer and client. Never operator: other users of the machine can reach the server, too.
    fn default() -> Access {
        Access::Open(Roles::CLIENT)
    }
}

/// The longest token that is looked at.
const TOKEN_MAX: usize = 256;

/// Who sent a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The entry of its token. `None` if the server asks for none.
    entry: Option<(Arc<TokenFile>, Arc<TokenEntry>)>,
    roles: Roles,
    /// The request proves nothing that a web page in the caller's browser could not send.
    pub(crate) is_ambient: bool,
}

impl Access {
    /// Who sent a request with these headers, over a connection with a client certificate for these names.
    pub(crate) fn caller(
        &self,
        headers: &HeaderMap,
        cookie: SessionCookie,
        certificate: &[String],
    ) -> Result<Caller, Problem> {
        let file = match self {
            Access::Open(roles) => return Ok(Caller { entry: None, roles: *roles, is_ambient: true }),
            Access::Tokens(file) => file,
        };
        let (entry, is_ambient) = match (credentials(headers)?, cookie.read(headers)) {
            (Some((token, is_ambient)), _) => (file.find(&token), is_ambient),
            // A browser sends its cookies and its certificate on its own.
            (None, Some(token)) => (file.find(&token), true),
            (None, None) => (file.find_certificate(certificate), true),
        };
        let entry = entry.ok_or_else(no_such_token)?;
        Ok(Caller { roles: entry.roles, entry: Some((Arc::clone(file), entry)), is_ambient })
    }

    /// Whose token this is.
    pub(crate) fn log_in(&self, token: &str) -> Result<Caller, Problem> {
        let Access::Tokens(file) = self else {
            let detail = "this server asks for no tokens, so there is nothing to log in with";
            return Err(Problem::new(ProblemKind::Invalid, detail).with_hint("use it without logging in"));
        };
        let entry = file.find(token).ok_or_else(no_such_token)?;
        Ok(Caller { roles: entry.roles, entry: Some((Arc::clone(file), entry)), is_ambient: true })
    }
}

pub(crate) fn no_such_token() -> Problem {
    unauthenticated("there is no such token, or it has expired or was revoked")
}

fn unauthenticated(detail: &str) -> Problem {
    Problem::new(ProblemKind::Unauthenticated, detail)
}

/// The token of a request, and whether a browser would add it on its own. No text of it is ever repeated in an answer.
fn credentials(headers: &HeaderMap) -> Result<Option<(String, bool)>, Problem> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = given.next() else { return Ok(None) };
    let wrong = || {
        unauthenticated(
            "the header Authorization is neither `Bearer TOKEN` nor Basic with the token as password",
        )
    };
    if given.next().is_some() || value.len() > 2 * TOKEN_MAX {
        return Err(wrong());
    }
    let (scheme, rest) = value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(wrong)?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Ok(Some((rest.trim().to_owned(), false)));
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return Err(wrong());
    }
    let pair = STANDARD
        .decode(rest.trim())
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(wrong)?;
    let (_, password) = pair.split_once(':').ok_or_else(wrong)?;
    Ok(Some((password.to_owned(), true)))
}

impl Caller {
    /// Of a route that is open to everyone.
    pub(crate) fn anyone() -> Caller {
        Caller { entry: None, roles: Roles::VIEWER, is_ambient: true }
    }

    /// Who the server takes the caller for. `None` if it asks for no token.
    pub(crate) fn subject(&self) -> Option<&str> {
        self.entry.as_ref().map(|(_, entry)| entry.subject.as_str())
    }

    pub(crate) fn check_role(&self, role: Role) -> Result<(), Problem> {
        if self.roles.has(role) {
            return Ok(());
        }
        let has = self.roles.names().join(", ");
        Err(Problem::new(
            ProblemKind::Denied,
            format!("this needs the role {}, and the caller has {has}", role.as_str()),
        ))
    }

    /// The namespaces and kinds that the caller may use.
    pub(crate) fn scope(&self) -> Scope<'_> {
        Scope::of(self.entry.as_ref().map(|(_, entry)| &**entry))
    }

    /// Whether the caller may use this resource.
    pub(crate) fn check_resource(&self, resource: &Resource) -> Result<(), Problem> {
        if self.scope().has(resource) {
            return Ok(());
        }
        // The name is what the caller sent, so it tells nothing new.
        let problem =
            Problem::new(ProblemKind::Denied, "the caller's token is not for this namespace and kind");
        Err(problem.on(resource))
    }

    /// Counts a request against the rate of the token. `keeps`: a renewal or a release.
    pub(crate) fn count(&self, keeps: bool) -> Result<(), Problem> {
        self.entry.as_ref().map_or(Ok(()), |(file, entry)| file.count(entry, keeps))
    }

    /// The longest ttl that the caller may have.
    pub(crate) fn ttl_max(&self) -> Option<std::time::Duration> {
        self.entry.as_ref().and_then(|(_, entry)| entry.ttl_max())
    }

    /// Counts claims of the caller that wait.
    pub(crate) fn wait(&self, count: usize) -> Result<Option<Waiters>, Problem> {
        self.entry.as_ref().map(|(file, entry)| file.wait(entry, count)).transpose()
    }

    /// Resolves when the caller's token no longer holds: it was revoked, changed, or has expired.
    pub(crate) async fn revoked(&self) {
        match &self.entry {
            Some((file, entry)) => file.revoked(entry).await,
            None => std::future::pending().await,
        }
    }

    pub(crate) fn body(&self) -> CallerBody {
        let entry = self.entry.as_ref().map(|(_, entry)| entry);
        CallerBody {
            subject: self.subject().map(str::to_owned),
            roles: self.roles.names(),
            namespaces: entry.and_then(|entry| entry.namespaces.clone()),
            kinds: entry.and_then(|entry| entry.kinds.clone()),
        }
    }
}

/// The answer to a request whose token was revoked while it waited.
pub(crate) fn revoked() -> Problem {
    unauthenticated("the token was revoked or has expired while the request waited")
        .with_effect(leasehold_core::Effect::Unknown)
}
