//! Writes and reads a pass as HTTP headers.

use ::http::{HeaderMap, HeaderName, HeaderValue};
use leasehold_core::{OwnerHash, Pass, Resource};

use super::problem::Problem;

/// The header with the token, in decimal digits.
pub const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");
/// The header with the hash of the owner.
pub const FENCING_OWNER: HeaderName = HeaderName::from_static("fencing-owner");
/// The header with the key of the resource, percent-encoded.
pub const FENCING_RESOURCE: HeaderName = HeaderName::from_static("fencing-resource");

/// Sets the headers of a request that show a pass, for any HTTP client. Replaces the headers of an earlier pass.
///
/// ```
/// use leasehold_fence::{FencingToken, Pass, Resource, http};
///
/// let pass = Pass::new(Resource::new("order", "7")?, FencingToken::new(34)?); // with a lease: lease.pass()
/// let mut request = ::http::Request::put("http://127.0.0.1/orders/7").body("paid")?;
/// http::show(request.headers_mut(), &pass);
/// assert_eq!(request.headers()["fencing-token"], "34");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn show(headers: &mut HeaderMap, pass: &Pass) {
    // Digits, hex digits and a percent-encoded key are visible ASCII, so `try_from` cannot fail.
    let mut set = |name: HeaderName, value: Option<String>| {
        headers.remove(&name);
        if let Some(Ok(value)) = value.map(HeaderValue::try_from) {
            headers.insert(name, value);
        }
    };
    set(FENCING_TOKEN, Some(pass.token.to_string()));
    set(FENCING_OWNER, pass.owner.map(|owner| owner.to_string()));
    set(FENCING_RESOURCE, Some(pass.resource.key().to_owned()));
}

/// The pass of a request for this resource; `None` if it has no token.
pub(super) fn read(headers: &HeaderMap, resource: &Resource) -> Result<Option<Pass>, Problem> {
    let token = single(headers, &FENCING_TOKEN)?;
    let owner = single(headers, &FENCING_OWNER)?;
    if single(headers, &FENCING_RESOURCE)?.is_some_and(|key| key != resource.key()) {
        return Err(Problem::bad("Fencing-Resource names another resource than the request is for"));
    }
    let Some(token) = token else { return Ok(None) };
    let token = token
        .parse()
        .map_err(|_| Problem::bad("Fencing-Token must be a number from 1 to 2^53 - 1, in digits"))?;
    let pass = Pass::new(resource.clone(), token);
    match owner.map(str::parse::<OwnerHash>) {
        None => Ok(Some(pass)),
        Some(Ok(owner)) => Ok(Some(pass.owned_by(owner))),
        Some(Err(error)) => Err(Problem::bad(format!("Fencing-Owner: {error}"))),
    }
}

/// The value of a header that must not be repeated.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Problem> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Problem::bad(format!("the header {name} is there more than once: send it once")));
    }
    value.to_str().map(Some).map_err(|_| Problem::bad(format!("the header {name} is not visible ASCII")))
}
