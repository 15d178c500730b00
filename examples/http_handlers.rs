//! An HTTP handler that works under a lease and never waits for one. If another request works on the report, it answers
//! 409 with `Retry-After`; if an operator has paused the report, 423; if the store does not answer, 503.
//!
//! With a URL it uses that backend (`redis://…`, `sqlite:…`); without one, leases are kept in memory.
//!
//! ```text
//! cargo run -p leasehold-patterns --example http_handlers [URL]
//! ```

use std::{env, error::Error, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    http::{Request, StatusCode, header::RETRY_AFTER},
    response::{IntoResponse as _, Response},
    routing::post,
};
use leasehold::{Attempt, Busy, Client, FencingToken};
use tower::ServiceExt as _;

/// Clients are told to come again within these limits. A holder that renews ends later than its ttl says, and a client
/// that comes too often only costs.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(10);

pub(crate) fn app(leases: Client) -> Router {
    Router::new().route("/reports/{id}/export", post(export_report)).with_state(leases)
}

async fn export_report(State(leases): State<Client>, Path(id): Path<String>) -> Response {
    // One question, no place in the queue: the client of a handler does not wait, it comes again.
    let lease = match leases.lease("report", &id).label("export over HTTP").attempt().await {
        Ok(Attempt::Granted(lease)) => lease,
        Ok(Attempt::Busy(busy)) => return busy_response(&busy),
        Ok(_) => {
            return retry_later(StatusCode::SERVICE_UNAVAILABLE, RETRY_AFTER_MIN, "not granted".to_owned());
        }
        Err(error) => {
            return retry_later(StatusCode::SERVICE_UNAVAILABLE, RETRY_AFTER_MIN, error.to_string());
        }
    };
    // If the client hangs up, this future is dropped: the work stops, and the lease is released in the background.
    match lease.run(async |lease| export(&id, lease.token()).await).await {
        Ok(exported) => exported.into_response(),
        Err(lost) => retry_later(StatusCode::SERVICE_UNAVAILABLE, RETRY_AFTER_MIN, lost.to_string()),
    }
}

/// 409: another request works on it, and a repetition may succeed. 423: an operator has paused it.
fn busy_response(busy: &Busy) -> Response {
    let (status, text) = match busy.paused {
        true => (StatusCode::LOCKED, "an operator has paused this report"),
        false => (StatusCode::CONFLICT, "this report is being exported"),
    };
    retry_later(status, busy.retry_after.unwrap_or(RETRY_AFTER_MIN), text.to_owned())
}

fn retry_later(status: StatusCode, after: Duration, text: String) -> Response {
    let after = after.clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX);
    let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
    (status, [(RETRY_AFTER, seconds.to_string())], text).into_response()
}

/// The work. Its writes carry the token, and the store of the reports refuses an older one.
async fn export(id: &str, token: FencingToken) -> String {
    format!("report {id} exported with token {token}")
}

/// Sends a request, and returns the status and `Retry-After`.
pub(crate) async fn send(app: &Router, id: &str) -> Result<(u16, Option<u64>), Box<dyn Error>> {
    let request = Request::post(format!("/reports/{id}/export")).body(Body::empty())?;
    let response = app.clone().oneshot(request).await?;
    let after = response.headers().get(RETRY_AFTER);
    let after = after.map(|value| value.to_str().unwrap_or_default().parse()).transpose()?;
    Ok((response.status().as_u16(), after))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let backend = leasehold::open(&url).await?;
    let app = app(Client::new(backend.clone()));

    let (status, _) = send(&app, "42").await?;
    println!("a report that is free: {status}");
    assert_eq!(status, 200);

    let other = Client::new(backend); // another instance of the service
    let held = other.lease("report", "42").acquire().await?;
    let (status, after) = send(&app, "42").await?;
    println!("a report that another instance exports: {status}, come again in {after:?} s");
    assert_eq!(status, 409);
    assert!(after.is_some_and(|seconds| (1..=10).contains(&seconds)));

    drop(held.release().await); // a release that fails is repeated in the background
    assert_eq!(send(&app, "42").await?.0, 200);
    Ok(())
}
