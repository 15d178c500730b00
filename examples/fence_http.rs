//! An HTTP fence: a service that checks the fencing token of each request before its handler, and a client
//! that sends it.
//!
//! ```text
//! cargo run -p leasehold-fence --example fence_http
//! ```

use std::error::Error;

use axum::{Extension, Router, body::Body, routing};
use http::{Request, StatusCode};
use leasehold_fence::{
    Pass, Resource,
    http::{FenceLayer, SqliteMarks, show},
};
use rusqlite::Connection;
use tower::ServiceExt as _;

/// The handler can get the pass that was admitted, for a database that has a fence of its own.
async fn update(Extension(pass): Extension<Pass>, body: String) -> String {
    format!("{} is {body}, with token {}", pass.resource, pass.token)
}

fn service() -> Result<Router, Box<dyn Error>> {
    let marks = SqliteMarks::new(Connection::open_in_memory()?)?; // use a file in production: it must survive the process
    let fence = FenceLayer::new(marks, |request| match request.uri.path().strip_prefix("/orders/") {
        // These order ids are digits. Other ids arrive percent-encoded: decode them first.
        Some(id) => Resource::new("order", id).map(Some),
        None => Ok(None),
    });
    Ok(Router::new().route("/orders/{id}", routing::put(update)).layer(fence))
}

/// A request with a pass, which is three headers.
fn request(pass: Option<&Pass>, body: &'static str) -> Result<Request<Body>, http::Error> {
    let mut request = Request::put("/orders/7").body(Body::from(body))?;
    if let Some(pass) = pass {
        show(request.headers_mut(), pass);
    }
    Ok(request)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let service = service()?;
    let send = async |pass: Option<&Pass>, body| -> Result<StatusCode, Box<dyn Error>> {
        let response = service.clone().oneshot(request(pass, body)?).await?;
        let status = response.status();
        let bytes = axum::body::to_bytes(response.into_body(), 10_000).await?;
        println!("{status}: {}", String::from_utf8_lossy(&bytes));
        Ok(status)
    };
    let leases = leasehold::connect("memory:").await?;
    let first = leases.lease("order", "7").acquire().await?;
    let stale = first.pass();
    assert_eq!(send(Some(&stale), "paid").await?, 200);
    drop(first.release().await); // it is written: a release that fails is repeated in the background
    let second = leases.lease("order", "7").acquire().await?;
    assert_eq!(send(Some(&second.pass()), "shipped").await?, 200);
    assert_eq!(send(Some(&stale), "paid, again").await?, 412);
    assert_eq!(send(None, "lost").await?, 428);
    drop(second.release().await);
    Ok(())
}
