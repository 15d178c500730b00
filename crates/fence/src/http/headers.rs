//! A pass as headers, written and read.

use ::http::{HeaderMap, HeaderName, HeaderValue};
use leasehold_core::{OwnerHash, Pass, Resource};

use super::problem::Problem;

/// The token, in decimal digits.
pub const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");
/// The hash of the owner.
pub const FENCING_OWNER: HeaderName = HeaderName::from_static("fencing-owner");
/// The resource, as its key is encoded.
pub const FENCING_RESOURCE: HeaderName = HeaderName::from_static("fencing-resource");

/// Shows a pass in a request, whichever client sends it. What was shown before is replaced.
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
    // Digits, hex digits and a percent-encoded name are all visible ASCII.
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

/// The pass that a request shows for this resource; none if it has no token.
pub(super) fn read(headers: &HeaderMap, resource: &Resource) -> Result<Option<Pass>, Problem> {
    let shown = one(headers, &FENCING_TOKEN)?;
    let owner = one(headers, &FENCING_OWNER)?;
    if one(headers, &FENCING_RESOURCE)?.is_some_and(|named| named != resource.key()) {
        return Err(Problem::bad("Fencing-Resource names another resource than the request is for"));
    }
    let Some(token) = shown else { return Ok(None) };
    let token =
        token.parse().map_err(|_| Problem::bad("Fencing-Token is a number from 1 to 2^53 - 1, in digits"))?;
    let pass = Pass::new(resource.clone(), token);
    match owner.map(str::parse::<OwnerHash>) {
        None => Ok(Some(pass)),
        Some(Ok(owner)) => Ok(Some(pass.owned_by(owner))),
        Some(Err(error)) => Err(Problem::bad(format!("Fencing-Owner: {error}"))),
    }
}

/// The value of a header that may be there once.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Problem> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Problem::bad(format!("{name} is there more than once")));
    }
    value.to_str().map(Some).map_err(|_| Problem::bad(format!("{name} is not plain text")))
}
