//! `POST /v1/login` and `POST /v1/logout`: the token of a person, kept by their browser as a cookie.
//!
//! The cookie is the token itself, so every server of the tokens file knows it. A browser sends it by itself, so a request with it is
//! refused if a page of another site has sent it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::info::CallerBody;

/// The request.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LoginBody {
    /// The token: `lh_<id>_<secret>`.
    pub token: String,
}

impl fmt::Debug for LoginBody {
    /// Without the token, so that no log has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoginBody").finish_non_exhaustive()
    }
}

/// The answer: the cookie is in its header `Set-Cookie`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct LoginReply {
    /// What the caller may do.
    pub caller: CallerBody,
}

/// The request of a log-out: an empty object. The body may also be left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LogoutBody {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_shown() {
        let body = LoginBody { token: "lh_0a1b2c3d_5ec2e7".to_owned() };
        assert!(!format!("{body:?}").contains("lh_"));
    }
}
