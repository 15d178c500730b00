//! An HTTP service with idempotency keys: a client gets no response and sends its payment again. The service
//! charges once, and sends the first response again.
//!
//! ```text
//! cargo run -p leasehold-patterns --example payment_api
//! ```

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use axum::{Router, body::Body, http::Request, routing::post};
use leasehold_patterns::idempotency::{IdempotencyLayer, SqliteKeys};
use tower::ServiceExt as _;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let keys = SqliteKeys::open(directory.path().join("keys.db")).await?;
    let charged = Arc::new(AtomicU32::new(0));
    let pay = {
        let charged = Arc::clone(&charged);
        async move |body: String| format!("charge {} of {body}", charged.fetch_add(1, Ordering::SeqCst) + 1)
    };
    let app = Router::new().route("/payments", post(pay)).layer(IdempotencyLayer::new(keys).required());

    let sent =
        [(Some("\"a1\""), "10.00"), (Some("\"a1\""), "10.00"), (Some("\"a1\""), "99.00"), (None, "10.00")];
    let mut statuses = Vec::new();
    for (key, body) in sent {
        let mut request = Request::post("/payments");
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        let response = app.clone().oneshot(request.body(Body::from(body))?).await?;
        let (status, is_replayed) =
            (response.status(), response.headers().contains_key("idempotency-replayed"));
        let text = axum::body::to_bytes(response.into_body(), 10_000).await?;
        println!(
            "{body} with key {key:?}: {status}{}, {}",
            if is_replayed { " (repeated)" } else { "" },
            String::from_utf8_lossy(&text)
        );
        statuses.push(status.as_u16());
    }
    assert_eq!((statuses, charged.load(Ordering::SeqCst)), (vec![200, 200, 422, 400], 1));
    Ok(())
}
