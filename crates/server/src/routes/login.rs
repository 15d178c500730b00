//! `POST /v1/login` and `POST /v1/logout`: a browser keeps a person's token as a cookie.
//!
//! No answer and no log line repeats what was sent: it may be a token with a typing mistake.

use hyper::header::SET_COOKIE;
use leasehold_api::{
    Problem,
    login::{LoginBody, LoginReply, LogoutBody},
};

use crate::{
    access::{self, SessionCookie},
    answer::Answer,
    bounds::invalid,
    router::Call,
};

pub(crate) fn log_in(call: &Call<'_>, bytes: &[u8], cookie: SessionCookie) -> Result<Answer, Problem> {
    let body: LoginBody =
        leasehold_api::list::read_body(bytes).map_err(|_| invalid("the body is not {\"token\":\"lh_…\"}"))?;
    let caller = call.shared.config.access.log_in(&body.token)?;
    caller.count(false)?;
    let mut answer = Answer::json(200, &LoginReply { caller: caller.body() });
    let header = cookie.keep(&body.token).ok_or_else(access::no_such_token)?;
    answer.headers.insert(SET_COOKIE, header);
    Ok(answer)
}

pub(crate) fn log_out(bytes: &[u8], cookie: SessionCookie) -> Result<Answer, Problem> {
    if !bytes.is_empty() {
        leasehold_api::list::read_body::<LogoutBody>(bytes).map_err(|_| invalid("the body is not {}"))?;
    }
    let mut answer = Answer::empty(204);
    answer.headers.insert(SET_COOKIE, cookie.remove());
    Ok(answer)
}
